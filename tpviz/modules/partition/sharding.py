"""Shards: the parts that a graph is cut into before stages are made of them.

The rule is that of the authors' release (graph sharding, adapted there from fairscale; written here
as one walk over legal cuts, derived): a cut is *legal* where a single value crosses it, besides
*hot* ones, see `Crossing`. A shard is closed at the first legal cut at which it has more
parameters than a share of all; an embedding, which does not count in the total, closes its own.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, Literal

from tpviz.core.checks import whole_number

if TYPE_CHECKING:
    from .graph import ModelGraph

# -- which values cross a place in the body of a graph, and which may do so in any number ----------
HOT = 5
"""A value that more operations use than this may cross a cut beside the one (the release's)."""


class Crossing:
    """Values made before a place and used behind it, or by the model's caller.

    hot : names of those needed in many places: by more than `HOT` operations (the release's rule),
    by several layers of one stack (a memory that all decoders attend to; ours, so that small
    models can be cut as large ones), or into which no parameter went.
    """

    def __init__(self, graph: "ModelGraph"):
        self.nodes = {node.name: node for node in graph.body}
        self.order = {name: k for k, name in enumerate(self.nodes)}
        users, self.last = {name: [] for name in self.nodes}, {}
        for k, node in enumerate(graph.body):
            for name in node.takes:
                if name in users:
                    users[name].append(node)
                    self.last[name] = k
        self.last |= {name: len(graph.body) for name in graph.results if name in self.nodes}
        self.hot = {name for name, of in users.items() if self._hot(self.nodes[name], of)}

    def _hot(self, node, users):
        layers = {layer for user in users if (layer := layer_of(user.path))}
        return (
            not node.learned
            or len(users) > HOT
            or len({stack for stack, _ in layers}) < len(layers)
        )

    def at(self, places: Iterable[int]) -> list[list[str]]:
        """[names, in the order they are made] of what crosses before each operation of ``places``,
        numbers in ascending order."""
        found, alive, made = [], {}, iter(self.order.items())
        ahead = next(made, None)
        for place in places:
            while ahead and ahead[1] < place:
                if ahead[0] in self.last:
                    alive[ahead[0]] = self.last[ahead[0]]
                ahead = next(made, None)
            alive = {name: last for name, last in alive.items() if last >= place}
            found.append(list(alive))
        return found

    def legal(self, names: Sequence[str], most: int) -> bool:
        """Whether a cut is legal where these values cross: at most ``most`` that are not hot."""
        return (
            bool(names)
            and sum(name not in self.hot for name in names) <= most
            and all(self.nodes[name].value for name in names)
        )


def layer_of(path: str) -> tuple[str, int] | None:
    """("h", 3) of "h.3.mlp.up": the outermost numbered place on a path; None without one."""
    match = re.match(r"(?:(.*?)\.)?(\d+)(?:\.|$)", path)
    return (match[1] or "", int(match[2])) if match else None


@dataclass(frozen=True)
class Shard:
    """Operations ``start`` to ``stop`` (excluded) of a graph's body.

    numel : elements of the parameters that no earlier shard uses. flops : FLOPs of its forward.
    paths : paths of the modules with parameters that it calls.
    """

    start: int
    stop: int
    numel: int
    flops: int
    paths: tuple[str, ...]


def shard(
    graph: "ModelGraph", count: int | Literal["finest"] | None = None, cross: int = 1
) -> tuple[Shard, ...]:
    """The shards of a `ModelGraph`, in order, a tuple of `Shard`.

    count : roughly how many, as ``shard_count`` of the release: a shard is closed once it has more
    than 1/count of the parameters that are in no embedding. Nothing is torn finer than is legal, so
    there may be fewer or, with embeddings, a few more. By default 2 L + 4 for a model of L repeated
    layers, else "finest": a cut at every legal place since which there are parameters.
    cross : how many tensors may cross a cut, hot ones aside; with 2 or more, models with long skips
    can be cut inside of them, and stages between hand on what is not theirs.

    Raises ``ValueError`` for a count or ``cross`` below 1.
    """
    if count is None:
        layers = num_layers(graph)
        count = 2 * layers + 4 if layers else "finest"
    embeddings = {name for node in graph.body if node.embedding for name in node.parameters}
    embeddings = {graph.first_names.get(name, name) for name in embeddings}
    first_use = _first_uses(graph)
    share = 0
    if isinstance(count, str) and count != "finest":
        raise ValueError(f"count={count!r} is not possible: use a whole number or 'finest'")
    if count != "finest":
        total = sum(
            numel for use in first_use for name, numel in use.items() if name not in embeddings
        )
        share = total // whole_number("count", count)
    legal, starts, found = legal_cuts(graph, whole_number("cross", cross)), [0], 0
    for place, (node, use) in enumerate(zip(graph.body, first_use), 1):
        found += share + 1 if node.embedding else sum(use.values())
        if found > share and place in legal:
            starts.append(_best(place, legal, graph.body))
            found = 0
    return tuple(
        Shard(
            a,
            b,
            sum(sum(use.values()) for use in first_use[a:b]),
            sum(node.flops for node in graph.body[a:b]),
            tuple(dict.fromkeys(node.path for node in graph.body[a:b] if node.parameters)),
        )
        for a, b in pairwise([*starts, len(graph.body)])
    )


def legal_cuts(graph: "ModelGraph", cross: int = 1) -> dict[int, int]:
    """{place: bytes that cross} where the body of a graph may be cut, before operation ``place``.

    There ``cross`` tensors cross at most, hot ones aside; parameters follow; and what is written
    into is not torn from what else lies in its storage.
    """
    crossing, torn = Crossing(graph), _torn(graph.body)
    last = max((k for k, node in enumerate(graph.body) if node.parameters), default=0)
    places = range(1, last + 1)
    return {
        place: sum(crossing.nodes[name].value.bytes for name in names)  # pyright: ignore[reportOptionalMemberAccess]
        for place, names in zip(places, crossing.at(places))
        if place not in torn and crossing.legal(names, cross)
    }


def _best(place, legal, body):
    """Of the legal places up to the next parameters the one where the fewest bytes cross, the last
    of them: a dropout or a view stays with what it follows. The module that has those parameters is
    not entered."""
    stop = next(k for k in range(place, len(body)) if body[k].parameters)
    before, behind = (body[k].path.split(".") for k in (place - 1, stop))
    for k in range(place, stop):
        if _common(body[k].path.split("."), behind) > _common(before, behind):
            stop = k
            break
    return min(range(stop, place - 1, -1), key=lambda k: legal.get(k, float("inf")))


def _common(path, other):
    """How many modules around one place are around the other, too."""
    return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(path, other))))


def _torn(body):
    """Places inside of what has to be one stage's: from where a storage comes up to the last write
    into it; of a buffer up to its last use, since another stage would have another copy."""
    written = set().union(*(node.writes for node in body))
    spans = {}
    for k, node in enumerate(body):
        for storage in node.touches & written:
            start, stop = spans.get(storage, (k, k))
            held = isinstance(storage, str) or storage in node.writes
            spans[storage] = start, k if held else stop
    return {place for start, stop in spans.values() for place in range(start + 1, stop + 1)}


def _first_uses(graph):
    """Of each operation {first name: elements} of the parameters that none before it uses."""
    seen, found = set(), []
    for node in graph.body:
        new = {graph.first_names.get(name, name) for name in node.parameters} - seen
        seen |= new
        found.append({name: graph.parameters[name].numel for name in new})
    return found


def num_layers(graph: "ModelGraph") -> int:
    """Repeated layers: numbered places with parameters, of stacks all of whose places are of one
    type; 0 if there are none."""
    found = {}
    for node in graph.body:
        if node.parameters and (layer := layer_of(node.path)):
            found.setdefault(layer, graph.types.get(".".join(filter(None, map(str, layer)))))
    stacks = {}
    for (container, _), kind in found.items():
        stacks.setdefault(container, []).append(kind)
    return sum(len(kinds) for kinds in stacks.values() if len(set(kinds)) == 1 and len(kinds) > 1)

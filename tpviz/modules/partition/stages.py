"""What each stage of a pipeline has, does, receives and sends."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from .sharding import Crossing

if TYPE_CHECKING:
    import torch

    from .graph import ModelGraph, Node
    from .sharding import Shard


class StageMessage(NamedTuple):
    """A tensor that goes from one stage to the next, once each microbatch.

    from_stage, path : the stage and the module that made it; stages between that one and its users
    hand it on. trained : whether its gradient comes back.
    """

    name: str
    shape: tuple[int, ...]
    dtype: "torch.dtype"
    bytes: int
    from_stage: int
    trained: bool
    path: str


class Piece(NamedTuple):
    """The operations of one shard. takes, gives : names of the values before and after it."""

    nodes: "tuple[Node, ...]"
    takes: tuple[str, ...]
    gives: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class StagePart:
    """One stage of a partition; sizes are those of one microbatch.

    paths : the outermost modules that lie entirely in the stage. parameters, buffers : names of
    those it holds; a tied one is in every stage that uses it. numel : elements of these parameters.
    flops : FLOPs of its forward. activation_bytes : bytes that autograd keeps for backward, an
    estimate. receives, sends : lists of `StageMessage`. inputs : names of the model's inputs that
    it needs itself. pieces : a `Piece` for each of its shards. free : the free nodes (see `graph`)
    that it computes itself.
    """

    index: int
    paths: tuple[str, ...]
    parameters: tuple[str, ...]
    buffers: tuple[str, ...]
    numel: int
    flops: int
    activation_bytes: int
    receives: tuple[StageMessage, ...]
    sends: tuple[StageMessage, ...] | None
    inputs: tuple[str, ...]
    pieces: tuple[Piece, ...] = field(repr=False)
    free: "tuple[Node, ...]" = field(repr=False)

    @cached_property
    def nodes(self) -> "tuple[Node, ...]":
        """The stage's operations in the graph's body, in order."""
        return tuple(node for piece in self.pieces for node in piece.nodes)


def stage_parts(
    graph: "ModelGraph", shards: "Sequence[Shard]", ranges: Sequence[tuple[int, int]]
) -> tuple[StagePart, ...]:
    """The `StagePart` of each range of shards."""
    bounds = [shards[a].start for a, _ in ranges] + [len(graph.body)]
    crossing = Crossing(graph)
    cuts = [[], *crossing.at(bounds[1:-1]), list(graph.results)]
    home = {node.name: k for k, (a, b) in enumerate(pairwise(bounds)) for node in graph.body[a:b]}
    whole = _whole_paths(graph, home)
    left = _left_over(graph, home)
    inside = crossing.at([s.stop for s in shards])
    found = []
    for k, (a, b) in enumerate(ranges):
        body = graph.body[bounds[k] : bounds[k + 1]]
        last = k == len(ranges) - 1
        free, inputs = _needs(graph, body, graph.results if last else ())
        pieces = _pieces(graph, shards[a:b], inside[a:b], cuts[k], cuts[k + 1], free, inputs)
        used = list(
            dict.fromkeys(
                name for node in (*free, *body) for name in (*node.parameters, *node.buffers)
            )
        )
        used += [other for name in used for other in graph.aliases.get(name, ())] + left[k]
        parameters = tuple(name for name in used if name in graph.parameters)
        kept = {storage: size for node in body for storage, size in node.saves.items()}
        found.append(
            StagePart(
                k,
                whole[k],
                parameters,
                tuple(name for name in used if name not in graph.parameters),
                graph.numel(parameters),
                sum(node.flops for node in (*free, *body)),
                sum(kept.values()),
                _messages(crossing, cuts[k], home),
                None if last else _messages(crossing, cuts[k + 1], home),
                tuple(inputs),
                pieces,
                free,
            )
        )
    return tuple(found)


def _messages(crossing, names, home):
    nodes = [(crossing.nodes[name], crossing.nodes[name].value) for name in names]
    return tuple(
        StageMessage(v.name, v.shape, v.dtype, v.bytes, home[v.name], node.trained, node.path)
        for node, v in nodes
    )


def _needs(graph, body, results):
    """(free nodes, names of inputs) that these operations and results need, in order."""
    needed = {name for node in body for name in node.takes} | set(results)
    free = []
    for node in reversed(graph.nodes):
        if node.free and node.name in needed:
            free.append(node)
            needed.update(node.takes)
    return tuple(reversed(free)), [name for name in graph.inputs if name in needed]


def _pieces(graph, shards, inside, first, last, free, inputs):
    """Between pieces go the values that cross there, and what later pieces need of what the stage
    computes or loads for itself."""
    own = [*inputs, *(node.name for node in free if node.op != "get_attr")]
    needs, ahead = [], set(last)
    for s in reversed(shards):
        ahead = ahead | {name for node in graph.body[s.start : s.stop] for name in node.takes}
        needs.append(tuple(name for name in own if name in ahead))
    values = [(*names, *need) for names, need in zip([first, *inside], reversed(needs))]
    values.append(tuple(dict.fromkeys(last)))
    return tuple(
        Piece(graph.body[s.start : s.stop], takes, gives)
        for s, takes, gives in zip(shards, values[:-1], values[1:])
    )


def _whole_paths(graph, home):
    """Of each stage the outermost modules all of whose operations are in it."""
    stages = {}
    for node in graph.body:
        path = node.path
        while path:
            stages.setdefault(path, set()).add(home[node.name])
            path = path.rpartition(".")[0]
    found = [[] for _ in range(1 + max(home.values()))]
    for path in graph.types:
        if len(stages.get(path, ())) == 1:
            above = path.rpartition(".")[0]
            if not above or len(stages[above]) > 1:
                found[min(stages[path])].append(path)
    return [tuple(paths) for paths in found]


def _left_over(graph, home):
    """Of each stage the parameters and buffers that the forward does not use: they are where the
    one before them in the model is, so that all stages together have the whole state."""
    used = {name for node in graph.nodes for name in (*node.parameters, *node.buffers)}
    used |= {other for name in used for other in graph.aliases.get(name, ())}
    where, stage = {}, 0
    for node in graph.body:
        for name in (*node.parameters, *node.buffers):
            where.setdefault(name, home[node.name])
    found = [[] for _ in range(1 + max(home.values()))]
    for names in (graph.parameters, graph.buffers):
        for name in names:
            stage = where.get(name, stage)
            if name not in used:
                found[stage].append(name)
    return found

"""ZeRO inside a pipeline: which of a stage's parameters share a flat buffer, and when they are
gathered and reduced.

Stage 1: a stage is one buffer. Its gradients are added up whole, as without ZeRO, and
reduce-scattered once at the end of the step. At stages 2 and 3 the embedding, each block and the
head are *units*, and a microbatch's gradients of a unit are reduce-scattered when its backward is
done, while that of the next unit goes on, and added to the rank's share: whole gradients exist of
two units at most. At stage 3 a unit's parameters too are gathered for each forward, recomputation
and backward, the next unit's meanwhile. Passes of a stage share nothing: each begins and ends with
nothing in flight.

Each class of parameters with its own replicas (`Staged.classes`) has its own buffers. So have
gradients that are summed once more at the end (at stages 2 and 3 as shards): the weight that both
ends share ("ends"), and what the factor inside adds up, by its axes ("tp").

Rajbhandari et al. 2020 (arXiv 1910.02054); with pipelines as DeepSpeed and PyTorch FSDP (derived).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from sys import maxsize
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from tpviz.core.step import Collective, Part
from tpviz.schemes.replicas import Replicas
from tpviz.schemes.zero.buckets import Bucket, fill_buckets, unit_of
from tpviz.schemes.zero.step import ExchangeParts

from .split import HEAD, TOKENS

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .staged import Staged

_Key = TypeVar("_Key")


class Kind(NamedTuple):
    """Parameters of a unit that share a buffer. once : how gradients are summed at the end besides:
    "ends", axes, "ends+tp", or "". of : who adds them up, and shares states."""

    once: str
    of: Replicas


def groups(
    s: "Staged", w: "GPT", shapes: Mapping[str, tuple[int, ...]]
) -> dict[tuple[str, Kind], dict[str, tuple[int, ...]]]:
    """{(unit, kind): {parameter: shape}}, each one flat buffer; of a stage's parameters that have
    replicas. At stage 1 there is one for all units of each class."""
    found = _by_unit(s.inside, s.sharing, w, shapes)
    if s.zero_stage == 1:
        of_class: dict[Any, dict[str, tuple[int, ...]]] = {}
        for (_, kind), of in found.items():
            of_class.setdefault(("", Kind("", kind.of)), {}).update(of)
        found = {key: {n: shapes[n] for n in shapes if n in of} for key, of in of_class.items()}
    return {key: of for key, of in sorted(found.items()) if key[1].of.ranks > 1}


def _by_unit(inside, sharing, w, shapes):
    found, once = {}, {name: ["ends"] for name in (TOKENS, HEAD)} if w.tied else {}
    for axis, names in with_copies(inside.summed(w), w).items():
        for name in names:
            once.setdefault(name, []).append(axis)
    classes = with_copies(inside.classes_among(w, sharing), w).items()
    of = {name: replicas for replicas, names in classes for name in names}
    for name, shape in shapes.items():
        kind = Kind("+".join(once.get(name, ())), of[name])
        found.setdefault((unit_of(name), kind), {})[name] = shape
    return dict(sorted(found.items()))


def with_copies(names: Mapping[_Key, Sequence[str]], w: "GPT") -> dict[_Key, list[str]]:
    """{key: parameters} with the last stage's copy of a weight that both ends share."""
    copies = {TOKENS: [TOKENS, HEAD]} if w.tied else {}
    return {
        key: [one for name in of for one in copies.get(name, [name])] for key, of in names.items()
    }


def flat_buckets(s: "Staged", w: "GPT", shapes: Mapping[str, tuple[int, ...]]) -> list[Bucket]:
    """The `Bucket` of each of the `groups`, in order. shapes : {parameter of the rank: shape}."""
    made = groups(s, w, shapes).items()
    return [fill_buckets(of, kind.of, 1, maxsize, 1)[0] for (_, kind), of in made]


def visits(units: Sequence[str], action: str, drop: int = 0) -> list[str]:
    """The units that a stage's "forward", "recompute" or "backward" goes through, in order. units :
    those of the stage, first to last. drop : number of recomputed blocks."""
    if action == "recompute":
        return [unit for unit in units if unit.startswith("blocks")][:drop]
    return list(units if action == "forward" else reversed(units))


def padded(numel: int, ranks: int) -> int:
    """``numel`` rounded up to a multiple of ``ranks``."""
    return -(-numel // ranks) * ranks


def unit_numels(s: "Staged", w: "GPT", unit: str) -> dict[Kind, int]:
    """{kind: elements of the flat buffer} of a unit under ZeRO 2 and 3; of one without replicas, of
    its parameters."""
    return {kind: padded(numel, kind.of.ranks) for kind, numel in counted(s, w, unit).items()}


def counted(s: "Staged", w: "GPT", unit: str) -> dict[Kind, int]:
    """{kind: number of a rank's parameters} of a unit; both ends count a shared weight."""
    name, _, number = unit.partition(".")
    in_blocks = name == "blocks"
    like = w.like(int(number)) if in_blocks else w
    found = _counted(s.inside, tuple(s.sharing.items()), like.one_layer)
    return found["blocks.0" if in_blocks else unit]


@lru_cache(maxsize=256)
def _counted(inside, sharing, one):
    """By unit, of a model of one block."""
    found, shapes = {}, dict(inside.flat_shapes(one))
    if one.tied:
        shapes[HEAD] = shapes[TOKENS]
    for (unit, kind), of in _by_unit(inside, dict(sharing), one, shapes).items():
        found.setdefault(unit, {})[kind] = sum(map(prod, of.values()))
    return found


def units_of(blocks: Sequence[int], first: bool, last: bool) -> list[str]:
    """The units of a stage, in order."""
    return ["embed"] * first + [f"blocks.{number}" for number in blocks] + ["head"] * last


def sharded(
    s: "Staged", w: "GPT", units: Sequence[str], action: str, parts: list[Part], drop: int = 0
) -> list[Part]:
    """``parts`` of a stage's "forward", "recompute" or "backward", with ZeRO's collectives."""
    if s.zero_stage < 2:
        return parts
    numels = {unit: unit_numels(s, w, unit).items() for unit in units}
    of_unit: dict[str, list[Part]] = {}
    for part in parts:
        of_unit.setdefault(unit_of(part.layer), []).append(part)

    def collectives(kind, unit):
        return [
            Collective(of.axis, kind, numel * w.itemsize)
            for (_, of), numel in numels[unit]
            if of.ranks > 1
        ]

    exchange = ExchangeParts(s.zero, {unit: collectives("all_gather", unit) for unit in units})
    order = visits(units, action, drop)
    exchange.begin(action, order)
    for unit in order:
        exchange.enter(unit)
        exchange.add(action)
        exchange.parts += of_unit.get(unit, [])
        if action == "backward":
            exchange.reduce(collectives("reduce_scatter", unit), "sync")
    exchange.wait()
    exchange.add(action)
    return exchange.parts


def most_whole(s: "Staged", w: "GPT", units: Sequence[str]) -> int:
    """The most elements of full (unsharded) buffers that a stage has at once: two adjacent units.
    At ZeRO 3 the next unit's parameters, at 2 and 3 the previous one's gradients are in flight."""
    kinds = (unit_numels(s, w, unit).items() for unit in units)
    sizes = [0, *(sum(n for kind, n in of if kind.of.ranks > 1) for of in kinds)]
    return max(map(sum, pairwise(sizes)), default=0)

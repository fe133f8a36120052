"""ZeRO inside a pipeline: which of a stage's parameters share a flat buffer, and when they are
gathered and reduced.

Stage 1: a stage is one buffer. Its gradients are added up whole, as without ZeRO, and
reduce-scattered once at the end of the step. At stages 2 and 3 the embedding, each block and the
head are *units*, and a microbatch's gradients of a unit are reduce-scattered when its backward is
done, while that of the next unit goes on, and added to the rank's share: whole gradients exist of
two units at most. At stage 3 a unit's parameters too are gathered for each forward, recomputation
and backward, the next unit's meanwhile. Passes of a stage share nothing: each begins and ends with
nothing in flight.

Gradients that are summed once more at the end (at stages 2 and 3 as shards) have buffers of their
own: the weight that both ends share ("ends"), and what the factor inside adds up, by its axes
("tp", "ep+tp").

Rajbhandari et al. 2020 (arXiv 1910.02054); with pipelines as DeepSpeed and PyTorch FSDP (derived).
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import pairwise
from math import prod
from sys import maxsize
from typing import TYPE_CHECKING

from tpviz.core.step import Collective, Part
from tpviz.schemes.zero.buckets import Bucket, fill_buckets, unit_of
from tpviz.schemes.zero.step import ExchangeParts

from .split import HEAD, TOKENS

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.grid.tensor import TensorParallel

    from .staged import Staged


def groups(
    s: "Staged", w: "GPT", shapes: Mapping[str, tuple[int, ...]]
) -> dict[tuple[str, str], dict[str, tuple[int, ...]]]:
    """{(unit, kind): {parameter: shape}}, each one flat buffer; of a stage's parameters. A kind is
    how gradients are summed at the end: "ends", axes, "ends+ep", or "". At stage 1 there is one,
    ("", "").
    """
    if s.zero_stage > 1:
        return _by_unit(s.inside, w, shapes)
    return {("", ""): dict(shapes)} if shapes else {}


def _by_unit(inside, w, shapes):
    found, once = {}, {name: ["ends"] for name in (TOKENS, HEAD)} if w.tied else {}
    for axis, names in summed_names(inside, w).items():
        for name in names:
            once.setdefault(name, []).append(axis)
    for name, shape in shapes.items():
        kind = "+".join(once.get(name, ()))
        found.setdefault((unit_of(name), kind), {})[name] = shape
    return dict(sorted(found.items()))


def summed_names(inside: "TensorParallel", w: "GPT") -> dict[str, list[str]]:
    """As of `Strategy.summed`, with the last stage's copy of a weight that both ends share."""
    copies = {TOKENS: [TOKENS, HEAD]} if w.tied else {}
    return {
        axis: [one for name in names for one in copies.get(name, [name])]
        for axis, names in inside.summed(w).items()
    }


def flat_buckets(s: "Staged", w: "GPT", shapes: Mapping[str, tuple[int, ...]]) -> list[Bucket]:
    """The `Bucket` of each of the `groups`, in order. shapes : {parameter of the rank: shape}."""
    made = (fill_buckets(of, s.replicas, 1, maxsize, 1) for of in groups(s, w, shapes).values())
    return [bucket for (bucket,) in made]


def visits(units: Sequence[str], action: str, drop: int = 0) -> list[str]:
    """The units that a stage's "forward", "recompute" or "backward" goes through, in order. units :
    those of the stage, first to last. drop : number of recomputed blocks."""
    if action == "recompute":
        return [unit for unit in units if unit.startswith("blocks")][:drop]
    return list(units if action == "forward" else reversed(units))


def padded(numel: int, ranks: int) -> int:
    """``numel`` rounded up to a multiple of ``ranks``."""
    return -(-numel // ranks) * ranks


def unit_numels(s: "Staged", w: "GPT", unit: str) -> dict[str, int]:
    """{kind of `groups`: elements of the flat buffer} of a unit under ZeRO 2 and 3."""
    kinds = counted(s.inside, w, unit)
    return {kind: padded(numel, s.replicas.ranks) for kind, numel in kinds.items()}


def counted(inside: "TensorParallel", w: "GPT", unit: str) -> dict[str, int]:
    """{kind of `groups`: number of a rank's parameters} of a unit; both ends count a shared
    weight."""
    name, _, number = unit.partition(".")
    if name != "blocks":
        return _counted(inside, w.one_layer)[unit]
    return _counted(inside, w.like(int(number)).one_layer)["blocks.0"]


@lru_cache(maxsize=256)
def _counted(inside, one):
    """By unit, of a model of one block."""
    found, shapes = {}, dict(inside.flat_shapes(one))
    if one.tied:
        shapes[HEAD] = shapes[TOKENS]
    for (unit, kind), of in _by_unit(inside, one, shapes).items():
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
    axis, numels = s.replicas.axis, {unit: unit_numels(s, w, unit).values() for unit in units}
    of_unit: dict[str, list[Part]] = {}
    for part in parts:
        of_unit.setdefault(unit_of(part.layer), []).append(part)

    def collectives(kind, unit):
        return [Collective(axis, kind, numel * w.itemsize) for numel in numels[unit]]

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
    sizes = [0, *(sum(unit_numels(s, w, unit).values()) for unit in units)]
    return max(map(sum, pairwise(sizes)), default=0)

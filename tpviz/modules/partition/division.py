"""`partition_of`: shards to stages, and what follows from it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tpviz.core.checks import one_of, whole_number
from tpviz.core.show import Tabular

from . import report
from .emit import TracedStage
from .sharding import Shard, shard
from .stages import StagePart, stage_parts

if TYPE_CHECKING:
    import torch
    from torch import nn

    from .graph import ModelGraph

BALANCES = ("uniform", "uniform_floor", "parameters", "flops")


def partition_of(
    graph: "ModelGraph",
    stages: int,
    shards: Iterable[Shard] | None = None,
    balance: str | Sequence[float] | np.ndarray = "uniform",
) -> "Partition":
    """A `ModelGraph` in ``stages`` contiguous stages: a `Partition`.

    shards : of `shard`; by default its own default, and the finest where those are too few.
    balance : "uniform", "uniform_floor" (how many shards a stage has), "parameters" or "flops" (the
    largest stage is as small as can be, exact), or a list of seconds, one a shard, of which the
    slowest stage has as few as can be.

    Raises ``ValueError`` for more stages than shards, and for seconds that are not one a shard.
    """
    stages = whole_number("stages", stages)
    if shards is None:
        shards = shard(graph)
        shards = shards if len(shards) >= stages else shard(graph, "finest")
    shards = tuple(shards)
    if stages > len(shards):
        raise ValueError(
            f"{graph.model} has {len(shards)} shards, {stages} stages are too many: "
            f"use at most {len(shards)}{_finer(graph, len(shards))}"
        )
    ranges = _ranges(shards, stages, balance)
    return Partition(
        graph, shards, tuple(ranges), balance if isinstance(balance, str) else "seconds"
    )


def _finer(graph, have):
    """What gives more shards, if anything does."""
    for cross in (1, 2, 3, 4):
        if (found := len(shard(graph, "finest", cross))) > have:
            more = f", cross={cross}" if cross > 1 else ""
            return f", or shards=shard(graph, 'finest'{more}), which gives {found}"
    return ""


def _ranges(shards, stages, balance):
    if isinstance(balance, str):
        one_of("balance", balance, BALANCES)
        if balance in ("uniform", "uniform_floor"):
            return {"uniform": uniform, "uniform_floor": uniform_floor}[balance](
                len(shards), stages
            )
        return smallest_largest(
            [s.numel if balance == "parameters" else s.flops for s in shards], stages
        )
    seconds = np.asarray(balance, dtype=float)
    if seconds.shape != (len(shards),) or not (np.isfinite(seconds) & (seconds >= 0)).all():
        raise ValueError(
            f"balance by seconds needs {len(shards)} numbers >= 0, one a shard, not "
            f"{balance!r}: use those, or one of {', '.join(BALANCES)}"
        )
    return smallest_largest(seconds, stages)


@dataclass(frozen=True, eq=False)
class Partition(Tabular):
    """Which operations of a traced model are on which stage. Made by `partition_of`.

    ranges : the first shard of each stage, and the one after its last. balance : the quantity that
    was balanced over the stages.
    """

    graph: "ModelGraph"
    shards: tuple[Shard, ...]
    ranges: tuple[tuple[int, int], ...]
    balance: str
    _look = "tpviz-partition"

    @cached_property
    def stages(self) -> tuple[StagePart, ...]:
        """The `StagePart` of every stage."""
        return stage_parts(self.graph, self.shards, self.ranges)

    @cached_property
    def tied_weights(self) -> list[dict[str, Any]]:
        """[{"names": (...), "stages": (...)}] of parameters that several stages hold: their copies
        start equal, and their gradients are to be summed. A name belongs to the stage beside it."""
        groups = [set(group) for group in self.graph.tied_weights]
        others = set().union(*groups, *self.graph.aliases.values())
        groups += [{name} for name in self.graph.parameters if name not in others]
        found = []
        for group in groups:
            held = [
                (next((n for n in part.parameters if n in group), None), part.index)
                for part in self.stages
            ]
            held = [(name, stage) for name, stage in held if name]
            if len(held) > 1:
                found.append(
                    {"names": tuple(n for n, _ in held), "stages": tuple(s for _, s in held)}
                )
        return found

    # Texts and tables are in `report`.
    to_table = report.rows  # pyright: ignore[reportAssignmentType]  (its self is "partition")
    describe = report.sentence
    scene = report.scene
    report = report.text

    def __repr__(self):
        held = ", ".join(f"{part.numel:,}" for part in self.stages)
        return (
            f"Partition({self.graph.model} in {len(self.stages)} stages of "
            f"{len(self.shards)} shards, even by {self.balance}; parameters {held})"
        )

    def module(
        self, stage: int, model: "nn.Module", device: "torch.device | str | None" = None
    ) -> TracedStage:
        """Stage number ``stage`` as a `TracedStage` module with the tensors of ``model``: the
        traced one or one like it, on the meta device too. device : where it will run, by default
        where its tensors are."""
        stage = whole_number("stage", stage, 0, len(self.stages) - 1)
        return TracedStage(self.graph, self.stages[stage], model, device)


# -- which shards go to which stage: contiguous ranges of weights, none of them empty --------------
def uniform(count: int, stages: int) -> list[tuple[int, int]]:
    """Equally many shards a stage: [(start, stop)]; where that leaves some over, the first ones
    have one more. (The release's rule, ceil(n/p) each, can leave last stages empty.)"""
    each, more = divmod(count, stages)
    ends = [each * k + min(k, more) for k in range(stages + 1)]
    return list(pairwise(ends))


def uniform_floor(count: int, stages: int) -> list[tuple[int, int]]:
    """floor(n/p) shards a stage, the last one has all that are left over (as in the release)."""
    ends = [*(count // stages * k for k in range(stages)), count]
    return list(pairwise(ends))


def smallest_largest(weights: Sequence[float] | np.ndarray, stages: int) -> list[tuple[int, int]]:
    """The ranges whose heaviest is as light as can be; of these the most even (the least sum of
    squares). Exact, by dynamic programming over how far the first k stages reach."""
    weights = np.asarray(weights, dtype=float)
    before = np.concatenate([[0.0], np.cumsum(weights)])
    worst = _best(before, stages, np.maximum, lambda load: load)[0]
    limit = worst * (1 + 1e-12)
    _, ends = _best(before, stages, np.add, lambda load: np.where(load <= limit, load**2, np.inf))
    return list(pairwise(ends))


def _best(before, stages, join, cost):
    """(least cost of all, ends of ranges) where costs of ranges are joined by ``join``."""
    count = len(before) - 1
    least, came = np.full(count + 1, np.inf), []
    least[0] = 0.0 if join is np.add else -np.inf
    for _ in range(stages):
        nxt, from_ = np.full(count + 1, np.inf), np.zeros(count + 1, int)
        for stop in range(1, count + 1):
            costs = join(least[:stop], cost(before[stop] - before[:stop]))
            from_[stop] = int(np.argmin(costs))
            nxt[stop] = costs[from_[stop]]
        least, came = nxt, [*came, from_]
    ends = [count]
    for from_ in reversed(came):
        ends.append(int(from_[ends[-1]]))
    return float(least[count]), ends[::-1]

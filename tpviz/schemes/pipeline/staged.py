"""What every pipeline is, whatever knobs it has: `strategy.Pipeline`, and `Merak`.

The order of a stage's actions is that of `tpviz.core.schedules`, its blocks those of `split`, what
a microbatch does on it that of the factor inside.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import floor, prod
from typing import TYPE_CHECKING, Any, Self

from tpviz.core.checks import divides, divisors, settle
from tpviz.core.mesh import Mesh
from tpviz.core.schedules import SCHEDULES, Schedule, schedule
from tpviz.core.schedules import check as check_schedule
from tpviz.core.schedules.own import read
from tpviz.core.workload import GPT
from tpviz.schemes.factor import placed
from tpviz.schemes.gpt.pointwise import spread
from tpviz.schemes.gpt.step import kernels
from tpviz.schemes.grid.tensor import TensorParallel
from tpviz.schemes.knobs import microbatches
from tpviz.schemes.merak.paper import kept_shares
from tpviz.schemes.replicas import Classes, Replicas
from tpviz.schemes.strategy import Strategy, seen_by
from tpviz.schemes.zero.buckets import kept_ranges
from tpviz.schemes.zero.strategy import DataParallel

from .sharding import flat_buckets
from .split import (
    RULES,
    TOKENS,
    V_SHAPED,
    balanced,
    balanced_unlike,
    counts,
    layers_of,
    layout_text,
    ranges,
    written,
)

if TYPE_CHECKING:
    from tpviz.cluster import Cluster, Device
    from tpviz.cluster.clock.cost import Memory, Segment
    from tpviz.core.trace import Ledger
    from tpviz.schemes.gpt.pointwise import Held


class Staged(Strategy):
    """A pipeline: what follows from its knobs, and from the two factors inside and around it.

    inside : the `TensorParallel` by which a stage's blocks are cut. dp, zero : replicas, and the
    stage of ZeRO over them.
    """

    shares_batch, scheme = "dp", "tpviz.schemes.pipeline"

    if TYPE_CHECKING:
        pp: int
        dp: int
        zero: int
        microbatches: int
        schedule: Any
        chunks: int
        keep: float
        skip_last_allreduce: bool
        subpipeline: int
        layout: Any
        placement: str

        @property
        def inside(self) -> TensorParallel: ...

    def __post_init__(self):
        super().__post_init__()
        settle(self, "layout", layout_text)
        self.axes  # noqa: B018  (the placement names axes that there are)

    def step(self, workload: GPT) -> Any:
        """Ranks differ: `tpviz.schemes.pipeline.step.stage_parts` has the step of each stage."""
        raise NotImplementedError(
            f"the step of {type(self).__name__} is one for each stage and action: "
            "tpviz.schemes.pipeline.step.stage_parts has them"
        )

    @property
    def around(self) -> DataParallel:
        """The `DataParallel` around the pipeline."""
        return _around(self.dp)

    @property
    def replicas(self) -> Replicas:
        """`DataParallel.replicas` of the one around the pipeline."""
        return Replicas.along({**self.sharing, **self.inside.joined})

    @property
    def sharing(self) -> dict[str, int]:
        """{axis: ranks} of the mesh along which the replicas around share states."""
        return {axis: n for axis, n in self.around.sharing.items() if axis in self.axes}

    def classes(self, workload: GPT) -> Classes:
        """As `DataParallel.classes` of the one around the pipeline."""
        return self.inside.classes_among(workload, self.sharing)

    @property
    def alike(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Axes along which ranks run the same program: all but pp."""
        return tuple(axis for axis in self.axes if axis != "pp")

    @property
    def parent_axis(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The axis "ends" (first and last stage) is part of pp; others are of the factor inside."""
        return {"ends": "pp", **self.inside.parent_axis}

    @property
    def axes(self) -> dict[str, int]:
        return placed({"pp": self.pp, "dp": self.dp} | self.inside.axes, self.placement)

    @property
    def stages(self) -> int:
        """Number of stages of the whole pipeline, a multiple of ``pp``."""
        if self.schedule not in SCHEDULES:
            return read(self.schedule).stages
        each = {"interleaved_1f1b": self.chunks, **dict.fromkeys(V_SHAPED, 2)}
        return self.pp * each.get(self.schedule, 1)

    @property
    def recompute_in_blocks(self) -> str:
        return "selective" if self.recompute == "selective" else "none"

    @property
    def zero_stage(self) -> int:
        """``zero``, or 0 where there is one replica."""
        return self.zero if self.replicas.ranks > 1 else 0

    def of_replica(self, workload: GPT) -> GPT:
        """The workload of one microbatch of one replica."""
        return workload.with_batch(workload.batch // (self.dp * self.microbatches))

    def local(self, workload: GPT) -> GPT:
        """The workload of one microbatch of one rank."""
        return self.inside.local(self.of_replica(workload))

    def check(self, workload: GPT) -> None:
        w, stages = workload, self.stages
        divides("batch", w.batch, "dp*microbatches", self.dp * self.microbatches)
        self.inside.check(self.of_replica(w))
        cut = self.inside.local(self.of_replica(w)).cut if w.experts else None
        if cut and cut.halves > 1 and self.recompute == "selective":
            raise ValueError(
                "recompute='selective' with overlap='halves' is not possible: use 'full'"
            )
        if self.subpipeline and self.inside.layout.sp:
            raise ValueError(
                f"sp=True and subpipeline={self.subpipeline} are not possible together: use "
                "subpipeline=0, or sp=False"
            )
        if self.subpipeline and self.inside.layout.i > 1 and (w.experts or w.kv_lora):
            sizes = f"experts={w.experts}" if w.experts else f"kv_lora={w.kv_lora}"
            raise ValueError(
                f"subpipeline={self.subpipeline} overlaps the all-reduces of pairs of layers, of "
                f"which {sizes} has others: use subpipeline=0"
            )
        if self.layout not in RULES:
            self._check_layout(w)
        elif w.layers < stages:
            works = [d for d in divisors(stages) if d <= w.layers]
            raise ValueError(
                f"layers={w.layers} are fewer than the {stages} stages of "
                f"pp={self.pp} with schedule={self.schedule!r}: use {works[-1]} "
                f"stages, or layers={stages}"
            )
        check_schedule(self.schedule, self.pp, self.microbatches, stages // self.pp)
        picky = type(self.inside).check_split_backward is not TensorParallel.check_split_backward
        if not picky and self.zero_stage < 2:
            return  # a schedule takes long to make
        split = self.schedule_of(w).splits(0)
        if split:
            self.inside.check_split_backward()
        if self.zero_stage < 2:
            return
        for name, works, possible in (
            ("schedule", "1f1b", not split),
            ("subpipeline", 1, self.subpipeline < 2 or self.inside.world_size == 1),
        ):
            if not possible:
                raise ValueError(
                    f"zero={self.zero} and {name}={getattr(self, name)!r} are not possible "
                    f"together: use {name}={works!r}, or zero=1"
                )

    def _check_layout(self, w: GPT):
        found, stages = counts(self.layout), self.stages
        if len(found) != stages:
            raise ValueError(
                f"layout={self.layout!r} has {len(found)} stages, pp={self.pp} with "
                f"schedule={self.schedule!r} has {stages}: use "
                + (
                    f"pp={len(found) * self.pp // stages}, or "
                    * (not len(found) * self.pp % stages)
                )
                + f"a layout of {stages} stages"
            )
        if sum(found) != w.layers:
            near = [len(blocks) for blocks in layers_of(w.layers, stages)]
            raise ValueError(
                f"layout={self.layout!r} has {sum(found)} blocks, layers={w.layers}: use "
                f"layers={sum(found)}, or layout={written(near)!r}"
            )

    def blocks(self, workload: GPT) -> tuple[range, ...]:
        """The blocks of each stage."""
        return _blocks(self, workload)

    def layout_of(self, workload: GPT) -> str:
        """The layout written out, as ``--pipeline-model-parallel-layout`` takes it."""
        return written(_counts(self, workload))

    def schedule_of(self, workload: GPT) -> Schedule:
        """The `schedules.Schedule` of this workload: stages that drop no layer do not recompute."""
        return _scheduled(self, workload)

    def schedule_for(self, counts: Sequence[int]) -> Schedule:
        """The schedule where ``counts`` layers of each stage could be recomputed."""
        wished = tuple(count > 0 for count in self._wished(counts))
        return _schedule(self.schedule, self.pp, self.microbatches, self.stages // self.pp, wished)

    def kept(self) -> list[float]:
        """[k_s] by stage, the part of its layers that keeps everything under "stage_aware": k_0
        times `tpviz.schemes.merak.paper.kept_shares`."""
        return [1.0 if share is None else min(1.0, self.keep * share) for share in self.shares()]

    def shares(self) -> tuple[float | None, ...]:
        """k_s / k_0 by stage; None where a stage keeps everything."""
        return kept_shares(self.schedule, self.pp, self.microbatches, self.stages // self.pp)

    def _wished(self, counts: Sequence[int]):
        """How many layers of each stage the knobs would have recomputed."""
        if self.recompute in ("none", "selective"):
            return [0] * len(counts)
        if self.recompute == "full":
            return list(counts)
        return [floor(n * (1 - k) + 1e-9) for n, k in zip(counts, self.kept())]

    def num_recomputed(self, workload: GPT) -> list[int]:
        """How many layers of each stage, counted from its first, are recomputed; 0 if the schedule
        does not recompute the stage."""
        return self.drops_for(_counts(self, workload))

    def drops_for(self, counts: Sequence[int]) -> list[int]:
        """As `num_recomputed`, if the stages have ``counts`` layers."""
        recomputes = self.schedule_for(counts).recomputes
        return [n * on for n, on in zip(self._wished(counts), recomputes)]

    def splits(self, workload: GPT) -> dict[str, list[tuple[int, str]]]:
        return self.inside.splits(workload)

    def stage_of(self, name: str, workload: GPT) -> int:
        """The stage that has the parameter or module ``name``."""
        part, _, rest = name.partition(".")
        if part != "blocks":
            return 0 if part == "embed" else self.stages - 1
        block = int(rest.split(".")[0])
        return next(s for s, blocks in enumerate(self.blocks(workload)) if block in blocks)

    def homes(self, workload: GPT) -> dict[str, dict[str, Any]]:
        """{parameter: {"axis", "indices"}}: where along pp it is; a shared one at both ends."""
        rank_of, found = self.schedule_of(workload).rank_of, {}
        for name in workload.parameter_shapes():
            places = {rank_of[self.stage_of(name, workload)]}
            if workload.tied and name == TOKENS:
                places.add(rank_of[-1])
            found[name] = {"axis": "pp", "indices": sorted(places)}
        return found if self.pp > 1 else {}

    def flat_ranges(self, workload: GPT) -> dict[str, dict[str, Any]]:
        """{parameter: {"axis", "ranges": [start, stop) that each index of the axis keeps}} of flat
        shards: over dp at ZeRO 3, or by the factor inside."""
        if self.zero_stage < 3:
            return getattr(self.inside, "flat_ranges", lambda w: {})(workload)
        shapes = self.inside.flat_shapes(workload)
        return kept_ranges(flat_buckets(self, workload, shapes), self.axes)

    def ledger(self, workload: GPT) -> "Ledger":
        return self.ledger_of(workload, 0)

    def ledger_of(self, workload: GPT, rank: int) -> "Ledger":
        from .step import ledger

        self.check(workload)
        return ledger(self, seen_by(self, workload, rank), self.place_of(rank))

    def place_of(self, rank: int) -> int:
        """The index along pp of a rank."""
        return Mesh(self.axes).coords(rank)["pp"]

    def cost(self, workload: GPT, cluster: "Cluster", mesh: Mesh | None = None) -> "list[Segment]":
        from .step import cost

        return cost(self, workload, cluster, mesh or Mesh(self.axes))

    def held(self, workload: GPT, rank: int = 0) -> "Held":
        last, stages = self.stages - 1, self.schedule_of(workload).stages_of(self.place_of(rank))
        blocks, ends = self.blocks(workload), (0 in stages, last in stages)
        mine = tuple(block for stage in stages for block in blocks[stage])
        return self.held_by(workload, mine, ends, self.zero_stage > 1)

    def held_by(
        self, workload: GPT, blocks: Sequence[int], ends: tuple[bool, bool], sharded: bool
    ) -> "Held":
        """The `Held` of a rank with these blocks and ends. sharded : whether the replicas share the
        sum of gradients."""
        flat = prod(self.inside.axes[axis] for axis in self.inside.flat_over)
        shards = (self.replicas.ranks if sharded else 1) * flat * (self.microbatches > 1)
        held = self.inside.held(self.of_replica(workload))
        mine = held.workload.kinds(blocks)
        return held._replace(blocks=mine, ends=ends, shards=shards)

    def device(self, workload: GPT, cluster: "Cluster", rank: int = 0) -> "Device":
        """As `Strategy.device`. If the host limits the device and there is no pipeline, it keeps
        launching while the device waits for tp's collectives; in a pipeline it waits at each
        message."""
        from .step import seconds_waiting

        given, found = cluster.device, super().device(workload, cluster, rank)
        if self.pp > 1 or self.inside.world_size == 1 or found is given:
            return found
        held = self.held(workload, rank)
        if spread(replace(given, launch=0.0), held).spread == found.spread:
            return found
        return spread(given, held, seconds_waiting(self, workload, cluster, found))

    def memory(self, workload: GPT) -> "Memory":
        from .memory import memory

        return memory(self, workload)

    def least_memory(self, workload: GPT) -> "Memory":
        """A lower bound by kind: `memory.least`."""
        from .memory import least

        return least(self, workload)

    # -- what `search` tries, and how fast it can be at most ---------------------------------------
    def microbatched(self, workload: GPT) -> Iterator[Self]:
        """With microbatches of 1 to `MICRO` rows, and with one, two and four per stage."""
        rows = workload.batch // self.dp
        few = [n for n in few_of(self.pp) if rows % n == 0]
        for count in sorted({*microbatches(rows), *few}, reverse=True) if rows else ():
            if self.allows("microbatches", count):
                yield replace(self, microbatches=count)  # pyright: ignore[reportCallIssue]

    def choices(self, workload: GPT) -> list[dict[str, Any]]:
        """Every schedule, with every number of chunks, each recomputation, and balanced stages
        under 1F1B."""
        return [{k: v for k, v in c.items() if k != "zero"} for c in self._choices(workload, (0,))]

    def _choices(self, workload: GPT, zeros: tuple[int, ...]):
        return orders(self.pp > 1, zeros, self._deep(workload))

    def _deep(self, workload: GPT):
        """The most stages of a rank."""
        high = self.__dataclass_fields__["chunks"].metadata["high"]
        return min(workload.layers // self.pp, high) if self.microbatches % self.pp == 0 else 0

    def least_of_all(self, workload: GPT, cluster: "Cluster") -> float:
        from .bounds import least_of_all

        return least_of_all(self, workload, cluster)

    def bounds(self, workload: GPT, cluster: "Cluster") -> Callable[..., float]:
        from .bounds import bounds

        return bounds(self, workload, cluster)


def few_of(pp: int) -> tuple[int, ...]:
    """Microbatches of a replica: one, two and four a stage."""
    return pp, 2 * pp, 4 * pp


@lru_cache(maxsize=64)  # each formula asks, for few
def _around(dp: int) -> DataParallel:
    return DataParallel(dp=dp)


@lru_cache(maxsize=64)
def orders(pipeline: bool, zeros: tuple[int, ...], deep: int) -> list[dict[str, Any]]:
    """Knobs of `Staged.choices`, with ZeRO's stage: a backward that is split and ZeRO from stage 2
    on exclude each other."""
    kept = [{"recompute": "stage_aware", "keep": part} for part in (0.75, 0.5, 0.25)]
    again = [{"recompute": kind} for kind in ("none", "selective", "full")]
    whole, split = [{"schedule": "1f1b", **more} for more in again], []
    if pipeline:
        chunks = [{"schedule": "interleaved_1f1b", "chunks": n} for n in range(2, deep + 1)]
        whole += [{**order, **more} for order in chunks for more in (*again, *kept)]
        early = "1f1b", "early_recompute", "last_no_recompute", "shifted_critical_path"
        whole += [{"schedule": name, **more} for name in early for more in kept]
        whole += [{"schedule": name, **again[2]} for name in early[1:]]
        whole += [{"schedule": "1f1b", "layout": "balanced", **more} for more in again]
        names = "zb_h1", "zb_v", "dualpipe_v"
        split = [{"schedule": name, **more} for name in names for more in again[:2]]
    return [
        {"zero": zero, **order}
        for zero in zeros
        for order in (*whole, *(split if zero < 2 else ()))
    ]


@lru_cache(maxsize=256)
def _scheduled(s: Staged, workload: GPT):
    """Every formula asks for it, stage by stage."""
    return s.schedule_for(_counts(s, workload))


def _counts(s: Staged, workload: GPT):
    return [len(blocks) for blocks in s.blocks(workload)]


@lru_cache(maxsize=256)
def _blocks(s: Staged, workload: GPT):
    if s.layout == "even":
        return layers_of(workload.layers, s.stages)
    return ranges(_balanced(s, workload) if s.layout == "balanced" else counts(s.layout))


def _balanced(s: Staged, workload: GPT):
    """Costs are FLOPs, in those of a first block's forward and backward: the embedding has none."""
    w = workload.with_batch(1)
    order = s.schedule_for([1] * s.stages)
    shares = s.kept() if s.recompute == "stage_aware" else [0.0] * s.stages
    dropped = [0.0] * s.pp
    for stage, rank in enumerate(order.rank_of):  # of a rank with several stages, the mean
        dropped[rank] += order.recomputes[stage] * (1 - shares[stage]) * s.pp / s.stages
    of_kind = {kind: _flops(kind) for kind, _ in w.kinds()}
    unit, each = of_kind[w.like(0)][1], []
    for kind in map(w.like, range(w.layers)):
        forward, both = of_kind[kind]
        each.append(tuple((both + forward * part) / unit for part in dropped))
    head = sum(k.flops for k in kernels(w).head) / unit
    if w.alike:
        return balanced(w.layers, tuple(order.rank_of), each[0], head)
    return balanced_unlike(tuple(each), tuple(order.rank_of), head)


def _flops(w):
    """(FLOPs of a block's forward, of its forward and backward)."""
    *block, _ = kernels(w)
    return sum(layer[0].flops for layer in block), sum(k.flops for layer in block for k in layer)


@lru_cache(maxsize=256)
def _schedule(name: str, ranks: int, microbatches: int, chunks: int, recompute: tuple[bool, ...]):
    return schedule(name, ranks, microbatches, chunks=chunks, recompute=recompute)

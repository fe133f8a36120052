"""Merak: 3D parallelism, a pipeline of stages whose schedule knows of recomputation.

Lai et al. 2023 (IEEE TPDS 34(5), arXiv 2206.04959; its abstract, and its released code). A stage's
layers are split as Megatron-LM's, the batch over replicas, and each replica's part into
microbatches that go through the stages.

>>> Merak(pp=2, microbatches=8).check(GPT(batch=4))
Traceback (most recent call last):
ValueError: batch=4 does not split evenly over dp*microbatches=8: use dp*microbatches=4, or batch=8
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import product
from math import floor
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tpviz.checks import divides, settle
from tpviz.mesh import Mesh
from tpviz.schedules import SCHEDULES, Schedule, schedule
from tpviz.schedules import check as check_schedule
from tpviz.schedules.own import as_text, read
from tpviz.schemes.gpt.pointwise import spread
from tpviz.schemes.gpt.step import kernels
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.schemes.ownership import local_shapes
from tpviz.schemes.zero.buckets import kept_ranges
from tpviz.strategy import Strategy, divisors, knob, microbatches, register
from tpviz.workload import GPT

from .paper import kept_shares
from .sharding import flat_buckets
from .split import (
    RULES,
    TOKENS,
    V_SHAPED,
    balanced,
    counts,
    layers_of,
    layout_text,
    ranges,
    written,
)

if TYPE_CHECKING:
    from tpviz.cluster import Cluster, Device
    from tpviz.cost import Memory, Segment
    from tpviz.schemes.gpt.pointwise import Held
    from tpviz.trace import Ledger


__all__ = ["GPT", "Merak"]

ORDERS: list[dict[str, Any]] = [
    {"schedule": "1f1b", "recompute": "none"},
    {"schedule": "1f1b"},
    {"schedule": "shifted_critical_path"},
    {"schedule": "interleaved_1f1b", "recompute": "none"},
    {"schedule": "zb_h1", "recompute": "none"},
    {"schedule": "1f1b", "recompute": "none", "layout": "balanced"},
]
"""Schedules and recomputation in `Merak.space`."""


@register
class Merak(Strategy):
    """Splits the layers into ``pp`` pipeline stages, through which ``microbatches`` flow by a
    schedule. Each stage is sharded over ``tp`` ranks, and there are ``dp`` replicas.

    ``recompute``: every layer keeps only its input ("full"), as many layers of each stage as its
    memory allows keep everything ("stage_aware": a part ``keep`` of the first stage's, more of
    ranks that have fewer microbatches in flight), or all ("none"). Which stages recompute at all,
    and when, the ``schedule`` says; but attention's core ("selective", see
    `tpviz.strategy.recompute_knob`) is computed again within backward, on every stage. ``zero`` and
    what it sends: `sharding`; ``sp``: as Megatron has it, of messages too.

    ``schedule``: a name, or one of your own: a `Schedule`, or a line of actions for each rank
    ("F0 F1 B0 B1"), kept as text. A stage recomputes where its line says so (R, RB) and
    ``recompute`` allows it.

    ``layout``: each stage has as many blocks ("even", the embedding and the head uncounted), as
    many as make the slowest rank fastest, the head's FLOPs counted ("balanced"), or as a layout
    says: counts, (2, 4, 4, 2), or Megatron-LM's words for it, "Ett|(t*4|)*2,ttL" (`split`).
    """

    pp: int = knob(
        2, help="ranks that the layers are spread over, a stage or more each", low=1, high=64
    )
    tp: int = knob(1, help="ranks that share every weight matrix of a stage", low=1, high=64)
    dp: int = knob(1, help="replicas that share the batch", low=1, high=65536)
    microbatches: int = knob(
        4, help="parts that a replica's share of the batch is cut into", low=1, high=1024
    )
    schedule: Any = knob(
        "shifted_critical_path",
        help="order of each stage's forward and backward passes",
        choices=tuple(SCHEDULES),
        own=as_text,
    )
    chunks: int = knob(2, help="stages of a rank under interleaved_1f1b", low=2, high=16)
    recompute: str = knob(
        "full",
        help="which layers keep only their input until backward",
        choices=("none", "selective", "full", "stage_aware"),
    )
    keep: float = knob(
        0.25,
        help="fraction of the first stage's layers that keep everything under stage_aware "
        "recomputation",
        low=0.0,
        high=1.0,
    )

    skip_last_allreduce: bool = knob(
        True, help="recomputation omits its last tp all-reduce, which no kernel needs"
    )
    subpipeline: int = knob(
        0,
        help="tp all-reduces during the other half's kernels: 1 in a layer, 2 in a block, 3 "
        "across blocks",
        choices=(0, 1, 2, 3),
    )
    zero: int = knob(
        0,
        help="ZeRO stage over dp: 1 shards optimizer states, 2 gradients, 3 parameters",
        choices=(0, 1, 2, 3),
    )
    sp: bool = knob(
        False, help="split activations between the matrices, and messages, over tp by sequence"
    )
    layout: str | tuple[int, ...] = knob(
        "even",
        help="blocks of each stage: even, balanced (the head counts), counts such as (2, 2), or "
        "Megatron-LM's layout such as Ett|ttL",
    )

    shares_batch, alike = "dp", ("dp", "tp")
    parent_axis = MappingProxyType({"ends": "pp"})

    def __post_init__(self):
        super().__post_init__()
        settle(self, "layout", layout_text)

    @property
    def axes(self) -> dict[str, int]:
        return {"pp": self.pp, "dp": self.dp, "tp": self.tp}

    @property
    def stages(self) -> int:
        """Stages of the whole pipeline: one a rank, or several."""
        if self.schedule not in SCHEDULES:
            return read(self.schedule).stages
        each = {"interleaved_1f1b": self.chunks, **dict.fromkeys(V_SHAPED, 2)}
        return self.pp * each.get(self.schedule, 1)

    @property
    def recompute_in_blocks(self) -> str:
        return "selective" if self.recompute == "selective" else "none"

    @property
    def inside(self) -> Megatron:
        """How one stage is split."""
        return Megatron(tp=self.tp, sp=self.sp)

    @property
    def sequence_parallel(self) -> bool:
        """Whether there is a sequence to split: ``sp`` on more than one rank."""
        return self.sp and self.tp > 1

    @property
    def zero_stage(self) -> int:
        """``zero``, or 0 where there is one replica."""
        return self.zero if self.dp > 1 else 0

    def local(self, workload: GPT) -> GPT:
        """The workload of one microbatch of one replica."""
        return workload.with_batch(workload.batch // (self.dp * self.microbatches))

    def check(self, workload: GPT) -> None:
        w, stages = workload, self.stages
        divides("batch", w.batch, "dp*microbatches", self.dp * self.microbatches)
        self.inside.check(self.local(w))
        if self.sp and self.subpipeline:
            raise ValueError(
                f"sp=True and subpipeline={self.subpipeline} are not possible together: use "
                "subpipeline=0, or sp=False"
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
        if self.zero_stage < 2:
            return
        for name, works, possible in (
            ("schedule", "1f1b", not self.schedule_of(w).splits(0)),
            ("subpipeline", 1, self.subpipeline < 2 or self.tp == 1),
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
        times `paper.kept_shares`."""
        return [1.0 if share is None else min(1.0, self.keep * share) for share in self.shares()]

    def shares(self) -> tuple[float | None, ...]:
        """[k_s / k_0] by stage, None where all is kept."""
        return kept_shares(self.schedule, self.pp, self.microbatches, self.stages // self.pp)

    def _wished(self, counts: Sequence[int]):
        """How many layers of each stage the knobs would have recomputed."""
        if self.recompute in ("none", "selective"):
            return [0] * len(counts)
        if self.recompute == "full":
            return list(counts)
        return [floor(n * (1 - k) + 1e-9) for n, k in zip(counts, self.kept())]

    def num_recomputed(self, workload: GPT) -> list[int]:
        """How many layers of each stage are recomputed, its first ones; none where the schedule
        says so."""
        return self.drops_for(_counts(self, workload))

    def drops_for(self, counts: Sequence[int]) -> list[int]:
        """The same where stages have ``counts`` layers."""
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
        """{parameter: {"axis", "ranges": what each dp index keeps}} at ZeRO 3, else nothing."""
        if self.zero_stage < 3:
            return {}
        return kept_ranges(flat_buckets(self, workload, local_shapes(self, workload)), self.dp)

    def ledger(self, workload: GPT) -> "Ledger":
        return self.ledger_of(workload, 0)

    def ledger_of(self, workload: GPT, rank: int) -> "Ledger":
        from .step import ledger

        self.check(workload)
        return ledger(self, workload, Mesh(self.axes).coords(rank)["pp"])

    def cost(self, workload: GPT, cluster: "Cluster", mesh: Mesh | None = None) -> "list[Segment]":
        from .step import cost

        return cost(self, workload, cluster, mesh or Mesh(self.axes))

    def held(self, workload: GPT, rank: int = 0) -> "Held":
        place, last = rank // (self.dp * self.tp), self.stages - 1
        stages = self.schedule_of(workload).stages_of(place)
        blocks = _counts(self, workload)
        return self.inside.held(self.local(workload))._replace(
            layers=sum(blocks[stage] for stage in stages),
            ends=(0 in stages, last in stages),
            shards=(self.dp if self.zero_stage > 1 else 1) * (self.microbatches > 1),
        )

    def device(self, workload: GPT, cluster: "Cluster", rank: int = 0) -> "Device":
        """As `Strategy.device`. If the host limits the device and there is no pipeline, it keeps
        launching while the device waits for tp's collectives; in a pipeline it waits at each
        message."""
        from .step import seconds_waiting

        given, found = cluster.device, super().device(workload, cluster, rank)
        if self.pp > 1 or self.tp == 1 or found is given:
            return found
        held = self.held(workload, rank)
        if spread(replace(given, launch=0.0), held).spread == found.spread:
            return found
        return spread(given, held, seconds_waiting(self, workload, cluster, found))

    def memory(self, workload: GPT) -> "Memory":
        from .memory import memory

        return memory(self, workload)

    def least_memory(self, workload: GPT) -> "Memory":
        """Without activations."""
        from .memory import least

        return least(self, workload)

    @classmethod
    def space(cls, workload: GPT, world_size: int) -> "Iterator[Merak]":
        """Every (pp, tp, dp); one, two and four microbatches a stage; 1F1B without and with
        recomputation, Merak's schedule, interleaved stages and zero bubble, 1F1B also with balanced
        stages where they differ; with tp also sequence parallelism, or all-reduces during the other
        half's kernels; with dp ZeRO-1, which sends as many bytes as none."""
        for layout in cls.layouts(workload, world_size):
            for made in layout.microbatched(workload):
                if made.microbatches in _few(made.pp):
                    for order in ORDERS[: None if made.pp > 1 else 2]:
                        with suppress(ValueError):  # the schedule may ask for more microbatches
                            one = replace(made, **order)
                            one.check(workload)
                            even = layers_of(workload.layers, one.stages)
                            if one.layout == "even" or one.blocks(workload) != even:
                                yield one

    @classmethod
    def layouts(cls, workload: GPT, world_size: int) -> "Iterator[Merak]":
        """Every (pp, tp, dp), with tp also with sequence parallelism, or with all-reduces during
        the other half's kernels."""
        for pp, tp in product(divisors(world_size), repeat=2):
            dp, rest = divmod(world_size, pp * tp)
            if rest or not (cls.allows("pp", pp) and cls.allows("tp", tp)):
                continue
            for more in ({}, {"sp": True}, {"subpipeline": 2})[: 3 if tp > 1 else 1]:
                first: dict[str, Any] = {**ORDERS[0], **more, "zero": int(dp > 1)}
                yield cls(pp=pp, tp=tp, dp=dp, microbatches=1, **first)

    def microbatched(self, workload: GPT) -> "Iterator[Merak]":
        """Microbatches of 1 to `tpviz.strategy.MICRO` rows, and one, two and four a stage."""
        rows = workload.batch // self.dp
        few = [n for n in _few(self.pp) if rows % n == 0]
        for count in sorted({*microbatches(rows), *few}, reverse=True) if rows else ():
            if self.allows("microbatches", count):
                yield replace(self, microbatches=count)

    def choices(self, workload: GPT) -> list[dict[str, Any]]:
        """Every schedule, with every number of chunks, each recomputation, each stage of ZeRO, and
        balanced stages under 1F1B."""
        high = self.__dataclass_fields__["chunks"].metadata["high"]
        deep = min(workload.layers // self.pp, high) if self.microbatches % self.pp == 0 else 0
        whole = self.subpipeline > 1 and self.tp > 1
        return _choices(self.pp > 1, (0,) if self.dp == 1 else (1, 0, 2, 3)[: 4 - 2 * whole], deep)

    def least_of_all(self, workload: GPT, cluster: "Cluster") -> float:
        from .bounds import least_of_all

        return least_of_all(self, workload, cluster)

    def bounds(self, workload: GPT, cluster: "Cluster") -> Callable[..., float]:
        from .bounds import bounds

        return bounds(self, workload, cluster)

    def within(
        self, workload: GPT, budget: float, need: "Callable[[Merak], float] | None" = None
    ) -> "Merak":
        """This strategy with as little recomputation as ``budget`` bytes a rank allow: see
        `budget.within`."""
        from .budget import within

        self.check(workload)
        return within(self, workload, budget, need)


def _few(pp: int) -> tuple[int, ...]:
    """Microbatches of a replica: one, two and four a stage."""
    return pp, 2 * pp, 4 * pp


@lru_cache(maxsize=64)
def _choices(pipeline: bool, zeros: tuple[int, ...], deep: int) -> list[dict[str, Any]]:
    """Knobs of `Merak.choices`: a backward that is split and ZeRO from stage 2 on exclude each
    other."""
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
def _scheduled(s: "Merak", workload: GPT):
    """Every formula asks for it, stage by stage."""
    return s.schedule_for(_counts(s, workload))


def _counts(s: "Merak", workload: GPT):
    return [len(blocks) for blocks in s.blocks(workload)]


@lru_cache(maxsize=256)
def _blocks(s: "Merak", workload: GPT):
    if s.layout == "even":
        return layers_of(workload.layers, s.stages)
    return ranges(_balanced(s, workload) if s.layout == "balanced" else counts(s.layout))


def _balanced(s: "Merak", workload: GPT):
    """Costs are FLOPs, in those of a block's forward and backward: the embedding has none."""
    *block, head = kernels(workload.with_batch(1))
    both = sum(kernel.flops for layer in block for kernel in layer)
    again = sum(layer[0].flops for layer in block) / both
    order = s.schedule_for([1] * s.stages)
    shares = s.kept() if s.recompute == "stage_aware" else [0.0] * s.stages
    cost = [0.0] * s.pp
    for stage, rank in enumerate(order.rank_of):  # of a rank with several stages, the mean
        cost[rank] += 1 + again * order.recomputes[stage] * (1 - shares[stage])
    each = tuple(total * s.pp / s.stages for total in cost)
    return balanced(workload.layers, tuple(order.rank_of), each, sum(k.flops for k in head) / both)


@lru_cache(maxsize=256)
def _schedule(name: str, ranks: int, microbatches: int, chunks: int, recompute: tuple[bool, ...]):
    return schedule(name, ranks, microbatches, chunks=chunks, recompute=recompute)

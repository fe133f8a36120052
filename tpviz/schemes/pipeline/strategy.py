"""Pipelines: blocks on stages, through which microbatches go, around any tensor parallelism.

`Pipeline` is the factor of a product:

>>> from tpviz import DataParallel, Megatron
>>> plan = Megatron(tp=2) * Pipeline(pp=2, microbatches=4) * DataParallel(dp=2, zero=1)
>>> plan.axes
{'pp': 2, 'dp': 2, 'tp': 2}
>>> plan.short
'Megatron(tp=2) * Pipeline(pp=2) * DataParallel(dp=2, zero=1)'
>>> list((plan.with_order("tp-pp-dp")).axes)
['dp', 'pp', 'tp']
"""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

from tpviz.core.checks import divisors
from tpviz.core.schedules import SCHEDULES
from tpviz.core.schedules.formulas import SPLIT
from tpviz.core.schedules.own import as_text
from tpviz.core.workload import GPT
from tpviz.schemes.factor import placed
from tpviz.schemes.grid.around import Around
from tpviz.schemes.grid.tensor import TensorParallel, WholeBlocks
from tpviz.schemes.knobs import knob
from tpviz.schemes.strategy import Strategy, register
from tpviz.schemes.zero.strategy import (
    DataParallel,
    inside_of_replicas,
    own_replicas,
    with_replicas,
)

from .staged import Staged, few_of, orders

__all__ = ["GPT", "Pipeline"]


@register
class Pipeline(Staged):
    """Splits the layers into ``pp`` stages, through which ``microbatches`` flow by a schedule.
    Around any tensor parallelism, inside of data parallelism: ``ATP(...) * Pipeline(...) *
    DataParallel(...)``.

    Its knobs are those of `Merak`, which is such a product with its own schedule. In a pipeline
    microbatches are what ``accumulation`` is elsewhere, and ``recompute`` is the pipeline's, so the
    factors inside and around it have neither. ZeRO of the data parallelism works stage by stage, by
    `sharding`, not by buckets.
    """

    pp: int = knob(
        2, help="ranks that the layers are spread over, a stage or more each", low=1, high=64
    )
    microbatches: int = knob(
        4, help="parts that a replica's share of the batch is cut into", low=1, high=1024
    )
    schedule: Any = knob(
        "1f1b",
        help="order of each stage's forward and backward passes",
        choices=tuple(SCHEDULES),
        own=as_text,
    )
    chunks: int = knob(
        2,
        help="stages of a rank under interleaved_1f1b",
        low=2,
        high=16,
        where=lambda knobs: knobs.schedule == "interleaved_1f1b",
    )
    recompute: str = knob(
        "none",
        help="which layers keep only their input until backward",
        choices=("none", "selective", "full", "stage_aware"),
    )
    keep: float = knob(
        0.25,
        help="fraction of the first stage's layers that keep everything under stage_aware "
        "recomputation",
        low=0.0,
        high=1.0,
        where=lambda knobs: knobs.recompute == "stage_aware",
    )
    skip_last_allreduce: bool = knob(
        True,
        help="recomputation omits its last tp all-reduce, which no kernel needs",
        where=lambda knobs: knobs.recompute in ("full", "stage_aware"),
    )
    subpipeline: int = knob(
        0,
        help="tp all-reduces during the other half's kernels: 1 in a layer, 2 in a block, 3 "
        "across blocks",
        choices=(0, 1, 2, 3),
    )
    layout: str | tuple[int, ...] = knob(
        "even",
        help="blocks of each stage: even, balanced (the head counts), counts such as (2, 2), or "
        "Megatron-LM's layout such as Ett|ttL",
    )
    inner: TensorParallel | None = None
    data: DataParallel | None = None
    placement: str = ""

    shares_batch, searched = "", False

    @property
    def inside(self) -> TensorParallel:
        """The tensor-parallel factor inside; `WholeBlocks` if there is none."""
        return self.inner or _WHOLE

    @property
    def dp(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The number of replicas of the `DataParallel` around it; 1 if there is none."""
        return self.data.dp if self.data else 1

    @property
    def zero(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The ZeRO stage of the `DataParallel` around it; 0 if there is none."""
        return self.data.zero if self.data else 0

    @property
    def around(self) -> DataParallel:
        return self.data or super().around

    @property
    def axes(self) -> dict[str, int]:
        around = self.data.axes if self.data else {}
        return placed({"pp": self.pp} | around | self.inside.axes, self.placement)

    def __post_init__(self):
        kinds = ("inner", TensorParallel, "Megatron(tp=2)"), ("data", DataParallel, "a plain one")
        for name, kind, instead in kinds:
            factor = getattr(self, name)
            if factor is None:
                continue
            of_data = kind is DataParallel and getattr(factor, "inner", None) is not None
            if not isinstance(factor, kind) or of_data:
                raise ValueError(
                    f"{name}={factor!r} is not possible: multiply the factors, or give a "
                    f"{kind.__name__} such as {instead}"
                )
            self._check_factor(factor)
        if self.data is not None and self.data.bucket_mb != DataParallel.bucket_mb:
            raise ValueError(
                f"{self.data.short} in a pipeline: gradients are summed by stages, not in buckets; "
                f"use bucket_mb={DataParallel.bucket_mb}"
            )
        if self.data is not None and self.data.reshard_after_forward is not True:
            raise ValueError(
                f"{self.data.short} in a pipeline: each pass of a stage gathers parameters; use "
                "reshard_after_forward=True"
            )
        if self.data is not None and self.data.gradients != "full":
            raise ValueError(
                f"{self.data.short} in a pipeline: what is sent in few bits are buckets, and a "
                'pipeline has none; use gradients="full"'
            )
        if self.data is not None and self.data.within:
            raise ValueError(
                f"{self.data.short} in a pipeline: gradients are summed in one level; use "
                "within=0, or shard= with zero"
            )
        object.__setattr__(self, "inner", inside_of_replicas(self.inner))
        super().__post_init__()

    def _check_factor(self, factor: TensorParallel | DataParallel):
        """Refuse knobs of a factor that are the pipeline's."""
        if factor.accumulation != 1:
            raise ValueError(
                f"{factor.short} in a pipeline: its microbatches are the pipeline's; use "
                f"Pipeline(microbatches={factor.accumulation * self.microbatches}) and "
                "accumulation=1"
            )
        if factor.recompute != "none":
            raise ValueError(
                f"{factor.short} in a pipeline: the pipeline recomputes; use "
                f"Pipeline(recompute={factor.recompute!r}), and none there"
            )
        if factor.offload:
            raise ValueError(
                f"{factor.short} in a pipeline: offload={factor.offload} is not possible, since a "
                "stage has several microbatches in flight; use offload=0, or Pipeline(recompute=)"
            )
        if factor.clip:
            raise ValueError(
                f"{factor.short} in a pipeline: clip={factor.clip} is not possible, since the norm "
                "is over all stages; use clip=0.0"
            )

    def check(self, workload: GPT) -> None:
        if self.subpipeline and type(self.inside).__name__ != "Megatron":
            inside = self.inner.short if self.inner else "whole blocks"
            raise ValueError(
                f"subpipeline={self.subpipeline} overlaps Megatron-LM's all-reduces, not those of "
                f"{inside}: use subpipeline=0, or Megatron(tp=...)"
            )
        flat = [axis for axis in self.inside.flat_over if self.inside.axes[axis] > 1]
        if self.zero_stage and flat:
            axis = flat[0]
            raise ValueError(
                f"zero={self.zero} shards over dp what {self.inside.short} shards over {axis} "
                f"already: use zero=0, or {axis}=1"
            )
        super().check(workload)

    def takes(self, other: Strategy) -> "Strategy | None":
        """The pipeline with ``other`` inside or around it; None if that place is taken."""
        if isinstance(other, TensorParallel) and self.inner is None:
            return replace(self, inner=_plane(other), data=_data(other, self.data))
        if isinstance(other, TensorParallel) and (made := self.inner.nested(other)) is not None:  # pyright: ignore[reportOptionalMemberAccess]
            return replace(self, inner=made)
        if isinstance(other, DataParallel) and self.data is None:
            inner, around = other.inner, replace(other, inner=None)
            if inner is None:
                return replace(self, data=around)
            if self.inner is None and isinstance(inner, TensorParallel):
                again = inner.recompute if self.recompute == "none" else self.recompute
                inner = replace(inner, recompute="none")  # pyright: ignore[reportCallIssue]
                return replace(self, inner=inner, data=around, recompute=again)
        return None

    def choices(self, workload: GPT) -> list[dict[str, Any]]:
        """As `Staged.choices`, without split backwards where the factor inside has none; with every
        stage of ZeRO where sequences are cut, or experts spread."""
        split = fits_split(self.inside)
        data = self.data if isinstance(self.inside, Around) else None
        return _choices(self.pp > 1, self._deep(workload), split, data)

    @classmethod
    def space(cls, workload: GPT, world_size: int) -> "Iterator[Pipeline]":
        """Products with ATP's meshes of two axes, AxoNN's grids and T3, with 1F1B and 4
        microbatches a stage; those with Megatron-LM are `Merak`'s."""
        for layout in cls.layouts(workload, world_size):
            for made in layout.microbatched(workload):
                if made.microbatches in few_of(made.pp):
                    yield made

    @classmethod
    def layouts(cls, workload: GPT, world_size: int) -> "Iterator[Pipeline]":
        """Every (pp, tensor parallelism, dp) of them, with ZeRO-1 where there are replicas."""
        from tpviz.schemes.atp.strategy import ATP
        from tpviz.schemes.axonn.strategy import AxoNN
        from tpviz.schemes.t3.strategy import T3

        for pp, ranks in product(divisors(world_size), repeat=2):
            dp, rest = divmod(world_size, pp * ranks)
            if rest or pp == 1 or ranks == 1 or not cls.allows("pp", pp):
                continue
            kinds: list[TensorParallel] = [
                *(s for s in ATP.meshes(workload, ranks) if min(s.mesh) > 1),
                *(s for s in AxoNN.space(workload, ranks) if s.data == 1 and s.y * s.z > 1),
                *T3.space(workload, ranks),
            ]
            for inner in kinds:
                zero = int(not any(inner.axes[a] > 1 for a in inner.shares))
                data = DataParallel(dp=dp, zero=zero) if dp > 1 else None
                yield cls(pp=pp, microbatches=1, inner=inner, data=data)


_WHOLE = WholeBlocks()


def fits_split(inside: TensorParallel) -> bool:
    """Whether gradients of its weights can wait for a later time."""
    with suppress(ValueError):
        inside.check_split_backward()
        return True
    return False


@lru_cache(maxsize=256)
def _choices(pipeline: bool, deep: int, split: bool, data: DataParallel | None):
    """Knobs of `Pipeline.choices`, with the stages of ZeRO of ``data``."""
    found = [{k: v for k, v in c.items() if k != "zero"} for c in orders(pipeline, (0,), deep)]
    found = [choice for choice in found if split or choice["schedule"] not in SPLIT]
    if not data:
        return found
    zeros = (1, 2, 3) if data.shard else (1, 0, 2, 3)
    staged = [replace(data, zero=zero) for zero in zeros]
    return [
        {"data": one, **c}
        for one in staged
        for c in found
        if one.zero < 2 or c["schedule"] not in SPLIT
    ]


def _plane(other: TensorParallel) -> TensorParallel:
    """A factor inside a pipeline without replicas of its own."""
    return with_replicas(other, 1) if own_replicas(other) not in (None, 1) else other


def _data(other: TensorParallel, data: DataParallel | None) -> DataParallel | None:
    """Replicas that AxoNN has of its own are those of the product."""
    replicas = own_replicas(other) or 1
    if replicas == 1:
        return data
    if data is not None:
        raise ValueError(f"{other.short} has replicas of its own beside {data.short}: use data=1")
    return DataParallel(dp=replicas)

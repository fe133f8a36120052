"""Data parallelism: each rank takes a part of the batch; ZeRO shares out what all would hold.

Li et al. 2020 (PyTorch DDP, arXiv 2006.15704): gradients in buckets, reduced while backward goes
on. Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054); stage 3 as PyTorch FSDP does it, one block at
a time.

>>> from tpviz import Megatron
>>> (DataParallel(dp=2, zero=1) * Megatron(tp=2, accumulation=4)).short
'Megatron(tp=2) * DataParallel(dp=2, zero=1, accumulation=4)'
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING, Any, Self

from tpviz.core.checks import divides, divisors, one_of, whole_number
from tpviz.core.step import Collective
from tpviz.schemes.factor import placed
from tpviz.schemes.grid.tensor import TensorParallel, WholeBlocks
from tpviz.schemes.knobs import (
    accumulation_knob,
    knob,
    offload_knob,
    recompute_knob,
    settle_between,
)
from tpviz.schemes.ownership import local_shapes
from tpviz.schemes.replicas import Classes, Replicas
from tpviz.schemes.strategy import Strategy, register

from .buckets import MEGABYTE, Bucket, buckets_of, kept_ranges
from .memory import memory
from .step import step
from .sums import BITS

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from tpviz.cluster import Cluster
    from tpviz.cluster.clock.cost import Memory
    from tpviz.core.step import Step
    from tpviz.core.workload import GPT
    from tpviz.schemes.gpt.pointwise import Held

__all__ = ["DataParallel"]


def bool_or_ranks(name: str, value: Any, choices: tuple[Any, ...]) -> bool | int:
    """``value`` if it is a bool, or a number of ranks from 2 on, else ``ValueError``."""
    try:
        return one_of(name, value, choices)
    except ValueError:
        return whole_number(name, value, 2)


@register
class DataParallel(Strategy):
    """Splits the batch over ``dp`` ranks, which average their gradients. Each holds a replica of
    the model, or a part of a replica that is sharded by ``inner``.

    ``zero`` shares out, per stage: 1 optimizer states, 2 gradients too, 3 parameters too. Buckets
    apply to stages 0 to 2; stage 3 works block by block.

    Of several microbatches (``accumulation``) stages 0 and 1 add up gradients on each rank and
    reduce them during the last one, as DDP does within ``no_sync``. Stages 2 and 3 keep no whole
    gradients, so they reduce-scatter those of every microbatch, and stage 3 gathers parameters for
    each. An ``inner`` strategy's ``accumulation`` becomes this one's, and this one's ``recompute``
    becomes that of an ``inner``.

    ``shard`` is hybrid sharding (PyTorch's HSDP): stages 1 to 3 share states over this many ranks,
    which are neighbours, and dp/shard groups have the same shares. Gradients are reduce-scattered
    inside a group, and a rank's share is all-reduced across groups during the last microbatch.

    ``reshard_after_forward`` is FSDP2's, at stage 3: what a rank keeps of a block's parameters from
    its forward to its backward. True: its share. False: all, and backward gathers nothing. n: 1/n,
    and backward gathers over n neighbours, as hpZ of ZeRO++ does (Wang et al. 2023, arXiv
    2306.10209).

    ``gradients`` of "int8" or "int4" are sent as blocks of integers with a scale each, ZeRO++'s qgZ
    (`few_bits`): a quarter or an eighth of float32's bytes, and not the same numbers.
    `tpviz.gradient_error` shows by how much; what packing takes a device is in no prediction.

    ``within`` n does each sum and each gather in two levels, inside of groups of n neighbours, as
    those of a machine, and across: of each group's bytes then 1/n as many cross (`sums`).
    """

    dp: int = knob(4, help="ranks that share the batch", low=1, high=65536)
    zero: int = knob(
        0,
        help="ZeRO stage: 1 shards optimizer states, 2 gradients, 3 parameters",
        choices=(0, 1, 2, 3),
    )
    bucket_mb: float = knob(
        0.25,
        help="largest gradient bucket, in megabytes (PyTorch's DDP: 25)",
        low=0.001,
        high=1000.0,
    )
    inner: Strategy | None = None
    accumulation: int = accumulation_knob()
    recompute: str = recompute_knob()
    offload: int = offload_knob()
    shard: int = knob(
        0,
        help="ranks that share states under ZeRO, copied over dp/shard groups (HSDP); 0: all dp",
        low=0,
        high=65536,
        where=lambda knobs: knobs.zero > 0,
    )
    reshard_after_forward: bool | int = knob(
        True,
        help="a rank keeps its share of a block after forward, all of it (False), or 1/n (FSDP2)",
        choices=(True, False),
        own=bool_or_ranks,
        where=lambda knobs: knobs.zero == 3,
    )
    gradients: str = knob(
        "full",
        help="gradients are sent in their own precision, or in blocks of integers (ZeRO++)",
        choices=tuple(BITS),
    )
    within: int = knob(
        0,
        help="neighbours of a machine: sums and gathers inside of it and across; 0: in one level",
        low=0,
        high=65536,
    )
    placement: str = ""

    def __post_init__(self):
        super().__post_init__()
        self._check_shard()
        if hasattr(self.inner, "stages") and not self.inner.shares_batch:  # pyright: ignore[reportOptionalMemberAccess]
            name = type(self.inner).__name__
            raise ValueError(
                f"{name} is not inside of DataParallel but beside it: multiply them, "
                f"{name}(...) * DataParallel(...), or use Merak(dp={self.dp})"
            )
        if knob_of := getattr(self.inner, "shares_batch", ""):
            name = type(self.inner.factors[0]).__name__  # pyright: ignore[reportOptionalMemberAccess]
            raise ValueError(
                f"{name} shares the batch itself: use {name}({knob_of}={self.dp}) and "
                "no DataParallel around it"
            )
        if self.inner is None:
            return
        if not isinstance(self.inner, Strategy) or "dp" in self.inner.axes:
            raise ValueError(
                f"inner={self.inner!r} is not possible: use a strategy without a dp axis, or None"
            )
        settle_between(self, "accumulation", 1)
        settle_between(self, "recompute", "none", to_inner=True)
        settle_between(self, "offload", 0, to_inner=True)
        object.__setattr__(self, "inner", inside_of_replicas(self.inner))

    def _check_shard(self):
        if self.shard and not self.zero:
            raise ValueError(
                f"shard={self.shard} with zero=0 has no states to share: use zero=1, 2 or 3, or "
                "shard=0"
            )
        if self.shard == 1:
            raise ValueError(
                f"shard=1 leaves all states whole, as zero=0 does: use zero=0 and shard=0, or one "
                f"of shard={divisors(self.dp)[1:]}"
            )
        if self.shard:
            divides("dp", self.dp, "shard", self.shard)
        if self.shard == self.dp:
            object.__setattr__(self, "shard", 0)
        self._check_reshard()
        if self.within:
            self._check_within()

    def _check_within(self):
        if self.within == 1:
            raise ValueError(
                "within=1 leaves one rank in a group, so nothing is inside: use within=0, or one "
                f"of within={divisors(self.dp)[1:-1]}"
            )
        divides("dp", self.dp, "within", self.within)
        if self.shard or self.kept > 1:
            other = f"shard={self.shard}" if self.shard else f"reshard_after_forward={self.kept}"
            raise ValueError(
                f"within={self.within} with {other}, which has groups of its own: use within=0, or "
                "shard=0 and reshard_after_forward=True"
            )
        if self.within == self.dp:
            object.__setattr__(self, "within", 0)

    def _check_reshard(self):
        kept = f"reshard_after_forward={self.reshard_after_forward}"
        if self.reshard_after_forward is not True and self.zero != 3:
            raise ValueError(
                f"{kept} with zero={self.zero}, where parameters stay whole: use zero=3, or "
                "reshard_after_forward=True"
            )
        if self.kept == 1:
            return
        name, ranks = ("shard", self.shard) if self.shard else ("dp", self.dp)
        divides(name, ranks, "reshard_after_forward", self.kept)
        if self.kept == ranks:
            instead = " or ".join(["True", *map(str, divisors(ranks)[1:-1])])
            raise ValueError(f"{kept} is {name}={ranks}, all that share states: use {instead}")

    def takes(self, other: Strategy) -> "Strategy | None":
        """The product with a strategy inside. Around AxoNN it becomes AxoNN's own axis ``data``."""
        if self.inner is not None and isinstance(other, TensorParallel):
            made = self.inner.nested(other)
            return made and replace(self, inner=made)
        plain = self.inner is None and not isinstance(other, DataParallel)
        plain = plain and not getattr(other, "outermost", False)
        beside = hasattr(other, "stages") and not other.shares_batch  # `Pipeline.takes` does it
        if not plain or beside:
            return None
        few = self.gradients != "full" or self.within
        plain = not self.zero and not few and type(self) is DataParallel
        if own_replicas(other) == 1 and plain:
            return with_replicas(other, self.dp)
        return replace(self, inner=other)

    @property
    def inside(self) -> Strategy:
        """The strategy inside; `WholeBlocks` if there is none."""
        return self.inner or _whole(self.recompute, self.offload)

    @property
    def replicas(self) -> Replicas:
        """Who adds up gradients, and shares states, of parameters that no axis along which others
        see other tokens cuts: parts of the batch, with ``shard`` those of a group, and inside."""
        return Replicas.along({**self.sharing, **self.inside.joined})

    @property
    def sharing(self) -> dict[str, int]:
        """{axis: ranks} of `data_axes` along which states are shared."""
        return {axis: n for axis, n in self.data_axes.items() if axis != "replicate"}

    def classes(self, workload: "GPT") -> Classes:
        """{who adds up gradients and shares states: of which parameters}."""
        return _classes(self.inside, workload, tuple(self.sharing.items()))

    def parts(self, workload: "GPT") -> dict[Replicas, tuple[float, float]]:
        """{`Replicas`: (fraction of a rank's elements that are of this class, of all its elements
        those in blocks, which stage 3 gathers twice)}."""
        shapes, late = _inside(self.inside, workload, self.local(workload))
        numels = {name: prod(shape) for name, shape in shapes.items()}
        total, found = sum(numels.values()), {}
        for of, names in self.classes(workload).items():
            early = (n for n in names if n.startswith("blocks.") and n not in late)
            blocks = sum(map(numels.__getitem__, early))
            found[of] = sum(numels[name] for name in names) / total, blocks / total
        return found

    def alone(self, workload: "GPT") -> dict[str, int]:
        """{parameter: elements} of a rank's parameters that no other has, and which no bucket."""
        shapes = _inside(self.inside, workload, self.local(workload))[0]
        of = (names for replicas, names in self.classes(workload).items() if replicas.ranks == 1)
        return {name: prod(shapes[name]) for names in of for name in names}

    @property
    def kept(self) -> int:
        """n of ``reshard_after_forward=n``; 1 where that is True or False."""
        return int(self.reshard_after_forward) or 1

    @property
    def across(self) -> Replicas:
        """Who has the same shares, and adds up their gradients: the groups of ``shard`` ranks."""
        return Replicas("replicate", self.dp // self.shard if self.shard else 1)

    @property
    def sent_in_parts(self) -> int:
        """How many parts of a rank's share of a bucket are sent by themselves; 0: it is whole."""
        return self.across.ranks if self.gradients != "full" or self.within else 0

    @property
    def levels(self) -> int:
        """Groups of two levels of collectives; 1: these have one level."""
        return self.dp // self.within if self.within else 1

    @property
    def data_axes(self) -> dict[str, int]:
        """{axis: ranks} that share the batch, outer first."""
        if self.within:
            return {"across": self.levels, "within": self.within}
        if not self.shard and self.kept == 1:
            return {"dp": self.dp}
        ranks, n = self.shard or self.dp, self.kept
        sizes = {"replicate": self.dp // ranks, "shard": ranks // n, "reshard": n}
        return {axis: size for axis, size in sizes.items() if size > 1}

    def knobs_of(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """The knobs by which `data_axes` have other ``sizes``."""
        own = {axis: sizes[axis] for axis in self.data_axes}
        if self.within:
            dp, n = prod(own.values()), own["within"]
            return {"dp": dp, "within": n if 1 < n < dp else 0}
        shard, n = own.get("shard", 0), own.get("reshard", 1)
        kept = {} if self.kept == 1 else {"reshard_after_forward": n if n > 1 < shard else True}
        return {"dp": prod(own.values()), "shard": shard * n if shard * n > 1 else 0, **kept}

    @property
    def alike(self) -> bool | tuple[str, ...]:
        """``alike`` of the strategy inside."""
        inside: Any = self.inside.alike
        return (*self.data_axes, *inside) if isinstance(inside, tuple) else inside

    @property
    def parent_axis(self) -> Mapping[str, str]:
        """``parent_axis`` of the strategy inside."""
        return self.inside.parent_axis

    @property
    def axes(self) -> dict[str, int]:
        return placed(self.data_axes | self.inside.axes, self.placement)

    def check(self, workload: "GPT") -> None:
        axis, parts = "dp", self.dp
        if self.accumulation > 1:
            axis, parts = "dp*accumulation", self.dp * self.accumulation
        divides("batch", workload.batch, axis, parts)
        try:
            self.inside.check(self.local(workload))
        except ValueError as error:
            clash = getattr(error, "clash", None)
            if clash is None or "batch" not in clash.size_name:
                raise
            raise clash.outside(axis, parts).error() from None

    def local(self, workload: "GPT") -> "GPT":
        """The workload of one microbatch of one replica."""
        return workload.with_batch(workload.batch // (self.dp * self.accumulation))

    def splits(self, workload: "GPT") -> dict[str, list[tuple[int, str]]]:
        return self.inside.splits(self.local(workload))

    def buckets(self, workload: "GPT") -> list[Bucket]:
        """The `buckets.Bucket` list of one rank."""
        return list(_buckets(self, workload))

    def step(self, workload: "GPT") -> "Step":
        return step(self, workload)

    def summing(self, size: float) -> Collective:
        """The collective that adds up ``size`` bytes of gradients at stage 0, here and around a
        pipeline; each of the `classes` gives it its own axis. One that sends other bytes overrides
        it, and `start_sum`."""
        return Collective(self.replicas.axis, "all_reduce", size)  # pyright: ignore[reportArgumentType]

    def start_sum(self, flat: "torch.Tensor", group: "dist.ProcessGroup") -> "dist.Work":
        """Start the sum of ``flat`` over the group, in place; returns the handle to wait for."""
        import torch.distributed as dist

        return dist.all_reduce(flat, group=group, async_op=True)  # pyright: ignore[reportReturnType]

    def held(self, workload: "GPT", rank: int = 0) -> "Held":
        shards = self.replicas.ranks if self.zero >= 2 else 1
        held = self.inside.held(self.local(workload))
        return held._replace(shards=shards * (self.accumulation > 1))

    def memory(self, workload: "GPT") -> "Memory":
        return memory(self, workload)

    def least_memory(self, workload: "GPT") -> "Memory":
        """A bound: `memory` without the padding of buckets and without buckets in flight."""
        from .memory import least

        return least(self, workload)

    @classmethod
    def space(cls, workload: "GPT", world_size: int) -> Iterator[Self]:
        """All ZeRO stages; those with buckets also with PyTorch's 25 MB; hybrid sharding; and two
        levels."""
        if not cls.allows("dp", world_size):
            return
        for ranks in divisors(world_size)[1:-1]:
            for zero in (1, 2, 3):
                yield cls(dp=world_size, zero=zero, shard=ranks)
            yield cls(dp=world_size, zero=3, reshard_after_forward=ranks)
            for zero in (0, 1, 2, 3):
                yield cls(dp=world_size, zero=zero, within=ranks)
        yield cls(dp=world_size, zero=3, reshard_after_forward=False)
        for zero in (0, 1, 2, 3) if world_size > 1 else (0,):
            yield cls(dp=world_size, zero=zero)
            if zero < 3 and world_size > 1:
                yield cls(dp=world_size, zero=zero, bucket_mb=25.0)

    @classmethod
    def layouts(cls, workload: "GPT", world_size: int) -> "Iterator[Strategy]":
        """States over all ranks or over fewer: all other knobs are varied by `choices`."""
        if cls.allows("dp", world_size):
            yield cls(dp=world_size)
            for ranks in divisors(world_size)[1:-1]:
                yield cls(dp=world_size, zero=1, shard=ranks)
                yield cls(dp=world_size, zero=3, reshard_after_forward=ranks)

    def choices(self, workload: "GPT") -> list[dict[str, Any]]:
        """Recomputation, all stages, and those with buckets also with PyTorch's 25 MB."""
        several = self.replicas.ranks > 1
        zeros = (0, 1, 2, 3)[bool(self.shard) : 4 if several else 1] if self.kept == 1 else (3,)
        stages = [{"zero": zero} for zero in zeros]
        large = [{"zero": zero, "bucket_mb": 25.0} for zero in zeros if zero < 3 and several]
        if self.kept == 1 and several:
            stages.append({"zero": 3, "reshard_after_forward": False})
        again = (self.inner.choices if self.inner else super().choices)(workload)
        return [{**stage, **more} for more in again for stage in (*stages, *large)]

    def bounds(self, workload: "GPT", cluster: "Cluster") -> Callable[..., float]:
        """The bounds of the strategy inside, with the bytes of gradients and parameters."""
        from .bounds import bounds

        return bounds(self, workload, cluster)

    def flat_ranges(self, workload: "GPT") -> dict[str, dict[str, Any]]:
        """{parameter: {"axis", "ranges": what each dp index keeps}} at ZeRO 3, else nothing."""
        if self.zero < 3 or self.replicas.ranks == 1:
            return {}
        return kept_ranges(self.buckets(workload), self.axes)


def inside_of_replicas(inner: Any) -> Any:
    """``inner`` with the gradients of its own parts of the tokens left to the replicas around."""
    if within := getattr(inner, "inner", None):
        inner = replace(inner, inner=inside_of_replicas(within))
    return replace(inner, summing=False) if getattr(inner, "summing", False) else inner


def own_replicas(strategy: Any) -> int | None:
    """The replicas that a strategy, or the one inside of it, has of its own; None where it cannot
    have any."""
    return getattr(strategy.factors[0], "data", None)


def with_replicas(strategy: Any, ranks: int) -> Any:
    """The strategy with so many replicas of its own."""
    first = replace(strategy.factors[0], data=ranks)
    return first if len(strategy.factors) == 1 else replace(strategy, inner=first)


@lru_cache(maxsize=64)
def _whole(recompute: str, offload: int) -> Strategy:
    return WholeBlocks(recompute, offload=offload)


@lru_cache(maxsize=64)
def _inside(inner: Strategy, workload: "GPT", local: "GPT"):
    """({parameter: shape of a rank's part}, those whose gradients are partial), by the inner
    strategy: the same at every stage of ZeRO."""
    return local_shapes(inner, workload), inner.partial(local)


@lru_cache(maxsize=256)
def _classes(inner: Strategy, workload: "GPT", sharing: tuple[tuple[str, int], ...]):
    return inner.classes_among(workload, dict(sharing))


@lru_cache(maxsize=256)
def _buckets(strategy: "DataParallel", workload: "GPT"):
    """The ledger, the cost and the memory all ask for them."""
    shapes, partial = _inside(strategy.inside, workload, strategy.local(workload))
    return tuple(
        bucket._replace(groups=strategy.levels)
        for bucket in buckets_of(
            shapes,
            strategy.classes(workload),
            strategy.zero,
            int(strategy.bucket_mb * MEGABYTE),
            workload.itemsize,
            partial,
            strategy.sent_in_parts,
        )
    )

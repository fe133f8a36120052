"""A factor around a tensor parallelism that leaves most to it."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tpviz.core.step import Part
from tpviz.schemes.experts.cut import cut_of

from .layout import Layout
from .tensor import TensorParallel, WholeBlocks

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.step import Operation
    from tpviz.core.workload import GPT
    from tpviz.schemes.gpt.pointwise import Held

    from .program import Groups


class Around(TensorParallel):
    """What it does not say itself, `within` says."""

    inner: TensorParallel | None

    @property
    def within(self) -> TensorParallel:
        """The tensor parallelism inside, with this one's accumulation and recomputation;
        `tensor.WholeBlocks` if there is none."""
        return _within(self)

    @property
    def layout(self) -> Layout:
        return self.within.layout

    @property
    def scheme(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The package whose program runs."""
        return self.within.scheme

    @property
    def shares_batch(self) -> str:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As of the factor inside."""
        return self.within.shares_batch

    @property
    def shares(self) -> Sequence[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As of the factor inside."""
        return self.within.shares

    @property
    def flat_over(self) -> Sequence[str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As of the factor inside."""
        return self.within.flat_over

    @property
    def alike(self) -> Any:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As of the factor inside."""
        return self.within.alike

    @property
    def parent_axis(self) -> Mapping[str, str]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As of the factor inside."""
        return self.within.parent_axis

    @property
    def joined(self) -> Mapping[str, int]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As of the factor inside."""
        return self.within.joined

    def joins(self, workload: "GPT") -> Mapping[str, Collection[str]]:
        return self.within.joins(workload)

    def splits(self, workload: "GPT") -> dict[str, list[tuple[int, str]]]:
        return self.within.splits(workload)

    def cut_over(self, workload: "GPT") -> Mapping[str, Collection[str]]:
        return self.within.cut_over(workload)

    def flat_shapes(self, workload: "GPT") -> dict[str, tuple[int, ...]]:
        return self.within.flat_shapes(workload)

    def flat_ranges(self, workload: "GPT") -> dict[str, dict[str, Any]]:
        """As of the factor inside."""
        return getattr(self.within, "flat_ranges", lambda workload: {})(workload)

    def routed(self, workload: "GPT") -> Collection[str]:
        return TensorParallel.uneven(self, workload)

    def rows(self, workload: "GPT") -> tuple[int, ...]:
        local = self.local(workload).with_batch(1)
        cut = cut_of(self.layout, local)
        sent = cut.sent(local).reshape(cut.ep, -1)
        own = sent[cut.at(local)]
        return *own.tolist(), int(own.sum()), *sent.sum(1).tolist()

    def check_split_backward(self) -> None:
        self.within.check_split_backward()

    def pieces(self, workload: "GPT", split: bool = False) -> "dict[str, list[Operation]]":
        return self.within.pieces(workload, split)

    def groups(self, mesh: "DeviceMesh", halves: int = 1) -> "Groups":
        return self.within.groups(mesh, halves)

    def lowered(self, parts: Sequence[Part]) -> Sequence[Part]:
        return self.within.lowered(parts)

    def least_of(self, parts: Sequence[Part]) -> Sequence[Part]:
        return self.within.least_of(parts)

    def gathered(self, workload: "GPT") -> tuple[int, int]:
        return self.within.gathered(workload)

    def held(self, workload: "GPT", rank: int = 0) -> "Held":
        return self.within.held(self.part(workload))


@lru_cache(maxsize=256)
def _within(around: Around) -> TensorParallel:
    inner: Any = around.inner or WholeBlocks()
    own = {"accumulation": around.accumulation, "recompute": around.recompute}
    return replace(inner, **own, **({"offload": around.offload} if around.offload else {}))

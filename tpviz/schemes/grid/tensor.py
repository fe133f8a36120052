"""What every tensor-parallel strategy is: a layout of the same network, and its kernels in order.

A scheme gives its knobs and its `layout.Layout`; the step, the ledger, the time, the memory and the
program follow. What it does in its own way it overrides: T3 and AxoNN give other ``pieces``.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Any

from tpviz.core.step import Collective, Part, Step, accumulated
from tpviz.schemes.experts.cut import cut_of, of_mixtures
from tpviz.schemes.gpt.memory import of_step
from tpviz.schemes.gpt.step import assemble
from tpviz.schemes.ownership import local_shapes, num_local
from tpviz.schemes.strategy import Strategy, microbatch

from .layout import Layout
from .memory import memory
from .offload import with_copies
from .step import completion_order, pieces

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.cluster.clock.cost import Memory
    from tpviz.core.step import Operation
    from tpviz.core.workload import GPT
    from tpviz.schemes.context.sequence import SequenceCut
    from tpviz.schemes.gpt.pointwise import Held

    from .program import Groups


class TensorParallel(Strategy):
    """A strategy that cuts a block's matrices and activations by a ``layout``.

    every_block : whether it splits experts and latent attention too.
    shares : its own axes over which the batch is split, outer first. flat_over : those over which
    it shards parameters that are whole otherwise, as ZeRO does. sequence : how sequences are
    cut, where they are.
    """

    alike: Any = True
    scheme = "tpviz.schemes.grid"
    shares: Sequence[str] = ()
    flat_over: Sequence[str] = ()
    sequence: "SequenceCut | None" = None
    every_block = True

    if TYPE_CHECKING:

        @property
        def layout(self) -> Layout:
            """The role of each axis."""
            ...

    def splits(self, workload: "GPT") -> dict[str, list[tuple[int, str]]]:
        return self.layout.splits(workload)

    def summed(self, workload: "GPT") -> Mapping[str, tuple[str, ...]]:
        at, cuts, names = self.layout, self.cut_over(workload), workload.parameter_shapes()
        axes = [axis for axis in reversed(self.shares) if self.axes[axis] > 1]
        of_axis = {
            axis: tuple(name for name in names if axis not in cuts.get(name, ()))
            for axis in (*axes, *[at.inside] * at.sp)
        }
        if workload.experts and at.i > 1 and not at.sp:
            # different tokens of its ranks, or parts of the experts' results, lead to these
            mlp = of_mixtures(workload)
            of_axis[at.inside] = tuple(n for n in mlp if at.inside not in cuts.get(n, ()))
        return {axis: found for axis, found in of_axis.items() if found}

    def cut_over(self, workload: "GPT") -> Mapping[str, Collection[str]]:
        """{parameter: axes of which each rank has a part of it}."""
        return {name: [axis for _, axis in cuts] for name, cuts in self.splits(workload).items()}

    def flat_shapes(self, workload: "GPT") -> dict[str, tuple[int, ...]]:
        """{parameter: shape of what a rank keeps of it}."""
        return local_shapes(self, workload)

    def check_dense(self, workload: "GPT") -> None:
        """Raises ``ValueError`` for a workload with experts, or latent attention."""
        if workload.kv_lora:
            raise ValueError(
                f"{self.short} does not split latent attention (kv_lora={workload.kv_lora}): use "
                f"Megatron(tp={self.layout.i * self.layout.s}), which does"
            )
        if workload.experts:
            raise ValueError(
                f"{self.short} does not split experts={workload.experts}: use Megatron(tp="
                f"{self.layout.i * self.layout.s}), which does, and Experts(ep=2) around it"
            )

    def uneven(self, workload: "GPT") -> Collection[str]:
        """Axes along which experts have other numbers of rows, where there are some."""
        if not workload.experts:
            return ()
        local = self.local(workload)
        return cut_of(self.layout, local).uneven(local)

    def check_split_backward(self) -> None:
        """Raises ``ValueError`` if weight gradients cannot be deferred."""

    def pieces(self, workload: "GPT", split: bool = False) -> "dict[str, list[Operation]]":
        """The operations of each part of the network, as `step.pieces`, of one microbatch."""
        return pieces(self.layout, workload, split)

    def sums(self, workload: "GPT") -> "list[Operation]":
        """The sums of gradients by `summed`, one collective an axis."""
        shapes, item = self.flat_shapes(workload), workload.itemsize
        return [
            Collective(axis, "all_reduce", item * num_local({name: shapes[name] for name in names}))
            for axis, names in self.summed(workload).items()
            if self.axes[axis] > 1
        ]

    def groups(self, mesh: "DeviceMesh", halves: int = 1) -> "Groups":
        """A rank's process groups and layers, by ``groups`` of the scheme's ``program.py``."""
        return import_module(f"{self.scheme}.program").groups(self, mesh, halves)

    def lowered(self, parts: Sequence[Part]) -> Sequence[Part]:
        """The parts, with private items of `pieces` replaced by kernels and collectives."""
        return parts

    def least_of(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Parts that certainly take no longer than those of `lowered`."""
        return parts

    def gathered(self, workload: "GPT") -> tuple[int, int]:
        """Bytes of gathered weights: (per block from forward to backward, for a moment)."""
        return 0, 0

    @property
    def sharing(self) -> int:
        """Number of its ranks that the batch is split over."""
        return prod(self.axes[axis] for axis in self.shares)

    @property
    def token_ranks(self) -> int:
        """Number of its ranks that the tokens of the batch are split over."""
        return self.sharing

    def part(self, workload: "GPT") -> "GPT":
        """What a rank has of the sequences: all of them, unless `sequence` says else."""
        return workload

    def step(self, workload: "GPT") -> Step:
        local = self.local(workload)
        sync, order = self.sums(local) if local.experts else None, completion_order(self.layout)
        parts = assemble(local, self.pieces, order, self.recompute, sync)
        return accumulated(with_copies(self, local, parts), self.accumulation)

    def held(self, workload: "GPT", rank: int = 0) -> "Held":
        return self.layout.held(self.local(workload), int(self.accumulation > 1))

    def memory(self, workload: "GPT") -> "Memory":
        local = self.local(workload)
        found = memory(self.layout, local, self.recompute, self.offload)
        return of_step(found, workload, local)

    @property
    def copies(self) -> int:
        return self.layout.s


@dataclass(frozen=True)
class WholeBlocks(TensorParallel):
    """A block on one rank, without an axis of its own: the step of one process."""

    recompute: str = "none"
    accumulation: int = 1
    offload: int = 0

    def check(self, workload: "GPT") -> None:
        microbatch(self, workload)

    @property
    def axes(self) -> dict[str, int]:
        return {}

    @property
    def layout(self) -> Layout:
        return Layout.of_one_axis("", 1)

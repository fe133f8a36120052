"""PyTorch's own parallelism on our reference GPT: what our schemes are compared with, fairly.

DTensor's tensor parallelism, FSDP2 and DDP, unmodified, as strategies for every verb: the same
workload, groups, optimizer and recording. They are not ours, so they have no formula: no `predict`,
no ledger, and `tpviz.search` does not list them.

    from tpviz.evidence import peers
    tv.run(peers.DTensorTP(tp=4), tv.GPT())
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tpviz.core.checks import divides
from tpviz.schemes.knobs import knob, knob_of
from tpviz.schemes.strategy import Strategy
from tpviz.schemes.zero.strategy import DataParallel

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.workload import GPT
    from tpviz.schemes.gpt.model import ReferenceGPT
    from tpviz.schemes.gpt.program import Program


class Peer(Strategy):
    """A strategy of PyTorch's on one mesh axis; ``wrap`` makes the module parallel in place."""

    if TYPE_CHECKING:  # of the peers

        def wrap(self, module: "ReferenceGPT", mesh: "DeviceMesh") -> "nn.Module":
            """The module, parallel."""
            ...

    def check(self, workload: "GPT") -> None:
        """Sizes are left to PyTorch, but for what would fail inside ranks."""

    def build(
        self,
        workload: "GPT",
        mesh: "DeviceMesh",
        dtype: "torch.dtype | None" = None,
        device: str = "cpu",
        **options: Any,
    ) -> "Program":
        from tpviz.schemes.gpt.program import Program, reference_program

        whole = reference_program(self.local(workload), dtype, device).module
        module = self.wrap(whole, mesh)  # pyright: ignore[reportArgumentType]
        program = Program(workload, module, mesh, **options)
        program.forward = lambda batch: module(*self.part(batch, mesh))
        _one_kind_a_call(program, **options)
        return program

    def local(self, workload: "GPT") -> "GPT":
        """The workload one rank sees."""
        return workload

    def part(self, batch: "Sequence[torch.Tensor]", mesh: "DeviceMesh") -> "Sequence[torch.Tensor]":
        """What this rank sees of the batch."""
        return batch


class _BatchPeer(Peer):
    """A peer whose ranks all share the batch."""

    dp: int

    @property
    def axes(self) -> dict[str, int]:
        return {"dp": self.dp}

    def check(self, workload: "GPT") -> None:
        divides("batch", workload.batch, "dp", self.dp)

    def local(self, workload: "GPT") -> "GPT":
        return replace(workload, batch=workload.batch // self.dp)

    def part(self, batch: "Sequence[torch.Tensor]", mesh: "DeviceMesh") -> "Sequence[torch.Tensor]":
        return [rows.chunk(mesh.size())[mesh.get_rank()] for rows in batch]


def _one_kind_a_call(program, **options):
    """Let the optimizer take DTensors and others in turn: a fused call takes only one kind."""
    from torch.distributed.tensor import DTensor

    from tpviz.schemes.gpt.program import adamw

    whole = [p for p in program.module.parameters() if not isinstance(p, DTensor)]
    split = [p for p in program.module.parameters() if isinstance(p, DTensor)]
    if whole and split:
        program.optimizer = adamw([{"params": whole}, {"params": split}], **options)


@dataclass(frozen=True)
class DTensorTP(Peer):
    """`torch.distributed.tensor.parallel`: qkv and up by columns, out and down by rows."""

    tp: int = knob(4, help="ranks that share each matrix", low=1)

    @property
    def axes(self) -> dict[str, int]:
        return {"tp": self.tp}

    def check(self, workload: "GPT") -> None:
        for name, (size, within) in workload.divisible.items():
            divides(name, size, "tp", self.tp, within=within)

    def wrap(self, module: "ReferenceGPT", mesh: "DeviceMesh") -> "nn.Module":
        """The module with its matrices as DTensors."""
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        column, row = ColwiseParallel(), RowwiseParallel()
        plan = {"attention.qkv": column, "attention.out": row, "mlp.up": column, "mlp.down": row}
        for block in module.blocks:
            parallelize_module(block, mesh, plan)
        return module


@dataclass(frozen=True)
class FSDP2(_BatchPeer):
    """`torch.distributed.fsdp.fully_shard` on every block and on the root; with ``shard`` over a
    mesh of two axes, PyTorch's HSDP. Knobs as those of `tpviz.DataParallel`."""

    dp: int = knob(4, help="ranks that share the batch", low=1)
    shard: int = knob(0, help="ranks that share states; 0: all", low=0)
    reshard_after_forward: bool | int = knob_of(DataParallel, "reshard_after_forward")

    @property
    def axes(self) -> dict[str, int]:
        return DataParallel(self.dp, zero=3, shard=self.shard).axes

    def wrap(self, module: "ReferenceGPT", mesh: "DeviceMesh") -> "nn.Module":
        """The module with parameters sharded."""
        from torch.distributed.fsdp import fully_shard

        for block in module.blocks:
            fully_shard(block, mesh=mesh, reshard_after_forward=self.reshard_after_forward)
        return fully_shard(module, mesh=mesh)  # pyright: ignore[reportReturnType]


@dataclass(frozen=True)
class DDP(_BatchPeer):
    """`torch.nn.parallel.DistributedDataParallel`, gradients in buckets of ``bucket_mb``."""

    dp: int = knob(4, help="ranks that share the batch", low=1)
    bucket_mb: float = knob(25.0, help="largest gradient bucket, in megabytes", low=1e-6, high=1e6)

    def wrap(self, module: "ReferenceGPT", mesh: "DeviceMesh") -> "nn.Module":
        """The module inside DDP."""
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(
            module, process_group=mesh.get_group("dp"), bucket_cap_mb=self.bucket_mb
        )

"""PyTorch's own parallelism on our reference GPT: what our schemes are compared with, fairly.

DTensor's tensor parallelism, FSDP2 and DDP, unmodified, as strategies for every verb: the same
workload, groups, optimizer and recording. They are not ours, so they have no formula: no `predict`,
no ledger, and `tpviz.search` does not list them.

    from tpviz import peers
    tv.run(peers.DTensorTP(tp=4), tv.GPT())
"""

from dataclasses import dataclass, replace

from .checks import divides
from .strategy import Strategy, knob


class Peer(Strategy):
    """A strategy of PyTorch's on one mesh axis; ``wrap`` makes the module parallel in place."""

    def check(self, workload):
        """Sizes are left to PyTorch, but for what would fail inside ranks."""

    def build(self, workload, mesh, dtype=None, device="cpu", **options):
        from .schemes.gpt.program import Program, reference_program

        program = reference_program(self.local(workload), dtype, device)
        module = self.wrap(program.module, mesh)
        part = next(iter(self.axes)) if self.splits_batch else None
        return _rebuilt(Program, workload, module, mesh, part, options)

    splits_batch = False

    def local(self, workload):
        """The workload one rank sees."""
        return workload


def _rebuilt(base, workload, module, mesh, axis, options):
    """The program of a wrapped module; with ``axis`` each rank takes its part of the batch."""

    from torch.distributed.tensor import DTensor

    from .schemes.gpt.program import adamw

    class PeerProgram(base):
        def forward(self, batch):
            if axis is not None:
                parts, mine = mesh.size(), mesh.get_local_rank()
                batch = [rows.chunk(parts)[mine] for rows in batch]
            return self.module(*batch)

    program = PeerProgram(workload, module, mesh, **options)
    whole = [p for p in module.parameters() if not isinstance(p, DTensor)]
    split = [p for p in module.parameters() if isinstance(p, DTensor)]
    if whole and split:  # one fused optimizer call takes only one kind
        program.optimizer = adamw([{"params": whole}, {"params": split}], **options)
    return program


@dataclass(frozen=True)
class DTensorTP(Peer):
    """`torch.distributed.tensor.parallel`: qkv and up by columns, out and down by rows."""

    tp: int = knob(4, help="ranks that share each matrix", low=1)

    @property
    def axes(self):
        return {"tp": self.tp}

    def check(self, workload):
        divides("heads", workload.heads, "tp", self.tp)

    def wrap(self, module, mesh):
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
            block.attention.heads //= self.tp
        return module


@dataclass(frozen=True)
class FSDP2(Peer):
    """`torch.distributed.fsdp.fully_shard` on every block and on the root."""

    dp: int = knob(4, help="ranks that share the batch", low=1)
    splits_batch = True

    @property
    def axes(self):
        return {"dp": self.dp}

    def check(self, workload):
        divides("batch", workload.batch, "dp", self.dp)

    def local(self, workload):
        return replace(workload, batch=workload.batch // self.dp)

    def wrap(self, module, mesh):
        """The module with parameters sharded."""
        from torch.distributed.fsdp import fully_shard

        for block in module.blocks:
            fully_shard(block, mesh=mesh)
        return fully_shard(module, mesh=mesh)


@dataclass(frozen=True)
class DDP(Peer):
    """`torch.nn.parallel.DistributedDataParallel`, gradients in buckets of ``bucket_mb``."""

    dp: int = knob(4, help="ranks that share the batch", low=1)
    bucket_mb: float = knob(25.0, help="largest gradient bucket, in megabytes", low=1e-6, high=1e6)
    splits_batch = True

    @property
    def axes(self):
        return {"dp": self.dp}

    def check(self, workload):
        divides("batch", workload.batch, "dp", self.dp)

    def local(self, workload):
        return replace(workload, batch=workload.batch // self.dp)

    def wrap(self, module, mesh):
        """The module inside DDP."""
        from torch.nn.parallel import DistributedDataParallel

        return DistributedDataParallel(
            module, process_group=mesh.get_group("dp"), bucket_cap_mb=self.bucket_mb
        )

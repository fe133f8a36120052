"""A rank's AxoNN program: the GPT of `tpviz.schemes.grid` on the plane of x and y, on its own rows
of the batch, its weights sharded over z.

Parameters that are not sharded (biases, LayerNorm, positions) are the same along z and data, so
their gradients are all-reduced over both; the shards' gradients over data.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tpviz.labels import label
from tpviz.mesh import Mesh
from tpviz.schemes.collectives import own_of, part_of
from tpviz.schemes.gpt.initial import load_initial
from tpviz.schemes.gpt.program import LEARNING_RATE, Program, gather_together, own_part
from tpviz.schemes.grid.program import GridGPT, Groups

from .bundle import Bundle
from .clip import GRID, copies, norm_of, shrink
from .layers import DepthEmbedding, DepthLinear
from .tuner import Tuner
from .weights import Depth

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.workload import GPT

    from .strategy import AxoNN


class DepthGroups(Groups):
    """The groups of the plane, and the depth axis that weights lie along."""

    def __init__(self, strategy: "AxoNN", mesh: "DeviceMesh", prefetch: "dist.ProcessGroup | None"):
        super().__init__(strategy.layout, mesh)
        self.depth = Depth(mesh.get_group("z"), prefetch, "ors" in strategy.overlap, strategy.keep)
        axes = ("x", "y", "z", "data")
        self.tuner = Tuner([mesh.get_group(a) for a in axes]) if strategy.tune else None
        self.linear = partial(DepthLinear, depth=self.depth, tuner=self.tuner)

        if "oar" not in strategy.overlap:
            for name in ("qkv", "out", "up", "down", "last"):
                setattr(self, name, getattr(self, name)._replace(hidden=False))

    def embedding(self, w: "GPT", **kw: Any) -> DepthEmbedding:
        return DepthEmbedding(w, self, **kw)


class AxoNNProgram(Program):
    """One rank's step: microbatches, then the all-reduces over z and data."""

    mesh: "DeviceMesh"

    def __init__(
        self,
        strategy: "AxoNN",
        workload: "GPT",
        module: "nn.Module",
        mesh: "DeviceMesh",
        depth: Depth,
        pieces: Mapping[str, tuple[int, ...]],
        lr: float = LEARNING_RATE,
    ):
        super().__init__(
            workload,
            module,
            mesh,
            strategy.splits(workload),
            lr=lr,
            accumulation=strategy.accumulation,
            layout=strategy.layout,
            rows=[(0, "z"), (0, "data")],
        )
        self.strategy, self.depth, self.pieces = strategy, depth, pieces

    def step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        self.optimizer.zero_grad()
        self.depth.begin()
        loss = self.accumulate(self._rows(batch), 1 / (self.strategy.data * self.strategy.z))
        with label(phase="sync"):
            self.depth.collect()
        self.synchronise()
        return loss

    def before_backward(self) -> None:
        """Scatters of the microbatch before have had a forward's time."""
        self.depth.collect()

    def _rows(self, batch):
        """This rank's: the batch is cut over data, then over z."""
        s, mesh = self.strategy, self.mesh
        mine = mesh.get_local_rank("data") * s.z + mesh.get_local_rank("z")
        return [part_of(whole, mine, s.data * s.z) for whole in batch]

    def synchronise(self) -> None:
        whole = [p for name, p in self.named.items() if name not in self.pieces]
        with label(phase="sync"):
            self.sum_gradients("z", whole)
            self.sum_gradients("data", list(self.named.values()))
            if self.strategy.clip:
                self._clip()

    def _clip(self):
        axes, gradients = self.strategy.axes, [p.grad for p in self.named.values()]
        shares = [
            copies(axes, self.splits.get(name, ()), name in self.pieces) for name in self.named
        ]
        self.norm = norm_of(gradients, shares, [self.mesh.get_group(axis) for axis in GRID])  # pyright: ignore[reportArgumentType]
        shrink(gradients, self.norm, self.strategy.clip)  # pyright: ignore[reportArgumentType]

    def full(self, locals_by_name: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        shards = {name: t for name, t in locals_by_name.items() if name in self.pieces}
        whole = gather_together(shards, {name: [(0, "z")] for name in shards}, self.mesh)
        blocks = {name: t.view(self.pieces[name]) for name, t in whole.items()}
        return gather_together({**locals_by_name, **blocks}, self.splits, self.mesh)


def build(
    strategy: "AxoNN",
    workload: "GPT",
    mesh: "DeviceMesh",
    dtype: torch.dtype | None,
    device: str | torch.device,
    **options: Any,
) -> AxoNNProgram:
    """This rank's `AxoNNProgram`, on a ``DeviceMesh`` with the axes x, y, z and data."""
    prefetch = None
    if "oag" in strategy.overlap and strategy.z > 1:
        prefetch = Mesh(strategy.axes).second_group("z", "z_ahead")
    groups = DepthGroups(strategy, mesh, prefetch)
    module = GridGPT(
        strategy.local(workload),
        groups,
        device=device,
        dtype=dtype or getattr(torch, workload.dtype),
    )
    for name, layer in module.named_modules():
        if hasattr(layer, "pieces"):
            layer.pieces.layer = name  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
    if strategy.gather == "block" and strategy.z > 1:
        for number, block in enumerate(module.blocks):
            weights = [layer.pieces for layer in block.modules() if hasattr(layer, "pieces")]
            Bundle(weights, f"blocks.{number}")  # pyright: ignore[reportArgumentType]
    blocks = strategy.blocks(workload)
    _load(module, workload, strategy.splits(workload), blocks, mesh)
    if groups.tuner:
        local = strategy.local(workload)
        layers = [layer for layer in module.modules() if isinstance(layer, DepthLinear)]
        groups.tuner.prepare(layers, local.batch * local.seq)
    return AxoNNProgram(strategy, workload, module, mesh, groups.depth, blocks, **options)


def _load(module, workload, splits, blocks, mesh):
    """Each parameter's part of its initial value; of a block the shard of this rank."""

    def own(name, full):
        part = own_part(name, full, splits, mesh)
        if name not in blocks:
            return part
        return own_of(part.flatten(), mesh.get_group("z"))

    load_initial(module, workload, own)

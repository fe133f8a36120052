"""A rank's AxoNN program: the GPT of `tpviz.schemes.grid` on the plane of x and y, on its own rows
of the batch, its weights sharded over z.

Parameters that are not sharded (biases, LayerNorm, positions) are the same along z and data, so
their gradients are all-reduced over both; the shards' gradients over data.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tpviz.core.labels import label
from tpviz.core.mesh import Mesh
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
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.workload import GPT

    from .strategy import AxoNN


class DepthGroups(Groups):
    """The groups of the plane, and the depth axis that weights lie along."""

    def __init__(self, strategy: "AxoNN", mesh: "DeviceMesh"):
        super().__init__(strategy.layout, mesh)
        self.strategy, prefetch = strategy, None
        if "oag" in strategy.overlap and strategy.z > 1:
            axes = {axis: mesh.get_group(axis).size() for axis in mesh.mesh_dim_names}  # pyright: ignore[reportOptionalIterable]
            prefetch = Mesh(axes).second_group("z", "z_ahead", device_type=mesh.device_type)
        self.depth = Depth(mesh.get_group("z"), prefetch, "ors" in strategy.overlap, strategy.keep)
        axes = ("x", "y", "z", "data")
        self.tuner = Tuner([mesh.get_group(a) for a in axes]) if strategy.tune else None
        self.linear = partial(DepthLinear, depth=self.depth, tuner=self.tuner)

        if "oar" not in strategy.overlap:
            for name in ("qkv", "out", "up", "down", "last"):
                setattr(self, name, getattr(self, name)._replace(hidden=False))

    def embedding(self, w: "GPT", **kw: Any) -> DepthEmbedding:
        return DepthEmbedding(w, self, **kw)

    def load(self, module: "nn.Module", w: "GPT", mesh: Any, copies: Any = ()) -> None:
        """Each parameter's part of its initial value; of a block this rank's shard. Weights know
        their names from now on, and which of them travel together."""
        splits, blocks = self.strategy.splits(w), self.strategy.blocks(w)

        def own(name, full):
            part = own_part(name, full, splits, mesh)
            return own_of(part.flatten(), self.depth.group) if name in blocks else part

        weights = {}
        for name, layer in module.named_modules():
            if hasattr(layer, "pieces"):
                layer.pieces.layer = name  # pyright: ignore[reportAttributeAccessIssue, reportArgumentType]
                weights.setdefault(".".join(name.split(".")[:2]), []).append(layer.pieces)
        if self.strategy.gather == "block" and self.depth.size > 1:
            for name, of_block in weights.items():
                if name.startswith("blocks."):
                    Bundle(of_block, name)
        load_initial(module, w, own, copies)
        if self.tuner:
            layers = [layer for layer in module.modules() if isinstance(layer, DepthLinear)]
            self.tuner.prepare(layers, w.batch * w.seq)

    def blocks(
        self, shards: Mapping[str, torch.Tensor], w: "GPT", mesh: Any
    ) -> dict[str, torch.Tensor]:
        """{parameter: this rank's block}, all-gathered over z from the shards."""
        shapes = self.strategy.blocks(w)
        pieces = {name: t for name, t in shards.items() if name in shapes}
        whole = gather_together(pieces, {name: [(0, "z")] for name in pieces}, mesh)
        return {**shards, **{name: t.view(shapes[name]) for name, t in whole.items()}}

    def begin(self, what: Any = None) -> None:
        self.depth.begin(what)

    def collect(self) -> None:
        self.depth.collect()


class AxoNNProgram(Program):
    """One rank's step: microbatches, then the all-reduces over z and data."""

    mesh: "DeviceMesh"

    def __init__(
        self,
        strategy: "AxoNN",
        workload: "GPT",
        module: "nn.Module",
        mesh: "DeviceMesh",
        groups: DepthGroups,
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
        self.strategy, self.groups, self.depth = strategy, groups, groups.depth
        self.pieces = strategy.blocks(workload)

    def step(self, batch: Sequence[torch.Tensor]) -> torch.Tensor:
        self.optimizer.zero_grad()
        self.depth.begin()
        loss = self.accumulate(self._rows(batch), 1 / (self.strategy.data * self.strategy.z))
        with label(phase="sync"):
            self.depth.collect()
        self.synchronise()
        return loss

    def before_backward(self) -> None:
        """Collect the previous microbatch's reduce-scatters, which this forward has overlapped."""
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
        blocks = self.groups.blocks(locals_by_name, self.workload, self.mesh)
        return gather_together(blocks, self.splits, self.mesh)


def groups(strategy: "AxoNN", mesh: "DeviceMesh", halves: int = 1) -> DepthGroups:
    """The `DepthGroups` of this rank."""
    return DepthGroups(strategy, mesh)


def build(
    strategy: "AxoNN",
    workload: "GPT",
    mesh: "DeviceMesh",
    dtype: torch.dtype | None,
    device: str | torch.device,
    **options: Any,
) -> AxoNNProgram:
    """This rank's `AxoNNProgram`, on a ``DeviceMesh`` with the axes x, y, z and data."""
    parts, local = DepthGroups(strategy, mesh), strategy.local(workload)
    module = GridGPT(local, parts, device=device, dtype=dtype or getattr(torch, workload.dtype))
    parts.load(module, local, mesh)
    return AxoNNProgram(strategy, workload, module, mesh, parts, **options)

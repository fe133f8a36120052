"""A rank's AxoNN program: the GPT of `tpviz.schemes.grid` on the plane of x and y, on its own rows
of the batch, its weights sharded over z.

Parameters that are not sharded (biases, LayerNorm, positions) are the same along z and data, so
their gradients are all-reduced over both; the shards' gradients over data.
"""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from tpviz.core.mesh import Mesh
from tpviz.schemes.collectives import own_of
from tpviz.schemes.gpt.initial import load_initial
from tpviz.schemes.gpt.program import gather_together, own_part
from tpviz.schemes.grid import program as grid_program
from tpviz.schemes.grid.program import GridProgram, Groups

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
            prefetch = Mesh.of(mesh).second_group("z", "z_ahead", device_type=mesh.device_type)
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


class AxoNNProgram(GridProgram):
    """One rank's step: microbatches, then the all-reduces over z and data, and clipping."""

    strategy: "AxoNN"
    groups: DepthGroups

    def __init__(self, strategy: "AxoNN", workload: "GPT", *args: Any, **options: Any):
        super().__init__(strategy, workload, *args, **options)
        self.strategy, self.depth = strategy, self.groups.depth

    def clip_gradients(self) -> None:
        axes, gradients = self.strategy.axes, [p.grad for p in self.named.values()]
        pieces = self.strategy.blocks(self.workload)
        shares = [copies(axes, self.splits.get(name, ()), name in pieces) for name in self.named]
        self.norm = norm_of(gradients, shares, [self.mesh.get_group(axis) for axis in GRID])  # pyright: ignore[reportArgumentType]
        shrink(gradients, self.norm, self.clip)  # pyright: ignore[reportArgumentType]


def groups(strategy: "AxoNN", mesh: "DeviceMesh", halves: int = 1) -> DepthGroups:
    """The `DepthGroups` of this rank."""
    return DepthGroups(strategy, mesh)


build = partial(grid_program.build, program=AxoNNProgram)

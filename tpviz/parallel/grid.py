"""The axes of `tpviz.AxoNN` beside the plane, on one rank: z supplies weights, z and data share the
batch (in easy mode x and y too).

Every share of the batch has its own loss, the mean over its rows; gradients are means over the
shares, as DDP's are.
"""

from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from tpviz.checks import divides
from tpviz.labels import label
from tpviz.mesh import Mesh
from tpviz.schemes.axonn.weights import Depth
from tpviz.schemes.collectives import gather_first, part_of
from tpviz.trace import Ledger

from .gradients import AfterBackward, average, in_backward
from .replicas import differ

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.schemes.axonn.strategy import AxoNN

    from .layers import Groups

PLANE = ("y", "x")


class Grid:
    """Shares of the batch, and gradients that are complete after backward.

    groups : by axis, of x, y, z and data. depth : what supplies the weights of split layers.
    quiet : whether gradients are to stay those of this rank's own share for now.
    """

    def __init__(self, strategy: "AxoNN", mesh: "DeviceMesh", groups: "Groups", easy: bool = False):
        self.groups = groups
        self.axes = ("data", "z", *PLANE) if easy else ("data", "z")
        self.quiet = False
        shares = prod(groups.get_group(axis).size() for axis in self.axes[1:])
        self.hidden = "oar" in strategy.overlap
        self.depth = Depth(
            groups.get_group("z"),
            _ahead(strategy, mesh),
            "ors" in strategy.overlap,
            strategy.keep,
            1 / shares,
        )

    def attach(self, module: torch.nn.Module, pieces: Iterable[torch.Tensor]) -> None:
        """Watch backward through ``module``; ``pieces``: its parameters sharded over z."""
        self.module, self.pieces = module, {id(p) for p in pieces}
        self.after = AfterBackward(module, self._finish, self.depth.begin)
        self.forwards = 0  # with gradients, since the last backward
        module.register_forward_pre_hook(self._forward)
        if "x" not in self.axes:
            self.first = module.register_forward_pre_hook(self._same_rows, with_kwargs=True)

    def _forward(self, module, args):
        """A second forward without a backward between: by then weights may be others, changed in
        ways that no version counts (``.data``), so no prefetched weight is used."""
        if torch.is_grad_enabled() and not in_backward():
            self.forwards += 1
            if self.forwards > 1:
                self.depth.forget()

    def _same_rows(self, module, args, kwargs):
        """Once: do all ranks of the plane come with the same rows?"""
        self.first.remove()
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        plane = [self.groups.get_group(axis) for axis in PLANE]
        if tensors and differ(tensors, [group for group in plane if group.size() > 1]):
            raise ValueError(
                "the ranks of a plane (same index on data and z) were given different "
                f"inputs: give each model.rows(batch), or a sampler num_replicas="
                f"model.shares={self.shares} and rank=model.share"
            )

    def first_ledger(self) -> Ledger:
        """The `Ledger` of what the first forward asks besides."""
        return Ledger.of(
            [
                (axis, "all_reduce", "forward", 1, 16, self.groups.get_group(axis).size())
                for axis in PLANE
                if "x" not in self.axes
            ]
        )

    def _finish(self):
        """Backward is over."""
        self.forwards = 0
        with label(phase="sync"), torch.no_grad():
            self.depth.collect()
            if self.quiet:
                return
            learn = [p for p in self.module.parameters() if p.requires_grad]
            whole = [p for p in learn if id(p) not in self.pieces]
            for axis in reversed(self.axes[1:]):
                average(whole, self.groups.get_group(axis))
            average(learn, self.groups.get_group("data"))
        self.depth.begin()  # the next step takes the order of this one

    @property
    def shares(self) -> int:
        """Into how many shares the batch is cut."""
        return prod(self.groups.get_group(axis).size() for axis in self.axes)

    @property
    def share(self) -> int:
        """Which of them this rank's is; ranks of one plane have the same (not in easy mode)."""
        number = 0
        for axis in self.axes:
            group = self.groups.get_group(axis)
            number = number * group.size() + group.rank()
        return number

    def rows(self, batch: Any) -> Any:
        """As `rows_of`, of this rank's share."""
        return rows_of(batch, self.share, self.shares, " * ".join(self.axes))

    def joined(self, tensor: torch.Tensor) -> torch.Tensor:
        """What every share has, as one: rows one below the other, of a number the mean."""
        for axis in reversed(self.axes):
            group = self.groups.get_group(axis)
            if group.size() > 1:
                parts, work = gather_first(tensor.detach().reshape(1, *tensor.shape), group)
                work.wait()
                tensor = parts.flatten(0, 1) if tensor.dim() else parts.mean()
        return tensor


def rows_of(batch: Any, share: int, shares: int, name: str) -> Any:
    """A share's rows of a whole batch: of every tensor in it with as many rows as the first.

    Raises ``ValueError`` where the rows do not divide. name : of the number of shares.
    """
    tensors = [t for t in tree_leaves(batch) if isinstance(t, torch.Tensor) and t.dim()]
    if not tensors:
        return batch
    rows = len(tensors[0])
    divides("batch", rows, name, shares)
    return tree_map(
        lambda t: (
            part_of(t, share, shares)
            if isinstance(t, torch.Tensor) and t.dim() and len(t) == rows
            else t
        ),
        batch,
    )


def _ahead(strategy, mesh):
    """The group for prefetched weights: a separate one where the mesh is the world."""
    if "oag" not in strategy.overlap or strategy.z == 1:
        return None
    ranks = mesh.mesh.flatten().tolist()
    if ranks != list(range(torch.distributed.get_world_size())):
        return mesh.get_group("z")
    axes = dict(zip(mesh.mesh_dim_names, mesh.mesh.shape))
    return Mesh(axes).second_group("z", "z_ahead", device_type=mesh.device_type)

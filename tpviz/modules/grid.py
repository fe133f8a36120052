"""The axes of `tpviz.AxoNN` beside the plane, on one rank: z supplies weights, z and data share the
batch (in easy mode x and y too).

Every share of the batch has its own loss, the mean over its rows; gradients are means over the
shares, as DDP's are.
"""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch
from torch.autograd import Variable
from torch.utils._pytree import tree_map

from tpviz.core.checks import divides
from tpviz.core.labels import label
from tpviz.core.mesh import Mesh
from tpviz.core.trace import Ledger
from tpviz.schemes.axonn.weights import Depth
from tpviz.schemes.collectives import gather_first, part_of, sum_together

from .partition.leaves import tensors_of
from .replicas import differ

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.schemes.axonn.strategy import AxoNN

    from .layers import RankGroups


# -- gradients that are complete when ``loss.backward()`` returns ----------------------------------
# FSDP's means: what the model gives has hooks; the first one that a backward reaches asks autograd
# to call back when that backward is over. There is nothing for the user to call.
def in_backward() -> bool:
    """Whether autograd is running."""
    return torch._C._current_graph_task_id() >= 0


class AfterBackward:
    """Calls ``finish()`` once at the end of every backward through ``module``; ``abandon()`` before
    the next forward where a backward raised and never ended; ``begin()`` when one begins.

    A gradient that reaches a parameter without having come through the module's output asks too: a
    loss may be made of what lies within. A backward within a backward (recomputation) is a part of
    the outer one.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        finish: Callable[[], None],
        abandon: Callable[[], None],
        begin: Callable[[], None] = lambda: None,
    ):
        self.finish, self.abandon, self.begin, self.asked = finish, abandon, begin, False
        module.register_forward_pre_hook(self._before)
        module.register_forward_hook(self._watch)
        me = ref(self)  # a hook that holds its own parameter would never be collected

        def weak(_):
            if after := me():
                after.ask()

        for parameter in module.parameters():
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(weak)

    def _before(self, module, args):
        if self.asked and not in_backward():
            self.asked = False
            self.abandon()

    def _watch(self, module, args, output):
        for tensor in tensors_of(output):
            if tensor.requires_grad:
                tensor.register_hook(self.ask)

    def ask(self, *_: Any) -> None:
        """Request a call of ``finish`` at the end of the running backward."""
        if not self.asked:
            self.asked = True
            self.begin()
            Variable._execution_engine.queue_callback(self._over)

    def _over(self):
        self.asked = False
        self.finish()


@torch.no_grad()
def average(parameters: Sequence[torch.Tensor], group: "dist.ProcessGroup") -> None:
    """Each gradient becomes its mean over the group, one message per dtype; collective.

    Ranks may have used different parameters: one that a rank did not use counts as 0 there, and one
    that none used stays without a gradient, as in one process. For that a number for each parameter
    travels along.
    """
    if group.size() == 1:
        return
    for dtype in dict.fromkeys(p.dtype for p in parameters):
        alike = [p for p in parameters if p.dtype == dtype]
        used = [p.grad is not None for p in alike]
        gradients: list[Any] = [
            p.grad if has else torch.zeros_like(p) for p, has in zip(alike, used)
        ]
        *sums, by = sum_together([*gradients, alike[0].new_tensor(used)], group)
        if not all(used):  # else the device need not be asked
            used = by.gt(0).tolist()
        for p, gradient, total, has in zip(alike, gradients, sums, used):
            if has:
                p.grad = gradient.copy_(total.div_(group.size()))


PLANE = ("y", "x")


class Shares:
    """This rank's share of a batch that is cut along ``axes``, outer first. groups : by axis."""

    def __init__(self, groups: "RankGroups", axes: tuple[str, ...]):
        self.groups, self.axes = groups, axes

    @property
    def shares(self) -> int:
        """Number of shares that the batch is split into."""
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

    def places(self, tensor: torch.Tensor) -> torch.Tensor:
        """For each element of this share's, its number among those of all shares."""
        first = self.share * tensor.numel() if tensor.dim() else 0
        return torch.arange(first, first + tensor.numel()).view_as(tensor)

    def joined(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensors of all shares joined: concatenated rows, or the mean of scalars."""
        for axis in reversed(self.axes):
            group = self.groups.get_group(axis)
            if group.size() > 1:
                parts, work = gather_first(tensor.detach().reshape(1, *tensor.shape), group)
                work.wait()
                tensor = parts.flatten(0, 1) if tensor.dim() else parts.mean()
        return tensor


class Grid(Shares):
    """Shares of the batch, and gradients that are complete after backward.

    groups : by axis, of x, y, z and data. depth : what supplies the weights of split layers. quiet
    : whether gradients stay local for now (`Parallelized.no_sync`).
    """

    def __init__(
        self, strategy: "AxoNN", mesh: "DeviceMesh", groups: "RankGroups", easy: bool = False
    ):
        super().__init__(groups, ("data", "z", *PLANE) if easy else ("data", "z"))
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
        tensors = tensors_of((args, kwargs))
        plane = [self.groups.get_group(axis) for axis in PLANE]
        if tensors and differ(tensors, [group for group in plane if group.size() > 1]):
            raise ValueError(
                "the ranks of a plane (same index on data and z) were given different "
                f"inputs: give each model.rows(batch), or a sampler num_replicas="
                f"model.shares={self.shares} and rank=model.share"
            )

    def first_ledger(self) -> Ledger:
        """The `Ledger` of the additional collectives of the first forward."""
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


def rows_of(batch: Any, share: int, shares: int, name: str) -> Any:
    """A share's rows of a whole batch: of every tensor in it with as many rows as the first.

    Raises ``ValueError`` where the rows do not divide. name : of the number of shares.
    """
    tensors = [t for t in tensors_of(batch) if t.dim()]
    if not tensors:
        return batch
    rows = len(tensors[0])
    divides("batch", rows, name, shares)
    return cut_rows(batch, rows, share, shares)


def has_rows(value: Any, rows: int, dim: int = 0) -> bool:
    """Whether this is a tensor with so many rows along ``dim``."""
    return isinstance(value, torch.Tensor) and value.dim() > dim and value.shape[dim] == rows


def cut_rows(batch: Any, rows: int, share: int, shares: int, dim: int = 0) -> Any:
    """The batch with a share of every tensor that `has_rows`."""
    return tree_map(
        lambda t: part_of(t, share, shares, dim) if has_rows(t, rows, dim) else t, batch
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

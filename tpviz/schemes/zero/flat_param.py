"""One bucket at run time: a flat buffer of parameters and of gradients, and its collectives.

Every ZeRO stage uses the same layout. A rank's share is its part of the flat buffer.

    stage  parameters     gradients          optimizer  collectives
    0      whole          whole              whole      all-reduce of gradients
    1      whole          whole              share      reduce-scatter of gradients,
                                                        all-gather of updated parameters
    2      whole          share, + buckets   share      the same; a bucket is freed once reduced
                          in flight
    3      share, + the   share, + buckets   share      all-gather before use, forward and backward;
           block in use   in flight                     reduce-scatter of gradients
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tpviz.core.labels import label
from tpviz.schemes.collectives import gather_first, own_of, scatter_first

from .few_bits import Gathered, Scattered

if TYPE_CHECKING:
    from .buckets import Bucket


class FlatBucket:
    """The buffers of one `buckets.Bucket` on this rank; the optimizer updates ``shard`` (zero >
    0). start_sum : `DataParallel.start_sum`, which stage 0 needs. across : the ranks that have the
    same share, if there are any. near : those over which parameters are gathered again after
    forward, if these are fewer. bits : of a number of a gradient that is sent, 0: all. outer : of
    two levels the ranks of other groups; ``group`` is then that of one."""

    def __init__(
        self,
        bucket: "Bucket",
        named: dict[str, torch.nn.Parameter],
        group: dist.ProcessGroup,
        zero: int,
        start_sum: Callable[..., dist.Work] | None = None,
        across: dist.ProcessGroup | None = None,
        near: dist.ProcessGroup | None = None,
        bits: int = 0,
        outer: dist.ProcessGroup | None = None,
    ):
        self.late, self.unit, self.numel = bucket.late, bucket.unit, bucket.numel
        self.filled = sum(numel for _, _, numel in bucket.parts)
        self.group, self.zero, self.start_sum, self.across = group, zero, start_sum, across
        self.near, self.part, self.resharded = near, None, False
        self.bits, self.left = bits, list[Callable[[], Any]]()
        self.sent: list[Any] | None = None
        self.outer, self.middle, self.halfway = outer, None, False
        self.names = [name for name, _, _ in bucket.parts]
        self.slots = {
            named[name]: slice(offset, offset + numel) for name, offset, numel in bucket.parts
        }
        self.whole = self.grads = self.shard = None
        self.gathering = self.reducing = self.adding = None
        self.missing, self.inside, self.begun = len(self.slots), set(), False
        if zero:
            self._take_over()

    @torch.no_grad()
    def _take_over(self):
        """Move the parameters into the flat buffer, where each becomes a view, and keep a share."""
        self.whole = self._empty().zero_()
        for parameter, slot in self.slots.items():
            view = self.whole[slot].view_as(parameter)
            view.copy_(parameter)
            parameter.data = view
        share = self.own(self.whole)
        self.shard = torch.nn.Parameter(share.clone() if self.zero == 3 else share)
        self.shard.grad = torch.zeros_like(self.shard)
        if self.near:
            part = own_of(self.whole, self.near).clone()
            self.part = torch.nn.Parameter(part, requires_grad=False)
            _hold(self.part, False)
        if self.zero == 3:
            self.free()

    def own(self, flat: torch.Tensor) -> torch.Tensor:
        """This rank's share of a flat buffer, a view."""
        part = own_of(flat, self.group)
        return own_of(part, self.outer) if self.outer else part

    def _empty(self):
        first = next(iter(self.slots))
        return torch.empty(self.numel, dtype=first.dtype, device=first.device)

    # -- parameters -------------------------------------------------------------------------------
    def gather(self, phase: str) -> None:
        """Start the all-gather of the parameters from every rank's shard."""
        if self.zero == 3:
            _hold(self.whole)
        share, group = (self.part, self.near) if self.resharded else (self.shard, self.group)
        into, self.halfway = self.whole, self.outer is not None
        if self.outer:
            group, into = self.outer, own_of(into, group)  # pyright: ignore[reportArgumentType]
        with label(phase=phase):
            _, self.gathering = gather_first(share.detach(), group, into)  # pyright: ignore[reportOptionalMemberAccess, reportArgumentType]

    def ready(self, phase: str) -> None:
        """Wait until the parameters are whole."""
        if self.gathering is not None:
            with label(phase=phase):
                self.gathering.wait()
            self.gathering = None
            if self.resharded:
                _hold(self.part, False)
                self.resharded = False

    def complete(self, phase: str) -> None:
        """Of two levels the second: gather inside of the group what is there of all groups."""
        if self.halfway:
            self.halfway = False
            with label(phase=phase):
                part: Any = own_of(self.whole, self.group)  # pyright: ignore[reportArgumentType]
                gather_first(part, self.group, self.whole)[1].wait()

    def reshard(self) -> None:
        """Free the full parameters after forward, but for a part that is gathered for backward."""
        if self.near:
            _hold(self.part)
            self.part.data.copy_(own_of(self.whole, self.near))  # pyright: ignore[reportArgumentType, reportOptionalMemberAccess]
            self.resharded = True
        self.free()

    def free(self) -> None:
        """Free the memory of the full parameters; their views are valid again after `gather`."""
        _hold(self.whole, False)

    # -- gradients --------------------------------------------------------------------------------
    def add_up(self) -> None:
        """From now on gradients are added up in the flat buffer, which begins as zeros."""
        if self.grads is None:
            self.grads = self._empty()
        self.grads.zero_()
        for parameter, slot in self.slots.items():
            parameter.grad = self.grads[slot].view_as(parameter)

    def collect(self, parameter: torch.nn.Parameter) -> bool:
        """Put a finished gradient into the flat buffer; True if it was the last one missing."""
        if parameter not in self.inside:
            self._take_in(parameter)
        self.missing -= 1
        return self.missing == 0

    def _take_in(self, parameter):
        """Copy a gradient into the buffer; those of later microbatches add to it there."""
        if self.grads is None:
            self.grads = self._empty()
            self.grads[self.filled :] = 0  # the padding
        view = self.grads[self.slots[parameter]].view_as(parameter)
        view.copy_(parameter.grad)  # pyright: ignore[reportArgumentType]
        parameter.grad = view
        self.inside.add(parameter)

    @property
    def behind(self) -> bool:
        """Whether another collective follows the first one of a sum."""
        return bool(self.across or self.outer or (self.bits and not self.zero))

    def reduce(self) -> None:
        """Start the first collective of the sum of the gradients, of `sums.sums`."""
        if self.outer:
            self._reduce_near()
            return
        if self.bits:
            out = self.shard.grad if self.zero else own_of(self.grads, self.group)  # pyright: ignore[reportArgumentType, reportOptionalMemberAccess]
            self.reducing = self._scatter(self.grads, self.group, out, self.begun)
            return
        if self.begun:  # this rank adds what its share has from the microbatches before
            own_of(self.grads, self.group).add_(self.shard.grad)  # pyright: ignore[reportArgumentType, reportOptionalMemberAccess]
        if self.zero:
            _, self.reducing = scatter_first(self.grads, self.group, self.shard.grad)  # pyright: ignore[reportArgumentType, reportOptionalMemberAccess]
        else:
            self.reducing = self.start_sum(self.grads, self.group)  # pyright: ignore[reportOptionalCall]

    def _reduce_near(self):
        """The first of two levels, whose sums are in ``middle``: up to stage 1 a part of the buffer
        of gradients, which stays."""
        grads: Any = self.grads
        if self.bits:
            part = own_of(grads, self.group)
            self.middle = part if self.zero < 2 else torch.empty_like(part)
            self.reducing = self._scatter(grads, self.group, self.middle)
            return
        if self.begun:
            self.own(grads).add_(self.shard.grad)  # pyright: ignore[reportArgumentType, reportOptionalMemberAccess]
        self.middle, self.reducing = scatter_first(grads, self.group)

    def reduced(self, last: bool = False) -> None:
        """Wait for the collective; at ZeRO 2 and 3 it frees the full gradient. last : then start
        what else adds it up."""
        if self.reducing is None:
            return
        self.reducing.wait()
        self.reducing = None
        if self.outer and self.zero < 2:
            self.middle = own_of(self.grads, self.group).copy_(self.middle)  # pyright: ignore[reportArgumentType]
        self.left = self._others() if last or self.outer else []
        self.go_on()
        if self.zero >= 2:
            self.grads, self.begun = None, True
            self._drop()

    def _others(self) -> list[Callable[[], Any]]:
        """What starts each of the collectives behind the first."""
        share, across = self.shard.grad if self.shard is not None else None, self.across
        if self.outer:
            return self._far(share, self.middle, self.outer)
        if self.bits and not self.zero:
            return [lambda: self._gather(self.grads, self.group)]
        if self.bits and across:
            own = own_of(share, across)  # pyright: ignore[reportArgumentType]
            return [
                lambda: self._scatter(share, across, own),
                lambda: self._gather(share, across),
            ]
        if across:
            return [lambda: dist.all_reduce(share, group=across, async_op=True)]  # pyright: ignore[reportArgumentType]
        return []

    def _far(self, share: Any, middle: Any, outer: Any) -> list[Callable[[], Any]]:
        """The second of two levels, and where every rank needs the sum the first again."""
        if self.zero and self.bits:
            return [partial(self._scatter, middle, outer, share, self.begun)]
        if self.zero:
            return [lambda: scatter_first(middle, outer, share)[1]]
        if self.bits:
            return [
                lambda: self._scatter(middle, outer, own_of(middle, outer)),
                lambda: self._gather(middle, outer),
                lambda: self._gather(self.grads, self.group),
            ]
        return [
            lambda: dist.all_reduce(middle, group=outer, async_op=True),
            lambda: gather_first(middle, self.group, self.grads)[1],
        ]

    def _scatter(self, flat, group, out, added=False):
        return self._kept(Scattered(flat, group, self.bits, out, added))

    def _gather(self, flat, group):
        return self._kept(Gathered(flat, group, self.bits))

    def _kept(self, handle):
        if self.sent is not None:
            self.sent.append(handle)
        return handle

    def go_on(self) -> None:
        """Start the next collective of the sum, if one is left."""
        if self.left:
            self.adding = self.left.pop(0)()

    def added(self) -> None:
        """Wait for a collective behind the first."""
        if self.adding is not None:
            self.adding.wait()
            self.adding = self.middle = None

    def reset(self) -> None:
        """Begin a step: drop the old gradients and mark all as missing."""
        self.expect()
        self.begun = False
        self._drop()

    def expect(self) -> None:
        """Begin a microbatch: mark all gradients as missing."""
        self.missing = len(self.slots)

    def _drop(self):
        self.inside.clear()
        for parameter in self.slots:
            parameter.grad = None

    # -- for checking -----------------------------------------------------------------------------
    def full_gradients(self) -> dict[str, torch.Tensor]:
        """{name: this rank's reduced gradient, in the parameter's shape}."""
        if not self.zero:
            return {name: p.grad for name, p in zip(self.names, self.slots)}  # pyright: ignore[reportReturnType]
        return self.parts_of(self.shard.grad)  # pyright: ignore[reportArgumentType, reportOptionalMemberAccess]

    def full_bounds(self) -> dict[str, torch.Tensor]:
        """{name: the most that each number of `full_gradients` may be off by}, after a step with
        ``sent`` a list, which keeps what was packed."""
        found, before = None, 0
        for handle in self.sent or ():
            if self.outer and self.zero and handle.group is self.group and found is not None:
                found, before = None, before + found  # of the microbatches before
            found = handle.bound(found)
        found = before + found  # pyright: ignore[reportOperatorIssue]
        if self.zero:
            return self.parts_of(found)  # pyright: ignore[reportArgumentType]
        return {n: found[s].view(p.shape) for n, (p, s) in zip(self.names, self.slots.items())}  # pyright: ignore[reportOptionalSubscript]

    def full_parameters(self) -> dict[str, torch.Tensor]:
        """{name: value, in the parameter's shape}."""
        if self.zero == 3:
            return self.parts_of(self.shard.detach())  # pyright: ignore[reportOptionalMemberAccess]
        return {name: p.detach() for name, p in zip(self.names, self.slots)}

    def parts_of(self, share: torch.Tensor) -> dict[str, torch.Tensor]:
        """{name: a part of the flat tensor of which ranks have a ``share``, in its shape}."""
        for group in (self.outer, self.group) if self.outer else (self.group,):
            share, work = gather_first(share, group)
            work.wait()
        return {
            name: share[slot].view(p.shape)
            for name, (p, slot) in zip(self.names, self.slots.items(), strict=True)
        }


def _hold(tensor, whole=True):
    """Allocate a tensor's memory again, or free it; its views stay."""
    tensor.untyped_storage().resize_(tensor.numel() * tensor.element_size() * whole)


def gather_updated(buckets: Sequence[FlatBucket]) -> None:
    """All-gather the parameters after every rank has updated its shard."""
    for bucket in buckets:
        bucket.gather("optimizer")
    for bucket in buckets:
        bucket.ready("optimizer")
    for bucket in buckets:
        bucket.complete("optimizer")

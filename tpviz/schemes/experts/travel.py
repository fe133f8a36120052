"""Rows on their way between ranks, and what a rank computes meanwhile.

A collective is started by one function and waited for by another. Autograd runs backward the nodes
of forward in reverse, so what was computed between the two has its backward between them as well,
while the gradients travel the other way: `Finish` starts that, `Start` waits for it.

R, R' rows of H features before and after.
"""

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from tpviz.schemes.collectives import Group

Started = tuple[Tensor, Any]
"""(what a collective will have filled, the handle to wait for)."""


class Way(NamedTuple):
    """How rows (R, H) -> (R', H) are sent in forward, and their gradients (R', H) -> (R, H)."""

    there: Callable[[Tensor], Started]
    back: Callable[[Tensor], Started]


def by_numbers(send: Sequence[int], receive: Sequence[int], group: Group) -> Way:
    """An all-to-all of rows, ordered by rank. send, receive : rows for and from each rank."""

    def start(rows, send, receive):
        out = rows.new_empty((sum(receive), *rows.shape[1:]))
        sizes = list(receive), list(send)
        return out, dist.all_to_all_single(out, rows, *sizes, group=group, async_op=True)

    return Way(lambda rows: start(rows, send, receive), lambda rows: start(rows, receive, send))


def equally(group: Group) -> Way:
    """An all-to-all of as many rows for each rank."""

    def start(rows):
        out = torch.empty_like(rows)
        return out, dist.all_to_all_single(out, rows, group=group, async_op=True)

    return Way(start, start)


class _Trip:
    """What is in flight: the rows that it fills and those that it reads, and its handle."""

    def __init__(self, way: Way):
        self.way, self.flying = way, None

    def start(self, rows: Tensor, how: Callable[[Tensor], Started]) -> Tensor:
        rows = rows.contiguous()
        out, work = how(rows)
        self.flying = out, work, rows
        return out

    def wait(self) -> Tensor:
        (out, work, _), self.flying = self.flying, None  # pyright: ignore[reportGeneralTypeIssues]
        work.wait()
        return out


class Start(torch.autograd.Function):
    """Starts a trip; its result is to be read behind `Finish` only."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, trip: _Trip) -> Tensor:
        ctx.trip = trip
        return trip.start(rows, trip.way.there)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return ctx.trip.wait(), None


class Finish(torch.autograd.Function):
    """Waits for a trip. Its gradient starts the one back, of which `Start` has the result; what it
    gives autograd is only of the right shape."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, trip: _Trip) -> Tensor:
        ctx.trip = trip
        trip.wait()
        return rows.view_as(rows)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        ctx.trip.start(grad, ctx.trip.way.back)
        return grad, None


Turns = Generator[None, None, Tensor]
"""What gives way once while each of its collectives is in flight, and returns a tensor."""


def travelling(rows: Tensor, way: Way, group: Group) -> Turns:
    """The rows as they arrive by ``way``."""
    if group.size() == 1:
        return rows
    trip = _Trip(way)
    out: Any = Start.apply(rows, trip)
    yield
    return Finish.apply(out, trip)  # pyright: ignore[reportReturnType]


def finished(turns: Turns, under: Iterable[Callable[[], None]] = ()) -> Tensor:
    """The result. under : what is computed meanwhile, one for each time that it gives way."""
    meanwhile = iter(under)
    while True:
        try:
            next(turns)
        except StopIteration as end:
            return end.value
        next(meanwhile, bool)()


def in_turns(several: Sequence[Turns]) -> list[Tensor]:
    """The results of all, the first of which begins: while one's collective is in flight, the
    others compute."""
    found: dict[int, Tensor] = {}
    while len(found) < len(several):
        for place, one in enumerate(several):
            try:
                if place not in found:
                    next(one)
            except StopIteration as end:
                found[place] = end.value
    return [found[place] for place in range(len(several))]

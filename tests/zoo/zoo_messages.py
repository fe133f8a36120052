"""Collectives and messages called by hand, in all the forms that torch.distributed has."""

import datetime

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from zoo import ITEM, PICKLES, RANKS, data, on_own_data, program

COUNT = 8
TENSOR = COUNT * ITEM


def _own():
    return data(on_own_data(), COUNT)


def _exchange(exchange):
    """A program of one function, which gives a list of tensors."""
    found = []

    def step():
        found[:] = exchange()
        return sum(t.sum() for t in found)

    return step, lambda: found


@program({("world", "barrier"): (3, 0)})
def barriers():
    """What a program calls depends on what it is told of its backend."""

    def exchange():
        assert dist.get_backend() == dist.get_backend(dist.group.WORLD) == dist.Backend.GLOO
        dist.barrier(device_ids=[0])
        dist.barrier(async_op=True).wait()
        if dist.get_backend() == "gloo":
            dist.monitored_barrier(timeout=datetime.timedelta(seconds=50), wait_all_ranks=True)
        return []

    return _exchange(exchange)


@program(lambda rank: {("world", ("send", "recv")[rank % 2]): (2, 3 * TENSOR)})
def tagged_messages():
    """Pairs of ranks; received in another order than sent."""

    def exchange():
        rank, one, two = dist.get_rank(), _own(), torch.cat([_own(), _own()])
        if rank % 2 == 0:
            works = [dist.isend(one, rank + 1, tag=7), dist.isend(two, rank + 1, tag=9)]
        else:
            works = [dist.irecv(two, rank - 1, tag=9), dist.irecv(one, rank - 1, tag=7)]
        for work in works:
            work.wait()
        return [one, two]

    return _exchange(exchange)


def _to_rank_0(rank):
    count = 1 if rank else RANKS - 1
    return {
        ("world", "send" if rank else "recv"): (count, count * TENSOR),
        ("world", "barrier"): (1, 0),
    }


@program(_to_rank_0, refused="needs the sender", uncaptured="needs the sender")
def any_source():
    """Rank 0 takes what comes first."""

    def exchange():
        arrived = {}
        if dist.get_rank():
            dist.send(_own(), 0)
        else:
            for _ in range(RANKS - 1):
                message = torch.empty(COUNT, dtype=torch.float64)
                arrived[dist.recv(message)] = message
        dist.barrier()  # else a rank's next message may overtake another's
        return [arrived[source] for source in sorted(arrived)]

    return _exchange(exchange)


@program(
    dict.fromkeys(
        [("world", "send"), ("world", "recv")], (2 * (RANKS - 1), 2 * (RANKS - 1) * TENSOR // RANKS)
    )
)
def ring_all_reduce():
    """Baidu's ring: a part goes once round to be added up, once round to be known."""

    def exchange():
        rank, parts = dist.get_rank(), list(_own().chunk(RANKS))
        for hop in range(2 * (RANKS - 1)):
            sent, coming = (rank - hop) % RANKS, (rank - hop - 1) % RANKS
            message = torch.empty_like(parts[coming])
            for work in dist.batch_isend_irecv(
                [
                    dist.P2POp(dist.isend, parts[sent].clone(), (rank + 1) % RANKS),
                    dist.P2POp(dist.irecv, message, (rank - 1) % RANKS),
                ]
            ):
                work.wait()
            parts[coming] = message + (parts[coming] if hop < RANKS - 1 else 0)
        return parts

    return _exchange(exchange)


def _objects(rank):
    """A list goes with its length ahead: all_gather_object by two all-gathers, gather_object by an
    all-gather and a gather, broadcast by two; scatter_object_list broadcasts the largest length and
    scatters lengths and objects; a message of objects is two."""
    way = {0: "send", 1: "recv"}.get(rank)
    return {
        ("world", "all_gather"): (3, None),
        ("world", "gather"): (1, None),
        ("world", "broadcast"): (3, None),
        ("world", "scatter"): (2, None),
    } | ({("world", way): (2, None)} if way else {})


@program(_objects, uncaptured=PICKLES)
def objects():
    """Python objects by every collective that takes them."""

    def exchange():
        rank = dist.get_rank()
        everyone, scattered, message = [None] * RANKS, [None], [["hello"]]
        dist.all_gather_object(everyone, {"rank": rank})
        told = [f"from {rank}"]
        dist.broadcast_object_list(told, src=2)
        at_root = [None] * RANKS if rank == 1 else None
        dist.gather_object((rank,), at_root, dst=1)
        dist.scatter_object_list(scattered, list(range(RANKS)) if rank == 3 else None, src=3)
        if rank == 0:
            dist.send_object_list(message, dst=1)
        elif rank == 1:
            message = [None]
            dist.recv_object_list(message, src=0)
        assert everyone == [{"rank": r} for r in range(RANKS)] and told == ["from 2"]
        assert scattered == [rank] and message == [["hello"]]
        assert at_root in (None, [(r,) for r in range(RANKS)])
        return []

    return _exchange(exchange)


@program(
    {
        ("world", "gather"): (1, RANKS * TENSOR),
        ("world", "scatter"): (1, RANKS * TENSOR),
        ("world", "reduce"): (1, TENSOR),
        ("world", "broadcast"): (1, TENSOR),
    }
)
def rooted():
    """The collectives that have a root."""

    def exchange():
        rank, x = dist.get_rank(), _own()
        rows = [torch.empty_like(x) for _ in range(RANKS)] if rank == 1 else None
        dist.gather(x, rows, dst=1)
        part, told, total = torch.empty_like(x), x.clone(), x.clone()
        dist.scatter(part, [x + i for i in range(RANKS)] if rank == 2 else None, src=2)
        dist.broadcast(told, src=3)
        dist.reduce(total, dst=0, op=dist.ReduceOp.MAX)
        return [part, told, *(rows or []), *([] if rank else [total])]

    return _exchange(exchange)


@program({("world", "all_reduce"): (4, 4 * TENSOR)})
def asynchronous():
    """Handles waited for in another order than issued, polled, and chained as futures."""

    def exchange():
        tensors = [_own() + i for i in range(4)]
        first, second, third, fourth = (dist.all_reduce(t, async_op=True) for t in tensors)
        doubled = fourth.get_future().then(lambda future: 2 * future.value()[0])
        second.wait(), first.wait()
        while not third.is_completed():
            pass
        third.wait()
        return [*tensors[:3], doubled.wait()]

    return _exchange(exchange)


# Neighbours reduce twice the tensor among them; then ranks 0, 2 and 1, 3, and then 0, 1, 2.
@program(lambda rank: {("world", "all_reduce"): (3, 3 * TENSOR) if rank < 3 else (2, 2 * TENSOR)})
def subgroups():
    """Groups of all the ways to make one."""
    neighbours, _ = dist.new_subgroups(2)
    across, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    some = dist.new_group([0, 1, 2])

    def exchange():
        x = _own()
        for group in (neighbours, across):
            dist.all_reduce(x, group=group)
        if dist.get_rank() in (0, 1, 2):
            dist.all_reduce(x, group=some)
        return [x]

    return _exchange(exchange)


# Payloads are of the full tensor: what is reduced, the output of a gather, the input of a scatter.
@program(
    {
        ("world", "all_reduce"): (2, 3 * TENSOR),
        ("world", "all_gather"): (2, 3 * RANKS * TENSOR),
        ("world", "reduce_scatter"): (2, 3 * TENSOR),
        ("world", "all_to_all_v"): (2, TENSOR * (RANKS - 1) // RANKS + TENSOR),  # what others get
        ("world", "broadcast"): (1, TENSOR),
    },
    emulated_tolerance=1e-12,
)
def functional_collectives():
    """One tensor alone, then two at once; permute_tensor is an all-to-all."""

    def exchange():
        x, group, even = _own(), dist.group.WORLD, [COUNT // RANKS] * RANKS
        pair = [x, x + 1]
        made = [
            functional.all_reduce(x, "sum", group),
            functional.all_gather_tensor(x, 0, group),
            functional.reduce_scatter_tensor(x, "sum", 0, group),
            functional.all_to_all_single(x, even, even, group),
            functional.permute_tensor(x, [(i + 1) % RANKS for i in range(RANKS)], group),
            functional.broadcast(x, 1, group),
            *functional.all_reduce_coalesced(pair, "sum", group),
            *functional.all_gather_into_tensor_coalesced(pair, group),
            *functional.reduce_scatter_tensor_coalesced(pair, "avg", [0, 0], group),
        ]
        return [functional.wait_tensor(t) for t in made]

    return _exchange(exchange)


@program(
    {
        ("world", "all_reduce"): (1, 2 * TENSOR),
        ("world", "all_gather"): (1, 2 * RANKS * TENSOR),
        ("world", "reduce_scatter"): (1, 2 * TENSOR),
    },
    emulated_tolerance=1e-12,
)
def coalesced():
    """What c10d's coalescing manager makes one collective of."""
    from torch.distributed.distributed_c10d import _coalescing_manager

    def exchange():
        x, y = _own(), _own() + 1
        gathered = [torch.empty(RANKS * COUNT, dtype=x.dtype) for _ in range(2)]
        parts = [torch.empty(COUNT // RANKS, dtype=x.dtype) for _ in range(2)]
        with _coalescing_manager(async_ops=True) as manager:
            for output, part in zip(parts, (x, y)):
                dist.reduce_scatter_tensor(output, part)
        manager.wait()
        with _coalescing_manager(async_ops=True) as manager:
            for output, part in zip(gathered, (x, y)):
                dist.all_gather_into_tensor(output, part)
        manager.wait()
        with _coalescing_manager():
            dist.all_reduce(x)
            dist.all_reduce(y)
        return [x, y, *gathered, *parts]

    return _exchange(exchange)

"""Answers to notebook 07 on runs: right ones, and wrong ones with the hint they get."""

import torch
import torch.distributed as dist

# --- scale_rates ---


def scale_rates(flops, memory_bandwidth, bandwidth, latency, c):
    return flops / c**2, memory_bandwidth / c, bandwidth / c, latency


def rates_all_by_c(flops, memory_bandwidth, bandwidth, latency, c):
    return flops / c, memory_bandwidth / c, bandwidth / c, latency


def rates_all_by_c_squared(flops, memory_bandwidth, bandwidth, latency, c):
    return flops / c**2, memory_bandwidth / c**2, bandwidth / c**2, latency


def rates_with_latency(flops, memory_bandwidth, bandwidth, latency, c):
    return flops / c**2, memory_bandwidth / c, bandwidth / c, latency * c


def rates_three(flops, memory_bandwidth, bandwidth, latency, c):
    return flops / c**2, memory_bandwidth / c, bandwidth / c


def rates_one(flops, memory_bandwidth, bandwidth, latency, c):
    return flops / c**2


# --- find_straggler ---


def _seconds(trace, rank, kind):
    rows = trace.select(rank=rank, kind=kind)
    return (rows["end"] - rows["start"]).sum()


def find_straggler(trace):
    return min(trace.ranks, key=lambda rank: _seconds(trace, rank, "wait"))


def straggler_by_compute(trace):
    return max(trace.ranks, key=lambda rank: _seconds(trace, rank, "compute"))


def straggler_waits_longest(trace):
    return max(trace.ranks, key=lambda rank: _seconds(trace, rank, "wait"))


def straggler_is_last_rank(trace):
    return 3


def straggler_is_not_there(trace):
    return 7


# --- ring_all_reduce ---


def _pass_on(blocks, send, receive):
    """Send one block to the next rank; returns what the rank before has sent."""
    n, rank = dist.get_world_size(), dist.get_rank()
    got = torch.empty_like(blocks[receive])
    works = [dist.isend(blocks[send], (rank + 1) % n), dist.irecv(got, (rank - 1) % n)]
    for work in works:
        work.wait()
    return got


def _halves(x, both=True):
    n, rank = dist.get_world_size(), dist.get_rank()
    blocks = list(x.chunk(n))
    for i in range(n - 1):
        send, receive = (rank - i) % n, (rank - i - 1) % n
        blocks[receive] += _pass_on(blocks, send, receive)
    for i in range(n - 1 if both else 0):
        send, receive = (rank + 1 - i) % n, (rank - i) % n
        blocks[receive].copy_(_pass_on(blocks, send, receive))
    return x


def ring(x):
    return _halves(x)


def ring_blocking(x):
    """Even ranks send first: no rank waits for one that waits for it."""
    n, rank = dist.get_world_size(), dist.get_rank()
    blocks = list(x.chunk(n))
    for i in range(2 * (n - 1)):
        send, receive = (rank - i) % n, (rank - i - 1) % n
        got = torch.empty_like(blocks[receive])
        order = [
            lambda b=send: dist.send(blocks[b], (rank + 1) % n),
            lambda g=got: dist.recv(g, (rank - 1) % n),
        ]
        for act in order if rank % 2 == 0 else order[::-1]:
            act()
        blocks[receive] += got if i < n - 1 else got - blocks[receive]
    return x


def ring_by_library(x):
    dist.all_reduce(x)
    return x


def ring_alone(x):
    return x


def ring_half(x):
    return _halves(x, both=False)


def ring_of_whole_tensors(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    total, travels = x.clone(), x.clone()
    for _ in range(n - 1):
        travels = _pass_on([travels], 0, 0)
        total += travels
    return total if rank >= 0 else x


def ring_everyone_to_everyone(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = [torch.empty_like(x) for _ in range(n)]
    works = [dist.isend(x, other) for other in range(n) if other != rank]
    works += [dist.irecv(parts[other], other) for other in range(n) if other != rank]
    for work in works:
        work.wait()
    return x + sum(part for other, part in enumerate(parts) if other != rank)


def ring_adds_twice(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    blocks = list(x.chunk(n))
    for i in range(2 * (n - 1)):
        send, receive = (rank - i) % n, (rank - i - 1) % n
        blocks[receive] += _pass_on(blocks, send, receive)
    return x


def ring_does_not_wait(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    blocks = list(x.chunk(n))
    for i in range(2 * (n - 1)):
        _kept.append(torch.empty_like(blocks[0]))
        _kept.append(dist.irecv(_kept[-1], (rank - 1) % n))
        dist.isend(blocks[(rank - i) % n], (rank + 1) % n).wait()
    return x


_kept = []  # what is under way must live on


RIGHT = {
    "scale_rates": [scale_rates],
    "find_straggler": [find_straggler, straggler_by_compute],
    "ring_all_reduce": [ring, ring_blocking],
}

WRONG = {
    "scale_rates": [
        (rates_all_by_c, "flops .* they shrink by c"),
        (rates_all_by_c_squared, "memory_bandwidth .* bytes shrink by c"),
        (rates_with_latency, "a latency is a time already"),
        (rates_three, r"\(.*, .*, .*, .*\); you returned \(.*, .*, .*\)"),
        (rates_one, "returned float, not a tuple of 4 numbers"),
    ],
    "find_straggler": [
        (
            straggler_waits_longest,
            "computes least and waits longest in this trace: it arrives early",
        ),
        (straggler_is_last_rank, "not rank 3: it waits while"),
        (straggler_is_not_there, "the ranks are 0, 1, 2, 3; you returned 7"),
    ],
    "ring_all_reduce": [
        (ring_by_library, "`all_reduce` is a collective of the library"),
        (ring_alone, "no message: every rank still has only its own tensor"),
        (ring_half, "after 3 sends each rank has one reduced block"),
        (ring_of_whole_tensors, r"sent 3 messages with \d+ bytes in all; a ring of 4 needs 6"),
        (ring_everyone_to_everyone, "rank 0 sent to rank 2: on a ring"),
        (ring_adds_twice, "you add in the second round too"),
        (ring_does_not_wait, "you started recv without waiting"),
    ],
}

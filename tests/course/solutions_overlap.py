"""Answers to the exercises on overlap: right ones, and wrong ones with the hint they get."""

from itertools import pairwise
from math import sqrt

import torch
import torch.distributed as dist

# --- overlap_exposed ---


def overlap_exposed(compute, communication):
    cuts = sorted({t for span in compute + communication for t in span})

    def runs(spans, t):
        return any(start <= t < end for start, end in spans)

    parts = pairwise(cuts)
    return sum(b - a for a, b in parts if runs(communication, a) and not runs(compute, a))


def exposed_by_microseconds(compute, communication):
    sent = {t for start, end in communication for t in range(start, end)}
    return len(sent - {t for start, end in compute for t in range(start, end)})


def _total(spans):
    return sum(end - start for start, end in spans)


def exposed_all(compute, communication):
    return _total(communication)


def exposed_all_once(compute, communication):
    return len({t for start, end in communication for t in range(start, end)})


def exposed_difference(compute, communication):
    return _total(communication) - _total(compute)


def exposed_is_hidden(compute, communication):
    return exposed_all_once(compute, communication) - overlap_exposed(compute, communication)


def exposed_one_by_one(compute, communication):
    return sum(overlap_exposed(compute, [one]) for one in communication)


def exposed_tail(compute, communication):
    return max(end for _, end in communication) - compute[-1][1]


# --- overlap_bucket ---


def overlap_bucket(size, backward, latency, bandwidth):
    def time(k):
        one = latency + size / k / bandwidth
        return max(backward + one, backward / k + k * one)

    return min(range(1, 1001), key=time)


def bucket_by_root(size, backward, latency, bandwidth):
    spare = backward - size / bandwidth
    return max(1, round(max(sqrt(backward / latency), spare / latency)))


def bucket_whole(size, backward, latency, bandwidth):
    return 1


def bucket_most(size, backward, latency, bandwidth):
    return 1000


def bucket_tail_alone(size, backward, latency, bandwidth):
    """As if no all-reduce waited for another."""
    return (
        1000 if backward > size / bandwidth else overlap_bucket(size, backward, latency, bandwidth)
    )


def bucket_of_a_chain(size, backward, latency, bandwidth):
    return round(sqrt(size / bandwidth / latency))


def bucket_not_whole(size, backward, latency, bandwidth):
    return overlap_bucket(size, backward, latency, bandwidth) + 0.5


def bucket_in_bytes(size, backward, latency, bandwidth):
    return size / overlap_bucket(size, backward, latency, bandwidth)


# --- overlap_prefetch ---


def _start(shard, run=True):
    weight = shard.new_empty(dist.get_world_size() * len(shard), shard.shape[1])
    return weight, dist.all_gather_into_tensor(weight, shard, async_op=run)


def overlap_prefetch(x, first, second, third):
    def start(shard):
        rows = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        return rows, dist.all_gather(rows, shard, async_op=True)

    coming = start(first)
    for following in (second, third, None):
        rows, work = coming
        work.wait()
        if following is not None:
            coming = start(following)
        x = x @ torch.cat(rows)
    return x


def prefetch_of_tensors(x, *shards):
    coming = _start(shards[0])
    for number in range(len(shards)):
        weight, work = coming
        work.wait()
        if number + 1 < len(shards):
            coming = _start(shards[number + 1])
        x = x @ weight
    return x


def prefetch_before_waiting(x, *shards):
    """The next all-gather is started before the wait for this one; of lists."""

    def start(shard):
        found = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        return found, dist.all_gather(found, shard, async_op=True)

    coming = [start(shards[0])]
    for shard in (*shards[1:], None):
        coming += [] if shard is None else [start(shard)]
        found, work = coming.pop(0)
        work.wait()
        x = x @ torch.cat(found)
    return x


def prefetch_blocking(x, *shards):
    for shard in shards:
        x = x @ _start(shard, run=False)[0]
    return x


def prefetch_waits_before_the_product(x, *shards):
    coming = _start(shards[0])
    coming[1].wait()
    for shard in (*shards[1:], None):
        weight = coming[0]
        if shard is not None:
            coming = _start(shard)
            coming[1].wait()
        x = x @ weight
    return x


def prefetch_everything(x, *shards):
    for weight, work in [_start(shard) for shard in shards]:
        work.wait()
        x = x @ weight
    return x


def prefetch_in_one(x, *shards):
    n = dist.get_world_size()
    everything, _ = _start(torch.cat(shards), run=False)
    blocks = everything.chunk(n * len(shards))
    for number in range(len(shards)):
        x = x @ torch.cat(blocks[number :: len(shards)])
    return x


def prefetch_never_waits(x, *shards):
    coming = [_start(shard) for shard in shards]
    for weight, _ in coming:
        x = x @ weight
    return x


def prefetch_own_rows(x, *shards):
    for shard in shards:
        x = x[:, : len(shard)] @ shard
    return x


def prefetch_summed(x, *shards):
    for shard in shards:
        rank = dist.get_rank()
        x = x[:, rank * len(shard) :][:, : len(shard)] @ shard
        dist.all_reduce(x)
    return x


def prefetch_last_first(x, *shards):
    return overlap_prefetch(x, *shards[::-1])


# --- overlap_used_early ---


def overlap_used_early(program):
    flying = set()
    for place, (what, name) in enumerate(program):
        if what == "start":
            flying.add(name)
        if what == "wait":
            flying.discard(name)
        if what == "use" and name in flying:
            return place
    return -1


def early_by_looking_back(program):
    for place, (what, name) in enumerate(program):
        before = [w for w, n in program[:place] if n == name and w != "use"]
        if what == "use" and before[-1:] == ["start"]:
            return place
    return -1


def early_nowhere(program):
    return -1


def early_if_never_waited(program):
    waited = {name for what, name in program if what == "wait"}
    uses = (i for i, (what, name) in enumerate(program) if what == "use" and name not in waited)
    return next((i for i in uses if program[i][1] != "x"), -1)


def early_last(program):
    return len(program) - 1


def early_name(program):
    return program[overlap_used_early(program)][1]


RIGHT = {
    "overlap_exposed": [overlap_exposed, exposed_by_microseconds],
    "overlap_bucket": [overlap_bucket, bucket_by_root],
    "overlap_prefetch": [overlap_prefetch, prefetch_of_tensors, prefetch_before_waiting],
    "overlap_used_early": [overlap_used_early, early_by_looking_back],
}
WRONG = {
    "overlap_exposed": [
        (exposed_all, "Two that run at the same time count once"),
        (exposed_all_once, "Where a kernel runs too, it is hidden"),
        (exposed_difference, "a kernel hides only what runs at the same time"),
        (exposed_is_hidden, "that is the hidden time"),
        (exposed_one_by_one, "but two of them run at the same time"),
        (exposed_tail, "that is only the tail"),
    ],
    "overlap_bucket": [
        (bucket_whole, "More buckets are faster"),
        (bucket_most, "Fewer .* Communication is the longer lane"),
        (bucket_tail_alone, "Fewer .* it waits for the others"),
        (bucket_of_a_chain, "(More|Fewer) buckets are faster"),
        (bucket_not_whole, "no whole number from 1 to 1000"),
        (bucket_in_bytes, "no whole number from 1 to 1000"),
    ],
    "overlap_prefetch": [
        (prefetch_blocking, "no all-gather is in flight during a product"),
        (prefetch_waits_before_the_product, "but also waited for before it"),
        (prefetch_everything, "too many all-gathers are started early"),
        (prefetch_in_one, "that holds all weights at the same time"),
        (prefetch_never_waits, "started all_gather without waiting"),
        (prefetch_own_rows, "the trace shows no collective"),
        (prefetch_summed, "each rank has its own rows of the batch"),
        (prefetch_last_first, "you computed x W3 W2 W1"),
    ],
    "overlap_used_early": [
        (early_nowhere, "is used at .* while its .* is in flight; nothing waits for it"),
        (early_if_never_waited, "the wait comes after it"),
        (early_last, "the first such use is at"),
        (early_name, "not a number"),
    ],
}

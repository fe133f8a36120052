"""Answers to notebook 13 but for its maps: right ones, and wrong ones with their hints."""

from dataclasses import replace
from functools import partial

import tpviz as tv
from tpviz.evidence.t3_hardware import simulate

# --- t3_share ---


def share(tokens, hidden, k, ranks, flops, link, passes=2, itemsize=2, sent=None, part=None):
    chunk = tokens * hidden * itemsize / ranks
    sent = passes * (ranks - 1) * chunk if sent is None else sent(chunk, ranks)
    sums, gemm = sent / link, 2 * tokens * hidden * k / flops
    return sent, sums / (sums + gemm) if part is None else part(sums, gemm)


share_of_one = partial(share, passes=1)
share_of_all = partial(share, sent=lambda chunk, n: 2 * n * chunk)
share_of_outputs = partial(share, sent=lambda chunk, n: 2 * (n - 1) * n * chunk)
share_of_float32 = partial(share, itemsize=4)
share_of_gemm = partial(share, part=lambda sums, gemm: sums / gemm)
share_of_flops = partial(share, part=lambda sums, gemm: sums / (sums + gemm / 2))
share_half = partial(share, part=lambda sums, gemm: 0.5)


def share_bytes(tokens, hidden, k, ranks, flops, link):
    return 4 * (ranks - 1) / ranks * tokens * hidden


# --- t3_order ---


def order(rank, ranks):
    return [(rank + 1 + j) % ranks for j in range(ranks)]


def order_own_first(rank, ranks):
    return [(rank + j) % ranks for j in range(ranks)]


def order_down(rank, ranks):
    return [(rank - 1 - j) % ranks for j in range(ranks)]


def order_swapped(rank, ranks):
    first, *others, own = order(rank, ranks)
    return [*others, first, own]


def order_beyond(rank, ranks):
    return [rank + 1 + j for j in range(ranks)]


# --- t3_pays ---


def pays(k, ranks, flops, link, itemsize, x=None, speedup=None, best=None):
    right = 2 * k * link * ranks / (itemsize * (ranks - 1) * flops)
    x = right if x is None else x(right, ranks, itemsize)
    speedup = (x + 2) / (max(x, 1) + 1) if speedup is None else speedup(x)
    return x, speedup, k / right if best is None else best(k)


pays_other_way = partial(pays, x=lambda x, n, size: 1 / x)
pays_float16 = partial(pays, x=lambda x, n, size: x * size / 2)
pays_all_sent = partial(pays, x=lambda x, n, size: x * (n - 1) / n)
pays_one_flop = partial(pays, x=lambda x, n, size: x / 2)
pays_bits = partial(pays, x=lambda x, n, size: x / 8)
pays_no_gather = partial(pays, speedup=lambda x: (x + 1) / max(x, 1))
pays_gather_hidden = partial(pays, speedup=lambda x: (x + 2) / max(x, 2))
pays_all_hidden = partial(pays, speedup=lambda x: (x + 2) / (x + 1))
pays_nothing = partial(pays, speedup=lambda x: 1.0)
pays_same_k = partial(pays, best=lambda k: k)

# --- t3_traffic ---


def traffic(how, step, ranks, changed=None):
    known = {
        ("kernel", 0): (0, ranks),
        ("kernel", 1): (1, 1),
        ("t3", 0): (0, 0),
        ("t3", ranks - 1): (0, 2),
    } | (changed(ranks) if changed else {})
    return known.get((how, step), (2, 1) if how == "kernel" else (1, 2))


traffic_first_reads = partial(traffic, changed=lambda n: {("kernel", 1): (2, 1)})
traffic_no_last = partial(traffic, changed=lambda n: {("kernel", n): (0, 0)})
traffic_stored = partial(traffic, changed=lambda n: {("t3", 0): (0, 1)})
traffic_read_back = partial(traffic, changed=lambda n: {("t3", n - 1): (1, 2)})


def traffic_turned(how, step, ranks):
    return traffic(how, step, ranks)[::-1]


def traffic_adds_by_reading(how, step, ranks):
    return (2, 2) if how == "t3" and 0 < step < ranks - 1 else traffic(how, step, ranks)


# --- t3_tracker ---


def tracker(gemm, ranks, machine, updates=2, more=1):
    sets = 1
    while simulate(gemm, ranks, replace(machine, tracker_sets=sets), "t3").tracker.stalls:
        sets *= 2
    return updates * gemm.tile[0] // gemm.wavefronts * gemm.tile[1], sets * more


def tracker_never_full(gemm, ranks, machine):
    return tracker(gemm, ranks, machine)[0], float("inf")


def tracker_of_tiles(gemm, ranks, machine):
    return 2 * gemm.tile[0] * gemm.tile[1] * (gemm.wavefronts > 1) or 2, 1


tracker_one_update = partial(tracker, updates=1)
tracker_ranks = partial(tracker, updates=3)
tracker_twice = partial(tracker, more=2)
tracker_half = partial(tracker, more=0.5)
tracker_odd = partial(tracker, more=1.5)

# --- t3_policy ---


def policy(gemm, ranks, machine):
    return min(
        ("round_robin", "fifo", "mca"),
        key=lambda p: simulate(gemm, ranks, replace(machine, policy=p), "t3").seconds,
    )


def policy_mca(gemm, ranks, machine):
    return "mca"


def policy_turns(gemm, ranks, machine):
    return "round_robin"


def policy_arrival(gemm, ranks, machine):
    return "fifo"


def policy_new(gemm, ranks, machine):
    return "communication first"


# --- t3_tile ---


def tile(cluster, workload):
    known = [("chunk", 0), *(("tile", 2**i) for i in range(2, 7))]
    return min(
        known,
        key=lambda c: tv.predict(tv.T3(tp=4, mode=c[0], tile=c[1]), workload, cluster).step_time,
    )


def tile_chunks(cluster, workload):
    return "chunk", 0


def tile_small(cluster, workload):
    return "tile", 8


def tile_of_seven(cluster, workload):
    return "tile", 7


RIGHT = {
    "t3_share": [share],
    "t3_order": [order],
    "t3_pays": [pays],
    "t3_traffic": [traffic],
    "t3_tracker": [tracker],
    "t3_policy": [policy],
    "t3_tile": [tile],
}

WRONG = {
    "t3_share": [
        (share_of_one, "the bytes of one of the two. The reduce-scatter leaves"),
        (share_of_all, "a rank's own chunk stays: n - 1 of 4 chunks"),
        (share_of_outputs, "a chunk is 1/4 of the output"),
        (share_of_float32, "a number has 2 bytes, not 4"),
        (share_of_gemm, "the fraction is of GEMM and all-reduce time"),
        (share_of_flops, "a multiply-add is two FLOPs"),
        (share_half, r"the fraction should be 0\.\d+, not 0\.5\.$"),
        (share_bytes, "returned float, not a tuple of 2 numbers"),
    ],
    "t3_order": [
        (order_own_first, r"rank \d keeps chunk \d, so that one must be last"),
        (
            order_down,
            r"the ring runs the other way. Rank \d receives from \d and sends to \d: it begins "
            r"with chunk \d",
        ),
        (
            order_swapped,
            r"rank \d+'s own, so no partial sum of it comes from there: rank \d+ begins "
            r"it, at position 0, not \d|computes chunk \d+ at position 0",
        ),
        (order_beyond, r"each of the chunks 0 to \d+ must occur once"),
    ],
    "t3_pays": [
        (pays_other_way, "the inverse. It is the GEMM's time over"),
        (pays_all_sent, "as if a rank sent its whole output. Its own chunk stays"),
        (pays_float16, "right for numbers of 2 bytes. A number has 4 bytes here"),
        (pays_one_flop, "half of x. A multiply-add is two FLOPs"),
        (pays_bits, "the x should be .* lacks a factor of 8"),
        (pays_no_gather, r"x is right, but a speedup of [\d.]+ leaves out the all-gather"),
        (pays_gather_hidden, "hides the all-gather too"),
        (pays_all_hidden, "has all of the GEMM's time and none of the reduce-scatter's"),
        (pays_nothing, "a speedup of 1 says that nothing is gained"),
        (pays_same_k, r"x and the speedup are right. It is largest where .* x would be [\d.]+\."),
    ],
    "t3_traffic": [
        (traffic_first_reads, "step=1, .* one chunk's own part is read and sent"),
        (traffic_no_last, "the received chunk and the own part are read, their sum is written"),
        (traffic_stored, "its stores go to the next GPU .r - 1., none stay here"),
        (traffic_read_back, "an update is no read by the GPU. .* which is not read"),
        (traffic_turned, "reads come first, then writes"),
        (traffic_adds_by_reading, r"you return \(2, 2\)\. Near-memory compute adds inside the"),
    ],
    "t3_tracker": [
        (tracker_of_tiles, "one wavefront's, has its own counter"),
        (tracker_one_update, "each element gets two: .* sent before it is reduced"),
        (tracker_ranks, r"the counter triggers at \d+, not \d+"),
        (tracker_twice, r"with \d+ sets no update waits, but with \d+ none does either"),
        (tracker_half, r"with \d+ sets \d+ updates wait \(simulated\). Up to \d+ parts"),
        (tracker_odd, "the number must be a power of two"),
        (tracker_never_full, r"returned \(\d+, inf\), but every number must be finite"),
    ],
    "t3_policy": [
        (
            policy_mca,
            r"2048 x 2048 x 128 .* 'mca' takes .* \(simulated\), .* is possible. Alone "
            r"the GEMM takes 0\.\d+ of the reduce-scatter's time: the communication "
            "ends last, and here it waits for the GEMM",
        ),
        (
            policy_arrival,
            "'fifo' takes .* Alone the GEMM takes .* times as long as the reduce-"
            "scatter: the GEMM ends last",
        ),
        (policy_turns, "'round_robin' takes .* (the GEMM ends last|when the memory is slower)"),
        (policy_new, "'communication first', which is not a policy: one of 'round_robin'"),
    ],
    "t3_tile": [
        (tile_chunks, r"0.1 µs a message: \('chunk', 0\) takes .* Smaller tiles are faster"),
        (tile_small, r"10 µs a message: \('tile', 8\) takes .* Larger tiles are faster"),
        (tile_of_seven, r"\('tile', 7\), which is not a mode with its tile: one of"),
    ],
}

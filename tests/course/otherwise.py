"""Right answers on numbers by other roads than the first one of each exercise. ``RIGHT`` {name:
[answer]}; the teachers' key shows the plainest of all."""

from itertools import accumulate
from math import ceil, floor, prod

import numpy as np

from tpviz.evidence.t3_hardware import Dma, Local, Remote

WRONG = {}


# --- notebook 02 ---
def states_by_comparing(parameters, dp, zero):
    return tuple(
        bytes_each * parameters / (dp if zero >= stage else 1)
        for bytes_each, stage in ((2, 3), (2, 2), (12, 1))
    )


def states_in_numpy(parameters, dp, zero):
    shards = np.array([zero > 2, zero > 1, zero > 0])
    return np.array([2, 2, 12]) * parameters / np.where(shards, dp, 1)


def sent_by_collective(size, dp, zero):
    collectives = ["reduce-scatter", "all-gather"] + ["all-gather"] * (zero == 3)
    return sum(size / dp * (dp - 1) for _ in collectives)


def sent_by_stage(size, dp, zero):
    return {3: 3}.get(zero, 2) * (size - size / dp)


# --- notebook 07 ---
def time_step_by_step(payload, n, latency, bandwidth):
    return sum(latency + payload / (n * bandwidth) for step in range(2 * n - 2))


def time_of_two_halves(payload, n, latency, bandwidth):
    half = (n - 1) * latency + (n - 1) / n * payload / bandwidth
    return 2 * half


def bus_of_a_dict(collective, payload, n, seconds):
    sent = dict.fromkeys(("all_gather", "reduce_scatter", "all_to_all"), payload - payload / n)
    return sent.get(collective, 2 * (payload - payload / n)) / seconds


def bus_by_match(collective, payload, n, seconds):
    match collective:
        case "all_reduce":
            return 2 * payload * (n - 1) / n / seconds
        case _:
            return payload * (n - 1) / n / seconds


def bus_in_numpy(collective, payload, n, seconds):
    return np.float64(payload) / seconds * (1 + (collective == "all_reduce")) * (1 - 1 / n)


def axis_by_a_loop(cluster, mesh, payload):
    best, least = None, float("inf")
    for axis, n in mesh.axes.items():
        link = cluster.axis_link(mesh, axis)
        seconds = (2 * n - 2) * link.latency + 2 * (1 - 1 / n) * payload / link.bandwidth
        if seconds < least:
            best, least = axis, seconds
    return best


def axis_sorted(cluster, mesh, payload):
    seconds = {}
    for axis in mesh.axes:
        link, n = cluster.axis_link(mesh, axis), mesh.axes[axis]
        seconds[axis] = (n - 1) * (link.latency + payload / (n * link.bandwidth))
    return sorted(seconds, key=seconds.get)[0]


def chunks_tried(payload, links, latency, bandwidth):
    times = [(c + links - 1) * (latency + payload / (c * bandwidth)) for c in range(1, 20_001)]
    return 1 + times.index(min(times))


def chunks_by_steps(payload, links, latency, bandwidth):
    def seconds(c):
        return (c + links - 1) * (latency + payload / (c * bandwidth))

    c = 1
    while seconds(c + 1) < seconds(c):
        c += 1
    return c


def chunks_above_and_below(payload, links, latency, bandwidth):
    root = max(1, np.sqrt((links - 1) * payload / latency / bandwidth))
    both = np.array([floor(root), ceil(root)])
    times = (both + links - 1) * (latency + payload / (both * bandwidth))
    return both[times.argmin()]


def chunks_rounded(payload, links, latency, bandwidth):
    return max(1, round(((links - 1) * payload / latency / bandwidth) ** 0.5))


# --- notebook 08 ---
def bubble_of_slots(batch, dp, pp, micro_batch):
    m = (batch / dp) / micro_batch
    return m, 1 - m / (m + pp - 1)


def bubble_of_a_line(batch, dp, pp, micro_batch):
    m = round(batch / (dp * micro_batch))
    slots = ["idle"] * (pp - 1) + ["busy"] * m
    return m, slots.count("idle") / len(slots)


def bubble_in_fractions(batch, dp, pp, micro_batch):
    from fractions import Fraction

    m = Fraction(batch, dp * micro_batch)
    return m, (pp - 1) / (m + pp - 1)


def regret_by_index(predicted, measured):
    pick, best = measured[predicted.index(min(predicted))], min(measured)
    return pick / best - 1, sum(measured) / len(measured) / best - 1


def regret_in_numpy(predicted, measured):
    times = np.array(measured)
    slower = times / times.min() - 1
    return slower[np.argmin(predicted)], slower.mean()


def regret_of_pairs(predicted, measured):
    best = min(measured)
    _, pick = min(zip(predicted, measured))
    return (pick - best) / best, sum(t - best for t in measured) / (best * len(measured))


def rank_by_differences(predicted, measured):
    def places(times):
        return [sorted(times).index(t) for t in times]

    n = len(predicted)
    squares = sum((a - b) ** 2 for a, b in zip(places(predicted), places(measured)))
    return 1 - 6 * squares / (n * (n * n - 1))


def rank_by_counting(predicted, measured):
    a, b = ([sum(other < t for other in of) for t in of] for of in (predicted, measured))
    a, b = np.array(a) - np.mean(a), np.array(b) - np.mean(b)
    return (a * b).sum() / np.sqrt((a**2).sum() * (b**2).sum())


def rank_from_one(predicted, measured):
    order = {t: i for i, t in enumerate(sorted(measured), 1)}
    in_order = [order[t] for _, t in sorted(zip(predicted, measured))]
    n = len(in_order)
    return 1 - 6 * sum((i - k) ** 2 for i, k in enumerate(in_order, 1)) / (n**3 - n)


# --- notebook 10 ---
def atp_owned(weight, shape, mesh, order, rank):
    i, j = divmod(rank, mesh[1])
    rows, columns = (i, mesh[0]), (j, mesh[1])
    if (weight in ("qkv", "up")) != (order == "column"):
        rows, columns = columns, rows
    (a, m), (b, n) = rows, columns
    return (
        a * shape[0] // m,
        (a + 1) * shape[0] // m,
        b * shape[1] // n,
        (b + 1) * shape[1] // n,
    )


def owned_by_array(weight, shape, mesh, order, rank):
    ranks = np.arange(prod(mesh)).reshape(mesh)
    if (weight in ("out", "down")) == (order == "column"):
        ranks = ranks.T
    (i, j), (m, n) = np.argwhere(ranks == rank)[0], ranks.shape
    rows, columns = np.arange(shape[0]).reshape(m, -1)[i], np.arange(shape[1]).reshape(n, -1)[j]
    return rows[0], rows[-1] + 1, columns[0], columns[-1] + 1


def owned_by_sizes(weight, shape, mesh, order, rank):
    first = weight in ("qkv", "up")
    at = (rank // mesh[1], rank % mesh[1])
    flip = first != (order == "column")
    m, n = mesh[::-1] if flip else mesh
    i, j = at[::-1] if flip else at
    height, width = shape[0] // m, shape[1] // n
    return [i * height, i * height + height, j * width, j * width + width]


def atp_best_mesh(world_size, b1, b2):
    meshes = [(world_size // d2, d2) for d2 in range(1, world_size + 1) if world_size % d2 == 0]
    return min(meshes, key=lambda mesh: (mesh[0] - 1) / b1 + 3 * (mesh[1] - 1) / b2)


def best_by_a_loop(world_size, b1, b2):
    best, least, d1 = None, float("inf"), world_size
    while d1:
        d2 = world_size // d1
        seconds = (4 * (d1 - 1) / b1 + 12 * (d2 - 1) / b2) / world_size
        if seconds < least:
            best, least = (d1, d2), seconds
        d1 //= 2
    return best


def wire_by_payloads(d1, d2, order, tokens, hidden, itemsize):
    over = {"column": (d1, d2), "row": (d2, d1)}[order]
    sent = 0.0
    for n, others, widths in ((over[1], over[0], (3, 4, 1, 4)), (over[0], over[1], (1, 1, 1, 1))):
        sent += sum(2 * (n - 1) / n * tokens * width * hidden / others for width in widths)
    return sent * itemsize


# --- notebook 11 ---
def coords_unravelled(rank, grid, order):
    x, y, z, data = grid
    inner = (y, x) if order == "xyz" else (x, y)
    d, k, a, b = np.unravel_index(rank, (data, z, *inner))
    return (b, a, k, d) if order == "xyz" else (a, b, k, d)


def coords_by_division(rank, grid, order):
    x, y, z, _ = grid
    i, j = (rank % x, rank // x % y) if order == "xyz" else (rank // y % x, rank % y)
    return i, j, rank // (x * y) % z, rank // (x * y * z)


def coords_by_strides(rank, grid, order):
    places = "xyz" if order == "xyz" else "yxz"
    size = dict(zip(("x", "y", "z", "data"), grid))
    strides = dict(zip((*places, "data"), accumulate((1, *(size[a] for a in places)), int.__mul__)))
    return [rank // strides[axis] % size[axis] for axis in ("x", "y", "z", "data")]


def axonn_piece(weight, shape, grid, rank):
    x, y, z, _ = grid
    i, j, k = rank % x, rank // x % y, rank // (x * y) % z
    rows, columns = ((i, x), (j, y)) if weight in ("qkv", "up") else ((j, y), (i, x))
    numbers = shape[0] * shape[1] // (x * y)
    found = []
    for size, (part, n) in (shape[0], rows), (shape[1], columns), (numbers, (k, z)):
        found += [part * size // n, (part + 1) * size // n]
    return found


# --- notebook 12 ---
def schedule_of_lines():
    return [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def merak_in_flight(name, p, m, s):
    held = min(m, p - s)
    if name == "shifted_critical_path" and s == p - 2:
        held += 1
    return held


def flight_counted(name, p, m, s):
    lead = p - s + (name != "1f1b" and p - s == 2)
    held = peak = 0
    for step in range(m + lead):
        held += step < m
        peak = max(peak, held)
        held -= step + 1 >= lead
    return peak


def flight_by_rank(name, p, m, s):
    behind = p - 1 - s
    if name == "shifted_critical_path" and behind == 1:
        return 3
    return m if m < behind + 1 else behind + 1


def merak_bubble(p, m, f, r, b):
    each, ends = f + r + b, f + b
    return (
        (m + p - 1) * each,
        m * each + (p - 1) * ends,
        m * each + (p - 2) * ends + (b - r) + (f - r),
    )


def merak_keep(name, p, layers, keep):
    k = [min(1, keep * (p - 1) / (p - 1 - s)) for s in range(p - 1)] + [1]
    if name == "shifted_critical_path" and p > 2:
        k[p - 2] = k[p - 3]
    return [int(layers * (1 - part) + 1e-9) for part in k]


def keep_in_numpy(name, p, layers, keep):
    others = np.arange(p - 1, 0, -1.0)  # in flight besides the one in backward
    if name != "1f1b" and p > 2:
        others[-1] = others[-2]
    k = np.append(np.minimum(1, keep * (p - 1) / others), 1)
    return np.floor(layers - layers * k + 1e-6).astype(int)


def keep_stage_by_stage(name, p, layers, keep):
    def stage(s):
        if s == p - 1:
            return 0
        if name == "shifted_critical_path" and s == p - 2 and s > 0:
            return stage(s - 1)
        share = keep * (p - 1) / (p - 1 - s)
        return 0 if share >= 1 else floor(layers * (1 - share) + 1e-9)

    return list(map(stage, range(p)))


def merak_memory(name, p, m, s, whole, inputs, keep):
    n = min(m, p - s)
    if name == "shifted_critical_path" and s == p - 2:
        n += 1
    return whole * (1 + (n - 1) * keep) + inputs * n * (1 - keep)


def memory_by_microbatch(name, p, m, s, whole, inputs, keep):
    n = flight_by_rank(name, p, m, s)
    recomputed = 1 - keep
    waiting = keep * whole + recomputed * inputs
    return (n - 1) * waiting + whole + recomputed * inputs


def merak_cuts(operations):
    last = {name: k for k, (_, takes) in enumerate(operations) for name in takes}
    found = []
    for k, (name, _) in enumerate(operations[:-1]):
        crossing = [n for n, _ in operations[: k + 1] if last.get(n, 0) > k]
        if len(crossing) == 1:
            found.append(name)
    return found


def cuts_by_sets(operations):
    made, found = set(), []
    for k, (name, _) in enumerate(operations):
        made.add(name)
        if len(made & {n for _, takes in operations[k + 1 :] for n in takes}) == 1:
            found.append(name)
    return found


def cuts_from_the_end(operations):
    names, needed, found = {name for name, _ in operations}, set(), []
    for name, takes in reversed(operations):
        if len(needed) == 1:
            found.append(name)
        needed = (needed - {name}) | (names & set(takes))
    return found[::-1]


# --- notebook 13 ---
def t3_share(tokens, hidden, k, ranks, flops, link):
    sent = 2 * (ranks - 1) / ranks * tokens * hidden * 2
    sums, gemm = sent / link, 2 * tokens * hidden * k / flops
    return sent, sums / (sums + gemm)


def share_by_steps(tokens, hidden, k, ranks, flops, link):
    chunk = 2 * tokens * hidden / ranks
    sent = sum(chunk for half in ("reduce-scatter", "all-gather") for step in range(ranks - 1))
    return sent, 1 / (1 + 2 * tokens * hidden * k / flops * link / sent)


def order_turned(rank, ranks):
    chunks = list(range(ranks))
    return chunks[rank + 1 :] + chunks[: rank + 1]


def order_from_the_end(rank, ranks):
    return [(rank - j) % ranks for j in range(ranks)][::-1]


def order_rolled(rank, ranks):
    return np.roll(np.arange(ranks), -rank - 1)


def order_sorted(rank, ranks):
    return sorted(range(ranks), key=lambda chunk: (chunk - rank - 1) % ranks)


def t3_pays(k, ranks, flops, link, itemsize):
    x = 2 * k * link * ranks / (itemsize * (ranks - 1) * flops)
    return x, (x + 2) / (max(x, 1) + 1), k / x


def pays_of_one_number(k, ranks, flops, link, itemsize):
    gemm, scatter = 2 * k / flops, itemsize * (ranks - 1) / ranks / link
    without, fused = gemm + 2 * scatter, max(gemm, scatter) + scatter
    return gemm / scatter, without / fused, scatter * flops / 2


def t3_traffic(how, step, ranks):
    if how == "kernel":
        return (0, ranks) if step == 0 else (1, 1) if step == 1 else (2, 1)
    return (0, 0) if step == 0 else (0, 2) if step == ranks - 1 else (1, 2)


def traffic_by_reason(how, step, ranks):
    if how == "t3":
        stored_here, sent_on = step > 0, 0 < step < ranks - 1
        return int(sent_on), 2 * stored_here
    return (step > 0) + (step > 1), 1 if step else ranks


def t3_ring_maps(ranks):
    maps = []
    for rank in range(ranks):
        to, order = (rank - 1) % ranks, [(rank + 1 + j) % ranks for j in range(ranks)]
        rules = [Remote(to, "update"), *[Dma(to, "update", 2)] * (ranks - 2), Local(2)]
        maps.append(list(zip(order, rules)))
    return maps


def t3_other_maps(collective, ranks):
    def own(rank):
        if collective == "ring_ag":
            order = [(rank + j) % ranks for j in range(ranks)]
            forward = Dma((rank - 1) % ranks, "store", 1)
            return [*((chunk, forward) for chunk in order[:-1]), (order[-1], Local(1))]
        op, updates = ("store", 1) if collective == "all_to_all" else ("update", ranks)
        order = [(rank + 1 + j) % ranks for j in range(ranks - 1)]
        return [*((chunk, Remote(chunk, op)) for chunk in order), (rank, Local(updates))]

    return [own(rank) for rank in range(ranks)]


RIGHT = {
    "zero_states": [states_by_comparing, states_in_numpy],
    "zero_sent": [sent_by_collective, sent_by_stage],
    "ring_time": [time_step_by_step, time_of_two_halves],
    "bus_bandwidth": [bus_of_a_dict, bus_by_match, bus_in_numpy],
    "axis_for_tp": [axis_by_a_loop, axis_sorted],
    "best_chunks": [chunks_tried, chunks_by_steps, chunks_above_and_below, chunks_rounded],
    "beat_bubble": [bubble_of_slots, bubble_of_a_line, bubble_in_fractions],
    "beat_regret": [regret_by_index, regret_in_numpy, regret_of_pairs],
    "beat_rank": [rank_by_differences, rank_by_counting, rank_from_one],
    "atp_owned": [atp_owned, owned_by_array, owned_by_sizes],
    "atp_best_mesh": [atp_best_mesh, best_by_a_loop],
    "atp_wire_bytes": [wire_by_payloads],
    "axonn_coords": [coords_unravelled, coords_by_division, coords_by_strides],
    "axonn_piece": [axonn_piece],
    "merak_schedule": [schedule_of_lines],
    "merak_in_flight": [merak_in_flight, flight_counted, flight_by_rank],
    "merak_bubble": [merak_bubble],
    "merak_keep": [merak_keep, keep_in_numpy, keep_stage_by_stage],
    "merak_memory": [merak_memory, memory_by_microbatch],
    "merak_cuts": [merak_cuts, cuts_by_sets, cuts_from_the_end],
    "t3_share": [t3_share, share_by_steps],
    "t3_order": [order_turned, order_from_the_end, order_rolled, order_sorted],
    "t3_pays": [t3_pays, pays_of_one_number],
    "t3_ring_maps": [t3_ring_maps],
    "t3_other_maps": [t3_other_maps],
    "t3_traffic": [t3_traffic, traffic_by_reason],
}

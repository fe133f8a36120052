"""Answers to notebook 07 on formulas: right ones, and wrong ones with the hint they get."""

import torch

# --- ring_time ---


def ring_time(payload, n, latency, bandwidth):
    return 2 * (n - 1) * (latency + payload / n / bandwidth)


def time_without_latency(payload, n, latency, bandwidth):
    return 2 * (n - 1) / n * payload / bandwidth


def time_with_one_latency(payload, n, latency, bandwidth):
    return latency + 2 * (n - 1) / n * payload / bandwidth


def time_of_half(payload, n, latency, bandwidth):
    return ring_time(payload, n, latency, bandwidth) / 2


def time_of_all_bytes_once(payload, n, latency, bandwidth):
    return 2 * (n - 1) * latency + payload / bandwidth


def time_of_n_steps(payload, n, latency, bandwidth):
    return 2 * n * (latency + payload / n / bandwidth)


def time_forgotten(payload, n, latency, bandwidth):
    payload / bandwidth


def time_raises(payload, n, latency, bandwidth):
    return payload / speed  # noqa: F821


# --- bus_bandwidth ---


def bus_bandwidth(collective, payload, n, seconds):
    factor = (2 if collective == "all_reduce" else 1) * (n - 1) / n
    return factor * payload / seconds


def bus_is_algbw(collective, payload, n, seconds):
    return payload / seconds


def bus_always_twice(collective, payload, n, seconds):
    return 2 * (n - 1) / n * payload / seconds


def bus_divided(collective, payload, n, seconds):
    return payload / seconds / ((2 if collective == "all_reduce" else 1) * (n - 1) / n)


def bus_in_gigabytes(collective, payload, n, seconds):
    return bus_bandwidth(collective, payload, n, seconds) / 1e9


# --- axis_for_tp ---


def axis_for_tp(cluster, mesh, payload):
    def seconds(axis):
        n, link = mesh.axes[axis], cluster.axis_link(mesh, axis)
        return 2 * (n - 1) * (link.latency + payload / n / link.bandwidth)

    return min(mesh.axes, key=seconds)


def axis_innermost(cluster, mesh, payload):
    return mesh.names[-1]


def axis_of_most_bandwidth(cluster, mesh, payload):
    return max(mesh.axes, key=lambda axis: cluster.axis_link(mesh, axis).bandwidth)


def axis_of_fewest_hops(cluster, mesh, payload):
    return min(mesh.axes, key=mesh.axes.get)


def axis_named_tp(cluster, mesh, payload):
    return "tp"


def axis_as_number(cluster, mesh, payload):
    return 0


# --- best_chunks ---


def best_chunks(payload, links, latency, bandwidth):
    def seconds(c):
        return (c + links - 1) * (latency + payload / (c * bandwidth))

    c = int(((links - 1) * payload / (latency * bandwidth)) ** 0.5)
    return min(max(c, 1), c + 1, key=seconds)


def chunks_one(payload, links, latency, bandwidth):
    return 1


def chunks_as_links(payload, links, latency, bandwidth):
    return 1000


def chunks_not_whole(payload, links, latency, bandwidth):
    return ((links - 1) * payload / (latency * bandwidth)) ** 0.5


def chunks_in_a_tensor(payload, links, latency, bandwidth):
    return torch.tensor(best_chunks(payload, links, latency, bandwidth))


RIGHT = {
    "ring_time": [ring_time],
    "bus_bandwidth": [bus_bandwidth],
    "axis_for_tp": [axis_for_tp],
    "best_chunks": [best_chunks, chunks_in_a_tensor],
}

WRONG = {
    "ring_time": [
        (time_without_latency, r"payload=\S+, n=4, .*only the time of the bytes"),
        (time_with_one_latency, "you counted one latency"),
        (time_of_half, "half of the time: this is only the reduce-scatter"),
        (time_of_all_bytes_once, r"the latencies are right, .* sends 2\(n-1\)/n times the tensor"),
        (
            time_of_n_steps,
            r"you counted 2n steps of 1/n of the tensor; a ring needs 2\(n-1\):",
        ),
        (time_forgotten, "your function returned NoneType, not a number"),
        (time_raises, "NameError: name 'speed' is not defined"),
    ],
    "bus_bandwidth": [
        (bus_is_algbw, "that is algbw"),
        (bus_always_twice, "all_gather goes round once"),
        (bus_divided, "do not divide by it"),
        (bus_in_gigabytes, r"the answer is \S+; you returned"),
    ],
    "axis_for_tp": [
        (
            axis_innermost,
            r"takes \S+ µs along (\w), but \S+ µs along (?!\1)\w. Axis \1 is the innermost axis, w",
        ),
        (axis_of_most_bandwidth, r"65,536 bytes on two wide .* Axis \w has the most bandwidth, w"),
        (axis_of_fewest_hops, r"a torus of slow.* Axis \w has the fewest ranks, which"),
        (axis_named_tp, r"the axes are \w, \w, \w; you returned 'tp'"),
        (axis_as_number, r"returned int, not a name \(a string\)"),
    ],
    "best_chunks": [
        (chunks_one, "more chunks are faster here"),
        (chunks_as_links, "fewer chunks are faster here"),
        (chunks_not_whole, "chunks are whole, and at least 1"),
    ],
}

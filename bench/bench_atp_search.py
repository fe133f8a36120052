"""ATP's search on 1024 devices: every mesh in both orders, by the step and by communication alone.

The process is warm, the cluster new each time: what it knows of its links is not kept.
"""

from functools import partial

from harness import report, seconds, timing

import tpviz as tv

WORKLOADS = {
    "A3": tv.GPT(
        layers=24, hidden=16384, heads=1024, seq=2048, batch=4, vocab=51200, dtype="bfloat16"
    ),
    "A1": tv.GPT(
        layers=24, hidden=12288, heads=96, seq=2048, batch=4, vocab=51200, dtype="bfloat16"
    ),
}
CLUSTERS = {
    "nvswitch_nodes(128)": partial(tv.clusters.nvswitch_nodes, 128),
    "nvlink_pairs(512)": partial(tv.clusters.nvlink_pairs, 512),
    "torus(32, 32)": partial(tv.clusters.torus, 32, 32),
    "perlmutter(256)": partial(tv.clusters.perlmutter, 256),
}
REPEATS = 15
BOUND = 50
"""Milliseconds that one search may take."""


def searches(workload, make, objective):
    """Seconds of each search, each on a cluster of its own."""
    samples = []
    for _ in range(REPEATS + 1):
        cluster = make()
        strategies = list(tv.ATP.meshes(workload, 1024))
        samples.append(
            seconds(
                partial(
                    tv.search, workload, cluster, strategies, objective=objective, simulate=False
                )
            )
        )
    return samples[1:]


def rows():
    for heads, workload in WORKLOADS.items():
        for name, make in CLUSTERS.items():
            for objective in ("step", "communication"):
                what = f"search by {objective}, {heads}, {name}"
                yield timing(what, searches(workload, make, objective), "ms", BOUND)
    for name, make in CLUSTERS.items():
        samples = []
        for _ in range(REPEATS):
            samples.append(seconds(partial(tv.communication_matrix, make())))
        yield timing(f"communication matrix, {name}", samples, "ms", BOUND)


def main():
    report("atp_search", "ATP's search and communication matrix on 1024 devices", [*rows()])


if __name__ == "__main__":
    main()

"""AxoNN's communication model: ranking of all grids, and searches on 64 and 4096 devices; the 80B
model on 1024 devices of Perlmutter simulated, its use of the devices beside the paper's figure.

The process is warm, the cluster new each time: what it knows of its links is not kept. Which grid
the authors' run of 80B had, and which batch, is not known to us: ours is the first by our model
among those that fit the device's memory, for a batch of 1024 sequences, so the two figures are of
different things.
"""

from dataclasses import replace
from functools import partial
from math import log2

from harness import report, row, seconds, timing

import tpviz as tv
from tpviz.schemes.axonn.models import LEAST_RANKS, NOMINAL, paper_models, utilisation
from tpviz.schemes.axonn.paper import communication, fitting, ranking
from tpviz.schemes.axonn.rates import of_cluster

CLUSTERS = {"Perlmutter": (tv.clusters.perlmutter, 4), "Frontier": (tv.clusters.frontier, 8)}
W = paper_models()["80B"]
HEADLINE = paper_models(batch=1024)["80B"]
SMALL = replace(paper_models(batch=512)["5B"], layers=8)
"""Fits devices of 40 GB without recomputation on 64 of them."""
REPEATS, SEARCHES = 9, 3
BOUND_RANKING, BOUND_SIMULATION = 1.0, 30.0
"""Seconds: ranking of 4096 devices by communication; simulation of 80B on 1024."""
PAPER = "57 % of the peak, with recomputation counted: the abstract of arXiv 2305.13525 v3"


def rank(make, node):
    """One ranking of all grids of 4096 devices."""
    return ranking(
        tv.AxoNN.space(W, 4096), W, of_cluster(make(4096 // node), 4096), LEAST_RANKS["80B"]
    )


def searching(w, objective, devices, **knobs):
    """One `tv.search` of AxoNN's space with some knobs changed."""
    space = [replace(s, **knobs) for s in tv.AxoNN.space(w, devices)]
    return tv.search(
        w, tv.clusters.perlmutter(devices // 4), space, objective=objective, simulate=False
    )


def rows():
    for name, (make, node) in CLUSTERS.items():
        samples = [seconds(partial(rank, make, node)) for _ in range(REPEATS + 1)]
        count = len(rank(make, node))
        yield timing(
            f"ranking by communication, {name}, 4096 devices, {count} grids",
            samples[1:],
            "s",
            BOUND_RANKING,
        )
    for what, w, devices, knobs in (
        ("8 layers of 5B", SMALL, 64, {}),
        ("80B, recompute", W, 4096, {"recompute": True}),
    ):
        for objective in ("step", "communication"):
            search = partial(searching, w, objective, devices, **knobs)
            found = search()
            yield timing(
                f"search by {objective}, {what}, {devices} devices, {len(found.rows)} "
                f"ranked, {len(found.rejected)} rejected, first {found.best.short}",
                [seconds(search) for _ in range(SEARCHES)],
                "s",
            )
    yield from headline()


def chosen(w, cluster, devices):
    """The least communication among grids that fit the memory with the fewest microbatches."""
    fit = []
    for s in fitting((replace(s, recompute=True) for s in tv.AxoNN.space(W, devices)), w):
        for power in range(1 + int(log2(w.batch // (s.z * s.data)))):
            tried = replace(s, accumulation=2**power)
            if tried.memory(w).total <= cluster.device.memory:
                fit.append((communication(tried, w, cluster), tried))
                break
    return min(fit, key=lambda t: t[0])[1]


def headline():
    """80B on 1024 devices: derived figures, the paper's own beside them in words."""
    w, cluster = HEADLINE, tv.clusters.perlmutter(256)
    strategy = chosen(w, cluster, 1024)
    kept = []
    taken = seconds(lambda: kept.append(tv.simulate(strategy, w, cluster)))
    found = utilisation(w, kept[0].step_time, 1024, NOMINAL["A100"])
    name = f"80B on 1024 devices of Perlmutter, {strategy.short}"
    yield row(f"{name}: wall time of tv.simulate", taken, "s", BOUND_SIMULATION)
    yield row("  step, predicted", tv.predict(strategy, w, cluster).step_time, "s")
    yield row("  step, simulated", kept[0].step_time, "s")
    yield row(f"  HFU, simulated (the paper: {PAPER})", 100 * found.hfu, "%")
    yield row("  MFU, simulated (the paper gives none)", 100 * found.mfu, "%")


def main():
    report("axonn_model", "AxoNN's communication model (simulated and derived figures)", [*rows()])


if __name__ == "__main__":
    main()

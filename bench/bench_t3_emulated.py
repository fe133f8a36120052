"""T3 on an emulated cluster: do real ranks take the time that `simulate` says, and hide the sums?

A ring of four such GPUs as T3's authors simulated (150 GB/s and 500 ns a link, as read in notes on
the paper; 114.7 TFLOP/s, our reading of 80 CUs at 1.4 GHz), 8192 tokens, a scale model in slow
motion whose hidden size is such that the GEMM of FC-2 takes as long as its reduce-scatter: the
balanced case, in which fusing can gain most. First FC-2 alone, each mode: how much of the
reduce-scatter is seen. Then whole training steps of every mode and gather against `simulate`, and
what tile mode gains over sequential. Everything here is emulated. Exits with 1 where a bound is
missed.

    python bench/bench_t3_emulated.py [steps]
"""

import sys
import warnings
from statistics import median

import torch
from harness import report, row, step_seconds

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level
from tpviz.cluster.clock.fast import Clock
from tpviz.core.step import Part
from tpviz.schemes.t3.program import ring_of
from tpviz.schemes.t3.step import Layers

STEPS, TP = 3, 4
SECONDS = 0.12  # of the balanced GEMM, in slow motion
W = tv.GPT(layers=2, hidden=64, heads=8, seq=128, batch=64, vocab=64)
RING = Cluster(
    "ring", Device({"float16": 114.7e12}, 32e9, 1e12), (Level("link", TP, 150e9, 150e9, 500e-9),)
)
MODES = ("sequential", "chunk", "tile")
FEATURES = W.mlp_ratio * W.hidden // TP


def balanced():
    """The cluster: GEMM and reduce-scatter of FC-2 take ``SECONDS`` each."""
    cluster = RING.scale_model(dtype="float16")
    for _ in range(40):  # their ratio falls with the model's width: find where it is 1
        gemm, scatter = parts_of(cluster)
        cluster = cluster.scale_model(hidden=(scatter / gemm) ** 0.5)
    return cluster.scale_model(slow_motion=SECONDS / parts_of(cluster)[0])


def layers(mode):
    return Layers(tv.T3(tp=TP, mode=mode), W)


def clock(cluster):
    return Clock.of(cluster, tv.Mesh({"tp": TP}), W.dtype)


def parts_of(cluster):
    """Seconds of (FC-2's GEMM, its reduce-scatter)."""
    made, time = layers("sequential"), clock(cluster)
    scatter = time.moved(made.whole("reduce_scatter"))
    return time.seconds(made.gemm(W.batch * W.seq, FEATURES, W.hidden)), scatter.seconds


def derived(cluster, mode):
    """Seconds of FC-2 by the recurrence of `tpviz.schemes.t3.step`."""
    made = layers(mode)
    gemm = made.gemm(W.batch * W.seq, FEATURES, W.hidden)
    fused = Part("forward", "", tuple(made.scattered(gemm, FEATURES)))
    return clock(cluster).run([fused])[0].seconds


def alone(mode, cluster, steps):
    """On a rank: a trace of FC-2 alone, ``steps`` times."""
    strategy = tv.T3(tp=TP, mode=mode)
    ring = ring_of(strategy, tv.Mesh(strategy.axes).device_mesh())
    a, b = torch.randn(W.batch * W.seq, FEATURES), torch.randn(FEATURES, W.hidden)
    ring.reduce_scatter(a, b)
    with tv.record(cluster=cluster) as recorder:
        for _ in range(steps):
            with recorder.step():
                ring.reduce_scatter(a, b)
    return recorder.trace


def sublayer(cluster, steps):
    """Rows of FC-2 alone."""
    gemm, scatter = parts_of(cluster)
    yield row("FC-2: its GEMM, by the cluster", 1e3 * gemm, "ms")
    yield row("FC-2: its reduce-scatter, by the cluster", 1e3 * scatter, "ms")
    for mode in MODES:
        trace = tv.Trace.merge(tv.launch(alone, mode, cluster, steps, world_size=TP, timeout=200))
        times = [step_seconds(trace, step) for step in trace.steps]
        expected = derived(cluster, mode)
        yield row(
            f"FC-2, {mode}: measured against the recurrence",
            100 * abs(median(times) / expected - 1),
            "%",
            6,
            [100 * abs(t / expected - 1) for t in times],
        )
        shown = [100 * (t - gemm) / scatter for t in times]
        by_form = 100 * (expected - gemm) / scatter
        yield row(
            f"FC-2, {mode}: seen of the reduce-scatter, by the recurrence {by_form:.1f} %",
            median(shown),
            "%",
            30 if mode == "tile" else None,
            shown,
        )


def whole_steps(cluster, steps):
    """Rows of training steps."""
    for gather in ("after", "consumer"):
        measured, simulated = {}, {}
        for mode in MODES:
            strategy = tv.T3(tp=TP, mode=mode, gather=gather)
            run = tv.run(strategy, W, cluster, steps=steps, memory=False, timeout=300)
            simulated[mode] = tv.simulate(strategy, W, cluster).step_time
            each = [step_seconds(run, step) for step in run.steps]
            measured[mode] = median(each)
            off = [100 * abs(seconds / simulated[mode] - 1) for seconds in each]
            yield row(
                f"step, {mode}, gather={gather!r}: measured against simulated "
                f"{simulated[mode]:.2f} s",
                100 * abs(measured[mode] / simulated[mode] - 1),
                "%",
                6,
                off,
            )
            yield row(
                "  the wall's clock behind the emulated one",
                100 * run.meta["late"]["behind"],
                "%",
                6,
            )
        gains = [times["sequential"] / times["tile"] - 1 for times in (measured, simulated)]
        yield row(f"tile over sequential, gather={gather!r}: gain measured", 100 * gains[0], "%")
        yield row("  the same simulated", 100 * gains[1], "%")
        yield row("  points apart", 100 * abs(gains[0] - gains[1]), "pts", 6)


def main():
    warnings.simplefilter("ignore")
    steps = int(sys.argv[1]) if len(sys.argv) > 1 else STEPS
    cluster = balanced()
    print(cluster.caption)
    rows = [*sublayer(cluster, steps), *whole_steps(cluster, steps)]
    report("t3_emulated", "T3 on an emulated cluster, real ranks in slow motion", rows)
    tv.shutdown()
    sys.exit(not all(line["ok"] for line in rows))


if __name__ == "__main__":
    main()

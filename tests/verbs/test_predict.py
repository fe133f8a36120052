"""Predictions: parts that sum, words and tables, what is refused, and no torch anywhere near."""

import subprocess
import sys
from dataclasses import replace

import pytest
from torch import nn

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level
from tpviz.verbs.room import check_memory

W = tv.GPT(layers=2, hidden=64, heads=8, seq=32, batch=8, vocab=256)
BOX = Cluster(
    "box",
    Device({"float32": 1e9}, 1e9, 1e12, name="toy"),
    (Level("fast", 2, 4e8, 4e8, 1e-4), Level("slow", 4, 1e8, 2e8, 1e-4)),
)
ALL = [
    tv.Megatron(tp=1),
    tv.Megatron(tp=8),
    tv.Megatron(tp=4, sp=True),
    tv.Megatron(tp=4, chunks=2) * tv.DataParallel(dp=2, zero=2),
    *[tv.DataParallel(dp=8, zero=zero) for zero in range(4)],
]


@pytest.mark.parametrize("strategy", ALL, ids=lambda s: s.short)
def test_parts_sum_to_the_step(strategy):
    p = tv.predict(strategy, W, BOX)
    assert list(p.parts) == ["compute", "bandwidth wait", "latency wait", "bubble"]
    assert sum(p.parts.values()) == p.step_time
    assert sum(s.seconds for s in p.segments) == pytest.approx(p.step_time)
    assert all(seconds >= 0 for seconds in p.parts.values()) and p.parts["bubble"] == 0
    waiting = p.parts["bandwidth wait"] + p.parts["latency wait"]
    assert waiting == pytest.approx(sum(p.exposed.values()))
    assert set(p.exposed) <= {a for a, n in strategy.axes.items() if n > 1}
    assert 0 <= p.overlap < 1
    assert (p.badge, p.strategy, p.workload, p.cluster) == ("predicted", strategy, W, BOX)


@pytest.mark.parametrize("strategy", ALL, ids=lambda s: s.short)
def test_communication_is_all_there(strategy):
    """Exposed and hidden together are every collective of the ledger, alone on its links."""
    p, mesh = tv.predict(strategy, W, BOX), tv.Mesh(strategy.axes)
    program = tv.capture(strategy, W)
    assert p.ledger() == program.ledger()
    expected = {}
    for e in program.trace(0).select(kind="comm"):
        seconds = BOX.collective_time(
            e.name, e.bytes, mesh.axes[e.axis], BOX.axis_link(mesh, e.axis)
        )
        expected[e.axis] = expected.get(e.axis, 0.0) + seconds
    found = {axis: p.exposed.get(axis, 0.0) + p.hidden.get(axis, 0.0) for axis in expected}
    assert found == pytest.approx(expected)


def test_segments_are_in_time_order_and_name_layers():
    p = tv.predict(tv.Megatron(tp=2), W, BOX)
    layers = [s.layer for s in p.segments if s.phase == "backward"]
    assert layers[:4] == ["head", "norm", "blocks.1.mlp.down", "blocks.1.mlp.up"]
    phases = list(dict.fromkeys(s.phase for s in p.segments))
    assert phases == ["forward", "backward", "optimizer"]
    names = [name for s in tv.predict(tv.DataParallel(dp=2), W, BOX).segments for name in s.ready]
    assert sorted(names) == sorted(W.parameter_shapes())


def test_more_of_everything_takes_no_less():
    base = tv.predict(tv.Megatron(tp=4), W, BOX).step_time
    assert tv.predict(tv.Megatron(tp=4), replace(W, layers=3), BOX).step_time > base
    assert tv.predict(tv.Megatron(tp=4), W, BOX.scale_model(slow_motion=2)).step_time == (
        pytest.approx(2 * base)
    )
    assert tv.predict(tv.Megatron(tp=1), W, BOX).exposed == {}


def test_words_and_table():
    p = tv.predict(tv.Megatron(tp=2) * tv.DataParallel(dp=2, bucket_mb=0.05), W, BOX)
    name = "Megatron(tp=2) * DataParallel(dp=2, bucket_mb=0.05) on box"
    assert repr(p).startswith(f"<Prediction {name}: ")
    text = p.describe()
    assert text.startswith(f"Predicted: one step of {name} takes ")
    assert " for tp and " in text and text.endswith("of 1 GB: it fits.")
    head, *rows = p.to_table()
    assert head == ["part", "time", "share"] and rows[4][0] == "step"
    assert {"exposed on tp", "hidden on dp", "activations memory"} <= {row[0] for row in rows}
    alone = tv.predict(tv.Megatron(tp=1), W, BOX).describe()
    assert "Nothing is communicated." in alone and "nominal" not in alone
    ideal = tv.predict(tv.Megatron(tp=2), W, tv.clusters.nvswitch(2)).describe()
    assert "Its rates are nominal, and no run reaches them: clusters.as_run_by has" in ideal


def test_memory_decides_whether_it_fits():
    small = replace(BOX, device=replace(BOX.device, memory=3e5))
    p = tv.predict(tv.Megatron(tp=2), W, small)
    assert not p.fits and p.describe().endswith("it does not fit.")
    assert tv.predict(tv.Megatron(tp=2), W, BOX).fits
    total = tv.Megatron(tp=2).memory(W).total
    with pytest.raises(
        ValueError,
        match=r"Megatron\(tp=2\) needs .* on every rank and the device "
        "'toy' has 300 kB: most of it is activations",
    ):
        check_memory(tv.Megatron(tp=2), W, small)
    exact = replace(BOX, device=replace(BOX.device, memory=total))
    check_memory(tv.Megatron(tp=2), W, exact)
    assert tv.predict(tv.Megatron(tp=2), W, exact).fits


@pytest.mark.parametrize(
    "arguments, message",
    [
        ((tv.Megatron(tp=16), W, BOX), "heads=8 does not split evenly over tp=16"),
        ((tv.DataParallel(dp=16), replace(W, batch=16), BOX), "16 ranks do not fit the 8 devices"),
        (("Megatron", W, BOX), r"first comes a strategy such as tv.Megatron\(tp=2\), not 'Meg"),
        ((tv.Megatron(tp=2), BOX, W), "after the strategy comes a workload"),
        ((tv.Megatron(tp=2), nn.Linear(2, 2), BOX), "not Linear: tv.parallelize takes modules$"),
        ((tv.Megatron(tp=2), W, "box"), "third comes a cluster such as .*, not 'box'"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        tv.predict(*arguments)


def test_needs_no_torch():
    code = (
        "import sys, tpviz as tv\n"
        "from tpviz.clusters import nvlink_pairs; c = nvlink_pairs()\n"
        "s = tv.Megatron(tp=2, chunks=2) * tv.DataParallel(dp=4, zero=3)\n"
        "w = tv.GPT(batch=8)\n"
        "p = tv.predict(s, w, c); p.describe(); p.ledger()\n"
        "tv.search(w, c, simulate=False).describe()\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr

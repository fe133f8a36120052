"""Long sequences: a search cuts them by itself, and where nothing else fits; what people ran is
within its reach."""

from contextlib import suppress
from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level
from tpviz.schemes.context.strategy import OUTSIDE
from tpviz.verbs.room import need
from tpviz.verbs.space import LONG, PART, cells, kinds, space, usual

W = tv.GPT(layers=2, hidden=32, heads=1, seq=512, batch=1, vocab=64)
BOX = Cluster(
    "box",
    Device({"float32": 1e10}, 1.1e6, 1e12),
    (Level("fast", 2, 4e9, 4e9, 1e-6), Level("slow", 2, 1e9, 1e9, 1e-6)),
)


def h100s(count):
    return tv.clusters.as_run_by(tv.clusters.dgx("H100-SXM-80GB", count))


def cut(strategy):
    return strategy.axes.get("cp", 1) > 1


def test_short_sequences_are_tried_whole():
    assert tv.Context not in kinds(None)
    short, long = (tv.models.llama3("8B", batch=32, seq=seq) for seq in (LONG // 2, LONG))
    for w, known in ((short, False), (long, True)):
        assert any(cut(cell.strategy) for cell in usual(w, h100s(8), 8)) == known
        assert tv.Context not in tv.search(w, h100s(8), tv.Merak, simulate=False).asked[1]
    parts = [c.strategy for c in usual(long, h100s(16), 16) if cut(c.strategy)]
    assert {long.seq // s.axes["cp"] for s in parts} == {PART, 2 * PART}
    assert all(s.axes["tp"] <= 8 if "tp" in s.axes else True for s in parts)
    plain = usual(long, h100s(16), 16, strategies=[tv.Merak])
    assert not any(cut(cell.strategy) for cell in plain)


@pytest.mark.filterwarnings("ignore:this emulated run")
def test_what_fits_nowhere_else_is_cut_and_equals_one_process():
    """Of four ranks of 1.1 MB each, though the sequence is short; on real ranks, emulated."""
    whole = [s for s in space(W, 4) if type(s) is not tv.Context]
    for strategy in whole[:: max(len(whole) // 40, 1)]:
        with suppress(ValueError, NotImplementedError):
            strategy.check(W)
            assert need(strategy, W, BOX).total > 1.1e6, strategy.short
    found = tv.search(W, BOX, simulate=False)
    assert all(cut(row.strategy) for row in found.rows) and tv.Context in found.asked[1]
    assert found.rows[0].prediction.fits and need(found.best, W, BOX).total <= 1.1e6
    assert tv.verify(found.best, W, steps=1).ok
    again = tv.search(W, BOX.scale_model(slow_motion=100), found.best, simulate=False, top=1, run=1)
    assert again.rows[0].measured > 0
    with pytest.raises(ValueError, match=r"none of \d+ strategies fits 4 ranks"):
        tv.search(W, BOX, [tv.Merak, tv.Megatron, tv.DataParallel], simulate=False)


@pytest.mark.parametrize("seq, batch", [(1 << 17, 32), (1 << 20, 4)])
def test_llama_of_long_sequences_on_64(seq, batch):
    """At 131,072 tokens the best plans are cut; at a million nothing else fits."""
    w, cluster = tv.models.llama3("8B", batch=batch, seq=seq), h100s(64)
    found = tv.search(w, cluster, simulate=False)
    assert cut(found.best) and found.rows[0].prediction.fits
    assert "Context(cp=" in found.describe()
    usually = [tv.Merak, tv.Megatron, tv.DataParallel]
    if seq == 1 << 20:
        with pytest.raises(ValueError, match="for want of memory"):
            tv.search(w, cluster, usually, simulate=False)
    else:
        whole = tv.search(w, cluster, usually, simulate=False).rows[0]
        assert found.rows[0].predicted < 0.9 * whole.predicted
    words = found.why_not(replace(found.best, recompute="none"))
    assert "of memory" in words or "because it spends" in words or "is the first" in words


def test_rings_are_tried_inside_and_outside_of_a_node():
    """Sixty-four GPUs, eight in a node: outside of it the ring's messages no longer hide."""
    w, cluster = tv.models.llama3("8B", batch=32, seq=1 << 17), h100s(64)
    inside = tv.Context(cp=8) * tv.DataParallel(dp=8, zero=1, accumulation=4)
    outside = inside.with_order(OUTSIDE)
    layouts = {cell.strategy for cell in cells(w, 64, tv.Context)}
    assert {inside, outside} <= layouts
    deep = tv.Context(cp=8) * tv.Pipeline(pp=2, microbatches=8) * tv.DataParallel(dp=4, zero=1)
    assert {deep, deep.with_order(OUTSIDE)} <= layouts
    waits = [tv.predict(s, w, cluster).exposed["cp"] for s in (inside, outside)]
    assert 0 < 4 * waits[0] < waits[1]
    given = [replace(s, zero=3, recompute="full") for s in (outside, inside)]
    assert tv.search(w, cluster, given, simulate=False).best == given[1]


def test_no_published_plan_of_long_sequences_is_faster():
    """Llama 3 405B at 131,072 tokens: tp 8, cp 16, pp 16, dp 8 (arXiv 2407.21783, table 4), keys
    gathered, FSDP without gathering again; interleaved, by as many chunks as fit."""
    w, cluster = tv.models.llama3("405B", batch=128, seq=1 << 17), h100s(16384)
    ran = (
        tv.Megatron(tp=8, sp=True)
        * tv.Context(cp=16, kind="all_gather")
        * tv.Pipeline(pp=16, microbatches=16, schedule="interleaved_1f1b", chunks=4)
        * tv.DataParallel(dp=8, zero=2)
    )
    published = tv.predict(ran, w, cluster)
    assert published.fits and published.mfu == pytest.approx(0.38, rel=0.08)  # 38 % in table 4
    for chunks in (2, 7):
        other = tv.predict(replace(ran, chunks=chunks), w, cluster)
        assert not other.fits or other.step_time > published.step_time
    found = tv.search(w, cluster, simulate=False)
    assert found.rows[0].prediction.fits and cut(found.best)
    assert found.rows[0].predicted <= published.step_time

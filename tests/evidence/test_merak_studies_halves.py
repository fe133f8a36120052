"""Sub-pipelining in Merak's lab: what blocks wait for, by level, beside c; words; a run."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.evidence import merak
from tpviz.evidence.merak.claims import told
from tpviz.evidence.merak.halving import LEVELS

W = tv.GPT(layers=4, hidden=4096, heads=32, seq=2048, batch=8, vocab=256)
NODES = tv.clusters.perlmutter(1)


@pytest.fixture(scope="module", params=[1, 2], ids="pp{}".format)
def found(request):
    return merak.halves(W, NODES, pp=request.param, schedule="1f1b", recompute="none")


def test_blocks_wait_for_what_the_phases_say(found):
    """Kernels are long here: 2c, c, c/2 a block, c/2 a stage, only latency comes on top; backward
    all sums are under weights' gradients."""
    layers = 4 // found.rows[0].strategy.pp
    for row, c in zip(found.rows, (2, 1, 0.5, 0.5 / layers)):
        assert row.expected == c
        assert row.blocks["forward"] == pytest.approx(c, rel=0.02)
        assert row.blocks["backward"] == pytest.approx(0, abs=1e-6)


def test_numbers_are_those_of_predict(found):
    for row in found.rows:
        p, t = tv.predict(row.strategy, W, NODES), row.times["predicted"]
        assert t.step == p.step_time and row.strategy.subpipeline == row.level
        if found.rows[0].strategy.pp == 1:
            assert t.waits == pytest.approx(p.exposed["tp"])
            assert t.sums == pytest.approx(p.exposed["tp"] + p.hidden["tp"])
            assert t.hidden == pytest.approx(p.overlap)
    assert found.gain(0) == 0 and found.gain(3) > found.gain(2) > 0
    none, third = (found.at(level).times["predicted"].step for level in (0, 3))
    assert found.gain(3) == none / third - 1


def test_waits_of_all_blocks_are_those_of_the_step(found):
    """Of 4 microbatches and the average rank: its blocks' share, beside that of both ends."""
    layers, pp = 4 // found.rows[0].strategy.pp, found.rows[0].strategy.pp
    for row in found.rows:
        of_blocks = sum(row.blocks.values()) * found.one_sum * layers * 4
        ends = row.times["predicted"].waits - of_blocks
        assert 0 < ends * pp < 2.01 * 4 * found.one_sum  # embedding's forward, head's backward


def test_words_table_and_badges(found):
    words, table = found.describe(), found.to_table()
    assert "level 2 0.5 c expected, 0.50" in words and told()[0] in words
    assert "Predicted: level 0 " in words and found.badges == ["predicted"]
    assert len(table) == 5 and table[4][:2] == ["3, across blocks", "predicted"]
    assert table[2][3] == f"{100 * found.gain(1):+.1f} %" and "level 3 fastest" in repr(found)
    assert "are not equal" not in words and "cannot be halved" not in words
    assert "predicted" in repr(found) and table[4][0] in found._repr_html_()


def test_rows_that_cannot_be_halved_are_said():
    one = merak.halves(replace(W, batch=4), NODES, schedule="1f1b")
    assert "has one row and cannot be halved" in one.describe()
    odd = merak.halves(replace(W, batch=12), NODES, levels=(2,), schedule="1f1b")
    assert "Halves of 3 rows are not equal." in odd.describe()
    assert odd.to_table()[1][3] == "" and "cannot be halved" not in odd.describe()


@pytest.mark.filterwarnings("ignore:this emulated run")  # the machine may be busy
def test_run_measures_the_first_levels():
    small = tv.GPT(layers=2, hidden=64, heads=4, seq=64, batch=4, vocab=32)
    slow = tv.clusters.nvswitch(2).scale_model(hidden=64, slow_motion=3)
    found = merak.halves(
        small,
        slow,
        levels=(2, 0),
        run=1,
        steps=1,
        progress=False,
        microbatches=2,
        schedule="1f1b",
        recompute="none",
    )
    assert found.badges == ["predicted", "emulated"] and "Emulated: level 2 " in found.describe()
    second, none = found.rows
    predicted, measured = second.times.values()
    assert tuple(none.times) == ("predicted",) and found.to_table()[2][1:4:2] == ["emulated", ""]
    assert measured.step >= 0.98 * predicted.step
    assert measured.sums >= 0.98 * predicted.sums and 0 < measured.waits < measured.sums
    late = replace(measured, step=2 * measured.step, faithful=False)
    other = replace(none, times={**none.times, "measured": late})
    second = replace(second, times={**second.times, "measured": replace(measured, faithful=True)})
    both = replace(found, rows=(second, other))
    assert both.gain(2, "measured") == 1.0
    assert "short for this machine: level 0." in both.describe()


@pytest.mark.parametrize(
    "knobs, message",
    [
        ({"tp": 1}, "tp=1 is too small"),
        ({"levels": (4,)}, "level=4 is not possible: use 0, 1, 2"),
        ({"levels": ()}, "levels is empty"),
        ({"subpipeline": 1}, "subpipeline=1: the lab tries"),
        ({"run": -1}, "run=-1 is too small"),
        ({"tp": 3}, "heads=32 does not split evenly"),
    ],
)
def test_refused(knobs, message):
    with pytest.raises(ValueError, match=message):
        merak.halves(W, NODES, **knobs)


def test_a_level_or_source_that_was_not_tried_is_refused(found):
    assert tuple(LEVELS) == (0, 1, 2, 3)
    with pytest.raises(ValueError, match="level 0 has no measured times: use 'predicted'"):
        found.gain(2, "measured")
    with pytest.raises(ValueError, match="level=4 is not possible"):
        found.at(4)

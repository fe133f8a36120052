"""A search in time: all by formula, simulations as far as the time goes, and what is said of it."""

from dataclasses import replace
from importlib import import_module

import pytest

import tpviz as tv
from tpviz.cluster.clock import deadline
from tpviz.verbs.ranking import plans

W = tv.GPT(batch=8)
BOX = tv.clusters.nvlink_pairs(2)


@pytest.fixture
def twice(monkeypatch):
    """Two simulations come to their end, the third runs out of time."""
    done = []

    def simulated(row):
        if len(done) == 2:
            raise deadline.OutOfTime
        done.append(row)
        return replace(row, simulated=1 / row.predicted)

    monkeypatch.setattr("tpviz.verbs.search._simulated", simulated)


def test_what_time_does_not_allow_is_said_and_keeps_its_place(twice):
    given = [tv.Megatron(tp=4), tv.Megatron(tp=4, sp=True), tv.Megatron(tp=4, chunks=2)]
    given += [tv.DataParallel(dp=4, zero=3), tv.DataParallel(dp=4), tv.T3(tp=4)]
    plain = tv.search(W, BOX, given, simulate=False)
    found = tv.search(W, BOX, given, seconds=30)
    first, second, *rest = (row.strategy for row in plain.rows)
    assert [row.strategy for row in found.rows] == [second, first, *rest]
    assert [row.simulated is not None for row in found.rows[:3]] == [True, True, False]
    ranked = [plan[0].strategy for plan in plans(found.rows)]
    assert found.late[:3] == tuple(ranked[2:5])
    text = found.describe()
    assert f"2 of {2 + len(found.late)} simulations were done in the 30 s allowed" in text
    assert found.late[0].short in text and "ranked by formula alone" in text
    assert f"By formula {first.short} is the first, " in text  # a worse one is not first unsaid


def test_plans_that_may_be_faster_than_the_simulated_first_are_named(monkeypatch):
    """The first takes twice what its formula says, and there is no time for another."""
    done = []

    def simulated(row):
        if done:
            raise deadline.OutOfTime
        done.append(row)
        return replace(row, simulated=2 * row.predicted)

    monkeypatch.setattr("tpviz.verbs.search._simulated", simulated)
    found = tv.search(W, BOX, [tv.Megatron(tp=4), tv.Megatron(tp=4, sp=True)])
    second = found.rows[1]
    assert found.rows[0].simulated > second.predicted and second.simulated is None
    assert "1 that were not simulated are predicted to take less" in found.describe()
    assert second.strategy.short in found.describe()


def test_formulas_leave_a_third_of_the_time_to_simulations(monkeypatch):
    """A clock that goes on by itself, 10 ms at a look: formulas end behind 6 of 9 s."""
    now, begun = [0.0], []

    def clock():
        now[0] += 0.01
        return now[0]

    def simulated(row):
        begun.append(now[0])
        return replace(row, simulated=row.predicted)

    for name in ("verbs.search", "verbs.frontier", "simulation.deadline"):
        monkeypatch.setattr(f"tpviz.{name}.thread_time", clock)
    monkeypatch.setattr("tpviz.verbs.search._simulated", simulated)
    found = tv.search(replace(W, batch=64), BOX, seconds=9)
    assert found.formulas.untried and 6 < begun[0] < 7
    again = tv.search(replace(W, batch=64), BOX, seconds=9, simulate=False)
    assert again.formulas.looked_at > found.formulas.looked_at


def test_no_time_for_simulations_leaves_the_formulas(monkeypatch):
    for name in ("search", "frontier"):  # formulas take no time
        monkeypatch.setattr(f"tpviz.verbs.{name}.thread_time", lambda: 0.0)
    given = [tv.Megatron, tv.DataParallel]
    plain, found = tv.search(W, BOX, given, simulate=False), tv.search(W, BOX, given, seconds=0)
    assert [r.strategy for r in found.rows] == [r.strategy for r in plain.rows]
    assert len(found.rejected) == len(plain.rejected) and len(found.late) >= 5
    assert plain.late == () and "allowed" not in plain.describe()


def test_formulas_end_with_the_time_and_say_so():
    plain, found = tv.search(W, BOX, simulate=False, seconds=None), tv.search(W, BOX, seconds=0)
    assert len(found.rows) == 1 and found.late  # never nothing at all
    seen = found.formulas
    assert seen.untried and plain.formulas.untried == 0 and "looked" not in plain.describe()
    text = f"{seen.untried:,} of {seen.looked_at + seen.untried:,} strategies were not looked at in"
    assert f"{text} the 0 s allowed: " in found.describe()
    assert seen.least <= plain.rows[0].predicted


def test_a_search_that_finds_nothing_ends_and_says_what_it_did_not_see(monkeypatch):
    monkeypatch.setattr("tpviz.verbs.search.PATIENCE", 0.2)
    monkeypatch.setattr("tpviz.verbs.search.COMPARED", 10)
    small = tv.clusters.nvlink_pairs(pairs=4)
    with pytest.raises(ValueError, match="fits 8 ranks") as told:
        tv.search(tv.models.deepseek_v3(batch=64), small, seconds=0.1)
    assert "more were not looked at in the 0.1 s allowed and 0.2 s more" in str(told.value)


def test_time_without_end_simulates_all_that_was_chosen():
    found = tv.search(W, BOX, tv.Megatron, top=2, seconds=None)
    assert found.late == () and all(row.simulated for row in found.rows[:2])
    with pytest.raises(ValueError, match="seconds must be a number"):
        tv.search(W, BOX, seconds="soon")


def test_progress_has_the_best_so_far():
    told = []
    tv.search(W, BOX, tv.Megatron, top=1, progress=lambda *report: told.append(report))
    assert told[0][2].startswith("by formula; best so far Megatron(tp=4")
    assert all(done <= total for done, total, _ in told)
    assert told[-1][:2] == (0, 1) and told[-1][2].startswith("simulating Megatron(tp=4")


def test_a_capture_and_a_replay_give_up_in_time():
    strategy = tv.Megatron(tp=4)
    capture = tv.capture(strategy, W)
    with deadline.until(0.0):
        with pytest.raises(deadline.OutOfTime):
            tv.capture(strategy, W)
        with pytest.raises(deadline.OutOfTime):
            tv.simulate(strategy, W, BOX, capture=capture)
    again = tv.capture(strategy, W)  # nothing is left of the one that gave up
    assert again.ledger() == strategy.ledger(W) and len(again.traces[0]) == len(capture.traces[0])


def test_a_capture_that_cannot_end_in_time_is_given_up_early(monkeypatch):
    """After the first of four ranks, which took a quarter of what is left for all."""
    now, recorded = [0.0], []
    module = import_module("tpviz.verbs.capture")
    real = module._record

    def record(*args):
        now[0] += 3.0
        recorded.append(args[2])
        return real(*args)

    monkeypatch.setattr(module, "_record", record)
    monkeypatch.setattr(module, "thread_time", lambda: now[0])
    monkeypatch.setattr(deadline, "thread_time", lambda: now[0])
    pipeline, w = tv.Merak(pp=4, microbatches=4), tv.GPT(layers=4, batch=8)
    with deadline.until(7.0), pytest.raises(deadline.OutOfTime):  # 3 + 9 / 2 s are more
        tv.capture(pipeline, w)
    assert len(recorded) == 1
    with deadline.until(15.5):  # 3 + 4 x 3 s are less
        assert tv.capture(pipeline, w).ledger() == pipeline.ledger(w)
    assert len(recorded) == 1 + 4

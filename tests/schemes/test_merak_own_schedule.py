"""A schedule of one's own as a knob of Merak: what it says is what runs, is predicted and drawn."""

from dataclasses import replace

import pytest
from tiny import TINY

import tpviz as tv
from tpviz.core.schedules import SCHEDULES, Schedule, schedule
from tpviz.core.schedules.own import as_text, own

LINES = ["F0 F1 B0 B1", "F0 B0 F1 B1"]
TWO = {"pp": 2, "microbatches": 2}
FOUR = replace(TINY, layers=4)
NODE = tv.clusters.nvswitch(4)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("recompute", ["none", "selective", "full", "stage_aware"])
def test_a_named_schedule_written_out_is_the_same(name, recompute):
    sizes = {"pp": 2, "microbatches": 4, "recompute": recompute}
    named = tv.Merak(schedule=name, **sizes)
    written = tv.Merak(schedule=schedule(name, 2, 4), **sizes)
    made, other = (s.schedule_of(FOUR) for s in (named, written))
    assert made.actions == other.actions and made.pairs == other.pairs
    assert made.rank_of == other.rank_of and made.recomputes == other.recomputes
    assert [named.ledger_of(FOUR, r) for r in (0, 1)] == [
        written.ledger_of(FOUR, r) for r in (0, 1)
    ]
    one, two = (tv.predict(s, FOUR, NODE) for s in (named, written))
    assert one.step_time == two.step_time and one.memory() == two.memory()


def test_lines_a_text_and_a_schedule_are_one_knob():
    made = [
        tv.Merak(schedule=s, **TWO)
        for s in (LINES, "\n".join(LINES), Schedule.parse("\n".join(LINES)))
    ]
    assert made[0] == made[1] == made[2] and len({*map(repr, made), *map(hash, made)}) == 2
    assert eval(repr(made[0]), {"Merak": tv.Merak}) == made[0]
    assert made[0].short == "Merak(pp=2, tp=1, dp=1, microbatches=2, schedule=own)"
    assert tv.Merak(schedule="1f1b") == tv.Merak(schedule="1f1b", pp=2)


def test_it_runs_as_written():
    scheme = tv.Merak(schedule=["F0 F1 B0 B1", "F0 F1 B0 B1"], **TWO)
    assert tv.verify(scheme, TINY, steps=2, progress=False).ok
    trace = tv.run(scheme, TINY, steps=1, progress=False)
    order = [
        (e.phase, e.microbatch)
        for e in trace.select(rank=1, kind="compute")
        if e.phase in ("forward", "backward")
    ]
    assert list(dict.fromkeys(order)) == [
        ("forward", 0),
        ("forward", 1),
        ("backward", 0),
        ("backward", 1),
    ]
    large = replace(
        TINY, hidden=1024, seq=256
    )  # a message takes no longer than a stage: none queue
    captured = tv.capture(scheme, large)
    assert all(captured.ledger(rank) == scheme.ledger_of(large, rank) for rank in (0, 1))
    predicted = tv.predict(scheme, large, NODE).step_time
    simulated = tv.simulate(scheme, large, NODE, capture=captured).step_time
    assert predicted == pytest.approx(simulated, rel=1e-9)


def test_four_stages_on_two_ranks_with_recomputation():
    """Stages of a V, and recomputation on the first rank's alone."""
    lines = [
        "0F0 0F1 3F0 3B0 3F1 3B1 0RB0 0RB1",
        "1F0 2F0 1F1 2F1 2B0 1B0 2B1 1B1",
    ]
    scheme = tv.Merak(schedule=lines, **TWO)
    assert scheme.stages == 4 and scheme.num_recomputed(FOUR) == [1, 0, 0, 0]
    assert tv.verify(scheme, FOUR, steps=1, progress=False).ok
    assert replace(scheme, recompute="none").num_recomputed(FOUR) == [0] * 4


def test_four_ranks_with_replicas():
    scheme = tv.Merak(schedule=LINES, dp=2, **TWO)
    assert tv.verify(scheme, TINY, steps=1, progress=False).ok


@pytest.mark.parametrize(
    "lines, knobs, message",
    [
        ("1f1c", TWO, "schedule='1f1c' is not possible: use 'gpipe'"),
        (3, TWO, "schedule=3 is not possible"),
        (["F0 X1", "F0 B0"], TWO, "line 1: 'X1' is no action: use F0"),
        (LINES, {"pp": 4, "microbatches": 2}, "has 2 ranks, not 4: write a line for each rank"),
        (LINES, {"pp": 2, "microbatches": 4}, "has 2 microbatches, not 4"),
        (["F0 F1 B0", "F0 B0 F1 B1"], TWO, "stage 0 has no backward of microbatch 1: add B1"),
        (["F0 B0 F1 B1", "F1 F0 B0 B1"], TWO, "deadlock: rank 0 at B0 waits for the gradient"),
        (["0F0 0F1 0B0 0B1", "1F0 2F0 2B0 1B0 1F1 2F1 2B1 1B1"], TWO, "1, 2 stages on its ranks"),
    ],
)
def test_schedules_that_cannot_be(lines, knobs, message):
    with pytest.raises(ValueError, match=message):
        tv.Merak(schedule=lines, **knobs).check(FOUR)


def test_views_draw_it():
    scheme = tv.Merak(schedule=LINES, **TWO)
    view = tv.ScheduleView(scheme, workload=TINY)
    assert "s0: " not in view.to_svg() and view.describe()
    assert view.source.strategy == scheme  # pyright: ignore[reportAttributeAccessIssue]
    menu = view.knobs.controls["schedule"]
    assert menu.label == "own"
    menu.value = "1f1b"
    assert view.source.strategy.schedule == "1f1b"  # pyright: ignore[reportAttributeAccessIssue]


def test_explore_keeps_it_until_another_is_chosen():
    scheme = tv.Merak(schedule=LINES, **TWO)
    view = tv.explore(FOUR, NODE, strategy=scheme)
    assert view.strategy == scheme and view.prediction is not None
    menu = view._inner.controls["schedule"]
    assert menu.label == "own"
    menu.value = "gpipe"
    assert view.strategy.schedule == "gpipe"


def test_text_of_a_schedule():
    assert as_text("schedule", LINES) == "s0: F0 F1 B0 B1\ns1: F0 B0 F1 B1"
    assert as_text("schedule", "1f1b", ("1f1b",)) == "1f1b"
    again = own("s0: F0 R0 B0\ns1: F0 B0", 2, 1, recompute=(False, True))
    assert str(again) == "s0: F0 B0\ns1: F0 B0" and again.recomputes == (False, False)

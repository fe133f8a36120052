"""Schedules of Merak's lab: numbers of the clock, parts that sum up, refusals, claims, a run."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.core.mesh import Mesh
from tpviz.core.schedules import formulas, schedule, timeline
from tpviz.core.trace import Event, Trace
from tpviz.evidence import merak
from tpviz.evidence.merak.claims import told
from tpviz.evidence.merak.ranks import mean, read
from tpviz.schemes.merak.paper import makespan_saved
from tpviz.schemes.pipeline.memory import memory_of
from tpviz.schemes.pipeline.step import clock

W = tv.GPT(layers=8, hidden=2048, heads=16, seq=512, batch=8, vocab=256)
NODES = tv.clusters.perlmutter(4)


@pytest.fixture(scope="module")
def found():
    return merak.schedules(W, NODES, pp=4, tp=2, dp=2, microbatches=4)


def test_numbers_are_those_of_predict_the_clock_and_memory(found):
    assert [row.name for row in found.rows] == [
        name for name in merak.scheduling.SCHEDULES if name not in found.refused
    ]
    for row in found.rows:
        s, t = row.strategy, row.times["predicted"]
        line, _ = clock(s, W, NODES, Mesh(s.axes))
        p = tv.predict(s, W, NODES)
        assert (t.step, t.makespan, t.flight) == (p.step_time, line.makespan, line.peak_in_flight)
        assert t.peaks == tuple(memory_of(s, W, place).total for place in range(4))
        assert max(t.peaks) == p.memory().total
        first = t.places[0]
        assert first.kernels + first.recompute == pytest.approx(p.parts["compute"])
        assert first.exposed >= (1 - 1e-9) * sum(p.exposed.values())  # and messages


def test_parts_sum_to_the_step_and_the_rest_is_the_clocks_bubble(found):
    """Of bubble and of messages under way, the clock has the sum; before and after is the end."""
    for row in found.rows:
        t = row.times["predicted"]
        line, pieces = clock(row.strategy, W, NODES, Mesh(row.strategy.axes))
        for place, parts in enumerate(t.places):
            assert sum(parts) == pytest.approx(t.step) and min(parts) >= 0
            assert t.bubbles[place] == pytest.approx(parts.bubble / t.step)
            sums = sum(
                x
                for a in line.schedule.of(place)
                for segment in pieces[a.kind, a.stage]
                for x in segment.exposed.values()
            )
            ends = t.step - line.makespan
            idle = parts.bubble + parts.exposed - sums
            assert line.bubble[place] <= idle <= line.bubble[place] + ends
        assert sum(mean(t.places)) == pytest.approx(t.step)


def test_parts_are_those_of_the_simulation():
    """Place by place, of the shared weight's sum and messages too: what moves is no bubble."""
    small = tv.GPT(layers=2, hidden=256, heads=4, seq=256, batch=2, vocab=512)
    found = merak.schedules(small, NODES, "1f1b", pp=2, microbatches=2, simulate=True)
    predicted, simulated = found.rows[0].times.values()
    assert found.badges == ["predicted", "simulated"]
    assert simulated.step == pytest.approx(predicted.step, rel=1e-9)
    assert simulated.flight == predicted.flight == (2, 1)
    for one, other in zip(predicted.places, simulated.places):
        assert other == pytest.approx(one, abs=1e-6 * predicted.step)


def test_only_what_the_schedule_recomputes_is_recomputation(found):
    again = {r.name: [p.recompute > 0 for p in r.times["predicted"].places] for r in found.rows}
    assert again["1f1b"] == [True] * 4
    assert again["shifted_critical_path"] == [True, True, True, False]


def test_closed_forms_take_the_middle_stage():
    """Equal stages but for the ends: nearly exact; none for what recomputes unequally."""
    small = replace(W, vocab=16, batch=16)
    found = merak.schedules(small, NODES, ("1f1b", "shifted_critical_path", "zb_h1"))
    for name in ("1f1b", "shifted_critical_path"):
        row = found.at(name)
        assert row.form == pytest.approx(row.times["predicted"].makespan, rel=0.02)
        _, pieces = clock(row.strategy, small, NODES, Mesh(row.strategy.axes))
        f, b, r = (sum(x.seconds for x in pieces[kind, 1]) for kind in "FBR")
        assert row.form == formulas.makespan(name, 4, 8, f, b, r)
        assert row.idle == pytest.approx(row.times["predicted"].bubbles, abs=0.02)
        assert 1 <= row.uneven < 1.1
    assert found.at("zb_h1").form is None and found.to_table()[3][4] == "none"
    aware = merak.schedules(W, NODES, "1f1b", microbatches=8, recompute="stage_aware", keep=0.5)
    assert aware.rows[0].form is None


def test_schedules_that_refuse_the_sizes_are_listed(found):
    assert set(found.refused) and all("microbatches" in why for why in found.refused.values())
    assert [r[:2] for r in found.to_table() if r[1] == "refused"] == [
        [name, "refused"] for name in found.refused
    ]
    assert f"Left out: {next(iter(found.refused))}, " in found.describe()


def test_gains_words_and_table(found):
    early, shifted = (
        found.at(n).times["predicted"].step for n in ("early_recompute", "shifted_critical_path")
    )
    assert found.gain() == early / shifted - 1 > 0
    words, table = found.describe(), found.to_table()
    assert f"{100 * found.gain():+.1f} %" in words and all(note in words for note in told())
    assert words.startswith(
        "Merak, pp 4, dp 2, tp 2, 4 microbatches, full recomputation on Perlmutter"
    )
    fastest = min(found.rows, key=lambda r: r.times["predicted"].step)
    assert f"fastest first: {fastest.name} " in words and fastest.name in repr(found)
    assert len(table) == 1 + len(found.rows) + len(found.refused) and "in flight" in table[0]
    assert table[2][6] == "4 3 2 1" and "4 3 2 1" in found._repr_html_()


def test_what_shifting_alone_gives():
    """The clock's numbers: 38 of 41 and 146 of 149, and the same seconds at any m."""
    assert makespan_saved(4, 8) == pytest.approx(3 / 41)
    assert makespan_saved(8, 32) == pytest.approx(3 / 149)
    early, shifted = (
        timeline(schedule(name, 4, 8)).makespan
        for name in ("early_recompute", "shifted_critical_path")
    )
    assert makespan_saved(4, 8) == pytest.approx(1 - shifted / early)
    claims, expected = told()
    assert "tv.claims('Merak')" in claims and "abstract" in claims
    assert "7 % at p=4, m=8, 2 % at p=8, m=32" in expected and expected.startswith("Derived")


def test_a_trace_is_read_place_by_place():
    """Two places: 3 s of kernels, 1 of them again; a message of 1 s that comes 1 s late."""

    def compute(rank, start, end, phase):
        return Event(rank=rank, lane="compute", kind="compute", start=start, end=end, phase=phase)

    step = [Event(rank=r, lane="step", kind="step", start=0.0, end=6.0) for r in (0, 1)]
    trace = Trace.from_events(
        [
            *step,
            compute(0, 0.0, 2.0, "forward"),
            compute(0, 2.0, 3.0, "recompute"),
            compute(1, 4.0, 6.0, "backward"),
        ]
    )
    first, second = read(trace, tv.Merak(pp=2))
    assert first == (2.0, 1.0, 0.0, 3.0) and second == (2.0, 0.0, 0.0, 4.0)


@pytest.mark.filterwarnings("ignore:this emulated run")  # the machine may be busy
def test_run_measures_the_first_ones_on_real_ranks():
    small = tv.GPT(layers=2, hidden=32, heads=2, seq=32, batch=4, vocab=32)
    slow = tv.clusters.nvswitch(2).scale_model(hidden=64, slow_motion=4)
    found = merak.schedules(
        small,
        slow,
        ("1f1b", "shifted_critical_path"),
        pp=2,
        microbatches=4,
        run=1,
        steps=1,
        progress=False,
    )
    assert found.badges == ["predicted", "emulated"] and "Emulated, fastest first: 1f1b " in (
        found.describe()
    )
    predicted, measured = found.at("1f1b").times.values()
    assert "measured" not in found.at("shifted_critical_path").times
    assert len(measured.places) == len(measured.peaks) == 2
    assert measured.peaks == pytest.approx(predicted.peaks, rel=0.15)
    assert measured.activations == pytest.approx(predicted.activations, rel=0.15)
    assert measured.flight == predicted.flight == (2, 1)
    for one, other in zip(predicted.places, measured.places):
        assert other.kernels + other.recompute >= 0.98 * (one.kernels + one.recompute)
        assert other.recompute >= 0.98 * one.recompute > 0
        assert sum(other) >= measured.step * (1 - 1e-6)
    with pytest.raises(ValueError, match="shifted_critical_path has no measured times: use 'predi"):
        found.gain("shifted_critical_path", "1f1b", source="measured")
    late = {**found.at("1f1b").times, "measured": replace(measured, faithful=False)}
    again = replace(found, rows=(replace(found.rows[0], times=late), found.rows[1]))
    assert "Not faithful, events too short for this machine: 1f1b." in again.describe()


@pytest.mark.parametrize(
    "knobs, message",
    [
        ({"names": ("2f2b",)}, "schedule='2f2b' is not possible: use 'gpipe'"),
        ({"names": ()}, "names is empty"),
        ({"schedule": "1f1b"}, "the lab tries several"),
        ({"names": "dualpipe_v", "microbatches": 4}, "no schedule takes these sizes: dualpipe_v: "),
        ({"run": -1}, "run=-1 is too small"),
        ({"simulate": 1}, "simulate=1 is not possible"),
        ({"microbatches": 3}, "no schedule takes .* batch=8 does not split"),
    ],
)
def test_refused(knobs, message):
    with pytest.raises(ValueError, match=message):
        merak.schedules(W, NODES, **knobs)

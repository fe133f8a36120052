import json

import pytest

import tpviz as tv
from tpviz.core.schedules import SCHEDULES, Schedule, formulas
from tpviz.core.trace import Event, Trace
from tpviz.schemes.pipeline.memory import memory_of, of_microbatch
from tpviz.schemes.pipeline.step import clock
from tpviz.views.figures.schedule_words import peak
from tpviz.views.widgets import ScheduleView

W = tv.GPT(layers=8, batch=8)
MERAK = tv.Merak(pp=2, microbatches=4)


@pytest.fixture
def view():
    return ScheduleView(against="1f1b", p=4, m=6)


def panels(view):
    """The panels that are shown."""
    return view.picture.subject.panels


def spans(view):
    """Their makespans."""
    return [panel.timeline.makespan for panel in panels(view)]


def set_knobs(view, **values):
    for name, value in values.items():
        view.knobs.controls[name].value = value


def test_repr_and_words(view):
    assert tv.ScheduleView is ScheduleView
    assert repr(view) == (
        "<ScheduleView shifted_critical_path against 1f1b: p=4, m=6, f=1, b=2, r=1, at 4 of 36>"
    )
    assert view.describe().startswith(
        "Simulated: shifted critical path takes 30; ranks are idle 25.0 % of it"
    )
    view.row, view.step = 2, 6
    assert view.describe().endswith(
        "Shown: at 6 of 36. rank 2: R0, early recompute, 5 to 6: starts"
        " when F2 ends. On the critical path. Holds 3 microbatches, 2 "
        "as checkpoints."
    )
    assert len(view.to_table()) == 1 + 2 * 4
    assert repr(ScheduleView()) == (
        "<ScheduleView shifted_critical_path: p=4, m=8, f=1, b=2, r=1, at 4 of 38>"
    )


def test_it_shows_a_static_picture_of_the_stop_where_no_kernel_runs(view):
    assert "data-chosen" not in view.to_svg()
    view.row, view.step = 1, 3
    assert "data-chosen" in view.to_svg()
    assert "rank 0: F2, forward, 2 to 3" in view.to_svg(row=0)
    assert view.to_svg(step=0, theme="dark") != view.to_svg(theme="dark")
    assert "data-gathered='' display='none'" in view.to_svg() != view.to_svg(bubble=True)
    assert "data-critical='' display='none'" not in view.to_svg(critical=True)


def test_every_knob_redraws(view):
    for name, value in {
        "m": 8,
        "schedule": "dualpipe_v",
        "against": "zb_h1",
        "p": 2,
        "f": 1.5,
        "b": 3.0,
        "w": 1.25,
        "r": 0.5,
        "latency": 0.25,
        "recompute": False,
        "overlapped": True,
        "chunks": 2,
    }.items():
        before, picture = view.picture.generation, view.picture.scene
        set_knobs(view, **{name: value})
        assert view.error == ""
        assert view.picture.generation > before
        assert view.picture.scene != picture, name
    assert [panel.name for panel in panels(view)] == ["dualpipe_v", "zb_h1"]
    assert panels(view)[1].timeline.schedule.stages == 4


def test_times_are_of_all_layers_of_a_rank():
    """So schedules with one stage a rank and with two have the same work."""
    view = ScheduleView("1f1b", against="zb_v", p=3, m=6, recompute=False)
    one, two = (panel.timeline for panel in panels(view))
    assert one.busy == pytest.approx(two.busy) == (18.0,) * 3
    set_knobs(view, against="interleaved_1f1b", chunks=4)
    assert panels(view)[1].timeline.busy == pytest.approx(one.busy)
    assert panels(view)[1].timeline.schedule.stages == 12


def test_recompute_is_off_where_the_knob_is():
    view = ScheduleView("1f1b", recompute=False)
    assert spans(view) == [33.0]
    set_knobs(view, recompute=True)
    assert spans(view) == [44.0]
    set_knobs(view, r=0.5)
    assert spans(view) == [38.5]


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_closed_form_stands_beside_where_there_is_one(name):
    view = ScheduleView(name, p=4, m=8, recompute=False, overlapped=True)
    [panel] = panels(view)
    assert panel.formula[0] == pytest.approx(panel.timeline.makespan)
    assert panel.formula[1] == pytest.approx(panel.timeline.bubble)
    assert [row[4] for row in view.picture.scene["table"]] == [
        "by formula",
        "the same step and idle",
    ]
    set_knobs(view, latency=0.5)
    assert panels(view)[0].formula is None
    assert "formula" not in view.picture.scene["table"][0]


def test_where_sizes_clash_others_give_way_and_it_is_said(view):
    set_knobs(view, m=2)
    assert (view.error, view.controls["schedule"].value) == ("", "gpipe")
    assert "shifted_critical_path with 4 ranks needs at least 4 microbatches, not 2" in view.gave
    set_knobs(view, m=8)
    assert (view.error, view.gave) == ("", "")
    set_knobs(view, schedule="zb_h1", w=3.0)
    assert (view.error, view.controls["b"].value) == ("", 3.0)
    assert "weight=3.0 is more than backward=2.0 of stage 0, of which it is a part" in view.gave
    set_knobs(view, w=1.0, against="interleaved_1f1b", m=9)
    assert (view.error, view.controls["p"].value, view.controls["m"].value) == ("", 3, 9)
    assert "9 are no whole number of rounds: use microbatches=8 or 12" in view.gave


def test_the_play_head_and_the_row_stay_where_they_are(view):
    view.row, view.step = 3, 10
    at = view.picture.scene["stops"][10]
    set_knobs(view, m=5)
    here = view.picture.scene["stops"][view.step]
    assert here >= at
    assert view.picture.scene["stops"][view.step - 1] < at
    assert (view.row, view.picture.detail["row"]) == (3, 3)
    view.row = 6
    set_knobs(view, against="none")
    assert (view.row, view.picture.detail["row"]) == (-1, -1)  # there are four rows now


def test_a_row_chosen_in_the_picture_is_looked_at(view):
    before = view.picture.generation
    view.picture.set_state({"row": 5, "generation": before})  # as the browser does
    assert view.picture.detail["row"] == 5
    assert view.picture.detail["words"][0].startswith("rank 1 is idle")  # of the second schedule
    assert view.picture.generation > before


def test_a_schedule_of_ones_own():
    mine = Schedule.parse("s0: F0 F1 B0 B1 \n s1: F0 B0 F1 B1", name="1f1b")
    view = ScheduleView(mine, against="gpipe", f=2.0)
    assert spans(view) == [12.0, 12.0]
    recomputing = Schedule.parse("s0: F0 RB0 \n s1: F0 B0")
    assert spans(ScheduleView(recomputing, against="1f1b")) == [7.0, 8.0]
    assert [panel.timeline.schedule.microbatches for panel in panels(view)] == [2, 2]
    assert panels(view)[0].formula is None  # whatever it is called
    [row] = view.knobs.children
    shown = [name for name, box in view.knobs.controls.items() if box in row.children]
    assert shown == ["against", "f", "b", "r", "w", "latency", "overlapped"]
    with pytest.raises(ValueError, match="p is the schedule's own: leave it out"):
        ScheduleView(mine, p=2)


def test_faults_of_ones_own_schedule_are_shown_instead_of_a_picture():
    mine = Schedule.parse("s0: F0 F1 B1 B0 \n s1: F0 B0 F1 B1", name="mine")
    view = ScheduleView(mine)
    assert "stage 0 runs backward in the order 1, 0" in view.describe()
    assert "stage 0 runs backward" in view.to_svg()
    assert repr(view) == (
        "<ScheduleView Schedule mine: 2 ranks, 2 stages, 2 microbatches, cannot run>"
    )
    assert view.to_table() == mine.to_table()
    set_knobs(view, f=2.0)
    assert view.error == ""


# -- a strategy ------------------------------------------------------------------------------------
@pytest.fixture
def merak():
    return ScheduleView(MERAK, W, tv.clusters.laptop(4), against="1f1b")


def test_a_strategy_has_its_stages_own_times_and_memory(merak):
    cluster = tv.clusters.laptop(4)
    line, _ = clock(MERAK, W, cluster, tv.Mesh(MERAK.axes))
    assert panels(merak)[0].timeline.end == line.end
    assert [panel.name for panel in panels(merak)] == ["shifted_critical_path", "1f1b"]
    assert repr(merak).startswith(
        "<ScheduleView shifted_critical_path against 1f1b: Merak(pp=2, "
        "tp=1, dp=1) on laptop, gloo, at "
    )
    assert list(panels(merak)[0].memory) == [memory_of(MERAK, W, place) for place in (0, 1)]
    head, first, _ = merak.picture.scene["table"]
    assert head[-1] == "memory" and first[-1].endswith(" of 2 GB")
    [(whole, kept), _] = of_microbatch(MERAK, W)  # the last stage recomputes nothing
    assert kept < whole < max(peak(strip) for strip in panels(merak)[0].strips)
    for panel in panels(merak):  # between actions: less than at the worst moment of one
        for strip, memory in zip(panel.strips, panel.memory):
            assert 0.5 < peak(strip) / memory["activations"] < 1
    assert head[4] == "by formula (mean stage, no messages)"
    f, b, r = (
        sum(
            sum(s.seconds for s in clock(MERAK, W, cluster, tv.Mesh(MERAK.axes))[1][kind, i])
            for i in places
        )
        / len(places)
        for kind, places in (("F", (0, 1)), ("B", (0, 1)), ("R", (0,)))
    )
    assert panels(merak)[0].formula[0] == formulas.makespan("shifted_critical_path", 2, 4, f, b, r)


def test_knobs_of_a_strategy(merak):
    set_knobs(merak, microbatches=8, recompute="none", against="none")
    assert merak.source.strategy == tv.Merak(pp=2, microbatches=8, recompute="none")
    assert (merak.error, len(panels(merak))) == ("", 1)
    set_knobs(merak, microbatches=3)
    assert "batch=8 does not split evenly over dp*microbatches=3" in merak.error
    set_knobs(merak, microbatches=8, pp=8)
    assert merak.error.startswith("8 ranks do not fit the 4 devices of laptop, gloo: use 4 ranks")
    with pytest.raises(ValueError, match="p is not for a strategy"):
        ScheduleView(MERAK, p=4)


def run_of(strategy, workload=W, cluster="laptop, gloo", phases=("forward", "backward")):
    """A made-up trace of a run."""
    events = [
        Event(
            id=2 * rank + i,
            rank=rank,
            kind="compute",
            lane="compute",
            phase=phase,
            microbatch=0,
            start=0.001 * (rank + i),
            end=0.001 * (rank + i + 1),
        )
        for rank in range(strategy.world_size)
        for i, phase in enumerate(phases)
    ]
    return Trace.from_events(
        events,
        {
            "badge": "emulated",
            "strategy": repr(strategy),
            "workload": repr(workload),
            "cluster": cluster,
            "mesh": {"axes": strategy.axes},
        },
    )


def test_a_run_is_drawn_until_a_knob_makes_it_another_strategy(merak):
    merak.measured(run_of(MERAK))
    assert panels(merak)[0].measured.idle == pytest.approx((0.001, 0.001))
    head, first, second = merak.picture.scene["table"]
    assert head[5] == "emulated" and second[5] == ""
    assert first[5].startswith("3 ms, idle ") and first[5].endswith(", 1 in flight")
    assert [[count for _, count in held] for held in panels(merak)[0].measured.held] == [[1, 0]] * 2
    assert panels(merak)[1].measured is None
    set_knobs(merak, microbatches=8)
    assert panels(merak)[0].measured is None
    set_knobs(merak, microbatches=4)
    assert panels(merak)[0].measured is not None
    merak.measured(None)
    assert panels(merak)[0].measured is None


def test_a_run_without_whole_microbatches_is_drawn_without_what_it_has_in_flight(merak):
    merak.measured(run_of(MERAK, phases=("forward", "recompute")))
    assert merak.error == "" and panels(merak)[0].measured.held == ()
    assert merak.picture.scene["table"][1][5].startswith("3 ms, idle ")
    assert "data-flown" not in merak.picture.scene["common"]


def test_runs_of_something_else_are_refused(merak, view):
    for trace, what in (
        (run_of(tv.Merak(pp=4)), "strategy"),
        (run_of(MERAK, tv.GPT(layers=4)), "workload"),
        (run_of(MERAK, cluster="Alps"), "cluster"),
    ):
        with pytest.raises(ValueError, match=f"the trace is of another {what}: .*this view shows"):
            merak.measured(trace)
    with pytest.raises(ValueError, match="this view has no strategy, its times have no unit"):
        view.measured(run_of(MERAK))


def test_bad_arguments(view):
    with pytest.raises(TypeError, match="ScheduleView has no argument 'chunk'; did you mean"):
        ScheduleView(chunk=2)
    with pytest.raises(ValueError, match=r"ScheduleView shows a schedule's name, .* not 3: names"):
        ScheduleView(3)
    with pytest.raises(ValueError, match="schedule='2f2b' is not possible: use 'gpipe', '1f1b'"):
        ScheduleView("2f2b")
    with pytest.raises(ValueError, match="p=17 is too large: the most that works is 16"):
        ScheduleView(p=17)
    with pytest.raises(ValueError, match=r"f=-1 is not between 0\.0"):
        ScheduleView(f=-1)
    with pytest.raises(ValueError, match=r"workload and cluster are for a tv\.Merak"):
        ScheduleView("1f1b", W)
    with pytest.raises(ValueError, match="step=999 is not in this view"):
        view.step = 999
    with pytest.raises(ValueError, match="row=8 is not in this view"):
        view.row = 8


def test_an_unexpected_error_in_a_callback_is_shown(view, monkeypatch):
    monkeypatch.setattr("tpviz.views.widgets.schedule_sources.timeline", lambda *args: 1 / 0)
    set_knobs(view, m=7)
    assert view.error == "ZeroDivisionError: division by zero"


def test_a_scene_is_small_enough_to_send_while_a_slider_moves():
    view = ScheduleView(against="1f1b", p=8, m=32)
    view.row = 3
    assert len(json.dumps(view.picture.scene)) < 160_000
    assert len(json.dumps(view.picture.detail)) < 90_000

"""Plans that are pinned stay, and stand side by side with what differs."""

import pytest
from emulated_runs import PAIRS, emulated

import tpviz as tv
from tpviz.views.widgets import Explore
from tpviz.views.widgets.setting import HERE


@pytest.fixture
def view():
    made = Explore(tv.GPT(), PAIRS, runner=emulated)
    made.guesses.on.value = False
    return made


def table(view):
    return {row[0]: row[1:] for row in view.pins.rows()}


def test_two_pinned_plans_stay_while_knobs_move(view):
    first = view.prediction
    assert view.pins.rows() == []
    view.pins.button.click()
    assert view.pins.button.disabled  # it is pinned
    view._inner.controls["tp"].value = 2
    second = view.prediction
    assert table(view)["strategy"][:2] == ["Megatron(tp=4)", "Megatron(tp=2)"]
    assert table(view)[""][1] == "in view"
    view.pins.button.click()
    pinned = view.pins.rows()
    view._sizes.controls["layers"].value = 4
    view.setting.menu.value = HERE
    assert view.pins.rows() == pinned
    assert view.pins.button.disabled  # two are
    times = [p.step_time / p.cluster.slow_motion for p in (first, second)]
    rows = table(view)
    assert rows["step, predicted"][2] == f"{100 * (times[1] / times[0] - 1):+.3g} %"
    assert rows["memory of a rank"][2].startswith("+")  # of fewer ranks
    assert {"exposed on tp", "compute", "bytes sent by a rank"} <= rows.keys()
    assert "layers" not in rows  # the same in both
    assert "Megatron(tp=2)" in view.pins.table.value


def test_unpinning_makes_room(view):
    view.pins.button.click()
    view._sizes.controls["layers"].value = 4
    view.pins.button.click()
    assert table(view)["layers"][:2] == ["2", "4"]
    view.pins._held.children[0].click()
    assert [plan.choice.workload.layers for plan in view.pins.plans] == [4]
    assert view.pins.rows() == []  # the one in view is the one pinned
    view._inner.controls["sp"].value = True
    assert table(view)["strategy"][:2] == ["Megatron(tp=4)", "Megatron(tp=4, sp=True)"]
    view.pins._held.children[0].click()
    assert (view.pins.rows(), view.pins.table.value) == ([], "")


def test_a_run_adds_the_measured_step_of_its_plan(view):
    view.pins.button.click()
    view.run()
    assert view.wait(10)
    view._inner.controls["tp"].value = 2
    step = view.outcome.measured.step_time / view.pins.plans[0].prediction.cluster.slow_motion
    told = table(view)["step, emulated"]
    assert told[0].endswith(" µs") and float(told[0].split()[0]) == pytest.approx(
        1e6 * step, rel=0.01
    )
    assert told[1:] == ["", ""]


def test_on_this_machine_bytes_and_memory_are_compared():
    view = Explore(tv.GPT(), runner=emulated)
    view.pins.button.click()
    view._inner.controls["tp"].value = 1
    assert table(view)["bytes sent by a rank"] == ["495 kB", "0 B", "-100 %"]
    assert "cluster" not in table(view)
    assert "step, predicted" not in table(view)

"""``explore`` on a cluster, while a knob moves: the model is drawn anew, and nothing runs."""

import subprocess
import sys
import threading
from importlib import import_module

import pytest
from emulated_runs import PAIRS, emulated

import tpviz as tv
from tpviz.views.widgets import Explore
from tpviz.views.widgets.setting import HERE, VISIBLE, Configuration


@pytest.fixture
def view():
    return Explore(tv.GPT(), PAIRS, runner=emulated)


def test_first_look_is_the_prediction(view):
    assert view.choice.cluster.name == PAIRS.name
    assert "predicted" in view.model.picture.value
    assert "step time" in view.model.picture.value
    assert "memory of a rank" in view.model.picture.value
    assert view.model.axes.value.count("<tr>") == 2
    assert "auto chose" in view.setting.words.value
    assert view.prediction.cluster.slow_motion > 1
    assert "Predicted: one step of Megatron(tp=4" in view.describe()
    assert "<svg" in view.cluster_picture.value
    twin = view.to_svg()
    assert f"Megatron tp 4 on {PAIRS.name}" in twin
    assert all(words in twin for words in ("step time", "memory of a rank", "rank 0 is at"))


@pytest.mark.parametrize("name", tv.clusters.presets())
def test_on_every_preset_a_first_step_shows_compute_and_communication(name):
    view = Explore(tv.GPT(), tv.clusters.presets()[name](), runner=emulated)
    parts, step = view.prediction.parts, view.prediction.step_time
    assert parts["compute"] >= 0.4 * step
    assert parts["bandwidth wait"] + parts["latency wait"] >= VISIBLE * step
    device = view.prediction.cluster.device
    assert 1e-3 < view.prediction.memory().total / device.memory <= 1


def test_the_scale_is_chosen_once_for_each_cluster(view):
    chosen = view.setting.hidden.value
    assert chosen > 1
    view._sizes.controls["hidden"].value = 512  # a step of a larger model is another step
    assert view.setting.hidden.value == chosen
    view.setting.hidden.value = 2
    view._inner.controls["tp"].value = 2
    assert view.setting.hidden.value == 2
    mine = PAIRS.scale_model(hidden=16)
    assert Explore(tv.GPT(), mine, runner=emulated).setting.hidden.value == 1
    view.setting.menu.value = tv.clusters.perlmutter()
    assert view.setting.hidden.value > 2
    without = Explore(tv.GPT(), PAIRS, runner=emulated, strategy=tv.Megatron(tp=1))
    assert without.setting.hidden.value == 1  # nothing is communicated yet
    without._inner.controls["tp"].value = 4
    assert without.setting.hidden.value == chosen


def test_a_move_redraws_the_model_and_runs_nothing(view, monkeypatch):
    """Counts what a move does: one or two predictions; no simulation, no run, no ranks."""
    calls = []
    names = ("run", "simulate", "capture")
    homes = [(import_module(f"tpviz.verbs.{name}"), name) for name in names]
    homes += [(tv, name) for name in (*names, "launch")]
    homes.append((import_module("tpviz.ranks.launch"), "launch"))
    assert all(callable(getattr(*home)) for home in homes)  # loaded, before the first is replaced
    for home, name in homes:
        monkeypatch.setattr(home, name, lambda *a, _name=name, **k: calls.append(_name))
    monkeypatch.setattr(view, "_runner", lambda *a, **k: calls.append("runner"))
    reading = import_module("tpviz.views.widgets.setting")
    monkeypatch.setattr(
        reading, "predict", lambda *a, _f=reading.predict: calls.append("predict") or _f(*a)
    )
    before, threads = view.model.picture.value, threading.active_count()
    view._inner.controls["tp"].value = 2
    assert calls == ["predict", "predict"]  # at full speed for "auto", then in slow motion
    assert view.model.picture.value != before
    assert view.prediction.strategy == tv.Megatron(tp=2)
    assert (view._job, threading.active_count()) == (None, threads)
    calls.clear()
    view.setting.slow.value = 100
    assert calls == ["predict"]


def test_what_did_not_change_is_not_drawn_again(view):
    before = view.mesh.generation
    view.setting.slow.value = 100
    view.setting.hidden.value = 8
    assert view.mesh.generation == before
    model = PAIRS.scale_model(hidden=8, dtype="bfloat16")
    assert view.choice.cluster == model.scale_model(slow_motion=100)
    assert "a scale model of 8 x the hidden sizes" in view.setting.words.value
    view.setting.halves.value = False
    assert view.choice.cluster == PAIRS.scale_model(hidden=8).scale_model(slow_motion=100)


def test_moves_while_one_is_drawn_are_drawn_once_at_the_end(view, monkeypatch):
    """Five moves from other threads during a redraw cost one more redraw, of the last."""
    reading = import_module("tpviz.views.widgets.setting")
    real, seen = reading.predict, []

    def slow(strategy, workload, cluster):
        seen.append(strategy.tp)
        if len(seen) == 1:
            for tp in (1, 4, 1, 2, 4):
                mover = threading.Thread(
                    target=lambda tp=tp: setattr(view._inner.controls["tp"], "value", tp)
                )
                mover.start()
                mover.join(10)
                assert not mover.is_alive()
        return real(strategy, workload, cluster)

    view.setting.slow.value = 10
    monkeypatch.setattr(reading, "predict", slow)
    view._inner.controls["tp"].value = 2
    assert seen == [2, 4]
    assert view.strategy == tv.Megatron(tp=4)


def test_this_machine_is_a_choice_too(view):
    view.setting.menu.value = HERE
    assert view.choice == Configuration(tv.Megatron(tp=4), tv.GPT())
    assert view.prediction is None
    assert view.model.layout.display == "none"
    assert view.cluster_box.layout.display == "none"
    assert view.run_button.disabled  # until a guess here too
    assert "on the ranks" in view.guesses._form.children[0].question
    view.setting.menu.value = PAIRS
    assert view.model.layout.display == ""
    assert view.run_button.disabled


def test_every_preset_can_be_chosen(view):
    view._inner.controls["tp"].value = 2
    for _, cluster in view.setting.menu.options:
        view.setting.menu.value = cluster
        assert view.error == ""
        assert (view.prediction is None) == (cluster == HERE)


def test_on_a_cluster_with_too_few_devices_other_knobs_give_way(view):
    view._outer.controls["dp"].value = 4
    assert view.strategy == tv.Megatron(tp=2) * tv.DataParallel(dp=4)
    assert "tp 4 \N{RIGHTWARDS ARROW} 2" in view.gave.value
    view._inner.controls["tp"].value = 4
    assert view.strategy == tv.Megatron(tp=4) * tv.DataParallel(dp=2)
    view._inner.controls["tp"].value = 2
    assert "Changed" not in view.gave.value


def test_a_model_that_does_not_fit_the_device_is_said():
    small = tv.clusters.laptop()
    view = Explore(tv.GPT(layers=12, hidden=4096, heads=32), small, runner=emulated)
    assert "out of memory" in view.model.warning.value
    assert "role='alert'" in view.model.warning.value
    view = Explore(tv.GPT(), small, runner=emulated)
    assert view.model.warning.value == ""


def test_moving_a_knob_imports_no_torch():
    code = (
        "import sys, tpviz as tv; view = tv.explore(tv.GPT(), tv.clusters.nvlink_pairs());"
        "view._inner.controls['tp'].value = 2; assert not view.error, view.error;"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


@pytest.mark.parametrize(
    "strategy", [tv.AxoNN(x=1, z=2), tv.Merak(pp=2, tp=2), tv.Merak(pp=2)], ids=lambda s: s.short
)
def test_axes_that_are_parts_of_others_and_messages(strategy):
    """Gathers ahead, a group of both ends, messages of pairs: all have a time on the cluster."""
    view = tv.explore(tv.GPT(layers=4, batch=8), tv.clusters.nvlink_pairs(), strategy=strategy)
    assert "sizes do not fit" not in repr(view) and "slow motion" in repr(view)

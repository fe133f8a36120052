"""``explore`` on a cluster: model while a knob moves, a guess before the run, then all together."""

import subprocess
import sys
import threading
from importlib import import_module

import pytest
from synthetic import synthetic_trace

import tpviz as tv
from tpviz.trace import Trace
from tpviz.widgets import Explore
from tpviz.widgets.outcome import Outcome
from tpviz.widgets.setting import HERE

PAIRS = tv.clusters.nvlink_pairs()


class Compared:
    """What the view asks of a comparison."""

    def to_svg(self, theme):
        return f"<svg class='{theme}'/>"

    def to_table(self):
        return [["part", "measured"], ["unexplained <>", "0 s"]]


def emulated(strategy, workload, cluster, steps, progress):
    """A runner with made-up traces, badged as those of an emulated run and a simulation."""
    progress(1, steps, "step 1")
    trace = synthetic_trace(strategy.axes, steps=2)
    meta = {**trace.meta, "badge": "emulated", "strategy": repr(strategy)}
    simulated = synthetic_trace(strategy.axes, steps=1, memory=False)
    simulated = Trace(simulated.columns, {**meta, "badge": "simulated"})
    return Outcome(Trace(trace.columns, meta), simulated, Compared())


@pytest.fixture
def view():
    return Explore(tv.GPT(), PAIRS, runner=emulated)


def guessed(view, milliseconds=100):
    view.guesses._form.children[0].commit(milliseconds)


def finished(view):
    view.run()
    assert view.wait(10)
    assert view.error == ""


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


def test_a_move_redraws_the_model_and_runs_nothing(view, monkeypatch):
    """Counts what a move does: one or two predictions; no simulation, no run, no ranks."""
    calls = []
    names = ("run", "simulate", "capture")
    homes = [(import_module(f"tpviz.verbs.{name}"), name) for name in names]
    homes += [(tv, name) for name in (*names, "launch")]
    homes.append((import_module("tpviz.runtime.launch"), "launch"))
    assert all(callable(getattr(*home)) for home in homes)  # loaded, before the first is replaced
    for home, name in homes:
        monkeypatch.setattr(home, name, lambda *a, _name=name, **k: calls.append(_name))
    monkeypatch.setattr(view, "_runner", lambda *a, **k: calls.append("runner"))
    reading = import_module("tpviz.widgets.reading")
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
    assert view.choice.cluster == PAIRS.scale_model(hidden=8).scale_model(slow_motion=100)
    assert "a scale model of 8 x the hidden sizes" in view.setting.words.value


def test_moves_while_one_is_drawn_are_drawn_once_at_the_end(view, monkeypatch):
    """Five moves from other threads during a redraw cost one more redraw, of the last."""
    reading = import_module("tpviz.widgets.reading")
    real, seen = reading.predict, []

    def slow(strategy, workload, cluster):
        seen.append(strategy.tp)
        if len(seen) == 1:
            for tp in (8, 3, 8, 3, 4):
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
    assert view.choice == type(view.choice)(tv.Megatron(tp=4), tv.GPT())
    assert view.prediction is None
    assert view.model.layout.display == "none"
    assert view.cluster_box.layout.display == "none"
    assert not view.run_button.disabled
    assert view.guesses._form.children == ()
    view.setting.menu.value = PAIRS
    assert view.model.layout.display == ""
    assert view.run_button.disabled


def test_every_preset_can_be_chosen(view):
    view._inner.controls["tp"].value = 2
    for _, cluster in view.setting.menu.options:
        view.setting.menu.value = cluster
        assert view.error == ""
        assert (view.prediction is None) == (cluster == HERE)


def test_a_cluster_that_is_too_small_is_said_while_the_knob_moves(view):
    view._outer.controls["dp"].value = 4
    assert "16 ranks do not fit the 8 devices" in view.error
    assert view.run_button.disabled


def test_run_waits_for_a_guess(view):
    assert view.run_button.disabled
    view.run()
    assert "commit a guess first, or skip it" in view.status.value
    guessed(view)
    assert not view.run_button.disabled
    view._inner.controls["tp"].value = 2  # a new configuration: the guess is asked for anew
    assert view.run_button.disabled
    assert view.guesses._form.children[0].value is None
    view._inner.controls["tp"].value = 4  # and the one committed stays with its own
    assert not view.run_button.disabled
    assert view.guesses._form.children[0].value == 100


def test_the_guess_can_be_skipped_and_the_mode_turned_off(view):
    view.guesses.skip.click()
    assert not view.run_button.disabled
    view._inner.controls["tp"].value = 2
    assert view.run_button.disabled
    view.guesses.on.value = False
    assert not view.run_button.disabled
    assert view.guesses._form.children == ()


def test_the_questions_are_the_same_widgets_while_nothing_is_committed(view):
    first = view.guesses._form.children
    view._inner.controls["tp"].value = 2
    view.setting.slow.value = 100
    assert view.guesses._form.children == first


def test_the_prediction_can_be_covered_until_the_guess(view):
    view.guesses.cover.value = True
    assert "step time" not in view.model.picture.value
    assert "exposed" not in view.model.axes.value
    assert "covered until you guess" in view.model.picture.value
    guessed(view)
    assert "step time" in view.model.picture.value


def test_after_the_run_guess_model_simulation_and_measurement_stand_together(view):
    guessed(view, 50)
    finished(view)
    revealed = view.results.revealed.value
    for head in ("your guess", "formula", "simulated", "measured"):
        assert f"'>{head}</th>" in revealed
    assert "'>50 ms</td>" in revealed
    assert f"'>{1e3 * view.trace.step_time:,.4g} ms</td>" in revealed
    assert "step time: You guessed" in revealed
    assert "'>no guess committed</td>" in revealed  # to the other question
    comparison = view.results.comparison.value
    assert "class='page'/>" in comparison
    assert "unexplained &lt;&gt;" in comparison
    assert view.outcome.simulated is not None
    assert "measured: Megatron(tp=4" in view.status.value


def test_the_switch_shows_the_simulated_timeline(view):
    view.guesses.skip.click()
    finished(view)
    assert view.timeline.scene["badge"] == "emulated"
    view.results.which.value = "simulated"
    assert view.timeline.scene["badge"] == "simulated"


def test_the_share_of_exposed_communication_counts_its_latency_too(view):
    view.guesses._form.children[1].commit(12)
    finished(view)
    bare = sum(view.prediction.exposed.values()) / view.prediction.step_time
    assert f"'>{100 * bare:.4g} %</td>" in view.results.revealed.value
    assert "that nothing hides: You guessed" in view.results.revealed.value


def test_knobs_that_move_during_a_run_do_not_change_what_it_is_held_against(view):
    begun, leave = threading.Event(), threading.Event()

    def slow(*args, **kwargs):
        begun.set()
        leave.wait(10)
        return emulated(*args, **kwargs)

    view._runner = slow
    guessed(view, 70)
    predicted = f"'>{1e3 * view.prediction.step_time:,.4g} ms</td>"
    view.run()
    assert begun.wait(10)
    view._inner.controls["tp"].value = 2
    view.setting.slow.value = 100
    leave.set()
    assert view.wait(10)
    assert "'>70 ms</td>" in view.results.revealed.value
    assert predicted in view.results.revealed.value
    assert "measured: Megatron(tp=4" in view.status.value
    assert "Run to measure it" in view.ledger.value  # what is in view now is another strategy


def test_the_runner_starts_no_more_ranks_than_this_machine_may(monkeypatch):
    from tpviz.widgets.outcome import run

    calls = []
    for name in ("capture", "simulate", "run"):
        made = synthetic_trace({"tp": 2}, steps=1)
        monkeypatch.setattr(tv, name, lambda *a, _m=made, _n=name, **k: calls.append(_n) or _m)
    monkeypatch.setattr(
        import_module("tpviz.widgets.outcome"), "compared", lambda *a: (None, "not now"))
    for most, verbs in (("2", ["capture", "simulate", "run"]), ("1", ["capture", "simulate"])):
        monkeypatch.setenv("TPVIZ_MAX_RANKS", most)
        outcome = run(tv.Megatron(tp=2), tv.GPT(), PAIRS, steps=1, progress=lambda *a: None)
        assert calls == verbs
        assert (outcome.measured is None, outcome.note) == (most == "1", "not now")
        calls.clear()


def test_why_there_is_no_comparison_is_said(view):
    def incomparable(*args, **kwargs):
        traces = emulated(*args, **kwargs)
        return Outcome(traces.measured, traces.simulated, None, "these differ")

    view._runner = incomparable
    view.guesses.skip.click()
    finished(view)
    assert "No comparison: these differ" in view.results.comparison.value


def test_an_unfaithful_run_says_so(view):
    def late(*args, **kwargs):
        outcome = emulated(*args, **kwargs)
        outcome.measured.meta["late"] = {"share": 0.1, "events": ["mm", "addmm"]}
        return outcome

    view._runner = late
    view.guesses.skip.click()
    finished(view)
    assert "10 % of the step is overrun" in view.results.warning.value
    assert "mm, addmm" in view.results.warning.value
    view._runner = emulated
    finished(view)
    assert view.results.warning.value == ""


def test_more_ranks_than_run_here_are_simulated(view, monkeypatch):
    def simulated(*args, **kwargs):
        return Outcome(None, emulated(*args, **kwargs).simulated)

    monkeypatch.setenv("TPVIZ_MAX_RANKS", "2")
    view._runner = simulated
    guessed(view)
    assert view.run_button.description == "Simulate"
    finished(view)
    assert "simulated: Megatron" in view.status.value
    assert view.timeline.scene["badge"] == "simulated"
    assert "x the simulated value" in view.results.revealed.value
    assert "Run to measure it" in view.ledger.value
    view._inner.controls["tp"].value = 2
    assert view.run_button.description == "Run"


def test_a_model_that_does_not_fit_the_device_is_said():
    small = tv.clusters.laptop()
    view = Explore(tv.GPT(layers=12, hidden=4096, heads=32), small, runner=emulated)
    assert "out of memory" in view.model.warning.value
    assert "role='alert'" in view.model.warning.value
    view = Explore(tv.GPT(), small, runner=emulated)
    assert view.model.warning.value == ""


def test_what_a_runner_returns_is_checked(view):
    view._runner = lambda *args, **kwargs: "done"
    view.guesses.skip.click()
    view.run()
    view.wait(10)
    assert "a runner returns a Trace or an Outcome" in view.error


def test_moving_a_knob_imports_no_torch():
    code = (
        "import sys, tpviz as tv; view = tv.explore(tv.GPT(), tv.clusters.nvlink_pairs());"
        "view._inner.controls['tp'].value = 2; assert not view.error, view.error;"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_on_real_ranks_model_simulation_and_measurement_are_compared():
    """The whole way, too fast to be faithful: said in the view, and nowhere else."""
    view = tv.explore(tv.GPT(layers=1), PAIRS)
    view._inner.controls["tp"].value = 2
    view.setting.slow.value = 10
    view.steps.value = 1
    guessed(view, 20)
    view.run()
    assert view.wait(120)
    assert (view.error, view.outcome.note) == ("", "")
    assert view.outcome.comparison.badges == ("predicted", "simulated", "emulated")
    assert "equal ✓" in view.ledger.value
    assert "of the step is overrun of events too short" in view.results.warning.value
    assert "unexplained" in view.results.comparison.value
    assert view.timeline.scene["badge"] == "emulated"
    assert view.outcome.simulated.step_time == pytest.approx(view.prediction.step_time)

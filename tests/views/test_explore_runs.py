"""``explore`` on a cluster: a guess before the run, and after it all together."""

import threading
from importlib import import_module

import pytest
from emulated_runs import PAIRS, emulated
from synthetic import synthetic_trace

import tpviz as tv
from tpviz.views.widgets import Explore
from tpviz.views.widgets.results import RunOutcome, run


@pytest.fixture
def view():
    return Explore(tv.GPT(), PAIRS, runner=emulated)


def guessed(view, milliseconds=100):
    view.guesses._form.children[0].commit(milliseconds)


def finished(view):
    view.run()
    assert view.wait(10)
    assert view.error == ""


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
    assert "step time" not in view.model.picture.value + view.to_svg()
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
    assert "class='auto'/>" in view.to_svg()
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
    assert "exposed communication: You guessed" in view.results.revealed.value


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
    calls = []
    for name in ("capture", "simulate", "run"):
        made = synthetic_trace({"tp": 2}, steps=1)
        monkeypatch.setattr(tv, name, lambda *a, _m=made, _n=name, **k: calls.append(_n) or _m)
    monkeypatch.setattr(
        import_module("tpviz.views.widgets.results"), "compared", lambda *a: (None, "not now")
    )
    for most, verbs in (("2", ["capture", "simulate", "run"]), ("1", ["capture", "simulate"])):
        monkeypatch.setenv("TPVIZ_MAX_RANKS", most)
        outcome = run(tv.Megatron(tp=2), tv.GPT(), PAIRS, steps=1, progress=lambda *a: None)
        assert calls == verbs
        assert (outcome.measured is None, outcome.note) == (most == "1", "not now")
        calls.clear()


def test_why_there_is_no_comparison_is_said(view):
    def incomparable(*args, **kwargs):
        traces = emulated(*args, **kwargs)
        return RunOutcome(traces.measured, traces.simulated, None, "these differ")

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
    assert ">not faithful</span>" in view.results.warning.value  # a quiet badge, no alarm
    assert "alert" not in view.results.warning.value
    view._runner = emulated
    finished(view)
    assert view.results.warning.value == ""


def test_more_ranks_than_run_here_are_simulated(view, monkeypatch):
    def simulated(*args, **kwargs):
        return RunOutcome(None, emulated(*args, **kwargs).simulated)

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


def test_what_a_runner_returns_is_checked(view):
    view._runner = lambda *args, **kwargs: "done"
    view.guesses.skip.click()
    view.run()
    view.wait(10)
    assert "a runner returns a Trace or an Outcome" in view.error


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
    badge = view.outcome.measured.badge
    assert badge.startswith("emulated, not faithful (")
    assert view.outcome.comparison.badges == ("predicted", "simulated", badge)
    assert "equal ✓" in view.ledger.value
    assert "is overrun of events too short" in view.results.warning.value
    assert "unexplained" in view.results.comparison.value
    assert view.timeline.scene["badge"] == badge
    assert view.outcome.simulated.step_time == pytest.approx(view.prediction.step_time)

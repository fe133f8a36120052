import threading
import time
from importlib import import_module

import pytest
from synthetic import synthetic_trace

import tpviz as tv
from tpviz.core.trace import Event, Trace
from tpviz.views.widgets import Explore, explore
from tpviz.views.widgets.job import Job
from tpviz.views.widgets.setting import read


def trace_with(ledger, losses=(5.5, 5.4)):
    """A trace of one rank whose measured ledger is ``ledger``."""
    events = [Event(name="mm", phase="forward", end=1e-3)]
    for row in ledger:
        size = {"tp": 4, "dp": 2}[row.axis]
        for i in range(row.count):
            events.append(
                Event(
                    lane=f"comm/{row.axis}",
                    kind="comm",
                    name=row.collective,
                    phase=row.phase,
                    axis=row.axis,
                    members=",".join(map(str, range(size))),
                    bytes=0 if i else row.payload_bytes,
                    seq=i,
                    start=1e-3,
                    end=2e-3,
                )
            )
    return Trace.from_events(events, {"badge": "this machine, gloo", "losses": list(losses)})


def honest(strategy, workload, cluster, steps, progress):
    """A runner whose collectives are exactly those of the formula, one size each."""
    progress(1, steps, "step 1")
    return synthetic_trace()


@pytest.fixture
def view():
    """On this machine, without a guess first."""
    made = Explore(runner=honest)
    made.guesses.on.value = False
    return made


def test_first_look(view):
    knobs = "tp=4, sp=False, chunks=1, accumulation=1, recompute='none', offload=0"
    assert repr(view) == f"<Explore Megatron({knobs})>"
    assert (view.run_button.disabled, view.stop_button.disabled) == (False, True)
    assert "Run to measure it" in view.ledger.value
    assert repr(view.mesh) == "<MeshView tp 4, 4 ranks, rank 0>"
    head, *rows = view.to_table()
    assert len(rows) == len(view.strategy.ledger(tv.GPT()))
    assert "measured" not in head and "measured<" not in view.ledger.value
    assert all(cell for row in rows for cell in row)
    assert view.timeline.layout.display == "none"
    assert "Megatron tp 4 on this machine" in view.to_svg()
    assert "rank 0 is at tp 0; its groups:" in view.to_svg() and "step time" not in view.to_svg()


def test_a_knob_redraws_formula_and_mesh_and_starts_nothing(view, monkeypatch):
    monkeypatch.setattr(view, "_runner", None)
    before = view.mesh.generation
    view._inner.controls["tp"].value = 2
    assert view.mesh.generation == before + 1
    assert repr(view.strategy) == (
        "Megatron(tp=2, sp=False, chunks=1, accumulation=1, recompute='none', offload=0)"
    )
    assert len(view.mesh.scene["parameters"]) == len(tv.GPT().parameter_shapes())
    assert view._expected == tv.Megatron(tp=2).ledger(tv.GPT())
    assert view._job is None


def test_a_value_that_is_none_is_said_while_the_knob_moves(monkeypatch):
    reading, real = import_module("tpviz.views.widgets.explore"), read
    view = Explore(runner=honest)

    def refuses(*args):
        raise ValueError("no <room>")

    monkeypatch.setattr(reading, "read", refuses)
    view._inner.controls["tp"].value = 2
    assert view.error == "no <room>"
    assert "role='alert'" in view.message.value
    assert view.run_button.disabled and view.pins.button.disabled
    assert repr(view) == "<Explore Megatron, sizes do not fit>"
    assert "bad sizes" in view.describe()
    view.run()
    assert "do not fit together" in view.status.value
    monkeypatch.setattr(reading, "read", real)
    view._inner.controls["tp"].value = 4
    assert (view.error, view.message.value) == ("", "")


def test_of_too_many_ranks_those_of_other_knobs_give_way(view, monkeypatch):
    monkeypatch.setenv("TPVIZ_MAX_RANKS", "4")
    view._outer.controls["dp"].value = 2
    assert (view.error, view._inner.controls["tp"].value) == ("", 2)
    assert "tp 4 \N{RIGHTWARDS ARROW} 2" in view.gave.value
    assert view.strategy == tv.Megatron(tp=2) * tv.DataParallel(dp=2)


def test_composition_with_data_parallelism(view):
    view._inner.controls["tp"].value = 2
    view._outer.controls["dp"].value = 2
    view._outer.controls["zero"].value = 1
    assert view.strategy == tv.Megatron(tp=2) * tv.DataParallel(dp=2, zero=1)
    assert repr(view.mesh) == "<MeshView dp 2 x tp 2, 4 ranks, rank 0>"
    view.menu.value = "DataParallel"
    assert view._outer is None
    assert view.strategy == tv.DataParallel()


def test_run_shows_timeline_ledger_and_losses(view):
    view.run()
    assert view.wait(10)
    assert view.trace is not None
    assert repr(view.timeline) == "<Timeline 4 ranks, 200 events>"
    assert "loss of 2 steps" in view.losses.value
    assert "measured: Megatron" in view.status.value
    assert "differ ✗" in view.ledger.value  # the made-up trace is not Megatron's
    assert "4 ranks, 200 events" in view.describe()
    assert (view.run_button.disabled, view.stop_button.disabled) == (False, True)
    view._inner.controls["tp"].value = 2
    assert "Run to measure it" in view.ledger.value  # what was measured was another strategy


def test_equal_ledgers_are_ticked(view):
    view._runner = lambda strategy, workload, *_, **__: trace_with(strategy.ledger(workload))
    view.run()
    view.wait(10)
    assert "equal ✓" in view.ledger.value
    assert {row[-1] for row in view.to_table()[1:]} == {"✓"}
    assert view.to_table()[0].count("measured") == 3


def test_an_error_of_the_run_is_shown_and_the_next_run_works(view):
    def fails(strategy, workload, cluster, steps, progress):
        raise RuntimeError("rank 2 <died>")

    view._runner = fails
    view.run()
    view.wait(10)
    assert view.error == "RuntimeError: rank 2 <died>"
    assert "rank 2 &lt;died&gt;" in view.message.value
    assert "the run failed" in view.status.value
    view._runner = honest
    view.run()
    view.wait(10)
    assert (view.error, view.trace is not None) == ("", True)


def test_an_unreadable_trace_is_shown(view):
    view._runner = lambda *args, **kwargs: Trace.from_events([])
    view.run()
    view.wait(10)
    assert "nothing to draw" in view.error
    assert not view.run_button.disabled


def test_a_second_run_is_refused_and_stop_ends_the_first(view):
    begun, runs = threading.Event(), []

    def endless(strategy, workload, cluster, steps, progress):
        runs.append(strategy)
        begun.set()
        while True:
            time.sleep(0.005)

    view._runner = endless
    view.run()
    assert begun.wait(10)
    assert (view.run_button.disabled, view.stop_button.disabled) == (True, False)
    view.run()
    assert "a run is in progress" in view.status.value
    view.stop()
    assert view.wait(10)
    assert len(runs) == 1
    assert "stopped" in view.status.value
    assert (view.error, view.trace) == ("", None)
    assert (view.run_button.disabled, view.stop_button.disabled) == (False, True)


def test_progress_reaches_the_bar(view):
    reported, leave = threading.Event(), threading.Event()

    def slow(strategy, workload, cluster, steps, progress):
        progress(2, 5, "step 2 of 5")
        reported.set()
        leave.wait(10)
        return synthetic_trace()

    view._runner = slow
    view.run()
    assert reported.wait(10)
    assert (view.bar.value, view.bar.max) == (2, 5)
    assert "step 2 of 5" in view.status.value
    leave.set()
    view.wait(10)
    assert view.bar.value == view.bar.max


def test_an_unexpected_error_in_a_callback_is_shown(view, monkeypatch):
    monkeypatch.setattr(
        import_module("tpviz.views.widgets.setting"), "ownership", lambda *args: 1 / 0
    )
    view._inner.controls["tp"].value = 2
    assert view.error == "ZeroDivisionError: division by zero"


def test_bad_arguments():
    with pytest.raises(
        TypeError, match="explore has no argument 'worklaod'; did you mean 'workload'"
    ):
        explore(worklaod=tv.GPT())
    with pytest.raises(ValueError, match=r"tv.clusters.nvlink_pairs\(\).*None for runs on"):
        explore(tv.GPT(), "eight GPUs")
    with pytest.raises(ValueError, match=r"needs a workload such as tv.GPT.*, not 3"):
        explore(3)
    with pytest.raises(ValueError, match="heads=4 does not split evenly over tp=3: use tp=2 or 4"):
        explore(strategy=tv.Megatron(tp=3))
    with pytest.raises(ValueError, match="16 ranks do not fit the 8 devices"):
        explore(tv.GPT(heads=16), tv.clusters.nvlink_pairs(), strategy=tv.Megatron(tp=16))


def test_job_tells_its_end_once():
    ends = []
    job = Job(lambda: 7, lambda *end: ends.append(end))
    assert job.join(10)
    assert ends == [(7, None, False)]
    assert job.stop() is False


def test_on_real_ranks_formula_and_measurement_agree_and_stop_leaves_the_pool_usable():
    view = explore(tv.GPT(layers=1))
    view.guesses.on.value = False
    view._inner.controls["tp"].value = 2
    view.steps.value = 20
    view.run()
    deadline = time.monotonic() + 60
    while "loss" not in view.status.value and time.monotonic() < deadline:
        time.sleep(0.01)
    view.stop()
    assert view.wait(60)
    assert ("stopped" in view.status.value, view.error) == (True, "")
    view.steps.value = 1
    view.run()
    assert view.wait(60)
    assert view.error == ""
    assert "equal ✓" in view.ledger.value
    assert view.timeline.scene["badge"] == "this machine, gloo"
    assert view.timeline.scene["memory"]["1"]["peak"] > 0

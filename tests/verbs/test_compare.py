"""``compare``: the three verbs on one strategy, and the seeded fault that it has to name."""

import xml.etree.ElementTree as ElementTree

import pytest

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level
from tpviz.core.trace.steps import median_step
from tpviz.evidence import peers
from tpviz.verbs.compare import Comparison, compare
from tpviz.views.figures.svg import image

WORKLOAD = tv.GPT(layers=1, hidden=64, heads=4, seq=32, batch=4, vocab=64)
STRATEGY = tv.Megatron(tp=2) * tv.DataParallel(dp=2, bucket_mb=0.05)
DEVICE = Device({"float32": 1e9}, 16e9, 1e9, "slow device")
CLUSTER = Cluster(
    "two pairs", DEVICE, (Level("in", 2, 2e7, 2e7, 1e-4), Level("out", 2, 5e6, 5e6, 5e-4))
)


@pytest.fixture(scope="module")
def capture():
    return tv.capture(STRATEGY, WORKLOAD)


@pytest.fixture(scope="module")
def simulated(capture):
    return tv.simulate(STRATEGY, WORKLOAD, CLUSTER, steps=3, capture=capture)


@pytest.fixture(scope="module")
def prediction():
    return tv.predict(STRATEGY, WORKLOAD, CLUSTER)


def faulty(capture, faults, steps=3):
    return tv.simulate(STRATEGY, WORKLOAD, CLUSTER, steps=steps, faults=faults, capture=capture)


def test_without_a_run_the_simulated_step_is_split():
    made = tv.compare(STRATEGY, WORKLOAD, CLUSTER, run=False)
    assert made.badges == ("predicted", "simulated")
    assert made.measured is None
    assert made.ratio is None
    assert made.overlap == (median_step(made.simulated).overlap(), None)
    assert sum(made.residual.parts.values()) == pytest.approx(made.simulated.step_time)
    assert made.residual.verdict.startswith("Most of the step is ")
    assert [row[0] for row in made.to_table()][-1] == "step"


def test_progress_begins_before_the_program_is_captured(monkeypatch):
    told, capture = [], tv.capture

    def slow(*args):
        assert told == [(0, 5, "capturing the program and simulating it")]
        return capture(*args)

    monkeypatch.setattr("tpviz.verbs.compare.capture_program", slow)
    tv.compare(STRATEGY, WORKLOAD, CLUSTER, run=False, progress=lambda *report: told.append(report))
    assert told


def test_parts_made_earlier(prediction, simulated, capture):
    seen = faulty(capture, tv.Faults(stragglers={3: 2.0}))
    made = Comparison.of(prediction, simulated, seen, capture=capture)
    assert made.ratio == seen.step_time / simulated.step_time
    assert made.overlap == (median_step(simulated).overlap(), median_step(seen).overlap())
    assert [s.rank for s in made.residual.stragglers] == [3]
    assert made.residual.simulated == simulated.step_time
    badges = "predicted, simulated, simulated"
    assert repr(made) == f"<Comparison of {STRATEGY!r} on two pairs: {badges}>"


def test_a_simulation_of_too_few_steps_is_done_again(prediction, capture):
    """From its second step on, a slow link lets ranks begin unevenly: one step does not show it."""
    seen = faulty(capture, tv.Faults(slow_links={1: 3.0}))
    single = faulty(capture, None, steps=1)
    made = Comparison.of(prediction, single, seen, capture=capture)
    assert abs(made.residual.parts["unexplained"]) < 0.01 * seen.step_time
    assert made.simulated is single


def test_what_is_missing_is_simulated_and_captured(prediction):
    made = Comparison.of(prediction)
    assert made.simulated.meta["badge"] == "simulated"
    assert made.residual.stragglers == ()


def test_results_of_different_things_are_refused(prediction, simulated, capture):
    other = tv.predict(tv.Megatron(tp=4), WORKLOAD, CLUSTER)
    with pytest.raises(ValueError, match=r"prediction is of strategy Megatron\(tp=4.*DataParallel"):
        Comparison.of(other, simulated)
    slower = CLUSTER.scale_model(slow_motion=2)
    other = tv.simulate(STRATEGY, WORKLOAD, slower, capture=capture)
    with pytest.raises(ValueError, match=r"of cluster two pairs, .* 2 x slow motion"):
        Comparison.of(prediction, simulated, other)


def test_a_strategy_without_a_formula_has_no_prediction():
    made = compare(peers.DTensorTP(tp=2), WORKLOAD, CLUSTER, run=False)
    assert made.prediction is None
    assert made.badges == ("simulated",)
    assert sum(made.residual.parts.values()) == pytest.approx(made.simulated.step_time)
    assert "predicted" not in made.describe()
    ElementTree.fromstring(made.to_svg())


def test_shown_in_a_notebook(prediction, simulated, capture):
    seen = faulty(capture, tv.Faults(slow_links={0: 2.0}))
    made = Comparison.of(prediction, simulated, seen, capture=capture)
    html = made._repr_html_()
    assert image(made.to_svg(), made.describe()) in html
    assert "<td" in html
    assert "slow link at rank 0" in made.describe()
    ElementTree.fromstring(made.to_svg(theme="dark", width=1200))


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="faults happen only in the emulated run"):
        compare(STRATEGY, WORKLOAD, CLUSTER, run=False, faults=tv.Faults(stragglers={0: 2.0}))
    with pytest.raises(ValueError, match=r"faults=\{0: 2\}; use tv.Faults"):
        compare(STRATEGY, WORKLOAD, CLUSTER, faults={0: 2})
    with pytest.raises(ValueError, match="steps=0 is too small"):
        compare(STRATEGY, WORKLOAD, CLUSTER, steps=0)
    with pytest.raises(ValueError, match="ranks do not fit"):
        compare(tv.Megatron(tp=2) * tv.DataParallel(dp=4), tv.GPT(batch=8), CLUSTER)
    with pytest.raises(ValueError, match="no_cluster"):
        compare(STRATEGY, WORKLOAD, "no_cluster")


# -- on real ranks ---------------------------------------------------------------------------------
@pytest.mark.filterwarnings("ignore:this emulated run is not faithful")  # the machine may be busy
@pytest.mark.parametrize(
    ("faults", "named"),
    [
        (None, "No rank and no link is slow"),
        (tv.Faults(stragglers={2: 2.0}), "Rank 2 is a straggler"),
        (tv.Faults(slow_links={1: 2.5}), "slow link at rank 1"),
    ],
    ids=["no fault", "straggler", "slow link"],
)
def test_an_emulated_run_names_the_seeded_fault(faults, named):
    slow = CLUSTER.scale_model(slow_motion=8)
    made = tv.compare(STRATEGY, WORKLOAD, slow, steps=3, faults=faults)
    assert made.badges == ("predicted", "simulated", made.measured.badge)
    assert made.measured.meta["badge"] == "emulated"  # the badge also says where a run was late
    parts = made.residual.parts
    assert sum(parts.values()) == pytest.approx(made.measured.step_time, rel=1e-9)
    assert named in made.residual.verdict
    assert (made.residual.stragglers != ()) == bool(faults and faults.stragglers)
    assert (made.residual.slow_links != ()) == bool(faults and faults.slow_links)
    assert made.measured.ledger() == made.simulated.ledger() == made.prediction.ledger()


def test_a_plain_run_is_laid_over_the_cluster_that_is_said_to_be_this_machine():
    w = tv.GPT(layers=1, hidden=32, heads=4, seq=8, batch=4, vocab=64)
    found = tv.compare(tv.DataParallel(dp=2), w, tv.clusters.laptop(2), steps=2, emulate=False)
    assert found.measured.badge == "this machine, gloo" and "late" not in found.measured.meta
    assert found.ratio > 0 and found.badges == ("predicted", "simulated", found.measured.badge)
    assert found.prediction.ledger() == found.simulated.ledger() == found.measured.ledger()
    with pytest.raises(ValueError, match="faults happen only in the emulated run"):
        tv.compare(
            tv.DataParallel(dp=2), w, tv.clusters.laptop(2), emulate=False, faults=tv.Faults()
        )

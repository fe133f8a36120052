"""Overlaps of AxoNN's lab: numbers of the verbs, what each hides, words, one emulated run."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.evidence import axonn
from tpviz.evidence.axonn.claims import OVERLAPS as CLAIM
from tpviz.evidence.axonn.overlapping import SUBSETS
from tpviz.evidence.study import Outcome
from tpviz.schemes.axonn.models import paper_models
from tpviz.schemes.axonn.strategy import OVERLAPS

TINY = tv.GPT(layers=1, hidden=32, heads=4, seq=16, batch=4, vocab=64)
NODES = tv.clusters.perlmutter(8)
GRID = (2, 2, 4, 2)


@pytest.fixture(scope="module")
def found():
    return axonn.overlaps(paper_models(64)["20B"], NODES, GRID, simulate=False, recompute=True)


@pytest.fixture(scope="module")
def replayed():
    return axonn.overlaps(TINY, tv.clusters.perlmutter(1), (1, 2, 2, 1), "alone")


def test_all_sets_are_tried_with_the_numbers_of_predict(found):
    assert len(found.subsets) == len(set(found.subsets)) == 8 and found.subsets[0] == ()
    for subset, times in found.times["predicted"].items():
        s = tv.AxoNN(*GRID, overlap=subset, recompute=True)
        p = tv.predict(s, found.workload, NODES)
        assert times.step == p.step_time and times.waits == pytest.approx(sum(p.exposed.values()))
        assert times.step - times.waits == pytest.approx(p.parts["compute"])
        assert times.exposed["z"] == pytest.approx(
            p.exposed.get("z", 0.0) + p.exposed.get("z_ahead", 0.0)
        )


def test_each_overlap_hides_its_own_axes(found):
    """oar the sums of x and y, ors and oag what goes over z; none those of data."""
    times = found.times["predicted"]
    none = times[()].exposed
    for subset, hidden in (("oar",), {"x", "y"}), (("ors",), {"z"}), (("oag",), {"z"}):
        exposed = times[subset].exposed
        assert {a for a in none if exposed[a] < none[a] * (1 - 1e-9)} == hidden
    assert times[OVERLAPS].exposed["data"] == pytest.approx(none["data"])
    gains = [found.gain(s) for s in SUBSETS["alone"]]
    assert gains[0] == 0 and min(gains[1:4]) > 0 and gains[4] > sum(gains[1:4])
    assert found.gain() == pytest.approx(times[()].step / times[OVERLAPS].step - 1)


def test_simulated_times_and_waits_are_the_predicted_ones(replayed):
    """One group an axis on a node: nothing shares a link."""
    assert replayed.subsets == SUBSETS["alone"] and replayed.badges == ["predicted", "simulated"]
    for one, other in zip(*(replayed.times[s].values() for s in ("predicted", "simulated"))):
        assert one.step == pytest.approx(other.step, rel=1e-9)
        assert one.exposed == pytest.approx(other.exposed, rel=1e-6)


def test_words(found):
    words = found.describe()
    assert CLAIM in words and "nearly 53 %" in CLAIM and "not reproduced here" in CLAIM
    assert "Grid x y z data = 2 2 4 2 on Perlmutter" in words
    gain = f"{100 * found.gain():+.1f} %"
    assert gain in words and f"{gain} predicted" in repr(found)
    table = found.to_table()
    assert len(table) == 9 and table[0][5:] == ["on data", "on z", "on y", "on x"]
    assert table[-1][:2] == ["oar + ors + oag", "predicted"] and gain in found._repr_html_()


def test_runs_that_were_not_faithful_are_said(found):
    none, other = Outcome(1.0, faithful=False), Outcome(0.5)
    rows = [
        replace(r, times={**r.times, "measured": other if r.label else none}) for r in found.rows
    ]
    late = replace(found, rows=tuple(rows))
    assert "Not faithful, events too short for this machine: none. More slow" in late.describe()
    assert "Not faithful" not in found.describe() and late.gain(source="measured") == 1.0
    assert late.badges == ["predicted", "emulated"]


@pytest.mark.filterwarnings("ignore:this emulated run")  # the machine may be busy
def test_run_measures_real_ranks_in_slow_motion():
    slow = tv.clusters.nvswitch(2).scale_model(hidden=128, slow_motion=10)
    found = axonn.overlaps(
        TINY, slow, (1, 1, 2, 1), "alone", simulate=False, run=True, steps=1, progress=False
    )
    for times in found.times["measured"].values():
        assert 0 < times.waits < times.step and set(times.exposed) == {"z"}
    assert found.badges == ["predicted", "emulated"] and "Emulated: the step" in found.describe()


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"grid": (3, 1, 1, 1)}, "heads=4 does not split evenly over x=3"),
        ({"grid": (2, 2)}, r"grid=\(2, 2\) must be four numbers"),
        ({"grid": (4, 2, 4, 4)}, "128 ranks do not fit the 32|does not split evenly"),
        ({"which": "some"}, "which='some' is not possible: use 'all' or 'alone'"),
        ({"overlap": ("oar",)}, r"overlap=\('oar',\): the lab tries all overlaps"),
        ({"run": 1}, "run=1 is not possible"),
        ({"steps": 0}, "steps=0 is too small"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        axonn.overlaps(TINY, NODES, **{"simulate": False, **arguments})


def test_gains_by_name_and_in_any_order(found):
    assert found.gain("oar") == found.gain(("oar",)) != found.gain(())
    assert found.gain(("ors", "oar")) == found.gain(("oar", "ors"))
    with pytest.raises(ValueError, match="overlap='oax' is not possible: use 'oar', 'ors' or"):
        found.gain("oax")


def test_what_was_not_tried_is_refused(replayed):
    with pytest.raises(ValueError, match="oar \\+ ors was not tried: use one of"):
        replayed.gain(("oar", "ors"))
    with pytest.raises(
        ValueError, match="none has no measured times: use 'predicted' or 'simulated'"
    ):
        replayed.gain(source="measured")

"""Winners: section 5.1's table by hand, ranking, gains, what is left out, one emulated run."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.evidence import atp
from tpviz.evidence.atp.winning import CLAIM, MODES, Winners

CLAIMED = tv.GPT(layers=1, hidden=12288, heads=48, seq=2048, batch=4, vocab=51200, dtype="bfloat16")
TINY = tv.GPT(layers=1, hidden=32, heads=4, seq=16, batch=4, vocab=64)
RINGS = {rings: tv.clusters.nvlink_pairs(rings=rings) for rings in ("single", "multi")}


def at(d1, d2, order="column"):
    return tv.ATP(mesh=(d1, d2), order=order)


@pytest.fixture(scope="module")
def found():
    return atp.winners(CLAIMED, RINGS)


@pytest.mark.parametrize(
    "mesh, single, multi",
    [
        (at(8, 1), 82.9, 44.0),
        (at(4, 2), 38.4, 38.4),
        (at(2, 4, "row"), 71.1, 54.4),
        (at(4, 2, "row"), 107.5, 107.5),
        (at(2, 4), 118.4, 68.5),
    ],
)
def test_communication_of_section_5_1(found, mesh, single, multi):
    for rings, milliseconds in (("single", single), ("multi", multi)):
        assert 1e3 * found.cells[rings, mesh].communication == pytest.approx(milliseconds, abs=0.06)


def test_gains_are_those_of_section_5_1(found):
    """82.9 / 38.4 in communication; with 44.5 ms of GEMMs 127.4 / 82.9 = 1.54."""
    assert found.base == at(8, 1) and found.winner("single") == at(4, 2)
    gain = found.gain("single", at(4, 2), "communication")
    assert gain == pytest.approx(82.9 / 38.4 - 1, abs=0.01)
    compute = 72 * 4 * 2048 * 12288**2 / 8 / 250e12
    assert 1e3 * compute == pytest.approx(44.5, abs=0.1)
    times = [compute + found.cells["single", s].communication for s in (at(8, 1), at(4, 2))]
    assert times[0] / times[1] == pytest.approx(1.54, abs=0.01)
    assert 0.3 < found.gain("single", at(4, 2)) < 0.65  # the whole step has overlap and the ends
    assert found.gain("single", at(8, 1)) == 0


def test_cells_are_those_of_predict(found):
    assert len(found.strategies) == 6 and len(found.cells) == 12
    for (name, strategy), cell in found.cells.items():
        assert cell.predicted == tv.predict(strategy, CLAIMED, RINGS[name]).step_time
        assert cell.measured is None


def test_ranking(found):
    times = [seconds for seconds, _ in found.ranking("multi")]
    assert times == sorted(times) and len(times) == 6
    assert found.ranking("multi", "measured") == [] and found.agreement == {}
    assert found.gain("multi", at(4, 2), "measured") is None


def test_memory_decides_before_speed(found):
    cells = dict(found.cells)
    cells["single", at(4, 2)] = cells["single", at(4, 2)]._replace(fits=False)
    short = replace(found, cells=cells)
    assert short.winner("single") == at(2, 4, "row") and short.ranking("single")[-1][1] == at(4, 2)
    assert "Memory does not fit (shown, never marked): (4, 2) column on single" in short.describe()


def test_a_scale_model_is_not_asked_whether_memory_fits():
    """Weights shrink by the square of what activations shrink by: neither has the right share."""
    box = RINGS["single"]
    small = replace(box, device=replace(box.device, memory=1e5))
    for cluster, fits in ((small, False), (replace(small, hidden_scale=2.0), True)):
        cells = atp.winners(TINY, cluster, world_size=2).cells.values()
        assert {cell.fits for cell in cells} == {fits}


def test_where_no_memory_fits_nothing_is_marked(found):
    none = replace(found, cells={k: cell._replace(fits=False) for k, cell in found.cells.items()})
    heat_maps = [panel["traces"][0]["text"] for panel in none.scene()["panels"]]
    assert len(heat_maps) == len(MODES[:2]) and "★" not in str(heat_maps)
    assert "★" in str(found.scene()["panels"])
    assert "(best)" not in str(none.to_table()) and "(best)" in str(found.to_table())
    assert "single: no memory fits; (4, 2) column has the shortest" in none.describe()


def test_words(found):
    words = found.describe()
    assert CLAIM in words and "tv.claims('ATP')" in CLAIM
    assert "single: (4, 2) column has the shortest predicted step" in words
    assert found.badges == ["predicted"] and "predicted>" in repr(found)
    table = found.to_table()
    assert len(table) == 13 and table[2][:2] == ["single", "(4, 2) column (best)"]
    assert "(4, 2) column" in found._repr_html_()


def test_knobs_are_those_of_all():
    found = atp.winners(TINY, tv.clusters.nvswitch(8), world_size=4, chunks=2, norm="L2")
    assert [s.mesh for s in found.strategies] == [(4, 1), (2, 2), (2, 2), (1, 4)]
    assert {(s.chunks, s.norm) for s in found.strategies} == {(2, "L2")}


@pytest.mark.parametrize("attention", ["A3", "A1"])
def test_where_1d_is_possible_all_are(attention):
    w = tv.GPT(layers=1, hidden=24, heads=12, seq=12, batch=3, vocab=12, mlp_ratio=3)
    found = atp.winners(w, tv.clusters.nvswitch(12), world_size=12, attention=attention, sp=True)
    assert len(found.strategies) == 10


@pytest.mark.filterwarnings("ignore:this emulated run")  # the machine may be busy
def test_the_first_are_run_on_real_ranks():
    slow = tv.clusters.nvswitch(2).scale_model(hidden=128, slow_motion=30)
    found = atp.winners(TINY, {"slow": slow}, world_size=2, run=2, steps=1, progress=False)
    assert all(cell.measured > 0 for cell in found.cells.values())
    assert found.badges == ["predicted", "emulated"] and -1 <= found.agreement["slow"] <= 1
    assert found.gain("slow", found.base, "measured") == 0
    assert "2 strategies also run on the emulated cluster; Kendall's tau" in found.describe()
    [measured] = found.scene()["panels"][2]["traces"]
    assert sum("★" in row[0] for row in measured["text"]) == 1


def test_kendalls_tau_by_hand(found):
    cells = {}
    for k, strategy in enumerate(found.strategies[:3]):
        for name in RINGS:
            cells[name, strategy] = found.cells[name, strategy]._replace(
                predicted=1.0 + k, measured=[1.0, 3.0, 2.0][k] if name == "single" else None
            )
    three = Winners(CLAIMED, RINGS, found.strategies[:3], cells)
    assert three.agreement == {"single": pytest.approx(1 / 3)}


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: atp.winners(TINY, []), "give clusters in a list"),
        (lambda: atp.winners(TINY, [3]), "clusters has 3"),
        (
            lambda: atp.winners(TINY, [RINGS["single"]] * 2),
            "two clusters are named 'NVLink-pair PCIe",
        ),
        (lambda: atp.winners(TINY, RINGS, world_size=1), "world_size=1 is too small"),
        (
            lambda: atp.winners(TINY, RINGS, world_size=16),
            "1D, the baseline of the gains, is not possible",
        ),
        (
            lambda: atp.winners(replace(TINY, heads=16), RINGS, world_size=16),
            "16 ranks do not fit the 8 devices",
        ),
        (lambda: atp.winners(TINY, RINGS, run=-1), "run=-1 is too small"),
        (lambda: atp.winners(TINY, RINGS, mesh=(2, 2)), r"mesh=\(2, 2\): winners tries all meshes"),
        (lambda: atp.winners(RINGS, TINY), "first comes a workload"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()

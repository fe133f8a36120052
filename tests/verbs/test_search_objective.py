"""Search with communication alone as the objective, as a paper chooses its mesh."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level

PAPER = tv.GPT(layers=2, hidden=12288, heads=48, seq=2048, batch=4, dtype="bfloat16", vocab=1024)
PAIRS = tv.clusters.nvlink_pairs(rings="single")


def test_paper_mode_ranks_by_the_formula_alone(monkeypatch):
    monkeypatch.setattr("tpviz.verbs.search._simulated", lambda row: pytest.fail("simulated"))
    found = tv.search(PAPER, PAIRS, tv.ATP.meshes(PAPER, 8), objective="communication")
    times = {
        (row.strategy.mesh, row.strategy.order): 1e3 * row.communication / PAPER.layers
        for row in found.rows
    }
    assert list(times) == [
        ((4, 2), "column"),
        ((2, 4), "row"),
        ((8, 1), "column"),
        ((4, 2), "row"),
        ((2, 4), "column"),
        ((1, 8), "column"),
    ]
    assert list(times.values())[:5] == pytest.approx([38.4, 71.1, 82.9, 107.5, 118.4], abs=0.05)
    assert found.objective == "communication" and "first of 6 by communication" in repr(found)
    head, first, *_ = found.to_table()
    assert head[:3] == ["strategy", "communication (ranked)", "predicted"]
    assert first[:2] == ["ATP(mesh=(4, 2))", "76.8 ms"]
    assert found.describe().startswith(
        "Ranked by communication alone, the schemes' own formulas: ATP(mesh=(4, 2)) is the first "
        "of 6 strategies, 76.8 ms a step. The next that sends longer is ATP(mesh=(2, 4), "
        "order='row'), 142 ms. Its whole step is predicted to take 170 ms, the least of all."
    )
    assert found.agreement.keys() == {"communication, predicted"}
    step = tv.search(PAPER, PAIRS, tv.ATP(mesh=(4, 2)), simulate=False)
    assert step.rows[0].communication is None and step.to_table()[0][1] == "predicted (ranked)"


def test_simulation_does_not_reorder_paper_mode(monkeypatch):
    monkeypatch.setattr(
        "tpviz.verbs.search._simulated", lambda row: replace(row, simulated=1 / row.predicted)
    )
    plain, asked = (
        tv.search(PAPER, PAIRS, tv.ATP, top=4, objective="communication", simulate=simulate)
        for simulate in (None, True)
    )
    assert [r.strategy for r in asked.rows] == [r.strategy for r in plain.rows]
    assert all(row.simulated for row in asked.rows[:4]) and not plain.rows[0].simulated


def test_equal_communication_goes_to_the_fewest_copies():
    """3 x 2 and 6 x 1 send as much where all links are equal; chunks change nothing of it."""
    w = tv.GPT(layers=1, hidden=12, heads=6, seq=12, batch=4, vocab=12)
    flat = Cluster("flat", Device({"float32": 1e10}, 1e9, 1e12), (Level("all", 6, 1e8),))
    for tried in ([tv.ATP(mesh=(3, 2)), tv.ATP(mesh=(6, 1))], [tv.ATP]):
        found = tv.search(w, flat, tried, objective="communication")
        assert found.rows[0].strategy == tv.ATP(mesh=(6, 1))
        assert tv.ATP(mesh=(3, 2)) in [row.strategy for row in found.rows[:8]]


def test_paper_mode_keeps_the_filters_and_wants_a_formula():
    found = tv.search(
        PAPER, PAIRS, [tv.Megatron, tv.ATP, tv.DataParallel], objective="communication"
    )
    assert {type(row.strategy) for row in found.rows} == {tv.Megatron, tv.ATP}
    causes = {r.strategy: (r.cause, r.reason) for r in found.rejected}
    none = tv.ATP(mesh=(2, 2)) * tv.DataParallel(dp=2)
    assert causes[none] == ("no formula", "DataParallel has no formula of its communication alone")
    assert "have no formula" in found.describe()
    heavy = replace(PAIRS, device=replace(PAIRS.device, memory=10.8e9))
    found = tv.search(PAPER, heavy, tv.ATP.meshes(PAPER, 8), objective="communication")
    assert {row.strategy.mesh for row in found.rows} < {(8, 1), (4, 2), (2, 4), (1, 8)}
    assert {r.cause for r in found.rejected} == {"memory"}
    with pytest.raises(ValueError, match="objective='time' is not possible: use 'step' or 'comm"):
        tv.search(PAPER, PAIRS, objective="time")

"""What a search shows: distinct rows, a chart, and the ranking so far while it goes on."""

import gzip
import json
import re
from base64 import b64decode
from dataclasses import replace
from html import escape

import pytest
from plain_chart import assert_plain

import tpviz as tv
from tpviz.core.tables import show_seconds
from tpviz.ranks.bar import ProgressView
from tpviz.verbs.ranking import Search, contrasted, plans, same_words

W = tv.GPT(batch=8)
BOX = tv.clusters.nvlink_pairs(2)


@pytest.fixture(scope="module")
def found():
    return tv.search(W, BOX, simulate=False)


def test_rows_are_distinct_and_none_is_lost(found):
    several = list(plans(found.rows))
    assert [row for plan in several for row in plan] == sorted(
        found.rows, key=lambda row: next(i for i, plan in enumerate(several) if row in plan)
    )
    assert len(several) < len(found.rows)
    _, *rows = found.to_table(most=len(found.rows))
    assert len(rows) == len(several) == len({tuple(row) for row in rows})
    for plan in several:
        for row in plan[1:]:
            assert row.prediction.ledger() == plan[0].prediction.ledger()
            assert row.prediction.memory() == plan[0].prediction.memory()
            assert row.predicted == pytest.approx(plan[0].predicted)


def test_a_row_says_what_is_the_same(found):
    merged = [plan for plan in plans(found.rows) if len(plan) > 1]
    assert "x 2: zero" in {same_words(plan) for plan in merged}
    assert same_words(merged[0][:1]) == ""
    column = found.to_table(most=99)[0].index("same plan")
    told = [row[column] for row in found.to_table(most=99)]
    assert same_words(merged[0]) in told


def test_strategies_of_one_plan_take_as_long_in_simulation(found):
    """So one of them is enough."""
    plan = next(p for p in plans(found.rows) if len(p) > 1 and "Data" in p[0].strategy.short)
    steps = {tv.simulate(row.strategy, W, BOX).step_time for row in plan[:2]}
    assert len(steps) == 1


def test_digits_tell_steps_apart():
    """More of them where two steps would read the same."""
    rows = tv.search(W, BOX, tv.Megatron, simulate=False).rows
    near = [replace(rows[0], simulated=s) for s in (293.12e-6, 293.14e-6, 1e-3)]
    found = Search(W, BOX, tuple(near), (), {})
    assert [row[2] for row in found.to_table()[1:]] == ["293.12 µs", "293.14 µs", "1 ms"]


def test_the_chart_has_the_first_plans(found):
    first = [plan[0] for plan in plans(found.rows)][:10]
    scene = found.scene()
    [panel] = scene["panels"]
    [dots] = panel["traces"]
    assert dots["x"] == pytest.approx([1e6 * row.predicted for row in first])
    names, common = contrasted([row.strategy for row in first])
    drawn = [name.replace("\N{NO-BREAK SPACE}", " ").partition(" x ")[0] for name in dots["y"]]
    assert drawn == names
    assert len(set(names)) == len(first)
    assert scene["notes"] == [f"The same in all of these: {common}."] * bool(common)
    for theme in ("light", "dark"):
        assert_plain(scene, found.to_svg, theme, ["predicted"], found.describe())


class Seen(ProgressView):
    """What a notebook would show, one picture after another."""

    def __init__(self):
        self.pages, self.told = [], []

    def __call__(self, done, total, text):
        self.told.append(text)

    def found(self, result):
        page = result._repr_html_()
        self.pages.append((len([t for t in self.told if "simulating" in t]), page))


def test_the_ranking_by_formula_is_there_first_and_simulations_follow(monkeypatch):
    seen = Seen()
    monkeypatch.setattr(
        "tpviz.verbs.search._simulated", lambda row: replace(row, simulated=2 * row.predicted)
    )
    given = [tv.Megatron(tp=4), tv.Megatron(tp=4, sp=True), tv.Megatron(tp=4, chunks=2)]
    found = tv.search(W, BOX, given, top=3, progress=seen)
    (before, first), *rest = seen.pages
    assert before == 0 and "simulated" not in first and "Megatron(tp=4)" in first
    assert len(rest) == 3 and all("simulated" in page for _, page in rest)
    simulated = [f">{show_seconds(r.simulated)}</td>" for r in found.rows if r.simulated]
    assert [sum(cell in page for cell in simulated) for _, page in rest] == [1, 2, 3]


def test_runs_on_ranks_are_told(monkeypatch):
    seen = Seen()
    monkeypatch.setattr("tpviz.verbs.search._measured", lambda row: replace(row, measured=1.0))
    found = tv.search(W, BOX, tv.Megatron, top=1, run=1, progress=seen)
    assert seen.told[-1] == f"running {found.best.short}"
    assert [row.measured for row in found.rows].count(1.0) == 1


def test_a_page_has_chart_and_table(found, tmp_path):
    text = found.to_html(tmp_path / "search.html").read_text()
    assert escape(found.best.short) in text and "tpviz-search" in text
    assert "width:100%" in text  # in a narrow column the chart shrinks: no point is cut off


def test_a_page_has_a_slider_for_what_the_chart_takes(found, tmp_path):
    page = found.to_html(tmp_path / "swept.html", {"most": [1, 2]}).read_text()
    packed = re.search(r"data-view='picture'>.*?>([\w+/=]+)<", page)[1]
    whole = json.loads(gzip.decompress(b64decode(packed)))
    assert whole["knobs"] == {"most": ["1", "2"]}
    charts = [state["scene"]["svg"] for state in whole["states"]]
    assert len(set(charts)) == 2
    assert all("tpviz-search" in chart for chart in charts)
    with pytest.raises(ValueError, match="give each knob some values"):
        found.to_html(tmp_path / "none.html", {"most": []})

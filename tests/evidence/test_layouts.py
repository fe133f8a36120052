"""Published layouts and who picks best: regrets by hand, the search's pick, parts of steps; nothing
here depends on how good the predictions are."""

from statistics import mean, median

import pytest

import tpviz as tv
from tpviz.evidence import layouts
from tpviz.evidence.layouts.group import FASTEST, MOST, RANDOM, SEARCH, YOU, knobs_of
from tpviz.evidence.published import scoreboard as score


@pytest.fixture(scope="module")
def group():
    return layouts.measured("llama-3B", gpus=32)


@pytest.fixture(scope="module")
def tested():
    return layouts.measured("llama-3B", gpus=256)


def test_points_are_the_published_rows_of_one_workload(group):
    rows = {r for r in tv.published("llama-3B", gpus=32) if r.step and r.micro_batch}
    assert {p.row for p in group.points} <= rows
    assert len(group.points) + group.left >= len(rows)
    assert len({p.plan.workload for p in group.points}) == 1
    assert len({p.plan.cluster for p in group.points}) == 1
    assert group.failed == len(tv.published("llama-3B", gpus=32, kind="failed"))


def test_one_name_may_be_models_of_several_shapes():
    large = layouts.measured("gpt-182B", gpus=384)
    assert len({p.plan.workload for p in large.points}) == 1 and large.left > len(large.points)
    assert "runs of" in large.words()[0]


def test_fitted_rows_are_called_so(group, tested):
    assert group.fitted and "may have been fitted" in group.notes()[0]
    assert not tested.fitted and "No number of the model was fitted" in tested.notes()[0]


def test_the_search_chooses_among_what_was_measured(group):
    assert {r.strategy for r in group.found.rows} <= {p.plan.strategy for p in group.points}
    pick = group.picks()[SEARCH]
    first = group.found.rows[0]
    assert pick and all(p.plan.strategy == group.found.best for p in pick)
    assert all(p.predicted == pytest.approx(first.predicted) for p in pick)
    fits = {r.strategy for r in group.found.rows}
    least = min(p.predicted for p in group.points if p.plan.strategy in fits)
    assert pick[0].predicted == pytest.approx(least)


def test_regrets_by_hand(group):
    steps = [p.row.step for p in group.points]
    picks = group.picks(group.points[:1])
    assert list(picks) == [FASTEST, SEARCH, MOST, RANDOM, YOU]
    assert group.regret(picks[FASTEST]) == 0 and group.place(picks[FASTEST]) == 1
    assert group.regret(picks[RANDOM]) == pytest.approx(mean(steps) / min(steps) - 1)
    assert group.regret(group.points[:1]) == pytest.approx(steps[0] / min(steps) - 1)
    assert group.place(group.points[:1]) == sorted(steps).index(steps[0]) + 1
    most = max(p.row.dp for p in group.points)
    assert {p.row.dp for p in picks[MOST]} == {most}
    largest = max(p.row.micro_batch for p in group.points if p.row.dp == most)
    assert {p.row.micro_batch for p in picks[MOST]} == {largest}
    half = median(steps) / min(steps) - 1
    assert f"at least {100 * half:.1f} % slower" in group.describe()


def test_rank_correlation_is_the_scoreboards(group):
    (ranked,) = score.rankings(group.points)
    assert group.correlation == pytest.approx(ranked.correlation)


def test_the_table_has_everybody(group):
    head, *rows = group.to_table(group.points[3:4])
    assert head == ["who", "layout", "predicted", "measured", "place", "regret"]
    assert [row[0] for row in rows] == [FASTEST, SEARCH, MOST, RANDOM, YOU]
    assert rows[0][1] == group.fastest.row.layout and rows[0][5] == "0.0 %"
    assert rows[3][1] == f"{len(group.points)} layouts, their mean" and rows[3][4] == ""
    assert repr(group).splitlines()[0] == group.title


# -- choices ---------------------------------------------------------------------------------------
def test_every_measured_layout_can_be_chosen(group):
    for point in group.points:
        assert point in group.at(**group.values_of(point))
        assert group.nearest(group.values_of(point)) == group.values_of(point)
    assert {len(stops) > 1 for stops in group.knobs.values()} == {True}
    assert "recompute" not in group.knobs and knobs_of(group.points[0].row)["recompute"] == "none"


@pytest.mark.parametrize("name", ["tp", "pp", "dp", "micro_batch", "zero"])
def test_the_knob_that_moved_keeps_its_value(group, name):
    values = group.values_of(group.points[0])
    for stop in group.knobs[name]:
        near = group.nearest({**values, name: stop}, keep=[name])
        assert near[name] == stop and group.at(**near)


def test_what_was_not_measured_is_refused(group):
    with pytest.raises(ValueError, match=r"no layout with tp=32, pp=16 .*nearest is tp=\d+, pp="):
        group.at(tp=32, pp=16)
    with pytest.raises(ValueError, match="cp=2: layouts differ in tp, pp, dp, micro_batch, zero"):
        group.nearest({"cp": 2})
    with pytest.raises(ValueError, match="no measured row has model='gpt-9'"):
        layouts.measured("gpt-9", gpus=8)
    with pytest.raises(ValueError, match="fewer than 5 of these 1 rows"):
        layouts.measured("gpt-39B", gpus=512)
    with pytest.raises(ValueError, match="source='megatron_sc21_table1' has no group of 5"):
        layouts.standing("megatron_sc21_table1")


# -- why -------------------------------------------------------------------------------------------
def test_parts_add_up_to_the_prediction(group):
    for point in group.points:
        split = layouts.parts(point)
        assert sum(split.values()) == pytest.approx(point.predicted)
        assert (split["bubble"] > 0) == (point.row.pp > 1)
    found = layouts.why(group, group.points[:1])
    for who, point in found.picks.items():
        assert found.residual(point) == pytest.approx(point.measured - point.predicted), who


def test_the_chart_has_parts_and_measured_steps(group):
    you = next(p for p in group.points if p.row.pp > 1 and p.row.tp > 1)
    found = layouts.why(group, [you])
    (panel,) = found.drawing()["panels"]
    bars = {t["name"]: dict(zip(t["x"], t["y"])) for t in panel["traces"]}
    assert {"compute", "exposed on tp", "bubble", "measured"} <= bars.keys()
    scale = you.measured / bars["measured"]["you: measured"]
    stack = [own["you: predicted"] for own in bars.values()]
    assert scale * sum(stack) == pytest.approx(you.predicted)
    assert bars["measured"]["you: predicted"] == bars["compute"]["you: measured"] == 0


def test_the_preference_is_the_larger_gain(group):
    found, slow = layouts.why(group), max(group.points, key=lambda p: p.predicted)
    if group.picks()[SEARCH][0].plan.strategy == group.fastest.plan.strategy:
        assert found.preference == "tv.search picks the fastest measured layout."
    worst = layouts.Layouts((slow._replace(measured=1e-3), *group.points), group.found)
    said = layouts.why(worst).preference
    ours, theirs = (layouts.parts(p) for p in (worst.picks()[SEARCH][0], slow))
    gains = {name: theirs.get(name, 0) - ours.get(name, 0) for name in {*ours, *theirs}}
    assert max(gains, key=gains.get) in said and "measured, the pick takes" in said


# -- a turn ----------------------------------------------------------------------------------------
def test_a_covered_turn_shows_no_time(tested):
    own = tested.points[5:6]
    turn = layouts.Turn(tested, tuple(own), covered=True)
    assert turn.badges == ("derived",)
    assert "Measured" not in turn.describe() and "predicted" not in turn.describe()
    assert {row[0] for row in turn.to_table()} >= {"parameters", "activations"}
    told = layouts.Turn(tested, tuple(own))
    assert told.verdict in told.describe() and told.to_table() == tested.to_table(own)
    assert told.badges == tested.badges


def test_a_turn_sends_what_the_ledger_says(tested):
    point = next(p for p in tested.points if p.row.tp > 1 < p.row.pp)
    turn, plan = layouts.Turn(tested, (point,), covered=True), point.plan
    total = sum(row.wire_bytes for row in plan.strategy.ledger(plan.workload))
    assert sum(turn.sent().values()) == pytest.approx(total) and {"tp", "pp"} <= turn.sent().keys()


# -- the scoreboard --------------------------------------------------------------------------------
def test_standing_is_of_rows_to_test_on():
    board = layouts.standing("bigscience")
    assert {p.row.part for p in board.points} == {"test"}
    regrets = board.regrets()
    assert [r.regret for r in board.rankings()] == regrets["fastest predicted"]
    for own, chance in zip(board.groups.values(), regrets[RANDOM]):
        assert chance == pytest.approx(mean(p.measured for p in own) / min(
            p.measured for p in own
        ) - 1)  # fmt: skip
    assert len(board.to_table()) == len(board.groups) + 1
    assert "Median regret: fastest predicted" in repr(board)


MAKERS = {
    "layouts": lambda: layouts.measured("llama-3B", gpus=256),
    "layouts near each other": lambda: layouts.measured("gpt-182B", gpus=384),
    "why": lambda: why_of(layouts.measured("llama-1B", gpus=64)),
    "turn": lambda: turn_of(False),
    "covered turn": lambda: turn_of(True),
    "standing": lambda: layouts.standing("bigscience"),  # of all rows in notebook 08
}


def why_of(group):
    return layouts.why(group, group.points[-1:])


def turn_of(covered):
    group = layouts.measured("llama-3B", gpus=64)
    point = next(p for p in group.points if p.row.tp > 1 < p.row.pp)
    return layouts.Turn(group, (point,), covered)


@pytest.mark.parametrize("name", MAKERS)
def test_every_report_has_a_chart_a_table_and_words(name, tmp_path):
    made = MAKERS[name]()
    assert made.describe() and len({len(row) for row in made.to_table()}) == 1
    assert all(made.to_svg(theme).startswith("<svg") for theme in ("light", "dark"))
    assert made.to_html(tmp_path / "x.html").exists()
    assert made.figure().data

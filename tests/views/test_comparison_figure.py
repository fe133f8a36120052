"""The comparison's scene and picture, from hand-made predictions and traces."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from synthetic import synthetic_trace

from tpviz.cluster.clock.cost import Segment, by_axis, parts
from tpviz.core.trace import Trace
from tpviz.verbs.compare import Comparison
from tpviz.views.figures.comparison import (
    comparison_scene,
    comparison_svg,
    describe,
    to_table,
)
from tpviz.views.figures.svg import image


@dataclass
class Foreseen:
    """What a figure asks of a `Prediction`."""

    segments: tuple
    badge: str = "predicted"

    @property
    def parts(self):
        return parts(self.segments)

    @property
    def step_time(self):
        return sum(self.parts.values())

    @property
    def exposed(self):
        return by_axis(self.segments, "exposed")

    @property
    def hidden(self):
        return by_axis(self.segments, "hidden")


@dataclass
class Found:
    """What a figure asks of a `Residual`."""

    parts: dict
    stragglers: tuple = ()
    slow_links: tuple = ()
    late: float = 0.0
    badge: str = "emulated"
    verdict: str = "Rank 2 is <slow> & late."
    rungs: dict = field(default_factory=dict)

    def share(self, part):
        return f"{100 * self.parts[part] / sum(self.parts.values()):.1f} %"


class Slow:
    """A straggler, or a slow link where ranks are given."""

    placed, factor = True, 2.0

    def __init__(self, rank):
        self.rank, self.ranks = rank, (rank,)


SEGMENTS = (
    Segment("forward", "a", 2e-3, {"tp": 1e-3}, latency=2e-4),
    Segment("backward", "a", 4e-3, {"tp": 1e-3}, {"dp": 2e-3}, latency=2e-4),
    Segment("backward", "b", 1e-3, {}, {"dp": 1e-3}),
    Segment("sync", "", 0.0, {"dp": 1.5e-3}, {}),
    Segment("optimizer", "", 5e-4),
)
RESIDUAL = {
    "compute": 7.5e-3,
    "bandwidth wait": 3e-3,
    "latency wait": 4e-4,
    "bubble": 0.0,
    "contention": 3e-4,
    "straggler": 2e-3,
    "slow link": 0.0,
    "unexplained": -1e-4,
}


def badged(badge, seed):
    trace = synthetic_trace(seed=seed)
    return Trace(trace.columns, {**trace.meta, "badge": badge})


@pytest.fixture(scope="module")
def made():
    """(prediction, simulated, measured, residual)."""
    found = Found(RESIDUAL, stragglers=(Slow(2),), late=1e-4)
    return Foreseen(SEGMENTS), badged("simulated", 0), badged("emulated", 1), found


@pytest.fixture(scope="module")
def scene(made):
    return comparison_scene(*made, title="Megatron <2>", caption="box (scale model: 1/8)")


def spans(scene, source, rank, axis="", of="bars"):
    """[(start, end)] of a lane, by start; source : position among the badges."""
    drawn = scene["sources"][source]
    columns = zip(*(drawn[of][name] for name in ("lane", "start", "end")))
    lanes = [(lane["rank"], lane["axis"]) for lane in drawn["lanes"]]
    return sorted((s, e) for lane, s, e in columns if lanes[lane] == (rank, axis))


def test_scene_is_json_with_three_lanes_a_rank(scene):
    assert json.loads(json.dumps(scene)) == scene
    assert scene["badges"] == ["predicted", "simulated", "emulated"]
    assert scene["ranks"] == [0, 2]  # who is blamed, and one other
    for source in scene["sources"]:
        assert [(lane["rank"], lane["axis"]) for lane in source["lanes"]] == [
            (rank, axis) for rank in (0, 2) for axis in ("", "tp", "dp")
        ]
        inks = {key["label"]: key["key"] for key in source["keys"] if key["kind"] == "comm"}
        assert inks == {"tp": "axis0", "dp": "axis1"}
    ends = re.findall(r">(predicted|simulated|emulated)</text>", comparison_svg(scene))
    assert ends.count("predicted") == 1 + 2  # a badge, and the lane of each rank


def test_bars_are_those_of_the_median_step_from_its_start(made, scene):
    from tpviz.core.trace.steps import median_step

    for source, trace in ((1, made[1]), (2, made[2])):
        step = median_step(trace)
        zero = step.select(kind="step")["start"].min()
        for axis, lane in (("", "compute"), ("tp", "comm/tp"), ("dp", "comm/dp")):
            mine = step.select(rank=2, lane=lane)
            expected = sorted(zip(mine["start"] - zero, mine["end"] - zero))
            drawn = spans(scene, source, 2, axis)
            assert drawn == [pytest.approx(span, abs=2e-9) for span in expected]
            bare = sum(end - start for start, end in spans(scene, source, 2, axis, "exposed"))
            if axis:
                assert bare == 0
            else:
                assert bare == pytest.approx(step.exposed_communication(2), abs=1e-6)


def test_outlines_follow_the_segments(scene):
    found = spans(scene, 0, 0)
    assert found[0] == (0.0, 2e-3)
    assert found[-1][1] == pytest.approx(11e-3)
    for (_, end), (start, _) in pairwise(found):
        assert start == pytest.approx(end)
    assert spans(scene, 0, 0, "dp") == [
        pytest.approx(span) for span in [(3e-3, 5e-3), (8e-3, 9e-3), (9e-3, 10.5e-3)]
    ]
    assert spans(scene, 0, 0, "tp") == [pytest.approx(s) for s in [(2e-3, 3e-3), (7e-3, 8e-3)]]


def test_lanes_do_not_cover_each_other(scene):
    """Those of a rank and a source follow within its own height, in the order of the badges."""
    svg = comparison_svg(scene)
    tops = [float(y) for y in re.findall(r"<g transform='translate\(0 ([-\d.]+)\)'>", svg)]
    highs = [source["lanes"][k]["at"][0][0] for k in (0, 3) for source in scene["sources"]]
    places = [top + high for top, high in zip(tops, highs)]
    assert len(tops) == 6 and min(b - a for a, b in pairwise(places)) >= 22 + 1 + 2 * 6


def test_only_parts_that_take_time_have_a_row(scene):
    """Zero as measured and as predicted: no row; in the table, all of them."""
    svg = comparison_svg(scene)
    for part, length in RESIDUAL.items():
        assert (f">{part}</text>" in svg) == bool(length), part
    assert [row[0] for row in to_table(scene)][1 : 1 + len(RESIDUAL)] == list(RESIDUAL)
    foreseen = [
        {**part, "predicted": [0.0, 1e-3]} if part["name"] == "bubble" else part
        for part in scene["parts"]
    ]
    assert ">bubble</text>" in comparison_svg({**scene, "parts": foreseen})


def test_numbers_stand_in_two_columns(scene):
    """Right-aligned, of the simulation and of the run, each with its own name above."""
    svg = comparison_svg(scene)
    numbers = dict(scene["numbers"])
    shown = [numbers["overlap (all ranks)"], numbers["exposed communication (worst rank)"]]
    found = {
        words: float(x)
        for x, words in re.findall(r"<text x='([\d.]+)'[^>]*text-anchor='end'[^>]*>([^<]+)<", svg)
    }
    left, right = found["40.0 %"], found[f"{numbers['emulated / simulated'][0]}"]
    assert [found[words] for words in shown[0]] == [left, right] and left < right
    assert [found[words] for words in shown[1]] == [left, right]
    assert "(" not in "".join(word for texts in numbers.values() for word in texts)


def test_a_legend_has_six_entries_at_most(scene):
    """What rows and columns name is not said again."""
    svg = comparison_svg(scene)
    after = svg[svg.index("step, emulated") :]
    names = re.findall(
        r">(forward|backward|recompute|optimizer|communication \w+|exposed[^<]*)<", after
    )
    assert len(set(names)) == len(names) == 7  # exposed communication is in the table of numbers
    assert [name for name in names if name.startswith("exposed")] == [
        "exposed communication (worst rank)"
    ]


def test_parts_stand_end_to_end_up_to_the_step(scene):
    at = 0.0
    for part in scene["parts"]:
        assert part["start"] == pytest.approx(at)
        at += part["seconds"]
    assert at == pytest.approx(sum(RESIDUAL.values()))
    predicted = [part["predicted"] for part in scene["parts"] if part["predicted"]]
    assert predicted[0][0] == 0.0
    assert predicted[-1][1] == pytest.approx(scene["marks"][0][1])


def test_a_slow_link_is_shown_too_and_ranks_can_be_chosen(made):
    prediction, simulated, measured, _ = made
    found = Found(RESIDUAL, slow_links=(Slow(3),))
    assert comparison_scene(prediction, simulated, measured, found)["ranks"] == [0, 3]
    assert comparison_scene(*made[:3], Found(RESIDUAL))["ranks"] == [0]
    assert comparison_scene(*made, ranks=[1])["ranks"] == [1]
    with pytest.raises(ValueError, match=r"ranks=\[7\]: choose one or more of \[0, 1, 2, 3\]"):
        comparison_scene(*made, ranks=[7])
    with pytest.raises(ValueError, match=r"ranks=\[\]"):
        comparison_scene(*made, ranks=[])


@pytest.mark.parametrize("theme", ["light", "dark", "auto", "page"])
def test_svg_is_well_formed_and_says_it_all(scene, theme):
    svg = comparison_svg(scene, theme=theme)
    ElementTree.fromstring(svg)
    assert f"tpv-{theme}" in svg
    for words in (
        "predicted",
        "simulated",
        "emulated",
        "on box (scale model: 1/8)",
        "rank 2",
        "communication dp",
        *(part for part, length in RESIDUAL.items() if length),
        "2 ms",
        "Megatron &lt;2&gt;",
        "Rank 2 is &lt;slow&gt; &amp; late.",
    ):
        assert words in svg


def test_a_page_says_the_verdict_beside_the_picture(scene):
    with_it, without = comparison_svg(scene), comparison_svg(scene, verdict=False)
    assert "is &lt;slow&gt;" in with_it and "is &lt;slow&gt;" not in without
    assert len(re.findall("<text", with_it)) == len(re.findall("<text", without)) + 1
    with pytest.raises(ValueError, match="verdict"):
        comparison_svg(scene, verdict="no")


def test_badges_stand_in_every_picture_text_and_table(made):
    for badge in ("<nowhere>", None):
        other = Trace(made[2].columns, {**made[2].meta, "badge": badge})
        scene = comparison_scene(*made[:2], other, made[3])
        shown = badge or "origin unknown"
        assert scene["badges"][2] == shown
        assert shown in describe(scene)
        assert shown in to_table(scene)[0]
        assert shown.replace("<", "&lt;").replace(">", "&gt;") in comparison_svg(scene)


def test_equal_step_times_have_one_label(scene):
    same = {**scene, "marks": [[badge, 9e-3] for badge, _ in scene["marks"]]}
    assert ">predicted = simulated = emulated 9 ms<" in comparison_svg(same)


def test_labels_of_near_step_times_do_not_cover_each_other(scene):
    near = [[badge, (9 + 0.01 * i) / 1e3] for i, (badge, _) in enumerate(scene["marks"])]
    found = re.findall(
        r"y='([\d.]+)'[^>]*>(?:predicted|simulated|emulated) 9[.\d]* ms<",
        comparison_svg({**scene, "marks": near}),
    )
    heights = sorted(float(y) for y in found)
    assert len(heights) == 3
    assert min(b - a for a, b in pairwise(heights)) >= 12


def test_numbers_do_not_run_into_names(scene):
    """A character is at most 6.2 px wide at 11 px: the longest name ends before its number."""
    from tpviz.views.figures.comparison import NUMBERS

    longest = max(10 + 6.2 * len(part["name"]) for part in scene["parts"])
    assert longest < NUMBERS - 6.2 * len("99.9 ms") + 1


def test_without_a_run_or_a_formula(made):
    prediction, simulated, _, residual = made
    only = comparison_scene(prediction, simulated, None, residual)
    assert only["badges"] == ["predicted", "simulated"]
    assert to_table(only)[-1][0] == "step"
    unforeseen = comparison_scene(None, simulated, made[2], residual)
    assert unforeseen["badges"] == ["simulated", "emulated"]
    assert len(unforeseen["sources"]) == 2
    assert {row[1] for row in to_table(unforeseen)[1:]} == {""}
    for scene in (only, unforeseen):
        ElementTree.fromstring(comparison_svg(scene))
    assert "predicted" not in comparison_svg(unforeseen)


def test_table_and_words(scene):
    table = to_table(scene)
    assert table[0] == ["part", "predicted", "emulated", "share"]
    assert table[1] == ["compute", "7.5 ms", "7.5 ms", "57.3 %"]
    assert table[-2][:2] == ["step", "11 ms"]
    assert table[-1][0] == "step, simulated"
    words = describe(scene)
    assert words.startswith("One step of Megatron <2> on box (scale model: 1/8): 11 ms predicted,")
    assert "straggler 2 ms (15.3 %)" in words
    assert "bubble" not in words
    assert words.endswith("Rank 2 is <slow> & late.")


def test_html_is_the_picture_of_the_page_and_the_table(scene):
    svg = comparison_svg(scene)
    compared = Comparison(None, None, None)
    compared.scene = scene
    html = compared._repr_html_()
    assert html.startswith(image(svg, describe(scene)))
    assert html.count("<tr>") == len(to_table(scene))


def test_too_narrow_is_refused(scene):
    with pytest.raises(ValueError, match="width=300 px leaves the lanes no room: use 478"):
        comparison_svg(scene, width=300)


def test_many_segments_give_a_small_picture(made):
    many = Foreseen(tuple(Segment("forward", "", 1e-6, {"tp": 1e-6}) for _ in range(5000)))
    scene = comparison_scene(many, *made[1:])
    assert len(comparison_svg(scene)) < 150_000

"""A long trace: what is drawn is bounded, every number is that of the whole trace, and those of the
headline are of its median step."""

import json
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from synthetic import large_trace, synthetic_trace

from tpviz.core.trace import Event, Trace
from tpviz.core.trace.steps import median_step
from tpviz.views.figures.page import page
from tpviz.views.figures.timeline import describe, timeline_levels, timeline_svg, to_table
from tpviz.views.figures.timeline_bars import BARS
from tpviz.views.widgets import Timeline

EVENTS = 100_000


@pytest.fixture(scope="module")
def trace():
    return large_trace(EVENTS)


@pytest.fixture(scope="module")
def levels(trace):
    return timeline_levels(trace, critical=True)


def per_lane(level):
    """{(lane, key): [events, seconds]} of the bars of a level."""
    bars, sums = level["bars"], {}
    count = bars.get("count") or [1] * len(bars["id"])
    busy = bars.get("busy") or np.subtract(bars["end"], bars["start"]).tolist()
    for lane, key, *values in zip(bars["lane"], bars["key"], count, busy):
        sums[lane, key] = np.add(sums.get((lane, key), 0.0), values)
    return sums


def test_a_scene_is_small(levels):
    scene, _ = levels
    assert len(json.dumps(scene)) < 4_000_000
    assert BARS / 4 < len(scene["bars"]["id"]) <= BARS
    assert len(scene["detail"]["bars"]["id"]) <= BARS
    assert len(scene["exposed"]["lane"]) <= BARS / 4
    assert {len(column) for column in scene["bars"].values()} == {len(scene["bars"]["id"])}


def test_numbers_are_those_of_the_whole_trace_and_of_its_median_step(trace, levels):
    scene, bars = levels
    whole = bars.level(most=len(trace))
    assert "cut" not in whole
    drawn, every = per_lane(scene), per_lane(whole)
    assert drawn.keys() == every.keys()
    assert all(drawn[k] == pytest.approx(every[k], abs=1e-5) for k in every)
    assert to_table(scene) == to_table({**scene, "bars": whole["bars"]})
    metrics = dict(scene["metrics"])
    assert metrics["overlap (all ranks)"] == f"{100 * median_step(trace).overlap():.1f} %"
    assert f"{(trace['kind'] != 'step').sum()} events" in describe(scene)
    lengths = np.subtract(scene["exposed"]["end"], scene["exposed"]["start"])
    lane = np.array(scene["exposed"]["lane"])
    for i, info in enumerate(scene["lanes"]):
        if info["lane"] == "compute":
            bare = trace.exposed_communication(info["rank"])
            assert lengths[lane == i].sum() == pytest.approx(bare, abs=1e-5)


def test_merged_bars_are_as_long_as_their_events_and_of_one_lane_do_not_overlap(levels):
    bars = levels[0]["bars"]
    start, end, lane, busy, count = (
        np.array(bars[c]) for c in ("start", "end", "lane", "busy", "count")
    )
    assert (end - start)[count > 1] == pytest.approx(busy[count > 1], abs=3e-9)
    same = (lane[1:] == lane[:-1]) & (count[1:] > 1) & (count[:-1] > 1)
    assert same.sum() > 1000
    assert (start[1:][same] >= end[:-1][same] - 1e-8).all()
    assert set(np.array(bars["id"])[count > 1]) == {-1}


def test_overlapping_events_of_one_lane_are_merged_within_the_time_they_cover():
    rows = [
        Event(kind="comm", lane="comm/tp", axis="tp", start=i * 1e-6, end=i * 1e-6 + 5e-6)
        for i in range(2 * BARS)
    ]
    scene, _ = timeline_levels(Trace.from_events(rows))
    assert sum(scene["bars"]["busy"]) == pytest.approx(2 * BARS * 5e-6)
    assert max(scene["bars"]["end"]) <= scene["duration"]


def test_a_window_has_every_event_of_it(trace, levels):
    scene, bars = levels
    low, high = scene["detail"]["window"]
    start, end = (np.round(trace[name], 9) for name in ("start", "end"))  # as bars have them
    inside = (end >= low) & (start <= high) & (trace["kind"] != "step")
    for level in (scene["detail"], bars.level(low, high)):
        assert sorted(level["bars"]["id"]) == sorted(trace["id"][inside].tolist())
        assert level["cut"] == 0
        assert f"All {inside.sum():,} events of this range are drawn" in level["note"]
    assert high - low == pytest.approx(trace.step_time, rel=0.01)  # the median step


def test_a_finer_window_merges_less(levels):
    scene, bars = levels
    half = bars.level(0.0, scene["duration"] / 2)
    assert 0 < half["cut"] < scene["cut"]
    assert len(half["bars"]["id"]) <= BARS


def test_the_critical_path_is_outlined_on_merged_bars_too(levels):
    scene, bars = levels
    outlined = set(scene["critical"])
    assert 0 < len(outlined) <= len(scene["bars"]["id"])
    detail = scene["detail"]
    path = bars.trace["id"][bars.rows[bars.critical]].tolist()
    assert [detail["bars"]["id"][i] for i in detail["critical"]] == [
        i for i in path if i in set(detail["bars"]["id"])
    ]


def test_the_picture_opens_at_the_median_step_and_says_what_is_drawn(levels):
    scene, _ = levels
    first, whole = timeline_svg(scene), timeline_svg(scene, window=(0, scene["duration"]))
    words = [re.sub("</text><text[^>]*>", " ", svg) for svg in (first, whole)]  # of all lines
    assert scene["detail"]["note"] in words[0]
    assert scene["note"] in words[1]
    assert "shorter than" in scene["note"]
    for svg in (first, whole):
        ElementTree.fromstring(svg)
        assert len(svg) < 3_000_000


def test_a_trace_of_few_events_is_drawn_as_it_is():
    scene, _ = timeline_levels(synthetic_trace())
    assert not {"cut", "note", "window", "detail"} & scene.keys()
    assert not {"count", "busy"} & scene["bars"].keys()


def test_a_widget_sends_the_detail_of_its_window(trace):
    view, heard = Timeline(trace), []
    assert repr(view).endswith(f"8 ranks, {(trace['kind'] != 'step').sum()} events>")
    view.observe(lambda change: heard.append(change.name), ["detail", "generation"])
    low, high = view.scene["steps"][3]
    view.window = [low, high]
    assert heard == ["detail", "generation"]
    assert view.detail["window"][0] < low < high < view.detail["window"][1]
    assert view.detail["cut"] == 0
    assert "All " in view.to_svg(window=(low, high))
    view.show(synthetic_trace())
    assert (view.window, view.detail) == ([], {})
    heard.clear()
    view.window = [0.0, 1e-3]  # everything is there
    assert heard == []


def test_a_page_opens_at_the_median_step_and_merges_the_rest(tab, trace, levels, tmp_path):
    path, scene = tmp_path / "long.html", levels[0]
    path.write_text(page(trace))
    assert path.stat().st_size < 5_000_000
    tab.goto(path.as_uri())
    view = tab.locator(".tpv-timeline[data-ready]")
    view.wait_for()
    note, svg = view.locator(".tpv-note"), view.locator("svg[role=application]")
    assert note.text_content() == scene["detail"]["note"]
    svg.focus()
    svg.press("ArrowRight")
    assert "merged" not in view.locator(".tpv-live").text_content()
    svg.press("0")
    tab.wait_for_function(f"document.querySelector('.tpv-note').textContent === {scene['note']!r}")
    svg.press("ArrowRight")
    assert "events, merged" in view.locator(".tpv-live").text_content()

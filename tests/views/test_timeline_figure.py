import json
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from synthetic import synthetic_trace

from tpviz.core.trace import Event, Trace
from tpviz.core.trace.analyses import subtract
from tpviz.core.trace.steps import median_step
from tpviz.files.load import load_trace
from tpviz.views.figures.svg import amount, seconds
from tpviz.views.figures.timeline import describe, timeline_scene, timeline_svg, to_table


@pytest.fixture(scope="module")
def trace():
    return synthetic_trace()


@pytest.fixture(scope="module")
def scene(trace):
    return timeline_scene(trace)


def two_events(**meta):
    """A compute bar over [0, 2) and communication over [1, 4): 2 s of it are exposed."""
    return Trace.from_events(
        [
            Event(name="mm", phase="forward", end=2.0),
            Event(
                lane="comm/tp",
                kind="comm",
                name="all_reduce",
                axis="tp",
                members="0,1",
                start=1.0,
                end=4.0,
                bytes=1000,
            ),
        ],
        meta,
    )


def test_scene_is_json_and_keeps_every_event(trace, scene):
    again = json.loads(json.dumps(scene))
    assert again["duration"] == scene["duration"]
    drawn = trace.where(trace["kind"] != "step")
    assert sorted(scene["bars"]["id"]) == sorted(drawn["id"].tolist())
    assert {len(column) for column in scene["bars"].values()} == {len(drawn)}


def test_bars_say_what_the_events_say(trace, scene):
    events, bars = {e.id: e for e in trace}, scene["bars"]
    for i, event in enumerate(events[id] for id in bars["id"]):
        lane = scene["lanes"][bars["lane"][i]]
        assert (lane["rank"], lane["lane"]) == (event.rank, event.lane)
        assert scene["strings"][bars["name"][i]] == event.name
        assert scene["strings"][bars["layer"][i]] == event.layer
        assert bars["start"][i] == pytest.approx(event.start, abs=1e-9)
        assert (bars["flops"][i], bars["bytes"][i], bars["waits_for"][i]) == (
            event.flops,
            event.bytes,
            event.waits_for,
        )
        key = scene["keys"][bars["key"][i]]
        assert key["kind"] == event.kind
        if event.kind == "compute":
            assert key["key"] == event.phase
        if event.kind == "comm":
            assert key["label"] == event.axis


def test_lanes_are_compute_then_inner_axis_then_outer(scene):
    assert [(lane["rank"], lane["name"]) for lane in scene["lanes"][:4]] == [
        (0, "compute"),
        (0, "tp"),
        (0, "dp"),
        (1, "compute"),
    ]


def test_a_rank_that_only_communicates_has_a_compute_lane():
    only = Trace.from_events(
        [Event(rank=1, lane="comm/world", kind="comm", name="barrier", axis="world", end=1.0)]
    )
    assert [lane["name"] for lane in timeline_scene(only)["lanes"]] == ["compute", "world"]
    assert timeline_scene(only)["exposed"] == {"lane": [0], "start": [0.0], "end": [1.0]}


def test_exposed_communication_is_where_nothing_is_computed():
    scene = timeline_scene(two_events())
    assert scene["exposed"] == {"lane": [0], "start": [2.0], "end": [4.0]}


def test_exposed_spans_add_up_to_the_analysis(trace, scene):
    exposed = scene["exposed"]
    for rank in trace.ranks:
        total = sum(
            end - start
            for lane, start, end in zip(exposed["lane"], exposed["start"], exposed["end"])
            if scene["lanes"][lane]["rank"] == rank
        )
        assert total == pytest.approx(trace.exposed_communication(rank), abs=1e-6)


def test_idle_time_has_a_number_a_colour_and_a_name(trace, scene):
    """On each rank's compute lane, of the steps; the header and the words have its share."""
    idle = scene["idle"]
    for rank in trace.ranks:
        total = sum(
            end - start
            for lane, start, end in zip(idle["lane"], idle["start"], idle["end"])
            if scene["lanes"][lane]["rank"] == rank and scene["lanes"][lane]["lane"] == "compute"
        )
        assert 0 < total == pytest.approx(trace.idle(rank), abs=1e-6)
        row = next(r for r in to_table(scene) if r[0] == str(rank) and r[2] == "idle")
        assert row[4] == seconds(total)
    share = f"idle {100 * median_step(trace).idle() / trace.step_time:.1f} %"
    assert share in describe(scene)
    svg = timeline_svg(scene)
    assert f">{share}</text>" in svg
    assert svg.count("class='f-idle'") == len(trace.ranks) + 2  # of the step, and its label


def test_no_idle_time_no_mark():
    scene = timeline_scene(two_events())
    assert scene["idle"]["lane"] == []
    assert ">idle" not in timeline_svg(scene) and "idle" not in describe(scene)


def test_the_longest_idle_time_of_a_rank_has_a_name_where_it_is_wide_enough():
    rows = [Event(rank=rank, end=1.0) for rank in (0, 1)]
    rows += [Event(rank=rank, start=s, end=s + 1) for rank in (0, 1) for s in (3.0 - rank, 9.0)]
    names = re.findall(
        r"x='([\d.]+)'[^>]*>idle</text>", timeline_svg(timeline_scene(Trace.from_events(rows)))
    )
    second, first = map(float, names)  # of rank 1 from 3 to 9 s, of rank 0 from 4 to 9 s
    scale = (652 - timeline_scene(Trace.from_events(rows))["gutter"][0]) / 10
    assert first == pytest.approx(652 - 3.5 * scale, abs=0.1)
    assert second == pytest.approx(652 - 4 * scale, abs=0.1)
    narrow = [Event(end=1.0), Event(start=1.02, end=2.0)]
    assert ">idle</text>" not in timeline_svg(timeline_scene(Trace.from_events(narrow)))


def test_the_header_of_our_gpu_trace_says_that_the_gpu_is_idle():
    """Most of its step it runs nothing; exposed communication comes second."""
    scene = timeline_scene(load_trace(Path(__file__).parents[2] / "docs/gpu/kineto"))
    words = describe(scene)
    assert "of it, mean of 2 ranks: idle 59.8 %, exposed communication 36.2 % (" in words
    svg = timeline_svg(scene)
    for label in ("computing 1.5", "exposed communication 36.2", "copying 2.5", "idle 59.8"):
        assert f">{label} %</text>" in svg
    places = [float(x) for x in re.findall(r"<text x='([\d.]+)'[^>]*>[a-z ]+ [\d.]+ %</text>", svg)]
    assert len(places) == 4 and places == sorted(places, reverse=True)  # from the last part on


def test_computation_of_every_stream_hides_communication():
    other = Event(lane="compute/stream 20", name="mm", start=2.0, end=3.5)
    rows = [e._replace(id=-1) for e in [*two_events(), other]]
    scene = timeline_scene(Trace.from_events(rows))
    assert scene["exposed"] == {"lane": [0], "start": [3.5], "end": [4.0]}
    assert timeline_svg(scene).count(">rank 0</text>") == 1


def test_notes_are_named_in_the_badge_and_told_in_full_below():
    notes = ["group unknown: 2 collectives", "launched before the profile: 1 kernel, in no step"]
    trace = two_events(badge="imported", notes=notes)
    assert trace.badge == "imported; group unknown; launched before the profile"
    scene = timeline_scene(trace)
    sentences = "Group unknown: 2 collectives. Launched before the profile: 1 kernel, in no step."
    assert " ".join(scene["notes"]) == sentences
    svg = timeline_svg(scene)
    assert ">imported; group unknown; launched before the profile</text>" in svg
    assert sentences in re.sub("</text><text[^>]*>", " ", svg) and sentences in describe(scene)
    more = ["bytes unknown: 1 kernel", "2 names cut", "rank0.json: 3 bytes replaced (at 9)"]
    many = two_events(badge="imported", notes=["steps by the GPUs' own time", *notes, *more])
    subjects = "group and bytes unknown; launched before the profile; 2 names cut; 2 more notes"
    assert many.badge == f"imported; {subjects}"
    twice = Trace.merge([trace, many])
    assert twice.fact("notes") == [*notes, "steps by the GPUs' own time", *more]


def test_a_copy_has_a_colour_of_its_own():
    copy = Event(id=2, kind="copy", lane="copy", name="HtoD", start=4.0, end=5.0, bytes=7)
    scene = timeline_scene(Trace.from_events([*two_events(), copy]))
    assert [k["kind"] for k in scene["keys"]] == ["compute", "comm", "copy"]
    assert ">copy</text>" in timeline_svg(scene) and scene["idle"]["lane"] == []
    assert ["0", "copy", "copy", "1", "1 s", "7 B"] in to_table(scene)


def test_subtract():
    a, b = (
        (np.array([0.0, 4.0]), np.array([3.0, 6.0])),
        (np.array([1.0, 5.0]), np.array([2.0, 9.0])),
    )
    assert [x.tolist() for x in subtract(a, b)] == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
    none = np.zeros(0), np.zeros(0)
    assert [x.tolist() for x in subtract(a, none)] == [[0.0, 4.0], [3.0, 6.0]]
    assert [x.tolist() for x in subtract(none, b)] == [[], []]


def test_badge_cannot_be_turned_off():
    assert timeline_scene(two_events())["badge"] == "origin unknown"
    scene = timeline_scene(two_events(badge="simulated"))
    assert ">simulated</text>" in timeline_svg(scene)
    assert "simulated" in describe(scene)


@pytest.mark.parametrize("steps", range(1, 6))
@pytest.mark.parametrize("seed", range(4))
def test_metrics_are_all_of_the_median_step(steps, seed):
    """A mean of exposed communication beside a median step can exceed it."""
    trace = synthetic_trace(steps=steps, seed=seed)
    slow = np.where(trace["step"] == steps - 1, 10.0, 1.0)  # the last step
    stretched = {name: trace[name] * slow for name in ("start", "end")}
    trace = Trace({**trace.columns, **stretched}, trace.meta)
    one = median_step(trace)
    assert one.steps == [one.steps[0]] and 0 < one.exposed_communication() <= one.step_time
    assert one.step_time == trace.step_time
    assert dict(timeline_scene(trace)["metrics"]) == {
        f"step time (median of {steps})" if steps > 1 else "step time": seconds(one.step_time),
        "overlap (all ranks)": f"{100 * one.overlap():.1f} %",
        "exposed communication (worst rank)": seconds(one.exposed_communication()),
    }
    spent, mean = timeline_scene(trace)["spent"], one.breakdown().mean
    assert spent["words"] == f"of it, mean of 4 ranks: {mean.describe()}"
    shares = {part["key"]: part["share"] for part in spent["parts"]}
    assert sum(shares.values()) == pytest.approx(1.0)
    assert shares.pop("exposed") == pytest.approx(mean.exposed / mean.span)
    assert shares.pop("idle") == pytest.approx(mean.idle / mean.span)
    for phase, share in shares.items():  # copying is zero, and is not there
        seconds_of = [
            np.subtract(mine["end"], mine["start"]).sum()
            for rank in one.ranks
            for mine in [one.select(rank=rank, kind="compute", phase=phase)]
        ]
        assert share == pytest.approx(np.mean(seconds_of) / mean.span)
    alone = timeline_scene(one.select(rank=0))
    assert [label for label, _ in alone["metrics"]][1:] == ["overlap", "exposed communication"]
    assert alone["spent"]["title"] == "where the step went"


def test_a_step_without_time_went_nowhere_known():
    scene = timeline_scene(Trace.from_events([Event(name="mm")]))
    assert scene["spent"]["parts"] == [] and "unknown" in scene["spent"]["title"]
    assert "unknown, it takes no time" in timeline_svg(scene)


def test_a_rank_is_one_lane_with_its_axes_at_the_foot(scene):
    """No two lanes of either form cover each other; in the first, ranks are 42 px apart."""
    for form in (0, 1):
        places = [lane["at"][form] for lane in scene["lanes"]]
        for (top, height), (below, _) in pairwise(places):
            assert top + height < below
        assert top + height <= scene["high"][form]
    compute = [lane["at"] for lane in scene["lanes"] if lane["lane"] == "compute"]
    assert [at[0] for at in compute] == [[42 * rank, 22] for rank in range(4)]
    assert {lane["at"][0][1] for lane in scene["lanes"] if lane["axis"]} == {5}
    assert scene["high"][0] < scene["high"][1]
    assert ">tp</text>" not in timeline_svg(scene)
    assert timeline_svg(scene, axes=True).count(">tp</text>") == 4


def test_other_streams_compute_in_the_lane_of_their_rank():
    """Below the main one; strips are thinner where there are many."""
    lanes = ["compute", "compute/stream 20", *(f"comm/{a}" for a in "abcd")]
    rows = [
        Event(lane=n, kind=n.partition("/")[0], start=i, end=i + 1) for i, n in enumerate(lanes)
    ]
    scene = timeline_scene(Trace.from_events(rows))
    at = {lane["lane"]: lane["at"][0] for lane in scene["lanes"]}
    assert at["compute"] == at["compute/stream 20"] == [0, 22]
    assert sorted(at[f"comm/{a}"] for a in "abcd") == [[23, 3], [27, 3], [31, 3], [35, 3]]


@pytest.mark.parametrize("start, said", [(2.0, False), (3.9, False), (4.5, True)])
def test_waiting_is_exposed_communication_or_idle(start, said):
    """Whether communication is in flight says which; the wait itself is there where one points."""
    rows = [*two_events(), Event(id=2, kind="wait", name="wait", start=start, end=start + 0.1)]
    scene = timeline_scene(Trace.from_events(rows))
    svg = timeline_svg(scene)
    assert "waiting</text>" not in svg and "'f-wait" not in svg
    assert (">idle" in svg) == said
    assert 2 in scene["bars"]["id"]


def test_the_memory_strip_has_an_axis(scene):
    svg = timeline_svg(scene)
    assert ">0 B</text>" in svg
    peak = amount(scene["memory"]["0"]["peak"])
    assert f">memory of rank 0, peak {peak}</text>" in svg and f">{peak}</text>" in svg


def test_memory_keeps_its_peak_when_thinned():
    count = 10_000
    memory = {
        0: {
            "time": np.linspace(0, 1, count).tolist(),
            "parameters": [5] * count,
            "gradients": [0] * count,
            "optimizer": [0] * count,
            "activations": [900 if i == 4321 else 1 for i in range(count)],
        }
    }
    scene = timeline_scene(two_events(memory=memory))
    thin = scene["memory"]["0"]
    assert len(thin["time"]) <= 1500
    assert thin["peak"] == 905
    assert max(thin["activations"]) == 900


def test_memory_of_a_later_step_is_laid_under_every_step_and_says_so():
    samples = {
        "time": [7.0, 8.0, 9.0],
        "parameters": [4, 4, 4],
        "gradients": [0, 1, 0],
        "optimizer": [0, 0, 0],
        "activations": [0, 9, 0],
    }
    events = [
        Event(name="mm", end=1.0),
        Event(name="mm", start=1.0, end=3.0),
        Event(kind="step", lane="step", step=0, end=1.0),
        Event(kind="step", lane="step", step=1, start=1.0, end=3.0),
    ]
    scene = timeline_scene(Trace.from_events(events, {"memory": {0: samples}}))
    assert scene["memory"]["0"]["time"] == [0.0, 0.5, 1.0, 1.0, 2.0, 3.0]
    assert scene["memory"]["0"]["activations"] == [0, 9, 0] * 2
    assert "an extra step" in timeline_svg(scene)
    inside = timeline_scene(
        Trace.from_events(events, {"memory": {0: {**samples, "time": [0.0, 1.0, 2.5]}}})
    )
    assert inside["memory"]["0"]["time"] == [0.0, 1.0, 2.5]
    assert inside["memory"]["0"]["note"] == ""


def test_no_events_is_an_error():
    with pytest.raises(ValueError, match="nothing to draw"):
        timeline_scene(Trace.from_events([Event(kind="step", lane="step", end=1.0)]))


def test_critical_path_points_at_bars(trace):
    scene = timeline_scene(trace, critical=True)
    assert [scene["bars"]["id"][i] for i in scene["critical"]] == [
        e.id for e in trace.critical_path() if e.kind != "step"
    ]
    assert "stroke-width='1.6'/>" in timeline_svg(scene)


@pytest.mark.parametrize("theme", ["auto", "light", "dark"])
def test_svg_is_well_formed_and_shows_each_kind(scene, theme):
    svg = timeline_svg(scene, theme=theme)
    ElementTree.fromstring(svg)
    for key in (
        "forward",
        "backward",
        "recompute",
        "optimizer",
        "axis0",
        "axis1",
        "exposed",
        "activations",
    ):
        assert f"class='f-{key}" in svg
    assert re.search(rf"url\(#tpv-{theme}-\w+-exposed\)", svg)
    assert "memory of rank 0" in svg


def test_svg_of_another_rank_and_window(scene):
    assert "memory of rank 2" in timeline_svg(scene, rank=2)
    assert len(timeline_svg(scene, window=(0.0, 0.002))) < len(timeline_svg(scene))
    with pytest.raises(ValueError, match=r"rank=9 .* \[0, 1, 2, 3\]"):
        timeline_svg(scene, rank=9)
    with pytest.raises(ValueError, match="is empty"):
        timeline_svg(scene, window=(1.0, 1.0))


def test_text_from_a_trace_is_escaped():
    scene = timeline_scene(two_events(badge="<script>", strategy="a & b"))
    assert "<script>" not in timeline_svg(scene)
    ElementTree.fromstring(timeline_svg(scene))


def test_bars_closer_than_a_fraction_of_a_pixel_are_drawn_as_one():
    events = [
        Event(name="mm", phase="forward", start=i * 1e-6, end=i * 1e-6 + 0.9e-6)
        for i in range(5000)
    ]
    scene = timeline_scene(Trace.from_events(events))
    assert len(scene["bars"]["id"]) == 5000
    assert len(timeline_svg(scene)) < 20_000


def test_table_counts_every_event(scene):
    header, *rows = to_table(scene)
    assert header[:3] == ["rank", "lane", "what"]
    assert sum(int(row[3]) for row in rows if row[2] != "idle") == len(scene["bars"]["id"])
    assert ["0", "tp", "tp", "12"] in [row[:4] for row in rows]


def test_description_names_the_axes_and_the_worst_rank(scene):
    words = describe(scene)
    assert "4 ranks, 200 events" in words
    assert "axis dp, tp" in words
    assert "most exposed communication" in words

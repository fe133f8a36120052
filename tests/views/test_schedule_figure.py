"""The picture of a schedule is its clock: bars, idle time, what is held, what waits for what."""

import json
import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise
from math import isclose
from random import Random

import pytest
from schedule_runs import panel, trace_of

from tpviz.core.schedules import SCHEDULES, Schedule, schedule_errors
from tpviz.core.trace.pipeline import measured
from tpviz.views.figures import schedule as figure
from tpviz.views.figures.schedule import (
    faults_scene,
    gathered,
    schedule_detail,
    schedule_scene,
    schedule_svg,
)
from tpviz.views.figures.schedule_lanes import LEFT, RIGHT, ScheduleLayout
from tpviz.views.figures.schedule_words import (
    SchedulePanel,
    compared,
    figures,
    peak,
    spans,
    words,
)
from tpviz.views.figures.svg import VIEW

SVG = "{http://www.w3.org/2000/svg}"
BAR = re.compile(r"M([\d.]+),([\d.]+)h([\d.]+)v([\d.]+)")


@pytest.fixture(params=SCHEDULES)
def some(request):
    """A few panels of each schedule, with random sizes and times."""
    draw = Random(request.param)
    return [
        panel(
            request.param,
            p := draw.randint(2, 5),
            p * draw.randint(2, 3),
            draw.choice((0.0, 0.5, 1.5)),
            draw.choice((0.0, 0.3)),
            draw.random() < 0.5,
            draw.random() < 0.6,
            draw.choice((2.0, 3.5)),
        )
        for _ in range(4)
    ]


def paths(scene, mark):
    """The bars of the paths that have this in their tag: [(x, y, width, height)]."""
    found = re.findall(rf"<path d='([^']*)'[^>]*{mark}", scene["common"])
    return [tuple(map(float, bar)) for path in found for bar in BAR.findall(path)]


# -- the clock's own numbers -----------------------------------------------------------------------
def test_moments_fill_every_rank_from_the_first_to_the_last(some):
    for one in some:
        line = one.timeline
        for rank in range(one.ranks):
            now, busy = 0.0, 0.0
            for start, end, index, does in spans(line, rank):
                assert start == pytest.approx(now)
                assert end > start
                if does:
                    assert (start, end) == (line.start[rank][index], line.end[rank][index])
                    busy += end - start
                now = end
            assert now == pytest.approx(line.makespan)
            assert busy == pytest.approx(line.busy[rank])


def test_bars_are_as_long_as_ranks_compute_and_idle_is_what_they_leave(some):
    for one in some:
        scene, layout = schedule_scene([one], "t"), ScheduleLayout([one])
        for row in layout.rows:
            drawn, idle = {}, 0.0  # halves of a lane are half as much
            for x, y, width, height in paths(scene, "data-key"):
                if row.y - 0.01 <= y < row.y + row.lane:
                    drawn[x, width] = drawn.get((x, width), 0.0) + width * height / row.lane
            for _, y, width, _ in paths(scene, "data-key='idle'"):
                idle += width * (abs(y - row.y) < 0.01)
            line, least = one.timeline, 0.12 * len(drawn) / layout.scale
            busy = (sum(drawn.values()) - idle) / layout.scale
            assert busy == pytest.approx(line.busy[row.rank], abs=least)
            assert idle / layout.scale == pytest.approx(line.bubble[row.rank], abs=least)


def test_idle_slots_gather_into_one_block_at_the_right_edge(some):
    """Bars keep their length and their order, with nothing between them, to the makespan."""
    for one in some:
        scene, layout = schedule_scene([one], "t"), ScheduleLayout([one])
        before = paths(scene, "data-key")
        after = paths({"common": gathered(scene["common"])}, "data-key")
        assert [bar[1:] for bar in before] == [bar[1:] for bar in after]
        idle = {bar[0] for bar in paths({"common": gathered(scene["common"])}, "data-key='idle'")}
        for row in layout.rows:
            bars = sorted(bar for bar in after if row.y - 0.01 <= bar[1] < row.y + row.lane)
            ends = LEFT
            for x, _, width, _ in bars:
                assert x <= ends + 0.2  # a paired action is beside the other
                ends = max(ends, x + width)
            assert ends == pytest.approx(layout.x(one.timeline.makespan), abs=0.2)
            block = [bar for bar in bars if bar[0] in idle]
            assert block == bars[len(bars) - len(block) :]
            long = sum(bar[2] for bar in block) / layout.scale
            assert long == pytest.approx(one.timeline.bubble[row.rank], abs=0.1 * len(bars))
        svg = schedule_svg(scene, bubble=True)
        shown = f">bubble {one.timeline.bubble[0]:.4g}<"
        assert (shown in svg) == (shown in scene["common"])


def test_the_chart_is_what_the_fullest_rank_holds_over_time(some):
    for one in some:
        scene, layout = schedule_scene([one], "t"), ScheduleLayout([one])
        assert max(one.peaks) == one.peaks[one.fullest]
        unit = (layout.held - 6) / layout.most / one.each * layout.scale
        for place, name in ((1, "whole"), (2, "checkpoints")):
            area = sum(
                w * h
                for _, _, w, h in paths(scene, f"class='f-activations'[^>]*data-held='{name}'")
            )
            series = one.timeline.held(one.fullest)
            held = sum(here[place] * (then[0] - here[0]) for here, then in pairwise(series))
            assert area / unit == pytest.approx(held, rel=0.03, abs=0.2)


def test_a_legend_has_at_most_six_entries(some):
    kinds = {"F": "forward", "R": "recompute", "B": "backward", "RB": "backward"}
    for one in some:
        scene = schedule_scene([one], "t")
        named = {look["key"] for look, _ in scene["legend"]}
        done = {a.kind for row in one.timeline.schedule.actions for a in row}
        assert len(scene["legend"]) <= 6
        assert named >= {kinds[kind] for kind in done & kinds.keys()} | {"idle", "activations"}


@pytest.mark.parametrize("several", [1, 2])
def test_a_picture_is_as_high_for_many_ranks_as_for_few(several):
    high = {
        schedule_scene([panel("1f1b", p, 16)] * several, "t")["height"] for p in (2, 3, 4, 8, 16)
    }
    assert len(high) == 1


def test_the_critical_path_goes_from_nothing_to_the_makespan():
    for latency in (0.0, 0.5):
        one = panel(latency=latency)
        outlines = paths(schedule_scene([one], "t"), "class='s-fg' stroke-width='2'/>")
        long = sum(width + 1.6 for _, _, width, _ in outlines) / ScheduleLayout([one]).scale
        sent = len(one.timeline.critical_messages()) * latency
        assert long + sent == pytest.approx(one.timeline.makespan, abs=0.05)
    assert len(outlines) == 1 + len(one.timeline.critical_messages())


def test_a_recomputing_backward_is_two_bars_and_plain_ones_have_no_recompute():
    one = panel("1f1b", 2, 4, 0.5)
    scene, layout = schedule_scene([one], "t"), ScheduleLayout([one])
    widths = {round(bar[2] / layout.scale, 2) for bar in paths(scene, "data-key='recompute'")}
    assert widths == {0.5}
    assert len(paths(scene, "data-key='recompute'")) == 8
    assert (
        paths(schedule_scene([panel("1f1b", recompute=False)], "t"), "data-key='recompute'") == []
    )


@pytest.mark.parametrize("overlapped", [True, False])
def test_pairs_share_a_lane_where_they_overlap(overlapped):
    one = panel("dualpipe_v", 4, 8, overlapped=overlapped, recompute=False)
    lane = ScheduleLayout([one]).rows[0].lane
    least = min(bar[3] for bar in paths(schedule_scene([one], "t"), "data-key"))
    assert one.timeline.schedule.pairs
    assert least == pytest.approx(lane / 2 if overlapped else lane, abs=0.01)


def test_the_chart_of_what_is_held_has_a_scale():
    """Its top in words, of the same scale for all panels."""
    for one, said in ((panel("1f1b", 4, 8), "4 held"), (panel("gpipe", 4, 8), "8 held")):
        assert f">{said}</text>" in schedule_scene([one], "t")["common"]


def test_strips_in_bytes_weigh_what_is_held():
    for name in ("shifted_critical_path", "zb_v", "interleaved_1f1b"):
        plain = panel(name, 4, 8)
        stages = plain.timeline.schedule.stages
        one = panel(name, 4, 8, sizes=((7, 2),) * stages)
        for held, strip in zip(plain.held, one.strips):
            assert strip == [(time, 7 * full, 2 * kept) for time, full, kept in held]
        layout = ScheduleLayout([one])
        assert layout.most == max(map(peak, one.strips))
    uneven = panel("1f1b", 2, 4, sizes=((7, 2), (5, 1)))
    assert [peak(strip) for strip in uneven.strips] == [7 + 2, 5]
    assert figures([uneven], "")[1][3] == "9 B, rank 0"
    assert "Holds 2 microbatches in 9 B, 1 as checkpoints." in "".join(words(uneven, 0, ""))


# -- words -----------------------------------------------------------------------------------------
def test_words_say_what_an_action_waited_for():
    one = panel()
    said = words(one, 2, "")
    assert said[0] == (
        "rank 2 is idle for 2, from 0: F0 waits for the activation of F0 from rank "
        "1. Holds nothing."
    )
    assert said[1] == (
        "rank 2: F0, forward, 2 to 3: starts when the activation of F0 from rank 1 "
        "arrives. On the critical path. Holds 1 microbatch, all as checkpoints."
    )
    assert said[4] == (
        "rank 2: R0, early recompute, 5 to 6: starts when F2 ends. On the critical "
        "path. Holds 3 microbatches, 2 as checkpoints."
    )
    assert said[5].startswith(
        "rank 2: B0, backward, 6 to 8: starts when R0 ends; the gradient of "
        "B0 from rank 3 arrived at 6."
    )
    assert said[-1] == "rank 2 is done at 26 and idle for the last 4."
    assert words(one, 0, "")[0].startswith("rank 0: F0, forward, 0 to 1: starts at once.")
    assert "R0, early recompute, 4 to 5: starts when F2 ends. Slack 3." in words(one, 1, "")[4]
    assert "No slack." in words(one, 0, "")[1]
    sent = words(panel(latency=0.5), 1, "")
    assert "starts when the activation of F0 from rank 0 arrives, sent at 1." in sent[1]
    both = words(panel("dualpipe_v", 4, 8, overlapped=True, recompute=False), 3, "")
    assert any(" beside " in line for line in both)
    assert all(re.search(r"\d ms|\d s", line) for line in words(panel(), 0, "s"))


def test_every_wait_in_words_is_one_of_the_clock(some):
    for one in some:
        line = one.timeline
        for rank in range(one.ranks):
            for (_, end, index, busy), said in zip(spans(line, rank), words(one, rank, "")):
                if busy or index == len(line.end[rank]):
                    assert "waits" not in said
                    continue
                makers = [m.groups() for m in re.finditer(r"of (\w+)(?: from rank (\d+))?\.", said)]
                [(word, other)] = makers
                there = int(other) if other else rank
                [at] = [
                    i
                    for i, a in enumerate(line.schedule.of(there))
                    if line.schedule.word(a) == word
                ]
                sent = line.latency * (there != rank)
                assert isclose(line.end[there][at] + sent, end, abs_tol=1e-9)


def test_two_schedules_are_compared_in_words():
    text = " ".join(compared([panel(), panel("1f1b")], ""))
    assert text.endswith(
        "1f1b is 6 longer than shifted critical path (20.0 %); a rank idles 12 "
        "against 7.5 on average and holds at most as many microbatches."
    )
    assert "takes as long as" in " ".join(compared([panel(), panel()], ""))
    halved = [panel("1f1b", 4, 8, recompute=False), panel("zb_v", 4, 8, recompute=False)]
    assert "at most 8 microbatches of one of their 2 stages." in " ".join(compared(halved, ""))
    assert "as many microbatches of all its layers" in " ".join(compared(halved, ""))


def test_tables_keep_formula_simulation_and_run_apart():
    line = panel().timeline
    one = panel(formula=(30.0, line.bubble))
    one = SchedulePanel(line, one.recompute, one.formula, (), measured(trace_of(line)))
    assert figures([one, panel("1f1b")], "") == [
        ["schedule", "step", "idle", "held at most", "by formula", "emulated"],
        [
            "shifted critical path",
            "30",
            "25.0 %",
            "4, rank 0",
            "the same step and idle",
            "30, idle 25.0 %",
        ],
        ["1f1b", "36", "33.3 %", "4, rank 0", "", ""],
    ]
    for formula in ((31.0, line.bubble), (30.0, [2 * idle for idle in line.bubble])):
        said = figures([panel(formula=formula)], "")[1][4]
        assert said == f"{formula[0]:g}, idle {100 * sum(formula[1]) / 4 / formula[0]:.1f} %"
    head, *rows = figure.to_table([one, panel("1f1b")], "")
    assert head[4:8] == ["idle", "idle inside", "idle, formula", "idle, measured"]
    assert rows[3][:9] == ["shifted_critical_path", "3", "3", "18", "12", "2", "12", "12", "1"]
    assert rows[7][:9] == ["1f1b", "3", "3", "24", "12", "0", "", "", "1"]


# -- a closer look ---------------------------------------------------------------------------------
def test_a_detail_rings_the_action_and_what_it_waited_for(some):
    for one in some:
        layout, row = ScheduleLayout([one]), one.ranks - 1
        seen = schedule_detail([one], row)
        assert json.loads(json.dumps(seen)) == seen
        moments = list(spans(one.timeline, row))
        assert len(seen["stops"]) == len(seen["words"]) == len(seen["marks"]) == len(moments)
        assert seen["stops"] == sorted(set(seen["stops"]))
        for (start, end, index, busy), mark in zip(moments, seen["marks"]):
            ElementTree.fromstring(f"<svg>{mark}</svg>")
            boxes = re.findall(r"<rect x='([\d.]+)'[^>]*? width='([\d.]+)'[^>]*data-(\w+)", mark)
            rung = {name: (float(x) + 2, float(x) + float(w) - 2) for x, w, name in boxes}
            assert ("chosen" in rung) == busy
            if busy:
                assert rung["chosen"] == pytest.approx((layout.x(start), layout.x(end)), abs=0.02)
            elif index < len(one.timeline.end[row]):
                at = (rung["needed"][1] - LEFT) / layout.scale
                assert min(abs(at - end), abs(at + one.timeline.latency - end)) < 0.01
    assert schedule_detail([one], -1)["words"] == []


# -- pictures --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "panels",
    [
        [panel(formula=(30.0, (0.0,) * 4)), panel("1f1b")],
        [panel("zb_h1", 3, 5, r=0.0, b=0.0)],
        [panel("zb_v", 8, 32), panel("dualpipe_v", 8, 32, overlapped=True)],
        [panel("interleaved_1f1b", 4, 8, latency=0.4)],
        [panel("1f1b", 2, 1)],
    ],
    ids=lambda panels: panels[0].name,
)
def test_pictures_are_well_formed_and_inside(panels):
    scene = schedule_scene(panels, "title <&>")
    assert json.loads(json.dumps(scene)) == scene
    assert scene["stops"] == sorted(scene["stops"])
    assert (len(scene["captions"]), scene["badge"]) == (len(scene["stops"]), "simulated")
    for theme in ("light", "dark", "auto", "page"):
        last = len(scene["stops"]) - 1
        root = ElementTree.fromstring(schedule_svg(scene, last, schedule_detail(panels, 0), theme))
        assert root.get("aria-label").startswith("title <&>, at ")
    for x, y, width, height in paths(scene, "data-key") + paths(scene, "data-held"):
        assert LEFT <= x <= x + width <= VIEW - RIGHT + 0.2
        assert scene["top"] < y + height <= scene["foot"] + 0.01
    for node in root.iter(f"{SVG}text"):
        assert float(node.get("y", 50)) <= float(root.get("height"))
    assert schedule_svg(scene, 0) == schedule_svg(scene, 0)


def test_patterns_tell_bars_apart_without_colours():
    scene = schedule_scene([panel("zb_h1", 2, 4)], "t")
    patterns = {"backward": "diagonal", "recompute": "dots", "weight_gradient": "back"}
    for ink, pattern in patterns.items():
        assert re.search(
            rf"data-key='{ink}' data-to='([^']*)'/><path d='[^']*' class='tpv-mark' data-to='\1' "
            rf"fill='url\(#tpv-{pattern}\)'",
            scene["common"],
        )
    for name in ("0", "3"):
        assert f">{name}</text></g>" in scene["common"] or f">{name}</text><" in scene["common"]


def test_memory_is_said_against_the_device():
    from tpviz.cluster.clock.cost import Memory

    memory = (Memory(parameters=4e9, gradients=4e9, optimizer=8e9, activations=2e9),) * 4
    assert figures([panel(memory=memory)], "s", 10e9)[1][-1] == "18 GB of 10 GB: too much"
    assert figures([panel(memory=memory)], "s", 40e9)[1][-1] == "18 GB of 40 GB"
    assert figures([panel(memory=memory)], "s")[1][-1] == "18 GB"
    assert figure.to_table([panel(memory=memory)], "s")[1][9:] == ["4 GB", "4 GB", "8 GB", "2 GB"]


def test_a_schedule_with_faults_is_told_not_drawn():
    mine = Schedule.parse("s0: F0 F1 B1 B0\ns1: F0 B0 F1", name="mine")
    scene = faults_scene(mine, schedule_errors(mine))
    assert scene["finding"] == "mine cannot run:"
    assert scene["words"][0].count("•") == len(schedule_errors(mine)) == 2
    svg = schedule_svg(scene)
    ElementTree.fromstring(svg)
    assert "s1: F0 B0 F1" in svg
    assert "add B1" in svg
    assert (scene["badge"], scene["rows"]) == ("cannot run", [])


# -- what cannot be shown --------------------------------------------------------------------------
def test_what_cannot_be_shown():
    with pytest.raises(ValueError, match=r"1f1b has 17 ranks: this view shows at most 16"):
        schedule_scene([panel("1f1b", 17, 2)], "t")
    with pytest.raises(ValueError, match=r"actions: this view shows at most 8192; use fewer"):
        schedule_scene([panel("1f1b", 16, 300)], "t")
    scene = schedule_scene([panel()], "t")
    with pytest.raises(ValueError, match=r"step=99 is not in this view: use 0 to \d+"):
        schedule_svg(scene, 99)
    with pytest.raises(ValueError, match=r"row=4 is not .*: use 0 to 3, or -1 for none"):
        schedule_detail([panel()], 4)

"""The picture of simulated tiles is the run: each part's states, what is counted, lanes, words."""

import json
import re
import xml.etree.ElementTree as ElementTree
from collections import Counter
from random import Random

import numpy as np
import pytest

from tpviz.evidence.t3_hardware import Gemm, Machine, simulate
from tpviz.views.figures.svg import amount, seconds
from tpviz.views.figures.tiles import (
    MAX_PARTS,
    STEPS,
    TilesLayout,
    boxes,
    check,
    placed,
    tiles_detail,
    tiles_scene,
    tiles_svg,
)
from tpviz.views.figures.tiles_states import (
    BY_KEY,
    STATES,
    TilesPanel,
    figures,
    fused,
    moments,
    ordinal,
    state_at,
    stories,
    story_of,
    to_table,
)
from tpviz.views.figures.tokens import PATTERNS

MACHINE = Machine(cus=4, llc=1 << 20, dram=5e10, link=7.5e9, tracker_sets=8)
CONFIGS = ("sequential", "t3", "t3_mca")


def run(config="t3_mca", m=512, n=256, k=256, ranks=4, mode="mirror", waves=1, tile=64, **machine):
    gemm = Gemm(m, n, k, tile=(tile, tile), wavefronts=waves)
    fields = {f: getattr(MACHINE, f) for f in MACHINE.__dataclass_fields__} | machine
    return simulate(gemm, ranks, Machine(**fields), config, mode=mode)


@pytest.fixture(params=range(3))
def runs(request):
    """A run of each configuration, with random sizes."""
    draw = Random(request.param)
    ranks = draw.choice((2, 4, 5))
    sizes = {
        "m": 64 * ranks * draw.randint(2, 3),
        "n": draw.choice((130, 256)),
        "ranks": ranks,
        "k": draw.choice((64, 256, 1024)),
        "waves": draw.choice((1, 2)),
        "tracker_sets": draw.choice((1, 8)),
    }
    return [run(config, **sizes) for config in CONFIGS]


# -- states ----------------------------------------------------------------------------------------
def test_every_part_goes_through_the_states_of_its_chunks_place(runs):
    for one in runs:
        last = one.ranks - 1
        for gpu in range(one.ranks):
            found = moments(one, gpu)
            for (at, told), j, chunk in zip(stories(found), found["position"], one.tiles.chunk):
                assert list(at) == sorted(at) and len(told) == len(at) + 1
                path = "".join(dict.fromkeys(told.lower()))
                if not fused(one):
                    assert path == ("wcqpd" if chunk == gpu else "wcqplxd")
                else:
                    assert path == {0: "wcqlxd", last: "wcqstd"}.get(j, "wcqstlxd")
                    assert (j == last) == (chunk == gpu)  # its own is computed last
                assert at[0] >= 0 and at[-1] <= one.seconds * (1 + 1e-9)


def test_times_are_the_runs_own(runs):
    for one in runs:
        found, tiles = moments(one), one.tiles
        for what in ("start", "computed", "stored", "second", "sent"):
            if fused(one) or what in ("start", "computed", "stored"):
                assert np.array_equal(found[what], getattr(tiles, what)[0], equal_nan=True)
        if fused(one):
            going = ~np.isnan(found["link"])
            assert np.array_equal(going, ~np.isnan(found["sent"]))
            spent = (found["sent"] - found["link"])[going]
            assert spent == pytest.approx(tiles.bytes[going] / one.machine.link)
            assert Counter(going)[True] == (tiles.chunk != 0).sum()
        whole = found["done"]
        assert np.nanmax(whole) == pytest.approx(one.seconds, rel=0.02)
        own = tiles.chunk == 0
        assert whole[own].max() == pytest.approx(one.rs_end)


def test_a_mirrored_gpu_turned_is_the_gpu_that_is_simulated():
    whole, mirror = run("t3", mode="full"), run("t3")
    for gpu in (0, 1, 3):
        one, two = moments(whole, gpu), moments(mirror, gpu)
        for what in one:
            assert one[what] == pytest.approx(two[what], nan_ok=True), what


# -- the picture -----------------------------------------------------------------------------------
def test_what_is_drawn_at_a_step_is_what_is_counted(runs):
    panels = [TilesPanel(runs[2], range(runs[2].ranks)), TilesPanel(runs[0], range(runs[0].ranks))]
    scene = tiles_scene(panels, "t")
    labels = {s.key: s.label.split(":")[0].split(",")[0] for s in STATES}
    parts = runs[0].ranks * len(runs[0].tiles.tile)
    assert len(scene["tiles"]) == 2 * parts
    places = {(tile[0], tile[1]): i // parts for i, tile in enumerate(scene["tiles"])}
    assert len(places) == 2 * parts
    for step in (0, 37, 80, STEPS):
        found = Counter(), Counter()
        for path, key in re.findall(
            r"<path d='([^']*)'[^>]*data-state='(\w)'", placed(scene, scene["stops"][step])
        ):
            for x, y in re.findall(r"M([\d.]+),([\d.]+)h", path):
                found[places.pop((float(x), float(y)))][labels[key]] += 1
        assert not places  # every part is drawn, once
        places = {(tile[0], tile[1]): i // parts for i, tile in enumerate(scene["tiles"])}
        for panel, some, line in zip(panels, found, scene["words"][step].splitlines()):
            said = dict(
                (name, int(n))
                for n, name in (
                    words.split(" ", 1) for words in line.split(": ")[1][:-1].split(", ")
                )
            )
            # px are rounded: parts that change just then may differ
            assert sum((some - Counter(said)).values()) <= parts * 0.03
            assert sum(said.values()) == parts and panel.name in line
    assert scene["words"][0].count(" waiting") == 2
    assert re.fullmatch(r"T3-MCA, all \d GPUs: \d+ done.", scene["words"][-1].splitlines()[0])


def test_it_opens_where_most_states_are_seen(runs):
    panel = TilesPanel(runs[2])
    scene = tiles_scene([panel], "t")
    seen = [
        len({state_at(*story, panel.run.seconds * step / STEPS) for story in panel.stories[0]})
        for step in range(STEPS + 1)
    ]
    assert scene["opens"] == seen.index(max(seen))


def test_lanes_are_the_series_of_the_run(runs):
    panel = TilesPanel(runs[1])
    assert panel.computing.max() <= panel.run.machine.slots
    busy = panel.computing.sum() * panel.series["width"]
    first = panel.run.tiles.wave == 0
    spent = (panel.run.tiles.computed[0] - panel.run.tiles.start[0])[first].sum()
    assert busy == pytest.approx(spent, rel=0.08)
    scene = tiles_scene([panel], "t")
    layout = TilesLayout([panel])
    path = re.search(r"<path d='M([^']*)z' class='f-axis1' data-lane='tracker'", scene["common"])[1]
    line = path.split("V")[0]
    xs, ys = np.array([point.split(",") for point in line.split("L")], float).T
    high = np.interp(layout.x(panel.series["time"]).round(1), xs, ys.max() - ys)
    assert high / 34 * panel.run.tracker.peak == pytest.approx(panel.series["tracker"], abs=0.2)


def test_names_of_chunks_and_their_rules():
    scene = tiles_scene(
        [TilesPanel(run("t3", policy="round_robin")), TilesPanel(run("sequential"))], "t"
    )
    for words in (
        "chunk 1, 1st: stored on GPU r - 1",
        "2nd: DMA after 2 updates",
        "chunk 0, 4th: stays here",
        "chunk 3, 4th: stored, reduced later",
    ):
        assert words in scene["over"]
    assert ">T3, round robin: " in scene["common"]
    for m, n, ranks in ((512, 256, 4), (256, 640, 4), (320, 192, 4), (448, 320, 5)):
        panel = TilesPanel(run("t3", m=m, n=n, ranks=ranks, mode="full"))
        over, [map] = tiles_scene([panel], "t")["over"], TilesLayout([panel]).maps
        areas = re.findall(r"<path d='([^']*)' fill='transparent'>", over)
        pieces = [re.findall(r"h([\d.]+)v([\d.]+)h-", area) for area in areas]
        sizes = [sum(float(w) * float(h) for w, h in area) / map.cell**2 for area in pieces]
        assert sizes == pytest.approx(np.bincount(panel.run.tiles.chunk).tolist(), rel=0.02)
    assert [ordinal(j) for j in (0, 1, 2, 3, 10, 20)] == [
        "1st",
        "2nd",
        "3rd",
        "4th",
        "11th",
        "21st",
    ]


def test_a_part_that_is_looked_at_is_ringed_and_told():
    panels = [TilesPanel(run("t3_mca"), range(4)), TilesPanel(run("sequential"), range(4))]
    count, layout = len(panels[0].run.tiles.tile), TilesLayout(panels)
    for part in (0, 9, 3 * count + 5, 4 * count + 2, 8 * count - 1):
        found, place = tiles_detail(panels, part), layout.maps[part // count]
        x, y = (values[part % count] for values in boxes(panels[place.panel], place))
        assert f"x='{x - 1.5:.2f}' y='{y - 1.5:.2f}'" in found["mark"]
        assert f"GPU {place.gpu}, tile (" in found["words"]
        story = story_of(panels[place.panel], place.gpu, part % count)
        assert story == found["words"]
        triggers = panels[place.panel].moments[place.gpu]["triggered"][part % count]
        assert ("triggers the DMA" in story) == (triggers == triggers)
    assert tiles_detail(panels, -1) == {"part": -1, "words": "", "mark": ""}
    with pytest.raises(
        ValueError, match=f"part={8 * count} is not in this view: use 0 to {8 * count - 1}"
    ):
        tiles_detail(panels, 8 * count)


@pytest.mark.parametrize("theme", ["light", "dark", "auto"])
def test_the_picture_is_well_formed_and_the_same_each_time(theme):
    panels = [TilesPanel(run("t3", m=300, n=520, ranks=3, mode="full", waves=2, link=1e9))]
    scene = tiles_scene(panels, "a & b")
    drawn = tiles_svg(scene, 40, tiles_detail(panels, 7), theme)
    ElementTree.fromstring(drawn)
    assert json.dumps(scene) == json.dumps(tiles_scene([TilesPanel(panels[0].run)], "a & b"))
    assert drawn.count("data-chosen=''") == 1 and ">simulated</text>" in drawn
    with pytest.raises(ValueError, match=f"step=121 is not in this view: use 0 to {STEPS}"):
        tiles_svg(scene, STEPS + 1)


def test_states_differ_by_their_patterns_alone():
    """Two states of the same meaning are never in one run: stored, with a tracker and without."""
    scene = tiles_scene([TilesPanel(run("t3", waves=2, m=2048))], "t")
    assert "<text" not in "".join(scene["looks"].values())
    bare = r" class='f-[\w -]+'| fill-opacity='[^']*'| data-state='\w'"
    grey = {key: re.sub(bare, "", look) for key, look in scene["looks"].items()}
    assert grey.pop("p") == grey["s"]
    assert grey.pop("w") == grey["c"]  # plain: the one pale, the other dark
    assert len(set(grey.values())) == len(grey) == len(STATES) - 2
    assert len(set(PATTERNS.values())) == len(PATTERNS)


def test_a_pattern_goes_on_from_part_to_part():
    """So it shows in parts that are too small for it: what is drawn in them has no origin."""
    panel = TilesPanel(run("t3", m=8192))
    scene, map = tiles_scene([panel], "t"), TilesLayout([panel]).maps[0]
    drawn = placed(scene, scene["stops"][60])
    assert map.cell < 5 and "@" not in drawn
    for x, y in zip(*boxes(panel, map)):
        assert f"M{round(float(x), 2):g},{round(float(y), 2):g}h{scene['size'][0]}v" in drawn


def test_no_knob_of_a_size_changes_the_height():
    high = {
        tiles_scene([TilesPanel(run("t3", m=m, n=n, ranks=p, waves=w)) for _ in range(2)], "t")[
            "height"
        ]
        for m, n, p, w in ((512, 256, 4, 1), (2048, 256, 2, 1), (512, 1024, 4, 2))
    }
    assert len(high) == 1


def test_what_is_stored_counts_as_an_update_only_with_a_tracker():
    for config, key, words in (("t3", "s", "stored: one update"), ("sequential", "p", "stored")):
        panel = TilesPanel(run(config))
        told = {key for _, keys in panel.stories[0] for key in keys}
        assert {"s", "p"} & told == {key} and BY_KEY[key].label == words
        assert ("t" in told) == fused(panel.run)


def test_the_legend_has_six_entries_and_names_every_ink():
    scene = tiles_scene([TilesPanel(run("t3"))], "t")
    named = {look["key"] for look, _ in scene["legend"]}
    assert len(scene["legend"]) == 6
    assert {state.ink for state in STATES} == named


def test_areas_of_the_memory_lane_are_the_gemms_and_communications():
    common = tiles_scene([TilesPanel(run("t3"))], "t")["common"]
    areas = r"<path d='([^']*)' class='f-(\w+)' data-lane='memory' data-key='\w+'/>"
    pattern = r"(?:<path d='\1' class='tpv-mark' fill='url\(#tpv-(\w+)\)'/>)?"
    drawn = re.findall(areas + pattern, common)
    assert [look for _, *look in drawn] == [["axis0", "vertical"], ["forward", ""]]


def test_numbers_above_and_in_the_table_are_the_runs(runs):
    panels = [TilesPanel(runs[2]), TilesPanel(runs[0])]
    times, one, other = runs[0].seconds / runs[2].seconds, *(panel.name for panel in panels)
    assert tiles_scene(panels, "t")["finding"] == f"{one} is {times:.2f} times as fast as {other}."
    for one, row in zip((runs[2], runs[0]), figures(panels)[1:]):
        assert row[1:4] == [seconds(t) for t in (one.seconds, one.gemm_end, one.rs_end)]
        assert row[4] == amount(sum(one.dram.values()))
        used = f"{one.tracker.peak} of {one.tracker.capacity}" if fused(one) else "not used"
        assert row[5] == used
        assert row[6] == (
            f"1 of {one.ranks}, all alike" if one.mode == "mirror" else f"{one.ranks}"
        )
    table = {row[0]: row[1:] for row in to_table(panels)}
    assert table["what (simulated)"] == ["T3-MCA", "sequential"]
    assert table["DRAM rs_read"][0] == "" != table["DRAM rs_read"][1]
    for number, one in enumerate((runs[2], runs[0])):
        for what, value in one.to_table()[1:]:
            assert table[what][number] == value


def test_too_many_parts_are_refused():
    gemm = Gemm(4096, 4096, 64, wavefronts=4)
    with pytest.raises(ValueError, match=rf"1 x 32 x 32 tiles, each of 4 .* the {MAX_PARTS} that"):
        check(1, gemm)
    check(2, Gemm(4096, 4096, 64, wavefronts=1))

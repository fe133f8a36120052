"""Pictures of a partition from a made-up dict: every number is where it belongs."""

import json
import re
import xml.etree.ElementTree as ElementTree

import pytest

from tpviz.views.figures.film import film_svg
from tpviz.views.figures.partition import (
    GAP,
    HEAD,
    LEFT,
    RIGHT,
    SIZE,
    named,
    partition_scene,
    words,
)
from tpviz.views.figures.svg import VIEW


def tensor(name, count, made):
    return {
        "name": name,
        "shape": [count],
        "dtype": "float32",
        "bytes": 4 * count,
        "from_stage": made,
        "path": f"layer.{made}",
        "trained": True,
    }


def made_up(stages=3, each=2, crossing=1, long=False):
    """Stages of ``each`` pieces; stage k has k + 1 times the parameters of the first."""
    shards = [
        {
            "stage": k,
            "numel": 100 * (k + 1),
            "flops": 1000,
            "activation_bytes": 4000 - 1000 * (i > 0),
            "modules": [f"layer.{k}.part{i}"],
        }
        for k in range(stages)
        for i in range(each)
    ]

    def over(k):  # the cut before stage k
        found = [tensor(f"v{k}{i}", 50 + i, k - 1) for i in range(crossing)]
        return found * (0 < k < stages) + [tensor("skip", 9, 0)] * (long and 1 < k < stages)

    parts = [
        {
            "index": k,
            "modules": [f"layer.{k}"],
            "paths": [f"layer.{k}"],
            "numel": 100 * each * (k + 1),
            "flops": 1000 * each,
            "activation_bytes": sum(s["activation_bytes"] for s in shards if s["stage"] == k),
            "inputs": ["x"] * (k == 0),
            "receives": over(k),
            "sends": over(k + 1),
        }
        for k in range(stages)
    ]
    return {
        "model": "Net",
        "balance": "flops",
        "training": True,
        "numel": 1200,
        "stages": parts,
        "shards": shards,
        "ties": [{"names": ["a.w", "b.w"], "stages": [0, 2]}],
    }


def rects(svg):
    """(x, y, width, class) of all rectangles."""
    found = re.findall(
        r"<rect x='([\d.-]+)' y='([\d.-]+)' width='([\d.]+)'[^>]*?"
        r"class='f-(\w+)'",
        svg,
    )
    return [(float(x), float(y), float(wide), ink) for x, y, wide, ink in found]


def test_the_scene_is_json_with_a_step_for_each_stage():
    scene = partition_scene(made_up())
    assert json.loads(json.dumps(scene)) == scene
    assert [len(scene[key]) for key in ("frames", "captions", "words")] == [3, 3, 3]
    assert scene["facts"] == [
        ["stages", "3 of 6 shards"],
        ["even by", "flops"],
        ["largest in parameters", "1.50 times the mean"],
        ["across a cut, at most", "200 B"],
    ]
    assert scene["notes"] == [
        "Tied: a.w (stage 0) = b.w (stage 2); their gradients are all-reduced."
    ]


@pytest.mark.parametrize("stages, each", [(1, 3), (3, 2), (16, 10)])
def test_bars_are_as_long_as_sizes_are_and_in_their_stages_column(stages, each):
    data = made_up(stages, each)
    common, wide = partition_scene(data)["common"], (VIEW - LEFT - RIGHT) / stages
    heads = [r for r in rects(common) if HEAD < r[1] < HEAD + 18 + 3 * SIZE]
    for part in data["stages"]:
        mine = {
            ink: size
            for x, _, size, ink in heads
            if abs(x - LEFT - part["index"] * wide - 4) < 0.01
        }
        for key, ink in (
            ("numel", "parameters"),
            ("flops", "forward"),
            ("activation_bytes", "activations"),
        ):
            most = max(p[key] for p in data["stages"])
            assert mine[ink] == pytest.approx((wide - GAP - 8) * part[key] / most, abs=0.01)
    for number, piece in enumerate(re.findall(r"data-piece='\d+'.*?</g>", common)):
        shard = data["shards"][number]
        [held] = [size for *_, size, ink in rects(piece) if ink == "parameters"]
        assert held == pytest.approx((wide - GAP - 8) * (shard["stage"] + 1) / stages, abs=0.01)
        assert f"<title>layer.{shard['stage']}.part" in piece


@pytest.mark.parametrize("crossing", [0, 1, 3, 5])
def test_what_crosses_a_cut_is_written_there_with_its_bytes(crossing):
    data = made_up(crossing=crossing)
    common = partition_scene(data)["common"]
    assert common.count("data-cut=''") == (2 if crossing else 0)
    assert common.count(">nothing crosses<") == (0 if crossing else 2)
    shown = crossing if crossing <= 3 else 2
    for k in (1, 2):
        for i in range(shown):
            assert f">v{k}{i} {50 + i}, {200 + 4 * i} B<" in common
    if crossing == 5:
        assert common.count(">3 more tensors, 636 B<") == 2
        assert ">v12 " not in common


def test_values_that_stages_hand_on_say_where_they_are_from():
    data = made_up(long=True)
    assert ">skip 9, 36 B, from stage 0<" in partition_scene(data)["common"]
    assert words(data["stages"][2]) == (
        "Stage 2: layer.2. 600 parameters, 2 kFLOP forward, 7 kB kept for backward (estimate). "
        "Receives v20 (50) float32, 200 B, made in layer.1. "
        "Receives skip (9) float32, 36 B, made in layer.0, of stage 0, forwarded."
    )
    assert "Needs the model's x." in words(data["stages"][0])


@pytest.mark.parametrize("theme", ["light", "dark", "auto"])
def test_the_static_picture_has_one_stage_in_words(theme):
    scene = partition_scene(made_up())
    drawn = [film_svg(scene, step, theme) for step in range(3)]
    for step, svg in enumerate(drawn):
        ElementTree.fromstring(svg)
        assert f">Stage {step}: layer.{step}." in svg
        assert ">Tied: a.w" in svg
    assert len(set(drawn)) == 3


def test_names_share_what_they_have_in_common():
    assert named(["h.0..2", "h.3.ln"]) == "h.{0..2, 3.ln}"
    assert named(["t.h.0.ln", "t.h.0.attn.{q, k}"]) == "t.h.0.{ln, attn.{q, k}}"
    assert named(["lm_head"]) == "lm_head"


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(ValueError, match="17 stages: this view shows at most 16"):
        partition_scene(made_up(17))
    with pytest.raises(ValueError, match=r"162 shards: .* up to 160; use coarser cuts"):
        partition_scene(made_up(2, 81))
    with pytest.raises(ValueError, match="step=3 is not in this view: use 0 to 2"):
        film_svg(partition_scene(made_up()), 3)

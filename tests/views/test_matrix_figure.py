"""The picture of a communication matrix: which pairs meet where, and the groups of a mesh on it."""

import json
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpviz as tv
from tpviz.cluster import Cluster, Dimension, Level
from tpviz.core.inks import axis_keys
from tpviz.views.figures.matrix import MAX_RANKS, TIER_KEYS, matrix_scene
from tpviz.views.figures.svg import image
from tpviz.views.figures.tokens import INKS, PATTERNS

SVG = "{http://www.w3.org/2000/svg}"
PRESETS = list(tv.clusters.presets().values())
PAIRS = tv.communication_matrix(tv.clusters.nvlink_pairs())


def words(svg):
    return [node.text for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def painted(scene):
    """The tier drawn at every pair of ranks: later blocks lie over earlier ones."""
    shown = scene["shown"]
    found = [[None] * shown for _ in range(shown)]
    for block in scene["blocks"]:
        span = range(block["first"], block["first"] + block["ranks"])
        for a in span:
            for b in span:
                found[a][b] = block["tier"]
    for rank in range(shown):
        found[rank][rank] = -1
    return found


# -- the scene ----
@given(st.sampled_from(PRESETS), st.integers(1, 8))
@settings(max_examples=40, deadline=None)
def test_blocks_show_where_pairs_meet(preset, world_size):
    cluster = preset()
    matrix = tv.communication_matrix(cluster, min(world_size, cluster.size))
    scene = json.loads(json.dumps(matrix_scene(matrix), allow_nan=False))
    assert painted(scene) == matrix.meets().tolist()
    assert scene["shown"] == scene["size"] == matrix.world_size


@pytest.mark.parametrize(
    "cluster",
    [
        *(preset() for preset in PRESETS),
        tv.clusters.torus(4, 4),
        Cluster(
            "uneven", tv.clusters.TPU_V3, torus=(Dimension("x", 2, 9e9), Dimension("y", 3, 1e9))
        ),
    ],
)
def test_a_number_is_what_every_pair_of_its_block_gets(cluster):
    matrix = tv.communication_matrix(cluster)
    scene, rates = matrix_scene(matrix), matrix.p2p()
    assert scene["numbers"]
    for number in scene["numbers"]:
        row, column, ranks = number["row"], number["column"], number["ranks"]
        block = rates[row : row + ranks, column : column + ranks]
        assert (block == scene["tiers"][number["tier"]]["pair"]).all()
    assert all(number["tier"] == 0 for number in scene["numbers"]) is (
        cluster.name == "uneven" or len(matrix.tiers) == 1
    )


def test_hops_are_those_of_the_groups():
    scene = matrix_scene(PAIRS, (4, 2))
    hops = {
        axis: {(h["from"], h["to"]) for h in scene["hops"] if h["axis"] == axis}
        for axis in ("d1", "d2")
    }
    assert hops["d2"] == {(a, a ^ 1) for a in range(8)}
    assert hops["d1"] == {(a, (a + 2) % 8) for a in range(8)}
    assert {h["axis"] for h in matrix_scene(PAIRS, (8, 1))["hops"]} == {"d1"}
    assert matrix_scene(PAIRS)["hops"] == matrix_scene(PAIRS)["axes"] == []


def test_axes_say_what_they_get_and_from_where():
    d1, d2 = matrix_scene(PAIRS, (2, 4))["axes"]
    assert d1["words"] == "d1: 4 groups of 2 ranks, 4 apart: 17 GB/s, 10 µs a hop, derived"
    assert d2["words"] == "d2: 2 groups of 4 ranks, neighbours: 32 GB/s, 10 µs a hop, measured"
    assert (d1["bandwidth"], d2["bandwidth"]) == PAIRS.of((2, 4))
    assert matrix_scene(PAIRS, (8, 1))["axes"][1]["words"] == "d2: one rank, nothing is sent"


def test_many_ranks_are_drawn_in_whole_units():
    nodes = matrix_scene(tv.communication_matrix(tv.clusters.nvswitch_nodes(128)), (128, 8))
    assert (nodes["shown"], nodes["size"]) == (64, 1024)
    assert all(max(h["from"], h["to"]) < 64 for h in nodes["hops"])
    assert "the first 64 of 1,024 ranks are drawn" in nodes["captions"]
    odd = matrix_scene(tv.communication_matrix(tv.clusters.torus(24, 4)))
    assert odd["shown"] == 48
    wide = Cluster("wide", tv.clusters.TPU_V3, (Level("in", 100, 1e9), Level("out", 2, 1e8)))
    scene = matrix_scene(tv.communication_matrix(wide))
    assert scene["shown"] == MAX_RANKS and [tier["drawn"] for tier in scene["tiers"]] == [
        True,
        False,
    ]
    assert "(not drawn)" in " ".join(words(tv.communication_matrix(wide).to_svg()))


# -- the drawing ----
@pytest.mark.parametrize("theme", ["light", "dark", "auto", "page"])
def test_the_picture_says_it_all_without_colour(theme):
    svg = PAIRS.to_svg((4, 2), theme)
    found = words(svg)
    assert {"derived and measured", "GB/s between two ranks", "mesh d1 4 x d2 2"} <= set(found)
    assert found.count("211") == 8 and found.count("17") == 12
    for line in matrix_scene(PAIRS, (4, 2))["axes"]:
        assert line["words"] in found
    assert any(line.startswith("PCIe: 4 units, 17 GB/s between two") for line in found)
    circles = ElementTree.fromstring(svg).iter(f"{SVG}circle")
    kinds = [node.get("class") for node in circles]
    assert kinds.count("f-bg s-fg") == kinds.count("f-fg s-bg") == 8 + 1  # and the legend's
    assert PAIRS._repr_html_() == image(PAIRS.to_svg(), PAIRS.describe())


def test_without_a_mesh_all_of_them_are_listed():
    found = words(PAIRS.to_svg())
    assert {"(8, 1)", "(4, 2)", "(2, 4)", "(1, 8)", "32 GB/s*", "211 GB/s"} <= set(found)
    assert "* measured, the others derived" in found
    plain = words(tv.communication_matrix(tv.clusters.torus()).to_svg())
    assert not any("*" in line for line in plain)


@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_and_mesh_can_be_drawn(preset):
    for cluster in (preset(), preset().scale_model(hidden=8, slow_motion=1000)):
        matrix = tv.communication_matrix(cluster)
        for mesh in (None, *matrix.meshes):
            svg = matrix.to_svg(mesh)
            assert svg == matrix.to_svg(mesh) and "nan" not in svg
            root = ElementTree.fromstring(svg)
            right, bottom = float(root.get("width")), float(root.get("height"))
            for node in root.iter(f"{SVG}text"):
                assert 0 <= float(node.get("x")) < right and 0 < float(node.get("y")) < bottom
            assert len(svg) < 80_000


def test_a_large_torus_stays_small():
    svg = tv.communication_matrix(tv.clusters.torus(32, 32)).to_svg((32, 32))
    assert len(svg) < 80_000 and "8 x 8 of 32 x 32 drawn" in words(svg)
    assert len(words(tv.communication_matrix(tv.clusters.laptop(1 + 1), 1).to_svg((1, 1)))) > 3


def test_tiers_and_axes_never_share_an_ink():
    assert not set(TIER_KEYS) & set(axis_keys(["d1", "d2"]).values())
    patterns = [INKS[key].pattern for key in TIER_KEYS[:3]]
    assert len(set(patterns)) == 3 and all(PATTERNS[name] for name in patterns)


def test_bad_input():
    with pytest.raises(ValueError, match="a picture of a matrix needs"):
        matrix_scene("x")
    with pytest.raises(ValueError, match=r"mesh=\(3, 2\) has 6 ranks"):
        PAIRS.to_svg((3, 2))
    with pytest.raises(ValueError, match="theme='sepia'"):
        PAIRS.to_svg(theme="sepia")


def test_links_without_limit_are_drawn():
    free = Cluster("free", PAIRS.cluster.device, (Level("wire", 4, float("inf")),))
    assert any("no limit" in (word or "") for word in words(tv.communication_matrix(free).to_svg()))

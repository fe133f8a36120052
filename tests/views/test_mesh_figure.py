import json
import re
import xml.etree.ElementTree as ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpviz.core.mesh import Mesh
from tpviz.views.figures.mesh import (
    describe,
    find_parameter,
    groups,
    mesh_scene,
    mesh_svg,
    share,
    to_table,
)
from tpviz.views.figures.svg import VIEW, width_of

OWNERSHIP = [
    {
        "name": "up.weight",
        "shape": [256, 64],
        "splits": [{"dim": 0, "axis": "tp"}],
        "notation": "W[F_tp, D]",
    },
    {
        "name": "down.weight",
        "shape": [64, 256],
        "splits": [{"dim": 1, "axis": "tp"}],
        "notation": "W[D, F_tp]",
    },
    {"name": "norm.bias", "shape": [64], "splits": [], "notation": "b[D]"},
    {
        "name": "flat.weight",
        "shape": [8, 4],
        "splits": [],
        "notation": "flat(W[F, D])_dp",
        "flat": {"axis": "dp", "ranges": [[0, 24], [24, 32]]},
    },
]


@pytest.fixture(scope="module")
def scene():
    return mesh_scene(Mesh({"dp": 2, "tp": 2}), OWNERSHIP)


axes = st.lists(st.integers(1, 4), min_size=1, max_size=4).map(
    lambda sizes: {f"a{i}": size for i, size in enumerate(sizes)}
)


@given(axes)
@settings(max_examples=40, deadline=None)
def test_every_rank_has_a_place_of_its_own_and_the_groups_of_the_mesh(axes):
    mesh = Mesh(axes)
    scene = json.loads(json.dumps(mesh_scene(mesh)))
    places = {(r["slice"], r["row"], r["column"]) for r in scene["ranks"]}
    assert len(places) == mesh.size
    for here in scene["ranks"]:
        assert groups(scene, here["rank"]) == {a: mesh.group(here["rank"], a) for a in mesh.names}
        assert here["slice"] < len(scene["slices"])
    assert all(r["row"] < scene["rows"] and r["column"] < scene["columns"] for r in scene["ranks"])


def test_slices_are_named_by_the_outer_axes():
    assert mesh_scene(Mesh({"pp": 2, "dp": 1, "tp": 2}))["slices"] == ["pp 0", "pp 1"]
    assert mesh_scene(Mesh({"tp": 4}))["slices"] == [""]


def test_blocks_follow_the_splits(scene):
    up, down, norm, _ = scene["parameters"]
    assert [b["box"] for b in up["blocks"]] == [[0, 0, 1, 0.5], [0, 0.5, 1, 0.5]]
    assert [b["box"] for b in down["blocks"]] == [[0, 0, 0.5, 1], [0.5, 0, 0.5, 1]]
    assert [b["ranks"] for b in up["blocks"]] == [[0, 2], [1, 3]]
    assert norm["blocks"] == [{"box": [0, 0, 1, 1], "ranks": [0, 1, 2, 3]}]
    assert [share(up, r) for r in range(4)] == [0.5] * 4


def test_a_flat_shard_is_a_band_of_rows(scene):
    flat = scene["parameters"][3]
    assert [b["box"] for b in flat["blocks"]] == [[0, 0, 1, 0.75], [0, 0.75, 1, 0.25]]
    assert flat["block_of"] == [0, 0, 1, 1]


def test_two_axes_on_one_dim_and_on_two():
    rows = [
        {
            "name": "w",
            "shape": [8, 8],
            "notation": "W",
            "splits": [{"dim": 0, "axis": "x"}, {"dim": 1, "axis": "y"}],
        },
        {
            "name": "v",
            "shape": [8],
            "notation": "b",
            "splits": [{"dim": 0, "axis": "x"}, {"dim": 0, "axis": "y"}],
        },
    ]
    w, v = mesh_scene(Mesh({"x": 2, "y": 2}), rows)["parameters"]
    assert w["blocks"][w["block_of"][3]]["box"] == [0.5, 0.5, 0.5, 0.5]
    assert v["blocks"][v["block_of"][3]]["box"] == [0.75, 0, 0.25, 1]


def test_bad_input_names_what_clashes(scene):
    with pytest.raises(ValueError, match=r"up.weight is split over 'tp', but the mesh has dp"):
        mesh_scene(Mesh({"dp": 2}), OWNERSHIP)
    with pytest.raises(ValueError, match="at most 16,384 ranks, this mesh has 32,768"):
        mesh_scene(Mesh({"tp": 32768}))
    with pytest.raises(ValueError, match=r"rank=4 is not in this mesh of 4: use 0 to 3"):
        mesh_svg(scene, rank=4)
    with pytest.raises(ValueError, match=r"'nope' is not in this view; it has up.weight"):
        mesh_svg(scene, parameter="nope")


@pytest.mark.parametrize(
    "axes", [{"tp": 4}, {"dp": 2, "tp": 2}, {"pp": 2, "dp": 2, "tp": 4}, {"dp": 8, "tp": 8}]
)
def test_svg_is_well_formed_and_shows_every_rank(axes):
    svg = mesh_svg(mesh_scene(Mesh(axes)), rank=1, theme="light")
    tree = ElementTree.fromstring(svg)
    texts = {node.text for node in tree.iter("{http://www.w3.org/2000/svg}text")}
    assert {str(r) for r in range(Mesh(axes).size)} <= texts


def test_svg_lights_the_groups_of_the_chosen_rank(scene):
    def lit(rank):
        tree = ElementTree.fromstring(mesh_svg(scene, rank=rank, theme="light"))
        return [
            node.get("class")
            for node in tree.iter("{http://www.w3.org/2000/svg}rect")
            if node.get("rx") == "7" and node.get("class") not in (None, "tpv-mark")
        ]

    # rank 0 itself, 1 shares tp (axis0), 2 shares dp (axis1), 3 nothing
    assert lit(0) == ["f-fg", "f-axis0", "f-axis1", "f-bg s-muted"]
    assert lit(3) == ["f-bg s-muted", "f-axis1", "f-axis0", "f-fg"]


def test_the_parameter_shown_first_is_one_that_is_cut(scene):
    assert find_parameter(scene)["name"] == "up.weight"
    assert find_parameter(scene, "norm.bias")["name"] == "norm.bias"


def test_a_tiny_block_of_the_chosen_rank_is_still_seen():
    flat = {"axis": "dp", "ranges": [[0, 4095], [4095, 4096]]}
    row = {"name": "w", "shape": [64, 64], "splits": [], "notation": "flat(W)_dp", "flat": flat}
    svg = mesh_svg(mesh_scene(Mesh({"dp": 2}), [row]), rank=1, theme="light")
    assert "class='f-fg s-fg' stroke-width='3'" in svg


def test_an_empty_share_is_no_block():
    flat = {"axis": "dp", "ranges": [[0, 0], [0, 16]]}
    scene = mesh_scene(
        Mesh({"dp": 2}),
        [{"name": "w", "shape": [4, 4], "splits": [], "notation": "flat(W)_dp", "flat": flat}],
    )
    assert share(scene["parameters"][0], 0) == 0
    assert ["stroke-width='3'" in mesh_svg(scene, rank) for rank in (0, 1)] == [False, True]


@pytest.mark.parametrize(
    "axes", [{"dp": 128, "tp": 8}, {"dp": 1024}, {"dp": 8, "tp": 8}, {"tp": 8}]
)
def test_numbers_have_room_in_their_squares(axes):
    """Longer ones are named by the row."""
    scene = mesh_scene(Mesh(axes))
    names = re.findall(r"<text [^>]*>([^<]*)</text>", scene["squares"])
    assert names and max(map(width_of, names)) + 4 <= scene["cell"][0]
    if Mesh(axes).size == 1024:
        for here in scene["ranks"]:
            assert (f">{here['rank']}</text>" in scene["ground"]) == (here["column"] == 0)


def test_the_matrix_is_beside_the_ranks_and_fills_the_view(scene):
    """So no half of it is empty; in a narrow window it stands below them."""
    right = max(x for x, _ in scene["places"]) + scene["cell"][0]
    [xs] = {re.search(r"d='M([\d.]+)", p["drawn"])[1] for p in scene["parameters"]}
    assert right < float(xs) and scene["width"] == VIEW
    right, down, width, height = scene["stack"]
    assert float(xs) + right == scene["places"][0][0] and width < VIEW
    assert down > scene["rows"] * scene["cell"][1] and height > scene["height"]


def test_table_and_words(scene):
    assert to_table(scene)[1] == ["up.weight", "256 x 64", "W[F_tp, D]", "2", "50 %"]
    assert to_table(scene)[4][4] == "25 % to 75 %"
    assert describe(scene, 3) == (
        "Mesh of 4 ranks, axes dp of 2, tp of 2. Rank 3 is at dp 1, tp 1; "
        "its groups: dp: ranks 1, 3; tp: ranks 2, 3."
    )


@pytest.mark.parametrize(
    "axes, squares, note",
    [
        ({"dp": 16, "pp": 8, "tp": 8}, 128, "128 squares: each is a block x 8, all of tp"),
        ({"dp": 1024}, 256, "256 squares: each is a block x 4, 4 along dp"),
        ({"dp": 512, "cp": 2, "tp": 4}, 256, "x 2 x 2 x 4, 2 along dp, all of cp, all of tp"),
        ({"dp": 257}, 1, "257 ranks in 1 squares: each is a block x 257, all of dp"),
        ({"dp": 16, "tp": 16}, 256, ""),
    ],
)
def test_a_large_mesh_is_collapsed_by_axis(axes, squares, note):
    mesh = Mesh(axes)
    scene = mesh_scene(mesh)
    assert len(scene["ranks"]) == squares and squares * scene["block"] == mesh.size
    assert note in scene["note"] and bool(note) == bool(scene["note"])
    rank = mesh.size - 2
    assert groups(scene, rank) == {a: mesh.group(rank, a) for a in axes}
    tree = ElementTree.fromstring(mesh_svg(scene, rank=rank, theme="light"))
    faces = [r for r in tree.iter("{http://www.w3.org/2000/svg}rect") if r.get("rx") == "7"]
    chosen = [r for r in faces if r.get("class") == "f-fg"]
    apart = 1 < scene["block"] <= 64
    assert len(chosen) == 1 + apart  # its square, and itself in the block drawn apart
    lit = sum("f-axis" in (r.get("class") or "") for r in faces)
    outer = {r // scene["block"] for a in axes for r in mesh.group(rank, a)}
    assert lit >= len(outer) - 1 + apart * (mesh.size > 0)
    assert "".join(tree.itertext()).count("named by its") == bool(note)

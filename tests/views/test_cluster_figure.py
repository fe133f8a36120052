"""The picture of a cluster: who sits where, which links an axis loads, what holds it back."""

import json
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpviz import Cluster, Dimension, Mesh, clusters, communication_matrix
from tpviz.views.figures.cluster import cluster_scene, cluster_svg, describe, to_table
from tpviz.views.figures.svg import image

SVG = "{http://www.w3.org/2000/svg}"
PRESETS = clusters.presets()


def words(svg):
    return [node.text for node in ElementTree.fromstring(svg).iter(f"{SVG}text")]


def cube(x=4, y=4, z=4):
    sides = {"x": x, "y": y, "z": z}
    return Cluster(
        "cube", clusters.TPU_V3, torus=tuple(Dimension(name, n, 1e9) for name, n in sides.items())
    )


# -- the scene ----
@given(st.sampled_from(list(PRESETS.values())), st.sampled_from([1, 2, 4]), st.booleans())
@settings(max_examples=40, deadline=None)
def test_the_scene_is_plain_and_agrees_with_the_cluster(preset, tp, across):
    cluster = preset()
    mesh = Mesh({"dp": cluster.size // tp, "tp": tp} if across else {"tp": tp})
    scene = json.loads(json.dumps(cluster_scene(cluster, mesh), allow_nan=False))
    assert [device["rank"] for device in scene["devices"]] == [
        d if d < mesh.size else None for d in range(cluster.size)
    ]
    for axis in scene["axes"]:
        if axis["size"] > 1:
            assert axis["bandwidth"] == cluster.bandwidth(mesh, axis["name"])
        else:
            assert axis["bandwidth"] is None
    lit = [device["device"] for device in scene["devices"] if device["lit"]]
    assert lit == mesh.group(0, scene["axis"])
    assert all(
        device["coords"] == (mesh.coords(device["device"]) if device["device"] < mesh.size else {})
        for device in scene["devices"]
    )


def test_ways_out_that_groups_share():
    box = clusters.nvlink_pairs()
    scene = cluster_scene(box, Mesh({"dp": 4, "tp": 2}), "dp")
    assert scene["ways"] == [{"level": 1, "unit": unit, "load": 2} for unit in range(4)]
    scene = cluster_scene(box, Mesh({"dp": 4, "tp": 2}))
    assert scene["axis"] == "tp"
    assert scene["ways"] == [{"level": 0, "unit": unit, "load": 1} for unit in range(8)]
    assert cluster_scene(box)["ways"] == [] and cluster_scene(box)["axis"] is None


def test_links_of_a_torus_are_known_by_their_lower_end():
    scene = cluster_scene(clusters.torus(), Mesh({"y": 2, "x": 4}), "x")
    assert scene["links"] == [{"dimension": 0, "device": d, "load": 1} for d in range(8)]
    # pairs (0, 1): there by +1 and back by -1, one link each
    scene = cluster_scene(clusters.torus(4, 2), Mesh({"a": 4, "x": 2}), "x")
    assert [link["device"] for link in scene["links"]] == [0, 2, 4, 6]


@pytest.mark.parametrize(
    "cluster, axes, axis, held",
    [
        (clusters.nvlink_pairs(), {"dp": 4, "tp": 2}, "dp", "PCIe: 2 groups share 34 GB/s"),
        (
            clusters.nvlink_pairs(),
            {"dp": 4, "tp": 2},
            "tp",
            "NVLink: 211 GB/s, shared with no other group",
        ),
        (clusters.nvlink_pairs(), {"dp": 8}, "dp", "measured: in the cluster's table"),
        (clusters.nvlink_pairs(rings="single"), {"dp": 8}, "dp", "PCIe: 1 link of 17 GB/s"),
        (
            replace(clusters.perlmutter(), table={}),
            {"dp": 4, "tp": 2},
            "tp",
            "NVLink: 1 link of 76 GB/s",
        ),
        (
            replace(clusters.perlmutter(), table={}),
            {"dp": 2, "a": 4},
            "a",
            "NVLink: 225 GB/s, shared with no other group",
        ),
        (clusters.torus(8, 2), {"a": 8, "b": 2}, "a", "x: 2 hops share 100 GB/s"),
        (clusters.laptop(), {"one": 1, "tp": 4}, "one", "one rank: nothing is sent"),
    ],
)
def test_what_holds_an_axis_back(cluster, axes, axis, held):
    found = {row["name"]: row["held"] for row in cluster_scene(cluster, Mesh(axes), axis)["axes"]}
    assert found[axis] == held


def test_a_scale_model_says_what_its_numbers_stand_for():
    scene = cluster_scene(clusters.torus().scale_model(hidden=10, slow_motion=100))
    assert scene["torus"][0]["words"] == (
        "x: ring of 4, 100 MB/s (for 100 GB/s) each way, 100 µs a hop (for 1 µs)"
    )
    assert "bfloat16 12.3 GFLOP/s (for 123 TFLOP/s)" in scene["captions"][0]
    assert "memory 344 MB (for 34.4 GB)" in scene["captions"][0]
    assert "hidden sizes 1/10, 100 x slow motion" in scene["captions"][1]
    assert not any("(for" in line for line in cluster_scene(clusters.torus())["captions"])


# -- the picture ----
@pytest.mark.parametrize("theme", ["light", "dark", "auto", "page"])
@pytest.mark.parametrize("name", PRESETS)
def test_svg_is_well_formed_and_shows_every_rank(name, theme):
    cluster = PRESETS[name]()
    mesh = Mesh({"dp": cluster.size // 2, "tp": 2})
    shown = words(cluster.to_svg(mesh, "dp", theme=theme))
    assert {str(rank) for rank in range(mesh.size)} <= set(shown)
    places = [mesh.coords(rank) for rank in range(mesh.size)]
    assert {f"{place['dp']},{place['tp']}" for place in places} <= set(shown)
    assert any(line.startswith(f"dp {cluster.size // 2}: ") for line in shown)
    assert "described" in shown


@pytest.mark.parametrize("cluster", [PRESETS[name]() for name in PRESETS] + [cube()], ids=repr)
def test_no_line_of_text_leaves_the_picture(cluster):
    """By a generous width of a letter; the browser's own fonts are narrower."""
    for shown in (cluster, cluster.scale_model(8, 1000)):
        tree = ElementTree.fromstring(shown.to_svg(Mesh({"tp": cluster.size})))
        for node in tree.iter(f"{SVG}text"):
            if node.get("text-anchor") == "start":
                letter = 0.53 * float(node.get("font-size"))
                assert float(node.get("x")) + letter * len(node.text) <= float(tree.get("width"))
        boxes = [n for n in tree.iter(f"{SVG}rect") if n.get("width") == "44.00"]
        right = max(float(node.get("x")) for node in boxes)
        assert float(tree.get("width")) <= max(700, right + 100)


@pytest.mark.parametrize(
    "cluster, mesh",
    [
        (clusters.nvswitch_nodes(nodes=4), Mesh({"dp": 8, "tp": 4})),
        (clusters.frontier(8), Mesh({"dp": 8, "tp": 8})),
        (cube(), Mesh({"z": 4, "y": 4, "x": 4})),
        (clusters.nvswitch(64), Mesh({"tp": 64})),
    ],
    ids=["nodes", "frontier", "cube", "switch"],
)
def test_boxes_of_devices_do_not_overlap(cluster, mesh):
    tree = ElementTree.fromstring(cluster.to_svg(mesh))
    boxes = {
        (float(n.get("x")), float(n.get("y")))
        for n in tree.iter(f"{SVG}rect")
        if n.get("width") == n.get("height") == "44.00"
    }
    assert len(boxes) == mesh.size
    for a in boxes:
        assert a[0] + 44 <= float(tree.get("width")) and a[1] + 44 <= float(tree.get("height"))
        assert not any(abs(a[0] - b[0]) < 44 and abs(a[1] - b[1]) < 44 for b in boxes - {a})


def test_lit_links_are_in_the_ink_of_their_axis_and_say_who_shares():
    svg = clusters.nvlink_pairs().to_svg(Mesh({"dp": 4, "tp": 2}), "dp", theme="light")
    assert words(svg).count("2x") == 4
    lit = re.findall(r"class='s-axis1' stroke-width='([\d.]+)'", svg)  # four stalks and their bar
    assert lit == ["3.0"] + ["4.5"] * 4
    plain = clusters.nvlink_pairs().to_svg(theme="light")
    assert "s-axis" not in re.sub(r"<style>.*?</style>", "", plain)
    assert "2x" not in words(plain)


def test_a_torus_closes_its_rings():
    def links(x, y):
        svg = clusters.torus(x, y).to_svg(theme="light")
        return len(re.findall(r"<path d='[^']*' fill='none' class='s-muted' ", svg))

    assert links(4, 2) == 4 * 2 + 4  # two rings of four links, four pairs of one
    assert links(4, 4) == 32
    assert links(8, 1) == 8


@pytest.mark.parametrize(
    "cluster, mesh, said",
    [
        (clusters.nvswitch_nodes(nodes=128), Mesh({"dp": 128, "tp": 8}), {"and 120 more units"}),
        (clusters.nvswitch(gpus=100), Mesh({"tp": 100}), {"and 36 more units"}),
        (
            clusters.torus(32, 64),
            Mesh({"dp": 32, "tp": 64}),
            {"and 24 more along x", "and 56 more along y"},
        ),
    ],
)
def test_of_large_clusters_a_part_is_drawn_and_it_says_so(cluster, mesh, said):
    scene = cluster_scene(cluster, mesh)
    assert scene["shown"] == len(scene["devices"]) == 64
    assert said <= set(words(cluster_svg(scene)))


def test_devices_without_a_rank_are_empty():
    shown = words(clusters.perlmutter().to_svg(Mesh({"tp": 4})))
    assert {"0", "3"} <= set(shown) and not {"4", "7"} & set(shown)
    alone = words(clusters.perlmutter().to_svg())  # without a mesh: device numbers
    assert {"0", "7"} <= set(alone)


def test_a_notebook_shows_the_cluster():
    cluster = clusters.perlmutter()
    assert cluster._repr_html_() == image(cluster.to_svg(), describe(cluster_scene(cluster)))
    assert cluster.describe() == describe(cluster_scene(cluster))


def test_with_a_mesh_too_and_where_the_notebook_is_not_trusted():
    """As an image, which stays, and as SVG for what shows no HTML; each with the words."""
    box, mesh = clusters.nvlink_pairs(pairs=2), Mesh({"dp": 2, "tp": 2})
    matrix = communication_matrix(box)
    expected = [
        (box.show(mesh, axis), box.to_svg(mesh, axis), describe(cluster_scene(box, mesh, axis)))
        for axis in ("dp", "tp")
    ]
    expected.append((matrix.show((2, 2)), matrix.to_svg((2, 2)), matrix.describe((2, 2))))
    for picture, svg, said in expected:
        bundle = picture._repr_mimebundle_()
        assert bundle["text/html"] == picture._repr_html_() == image(svg, said)
        assert (bundle["image/svg+xml"], bundle["text/plain"], repr(picture)) == (svg, said, said)
    assert len({svg for _, svg, _ in expected}) == 3, "each axis has its own picture"


# -- words ----
def test_table_and_words():
    scene = cluster_scene(clusters.nvlink_pairs(), Mesh({"pp": 1, "dp": 4, "tp": 2}))
    assert to_table(scene) == [
        ["axis", "ranks", "bandwidth", "latency", "limited by"],
        ["pp", "1", "-", "-", "one rank: nothing is sent"],
        ["dp", "4", "17 GB/s", "10 µs", "PCIe: 2 groups share 34 GB/s"],
        ["tp", "2", "211 GB/s", "10 µs", "NVLink: 211 GB/s, shared with no other group"],
    ]
    said = describe(scene)
    assert "NVLink-pair PCIe box: 8 devices." in said
    assert "dp (4) gets 17 GB/s, 10 µs a hop; PCIe: 2 groups share 34 GB/s." in said
    assert "pp (1) gets" not in said
    assert to_table(cluster_scene(clusters.torus()))[0] == ["links"]
    assert "through 4 NICs" in describe(cluster_scene(clusters.perlmutter()))


@pytest.mark.parametrize(
    "arguments, message",
    [
        (("A100",), "needs a tv.Cluster, not 'A100'"),
        ((clusters.torus(), {"tp": 4}), r"must be a Mesh such as Mesh"),
        ((clusters.torus(), Mesh({"tp": 16})), "mesh tp 16: 16 ranks do not fit the 8 devices"),
        ((clusters.torus(), Mesh({"tp": 4}), "dp"), "no axis 'dp' in this mesh: use tp"),
        ((clusters.torus(), None, "dp"), "axis='dp' needs a mesh"),
    ],
)
def test_bad_input(arguments, message):
    with pytest.raises(ValueError, match=message):
        cluster_scene(*arguments)
    with pytest.raises(ValueError, match="theme='sepia'"):
        clusters.torus().to_svg(theme="sepia")

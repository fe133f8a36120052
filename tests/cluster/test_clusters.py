"""Presets: golden numbers of the references, sizes, and docstrings that say whence they come."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz import Mesh
from tpviz.cluster.clusters import (
    frontier,
    nvlink_pairs,
    nvswitch_nodes,
    perlmutter,
    presets,
    torus,
)


def bandwidth(cluster, stride, size):
    """GB/s of groups of ``size`` ranks ``stride`` apart, on all devices of the cluster."""
    mesh = Mesh({"outer": cluster.size // (stride * size), "axis": size, "inner": stride})
    return cluster.bandwidth(mesh, "axis") / 1e9


# -- the box ATP is made for: references, ATP 3.3 and the table of 5.1 ----
@pytest.mark.parametrize("rings, ring_of_many", [("single", 17), ("multi", 32)])
def test_bandwidths_of_the_pair_box(rings, ring_of_many):
    box = nvlink_pairs(rings=rings)
    expected = {(8, 1): (ring_of_many, None), (4, 2): (17, 211), (2, 4): (17, ring_of_many)}
    for (d1, d2), (b1, b2) in expected.items():
        mesh = Mesh({"d1": d1, "d2": d2})
        assert box.bandwidth(mesh, "d1") == b1 * 1e9
        assert b2 is None or box.bandwidth(mesh, "d2") == b2 * 1e9


@pytest.mark.parametrize(
    "mesh, order, single, multi",
    [
        ((8, 1), "column", 82.9, 44.0),
        ((4, 2), "column", 38.4, 38.4),
        ((2, 4), "row", 71.1, 54.4),
        ((4, 2), "row", 107.5, 107.5),
        ((2, 4), "column", 118.4, 68.5),
    ],
)
def test_communication_times_of_a_layer(mesh, order, single, multi):
    """ms of a layer, b 4, s 2048, h 12288, 16 bit: T = 8bsh e / N ((d1-1)/B1 w1 + (d2-1)/B2 w2)."""
    d1, d2 = mesh
    weights = (1, 3) if order == "column" else (3, 1)
    for rings, expected in (("single", single), ("multi", multi)):
        box = nvlink_pairs(rings=rings)
        b1, b2 = (box.bandwidth(Mesh({"d1": d1, "d2": d2}), axis) for axis in ("d1", "d2"))
        sums = weights[0] * (d1 - 1) / b1 + weights[1] * (d2 - 1) / b2
        assert 1e3 * 8 * 4 * 2048 * 12288 * 2 / 8 * sums == pytest.approx(expected, abs=0.05)


def test_a_pairs_own_rule_without_the_measured_rings():
    """P_1; min(P_2, G_2 / 2); min(2 P_2, G_2): the checks of ATP 3.3."""
    box = replace(nvlink_pairs(), table={})
    assert [bandwidth(box, *key) for key in ((1, 2), (2, 4), (1, 8))] == [211, 17, 34]


# -- AxoNN 2.4 ----
PERLMUTTER = {(1, 2): 76, (1, 4): 225, (2, 2): 76}
FRONTIER = {(1, 2): 129, (1, 4): 52, (1, 8): 135, (2, 2): 50, (2, 4): 72, (4, 2): 36}
POWERS = [2**i for i in range(6)]


@pytest.mark.parametrize(
    "preset, node, inside, out", [(perlmutter, 4, PERLMUTTER, 80), (frontier, 8, FRONTIER, 40)]
)
def test_axonn_bandwidths(preset, node, inside, out):
    for (stride, size), rate in inside.items():
        assert bandwidth(preset(nodes=1), stride, size) == rate
        assert bandwidth(preset(nodes=4), stride, size) == rate
    cluster = preset(nodes=32 // node)
    crossing = [(p, g) for p in POWERS for g in POWERS[1:] if node < p * g <= 32]
    assert len(crossing) > 8
    for stride, size in crossing:
        assert bandwidth(cluster, stride, size) == pytest.approx(out / min(node, stride))


def test_a_message_goes_through_one_nic():
    assert perlmutter().link((0, 4), 8, shift=4).limit == 20e9
    assert frontier().link((0, 8), 16, shift=8).limit == 10e9
    assert frontier().link((0, 8), 16, shift=8).bandwidth == 5e9  # all eight pairs at once


def test_the_rule_alone_gives_perlmutters_table():
    node = replace(perlmutter(nodes=1), table={})
    assert {key: bandwidth(node, *key) for key in PERLMUTTER} == PERLMUTTER


# -- the others ----
def test_fewer_nics_are_shared_by_more():
    mesh = Mesh({"dp": 2, "tp": 8})
    rates = [nvswitch_nodes(nics=nics).bandwidth(mesh, "dp") for nics in (1, 2, 4, 8)]
    assert rates == [50e9 / 8, 50e9 / 4, 50e9 / 2, 50e9]
    whole = [nvswitch_nodes(nics=nics).bandwidth(Mesh({"dp": 16}), "dp") for nics in (1, 8)]
    assert whole == [50e9, 400e9]


def test_a_dgx_has_the_nodes_of_its_generation():
    volta, hopper = (tv.clusters.dgx(gpu, 32) for gpu in ("V100-SXM3-32GB", "H100-SXM-80GB"))
    assert [level.units for level in volta.levels] == [16, 2]
    assert [level.units for level in hopper.levels] == [8, 4]
    assert hopper.levels[1].group == 400e9 and hopper.device.flops["bfloat16"] == 989.4e12
    assert tv.clusters.dgx(gpus=16, nics=4, nic=12.5e9).levels[1].group == 50e9
    assert [level.units for level in tv.clusters.dgx(gpus=4).levels] == [4]


def test_sizes():
    sizes = {name: preset().size for name, preset in presets().items()}
    assert sizes == {
        "laptop": 4,
        "nvlink_pairs": 8,
        "nvswitch": 8,
        "nvswitch_nodes": 16,
        "dgx": 16,
        "perlmutter": 8,
        "frontier": 16,
        "torus": 8,
    }
    assert torus(8, 1).size == 8 and perlmutter(nodes=1).size == 4
    assert [len(nvlink_pairs(pairs).levels) for pairs in (1, 2)] == [1, 2]
    assert nvlink_pairs(2).table == {(1, 4): 32e9}


@pytest.mark.parametrize("name, preset", presets().items())
def test_every_preset_says_where_its_numbers_come_from(name, preset):
    words = preset.__doc__
    assert any(word in words for word in ("measured", "nominal", "derived"))
    assert preset().source
    assert getattr(tv.clusters, name) is preset


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: perlmutter(nodes=0), "units of level 'Slingshot'=0 is too small"),
        (lambda: nvswitch_nodes(nics=0), "nics of level 'network'=0 is too small"),
        (lambda: tv.clusters.laptop(1), "one device alone has no links: ask for 2 or more"),
        (lambda: tv.clusters.dgx("A100-SXM-40GB", 12), "gpus=12 cut a node, .* use gpus=8 or 16"),
        (lambda: tv.clusters.dgx("A100", 8), "gpu='A100' is not possible: use 'V100-SXM3-32GB'"),
        (lambda: torus(1, 1), "use x=2 or y=2"),
        (lambda: torus(0, 2), "x=0 is too small"),
        (lambda: nvlink_pairs(rings="triple"), "rings='triple' is not possible"),
        (lambda: nvlink_pairs(2.5), "pairs must be a whole number"),
    ],
)
def test_sizes_that_cannot_be(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_clusters_need_no_torch():
    import subprocess
    import sys

    code = "import sys, tpviz as tv; tv.clusters.torus(); tv.Level; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"

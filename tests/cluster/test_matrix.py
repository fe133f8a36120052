"""The communication matrix: entries by hand, pairs, measured rows, an emulated cluster's."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpviz as tv
from tpviz.cluster import Cluster, Device, Dimension
from tpviz.cluster.fit import fit_line
from tpviz.schemes.atp.paper import best, bus_time
from tpviz.verbs.calibrate import calibration_of

DEVICE = Device({"float32": 1e12}, 80e9, 1e12)
PAIRS = replace(tv.clusters.nvlink_pairs(), table={})
ONE_NIC = tv.clusters.nvswitch_nodes(nodes=2, gpus=8, nics=1)
TORUS = Cluster("torus", DEVICE, torus=(Dimension("x", 4, 4e9, 1e-6), Dimension("y", 2, 1e9, 2e-6)))


# -- entries by the rule -----------------------------------------------------------------------
@pytest.mark.parametrize(
    "cluster, mesh, rates",
    [
        (PAIRS, (4, 2), (17e9, 211e9)),  # out of a pair two groups share 34
        (PAIRS, (8, 1), (34e9, inf)),  # two rings of 17, one out of each GPU
        (PAIRS, (1, 8), (inf, 34e9)),
        (PAIRS, (2, 4), (17e9, 34e9)),
        (replace(PAIRS, rings="single"), (8, 1), (17e9, inf)),
        (ONE_NIC, (2, 8), (50e9 / 8, 450e9)),  # eight groups behind one NIC
        (ONE_NIC, (16, 1), (50e9, inf)),
        (ONE_NIC, (4, 4), (50e9 / 4, 450e9)),
        (TORUS, (2, 4), (1e9, 4e9)),  # the mesh lies on the dimensions
        (tv.clusters.nvlink_pairs(), (8, 1), (32e9, inf)),
    ],
)
def test_bandwidths_of_a_mesh(cluster, mesh, rates):
    assert tv.communication_matrix(cluster).of(mesh) == pytest.approx(rates)


@given(st.sampled_from(list(tv.clusters.presets().values())), st.sampled_from([None, 1, 2, 4, 6]))
@settings(max_examples=30, deadline=None)
def test_every_mesh_has_its_entries_and_they_are_the_clusters(preset, world_size):
    cluster = preset()
    if world_size is not None and world_size > cluster.size:
        world_size = None
    matrix = tv.communication_matrix(cluster, world_size)
    asked = set()
    for d1, d2 in matrix.meshes:
        mesh = tv.Mesh({"d1": d1, "d2": d2})
        for axis, stride, found, delay in zip(
            ("d1", "d2"), (d2, 1), matrix.of((d1, d2)), matrix.latencies((d1, d2))
        ):
            link = cluster.axis_link(mesh, axis)
            assert (found, delay) == (link.bandwidth, link.latency)
            asked |= {(stride, mesh.axes[axis])} if mesh.axes[axis] > 1 else set()
    assert asked == set(matrix.entries)
    for key, entry in matrix.entries.items():
        assert entry[:2] == key
        assert entry.source == ("measured" if key in cluster.table else "derived")


def test_the_mesh_may_be_a_mesh():
    matrix = tv.communication_matrix(PAIRS)
    assert matrix.of(tv.Mesh({"d1": 4, "d2": 2})) == matrix.of((4, 2))
    assert [entry.stride for entry in matrix.on((4, 2))] == [2, 1]
    assert matrix.latencies((8, 1)) == (10e-6, 0.0)


def test_it_chooses_a_mesh():
    """With the box's bandwidths ATP's formula takes (4, 2), as the search in paper mode does."""
    w = tv.GPT(layers=1, hidden=12288, heads=48, seq=2048, batch=4, dtype="bfloat16", vocab=1024)
    box = tv.clusters.nvlink_pairs()
    found, seconds = best(tv.ATP.meshes(w, 8), w, tv.communication_matrix(box).of)
    assert found == tv.ATP(mesh=(4, 2)) and seconds == found.communication(w, box)
    assert seconds == bus_time(found, w, (17e9, 211e9))
    searched = tv.search(w, box, tv.ATP.meshes(w, 8), objective="communication")
    assert searched.best == found


# -- pairs -------------------------------------------------------------------------------------
def test_pairs_of_levels():
    found = tv.communication_matrix(PAIRS).p2p()
    assert found.shape == (8, 8) and (found == found.T).all()
    assert found[0].tolist() == [inf, 211e9] + 6 * [17e9]
    assert found[5].tolist() == 4 * [17e9] + [211e9, inf, 17e9, 17e9]
    three = tv.communication_matrix(tv.clusters.frontier())
    assert (three.p2p()[0] / 1e9).tolist() == [inf, 129] + 6 * [36] + 8 * [10]
    assert three.meets()[3].tolist() == [1, 1, 0, -1] + 4 * [1] + 8 * [2]


def test_pairs_of_a_torus_get_the_slowest_link_of_the_way():
    matrix = tv.communication_matrix(TORUS)
    assert matrix.p2p()[0].tolist() == [inf, 4e9, 4e9, 4e9, 1e9, 1e9, 1e9, 1e9]
    turned = replace(TORUS, torus=(Dimension("x", 4, 1e9), Dimension("y", 2, 4e9)))
    found = tv.communication_matrix(turned)
    assert found.p2p()[0].tolist() == [inf, 1e9, 1e9, 1e9, 4e9, 1e9, 1e9, 1e9]
    assert found.meets()[0].tolist() == [-1, 0, 0, 0, 1, 1, 1, 1]
    assert [tier.group for tier in matrix.tiers] == [8e9, 1e9]  # two of one have one link


def test_a_pair_gets_no_more_than_its_two_ranks_as_a_group_would():
    for preset in tv.clusters.presets().values():
        cluster = replace(preset(), table={})
        found = tv.communication_matrix(cluster).p2p()
        for other in range(1, cluster.size):
            assert cluster.link((0, other), cluster.size).bandwidth <= found[0, other] * (1 + 1e-9)


# -- words -------------------------------------------------------------------------------------
def test_words():
    matrix = tv.communication_matrix(tv.clusters.nvlink_pairs())
    assert repr(matrix) == (
        "<CommunicationMatrix of 8 ranks on NVLink-pair PCIe box: 5 entries, 2 measured>"
    )
    assert matrix.badge == "derived and measured"
    assert matrix.to_table()[0] == ["mesh", "d1", "hop", "source", "d2", "hop", "source"]
    assert matrix.to_table()[1:3] == [
        ["(8, 1)", "32 GB/s", "10 µs", "measured", "-", "-", "-"],
        ["(4, 2)", "17 GB/s", "10 µs", "derived", "211 GB/s", "10 µs", "derived"],
    ]
    said = matrix.describe((4, 2))
    assert "PCIe: 4 units, 17 GB/s between two ranks, 34 GB/s out of one unit, 10 µs a hop." in said
    assert "On mesh (4, 2) d1 gets 17 GB/s, 10 µs a hop, derived; d2 gets 211 GB/s" in said
    assert "(8, 1)" not in said and "On mesh (8, 1) d1 gets 32 GB/s" in matrix.describe()
    assert "Source: ColossalAI's profiler" in said
    assert tv.communication_matrix(PAIRS).badge == "derived"
    alone = tv.communication_matrix(PAIRS, 1)
    assert alone.entries == {} and "On mesh (1, 1) nothing is sent." in alone.describe()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: tv.communication_matrix("A100"), "first comes a cluster such as .*, not 'A100'"),
        (lambda: tv.communication_matrix(PAIRS, 9), "9 ranks do not fit the 8 devices"),
        (lambda: tv.communication_matrix(PAIRS, 0), "world_size=0 is too small"),
        (
            lambda: tv.communication_matrix(PAIRS).of((3, 2)),
            r"mesh=\(3, 2\) has 6 ranks, but this matrix is of 8: use \(4, 2\), or "
            r"communication_matrix\(cluster, 6\)",
        ),
        (
            lambda: tv.communication_matrix(PAIRS).of(
                (4, 4)
            ),  # more ranks than devices: no such matrix
            r"mesh=\(4, 4\) has 16 ranks, but this matrix is of 8: use \(2, 4\)$",
        ),
        (lambda: tv.communication_matrix(PAIRS).of((8,)), r"must be two sizes \(d1, d2\)"),
        (lambda: tv.communication_matrix(PAIRS).of(8), r"mesh=8 must be two sizes \(d1, d2\)"),
        (lambda: tv.communication_matrix(PAIRS).of((8, 0)), "d2 of mesh=0 is too small"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# -- measured ----------------------------------------------------------------------------------
def emulated(cluster, world_size, slow_motion):
    """(the matrix measured on real ranks while the cluster is emulated, the matrix of its rule).

    Links 5,000 times slower than they are, and in slow motion: longer than gloo takes here; of
    three repeats the shortest counts, each the slowest of all groups.
    """
    slow = replace(cluster, table={}).scale_model(hidden=5000, slow_motion=slow_motion)
    found = tv.calibrate(
        world_size, sizes=(2**15, 2**16, 2**17), repeats=3, cluster=slow, progress=False
    )
    return found, slow


def fitted(points, kind):
    """Bytes/s of a kind of group, by the line through its all-reduces."""
    used = [p for p in points if (p["kind"], p["collective"]) == (kind, "all_reduce")]
    return fit_line(*([p[what] for p in used] for what in ("hops", "volume", "seconds")))[1]


@pytest.mark.filterwarnings("ignore:this emulated run")
@pytest.mark.parametrize(
    "cluster, world_size",
    [
        (tv.clusters.nvlink_pairs(pairs=2), 4),
        (tv.clusters.nvswitch_nodes(nodes=2, gpus=2, nics=1), 4),
        (tv.clusters.torus(4, 2), 8),
    ],
    ids=["pairs", "one NIC", "torus"],
)
def test_the_rule_is_what_emulated_ranks_measure(cluster, world_size):
    """Every kind of group of a 2D mesh at once, on real ranks paced to the cluster: within 5 %.

    A busy machine adds milliseconds, so a calibration that is off is made again, twice as slow.
    """
    for slow_motion in (10, 20, 40):
        found, slow = emulated(cluster, world_size, slow_motion)
        measured, derived = (tv.communication_matrix(c, world_size) for c in (found, slow))
        bandwidths = {kind: fitted(found.points, kind) for kind in derived.entries}
        expected = {kind: entry.bandwidth for kind, entry in derived.entries.items()}
        if bandwidths == pytest.approx(expected, rel=0.05):
            break
    assert measured.badge == found.badge == "measured: emulated"
    assert {entry.source for entry in measured.entries.values()} == {"measured"}
    assert {entry.source for entry in derived.entries.values()} == {"derived"}
    assert measured.entries.keys() == derived.entries.keys()
    assert bandwidths == pytest.approx(expected, rel=0.05)
    assert (measured.p2p() == derived.p2p()).all()
    assert found.cluster.device == slow.device and "emulated and measured" in repr(measured)
    assert found.cluster.slow_motion == slow_motion


def test_of_an_emulated_cluster_the_shortest_repeat_counts():
    """Nothing ends before the cluster says, so what took longer was disturbed."""
    points = {}
    for kind, name in (((1, 2), "all_reduce"), ("message", "send")):
        for size in (1000, 2000, 4000):
            points[kind, name, size] = [[0.0, size * factor] for factor in (1e-3, 1.5e-3, 9e-3)]
    ranks = [{"points": points, "host": ("a", "its clock")}] * 2
    pair = tv.clusters.nvlink_pairs(pairs=1)
    found = calibration_of(ranks, pair)
    assert [p["seconds"] for p in found.points] == [1.0, 2.0, 4.0] * 2
    assert found.cluster.table[1, 2] == pytest.approx(1000, rel=1e-3)
    assert found.cluster.levels == pair.levels and found.badge == "measured: emulated"


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"cluster": "box"}, "as cluster= comes a cluster such as .*, not 'box'"),
        ({"cluster": tv.clusters.nvlink_pairs(pairs=1)}, "4 ranks do not fit the 2 devices"),
    ],
)
def test_what_cannot_be_emulated(arguments, message):
    with pytest.raises(ValueError, match=message):
        tv.calibrate(4, **arguments)

"""All-to-alls of unequal parts: seconds of the busiest port, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tpviz as tv
from tpviz.cluster import Cluster, Device, Dimension, Level
from tpviz.cluster.exchanges import between

DEVICE = Device({"float32": 1e9}, 1e9, 1e9)
BUS = Cluster("bus", DEVICE, (Level("bus", 8, 10.0, 20.0),))
NODES = Cluster("nodes", DEVICE, (Level("in", 4, 100.0, 100.0), Level("out", 2, 5.0, 10.0)))
WIRED = Cluster("wired", DEVICE, (Level("in", 4, 10.0, 100.0, direct=True),))
RING = Cluster("ring", DEVICE, torus=(Dimension("x", 6, 10.0),))
GRID = Cluster("grid", DEVICE, torus=(Dimension("x", 2, 10.0), Dimension("y", 4, 10.0)))


def seconds(cluster, parts, members, world_size=None):
    """Of an all-to-all of these parts, without latency."""
    payload = cluster.exchanged(parts, members, world_size or cluster.size)
    link = cluster.link(members, world_size or cluster.size)
    return cluster.collective_time("all_to_all", payload, len(members), link)


def test_parts_of_all_ranks():
    assert between([1, 2], 2).tolist() == [[0, 2], [1, 0]]
    assert between([[1], [2]], 2).tolist() == [[0, 1], [2, 0]]
    assert between(3, 2).tolist() == [[0, 3], [3, 0]]


def test_the_rank_that_gets_most_decides_or_the_one_that_sends_most():
    """Rank 2 gets 50 bytes of each of three others, or sends 50 to each."""
    members, hot = (0, 1, 2, 3), (10, 10, 50, 10)
    assert seconds(BUS, hot, members) == pytest.approx(150 / 10)
    assert seconds(BUS, tuple((n,) for n in hot), members) == pytest.approx(150 / 10)
    both = [[0, 70, 0], [0, 0, 0], [90, 0, 0]]  # rank 0 sends 70, and gets 90
    assert seconds(BUS, both, (0, 1, 2)) == pytest.approx(9)


@given(st.lists(st.integers(0, 99), min_size=16, max_size=16))
def test_on_one_level_it_is_the_larger_sum_of_a_rank(sizes):
    sizes = np.reshape(sizes, (4, 4))
    off = sizes * (1 - np.eye(4))
    most = max(off.sum(0).max(), off.sum(1).max())
    parts = tuple(map(tuple, sizes.tolist()))
    assert seconds(BUS, parts, (1, 3, 5, 7), 8) == pytest.approx(most / 10)


@pytest.mark.parametrize("cluster", [BUS, WIRED])
def test_equal_parts_take_what_the_closed_form_says(cluster):
    members, world = (0, 1, 2, 3), cluster.size
    closed = cluster.collective_time("all_to_all", 120.0, 4, cluster.link(members, world))
    assert seconds(cluster, 30.0, members) == pytest.approx(closed)


def test_bytes_of_all_pairs_pass_a_nodes_port():
    """Two of four ranks in each node: 4 pairs of 10 bytes leave a node through 10 bytes/s, which
    two such groups share; with all eight ranks, 16 pairs through 10."""
    assert seconds(NODES, 10, (0, 2, 4, 6)) == pytest.approx(40 / (10 / 2))
    assert seconds(NODES, 10, tuple(range(8))) == pytest.approx(160 / 10)
    hot = np.zeros((8, 8))
    hot[:4, 5] = 10  # to one rank of the other node, which has a port of 5 bytes/s of its own
    assert seconds(NODES, hot, tuple(range(8))) == pytest.approx(40 / 5)
    inside = np.zeros((8, 8))
    inside[1, 2] = 300  # never leaves its node
    assert seconds(NODES, inside, tuple(range(8))) == pytest.approx(3)


def test_wired_to_each_other_a_pair_has_its_own_wire():
    assert seconds(WIRED, [[0, 30, 20, 0]] + [[0] * 4] * 3, (0, 1, 2, 3)) == pytest.approx(3)


def test_on_a_torus_pairs_pass_the_links_between_them():
    """From 0 to 2 and from 1 to 3 of a ring: both pass the link from 1 to 2."""
    parts = np.zeros((6, 6))
    parts[0, 2] = parts[1, 3] = 20
    assert seconds(RING, parts, tuple(range(6))) == pytest.approx(4)
    parts[:] = 0
    parts[0, 4] = parts[0, 2] = 20  # there by the shorter way each
    assert seconds(RING, parts, tuple(range(6))) == pytest.approx(2)
    parts = np.zeros((8, 8))
    parts[0, 3] = parts[1, 3] = 10  # x first: both along y at x = 1
    assert seconds(GRID, parts, tuple(range(8))) == pytest.approx(2)


def test_of_an_axis_the_slowest_group_counts():
    mesh, parts = tv.Mesh({"dp": 2, "ep": 4}), (10, 10, 50, 10)
    found = NODES.exchanged(parts, mesh.group(0, "ep"), 8, slowest=True)
    assert found == pytest.approx(200)
    assert NODES.exchanged(parts, (3,), 8) == 0.0

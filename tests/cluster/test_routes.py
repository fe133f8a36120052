"""The rule for what a group gets: families, ports, sharing, tables; the torus hop by hop."""

from dataclasses import replace
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpviz import Cluster, Device, Dimension, Level, Mesh, clusters
from tpviz.cluster.routes import Link, Port, family

DEVICE = Device({"float32": 1e12}, 16e9, 1e12)
SHAPES = [{"a": 8}, {"a": 4, "b": 2}, {"a": 2, "b": 4}, {"a": 2, "b": 2, "c": 2}]


def two_nodes(gpus=8, **more):
    levels = (Level("inside", gpus, 100.0), Level("network", 2, 10.0, 20.0))
    return Cluster("two nodes", DEVICE, levels, **more)


# -- families ----
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_families_are_the_groups_of_the_axis_and_partition_the_ranks(sizes):
    mesh = Mesh({f"a{i}": size for i, size in enumerate(sizes)})
    for axis, size in mesh.axes.items():
        groups = family(mesh.group(0, axis), mesh.size)
        if size > 1:
            assert sorted(map(list, groups)) == mesh.groups(axis)
            assert sorted(r for g in groups for r in g) == list(range(mesh.size))
        for members in mesh.groups(axis):
            assert tuple(members) in family(members, mesh.size)


def test_groups_out_of_step_stand_alone():
    for members, world in [((0, 1, 3), 8), ((0, 1, 2), 8), ((3, 4), 8), ((2, 0), 4)]:
        assert family(members, world) == [members]
    assert family((0, 2), 4, shift=2) == [(0, 2), (1, 3)]
    assert family((2, 0), 4, shift=-2) == [(2, 0), (3, 1)]


@pytest.mark.parametrize(
    "members, shift", [((1, 3), None), ((4, 6), None), ((2, 5), 3), ((0, 1, 3), None)]
)
def test_a_link_knows_its_family_by_the_first_group(members, shift):
    groups = family(members, 8, shift)
    assert {two_nodes(4).link(group, 8, shift).family for group in groups} == {groups[0]}


# -- levels: the checks of the rule in the references ----
def test_sharing_of_a_nodes_way_out():
    one_nic = two_nodes()
    one_nic = replace(one_nic, levels=(one_nic.levels[0], Level("network", 2, 10.0)))
    mesh = Mesh({"d1": 2, "d2": 8})
    assert one_nic.bandwidth(mesh, "d1") == 10 / 8  # eight rings behind one NIC
    assert one_nic.bandwidth(mesh, "d2") == 100
    assert one_nic.bandwidth(Mesh({"d1": 16}), "d1") == 10
    assert one_nic.axis_link(Mesh({"d1": 16, "d2": 1}), "d2") == Link(inf, 0.0, inf, ())


def test_a_ring_uses_as_many_nics_as_it_has_members_in_a_node():
    nics = two_nodes(4)
    assert nics.bandwidth(Mesh({"dp": 8}), "dp") == 20  # four members, two NICs' worth
    assert replace(nics, rings="single").bandwidth(Mesh({"dp": 8}), "dp") == 10
    mesh = Mesh({"dp": 2, "tp": 4})
    for rings in ("multi", "single"):  # four rings of one member each share 20
        assert replace(nics, rings=rings).bandwidth(mesh, "dp") == 5


def test_units_wired_directly_give_a_ring_a_link_to_each():
    node = Cluster("node", DEVICE, (Level("wires", 4, 10.0, 28.0, direct=True),))
    pair, all_four = Mesh({"a": 2, "b": 2}), Mesh({"a": 4})
    assert node.bandwidth(pair, "a") == node.bandwidth(pair, "b") == 10
    assert node.bandwidth(all_four, "a") == 28  # three links of 10, and 28 out of a device
    assert replace(node, rings="single").bandwidth(all_four, "a") == 10
    assert node.link((0, 3), 4, shift=3).bandwidth == 10


def test_a_message_loads_its_senders_way_out_and_its_receivers_way_in():
    link = two_nodes(2).link((0, 2), 4, shift=2)
    assert link.ports == (Port((1, 0, "out"), 20.0, 2), Port((1, 1, "in"), 20.0, 2))
    assert link.bandwidth == 10 and link.limit == 10
    link = two_nodes(4).link((1, 5), 8, shift=4)
    assert link.bandwidth == 5  # four such messages at once


def test_the_slowest_hop_gives_the_latency():
    levels = (Level("in", 2, 1.0, latency=1e-6), Level("out", 2, 1.0, latency=5e-6))
    c = Cluster("c", DEVICE, levels, latencies={(1, 4): 7e-6})
    slow_inside = replace(c, levels=(replace(levels[0], latency=9e-6), levels[1]), latencies={})
    assert slow_inside.link((0, 1, 2, 3), 4).latency == 9e-6
    mesh = Mesh({"dp": 2, "tp": 2})
    assert c.axis_link(mesh, "tp").latency == 1e-6
    assert c.axis_link(mesh, "dp").latency == 5e-6
    assert c.link((0, 1, 2, 3), 4).latency == 7e-6


def test_the_slowest_group_of_an_axis_decides():
    c = Cluster("uneven", DEVICE, (Level("in", 3, 100.0), Level("out", 2, 10.0)))
    mesh = Mesh({"dp": 3, "tp": 2})  # (0, 1) and (4, 5) inside a unit, (2, 3) across
    assert c.link((0, 1), 6).bandwidth == c.link((4, 5), 6).bandwidth == 100
    assert c.axis_link(mesh, "tp") == c.link((2, 3), 6)
    assert c.bandwidth(mesh, "tp") == 10
    pairs = Cluster("pairs", DEVICE, (Level("in", 2, 100.0), Level("out", 3, 10.0, 60.0)))
    assert pairs.bandwidth(Mesh({"dp": 2, "tp": 3}), "tp") == 10  # one member in a unit, two in one


# -- tables and other traffic ----
def test_a_table_overrides_the_rule():
    c = two_nodes(4, table={(1, 8): 16.0, (4, 2): 9.0})
    whole, halves = Mesh({"dp": 8}), Mesh({"dp": 2, "tp": 4})
    assert c.bandwidth(whole, "dp") == 16
    assert c.bandwidth(halves, "dp") == 9
    assert c.bandwidth(halves, "tp") == 100
    assert c.link((0, 4), 8, shift=4).bandwidth == 5  # a message is no ring of two


def test_traffic_of_another_axis_shares_only_ports_that_both_pass():
    c = two_nodes(4, table={(1, 8): 16.0})
    ring = c.link(tuple(range(8)), 8)
    assert ring.rate({}) == 16
    assert ring.rate({(1, 0, "out"): 1}) == 8  # the port that held it back carries what it got
    assert ring.rate({(0, 3, "in"): 1}) == 16  # a device's own port still carries 100
    assert ring.rate({(9, 9, "out"): 5}) == 16
    faster = two_nodes(4, table={(1, 8): 150.0}).link(tuple(range(8)), 8)
    assert faster.rate({}) == 150  # more than a device's own port carries by the rule


# -- torus ----
def torus(x=4, y=2, links=1):
    return Cluster(
        "torus", DEVICE, torus=(Dimension("x", x, 10.0, 1e-6, links), Dimension("y", y, 5.0, 2e-6))
    )


def test_axes_laid_along_a_torus_have_its_links_to_themselves():
    mesh = Mesh({"y": 2, "x": 4})
    assert torus().bandwidth(mesh, "x") == 10
    assert torus().bandwidth(mesh, "y") == 5
    assert torus(links=3).bandwidth(mesh, "x") == 30
    assert torus().axis_link(mesh, "x").latency == 1e-6
    assert torus().bandwidth(Mesh({"all": 8}), "all") == 5


def test_groups_laid_across_share_links():
    strided = torus(8, 2).axis_link(Mesh({"a": 8, "b": 2}), "a")  # every second one along x, then y
    assert strided.bandwidth == pytest.approx(5.0)  # two rings on each link of x
    assert strided.latency == pytest.approx(4e-6)  # the step from one row to the next
    link = torus(8, 2).link((0, 4), 16)  # the far side: four hops there, four back by the wrap
    assert {port.load for port in link.ports} == {4}
    assert link.latency == pytest.approx(4e-6) and link.bandwidth == 2.5


def test_a_ring_that_passes_a_link_twice_gets_half_of_it():
    link = torus(8, 2).link((0, 2, 1, 3), 16)  # out of step: 0 to 2, back to 1, on to 3
    assert {port.key: port.load for port in link.ports}[0, 1, 1] == 2
    assert link.bandwidth == 5


def test_a_message_on_a_torus_goes_one_way():
    ports = {port.key for port in torus().link((3, 0), 8, shift=-3).ports}
    assert ports == {(0, 3, 1)}  # by the wrap-around link


# -- properties ----
def levels_of(draw_numbers):
    p2p, more, direct = draw_numbers
    return (
        Level("a", 2, p2p[0], p2p[0] * more[0], direct=direct),
        Level("b", 2, p2p[1], p2p[1] * more[1], direct=direct),
        Level("c", 2, p2p[2], p2p[2] * more[2]),
    )


rates = st.tuples(*[st.floats(1, 1e6)] * 3)
hierarchies = st.tuples(rates, st.tuples(*[st.floats(1, 8)] * 3), st.booleans()).map(levels_of)
either = st.one_of(
    hierarchies.map(lambda made: {"levels": made}),
    rates.map(lambda r: {"torus": (Dimension("x", 4, r[0]), Dimension("y", 2, r[1]))}),
)


@given(either, st.sampled_from(["multi", "single"]), st.floats(1, 100), st.integers(0, 2))
@settings(max_examples=80, deadline=None)
def test_bandwidth_never_grows_when_a_capacity_shrinks(parts, rings, factor, which):
    [(kind, made)] = parts.items()
    which = which % len(made)
    slower = made[:which] + (made[which].slower(factor, 1),) + made[which + 1 :]
    before = Cluster("c", DEVICE, **parts, rings=rings)
    after = replace(before, **{kind: slower})
    for mesh in map(Mesh, SHAPES):
        for axis in mesh.axes:
            assert after.bandwidth(mesh, axis) <= before.bandwidth(mesh, axis) * (1 + 1e-9)


@given(either, st.sampled_from(["multi", "single"]))
@settings(max_examples=80, deadline=None)
def test_no_port_carries_more_than_it_can(parts, rings):
    c = Cluster("c", DEVICE, **parts, rings=rings)
    for mesh in map(Mesh, SHAPES):
        for axis in mesh.axes:
            links = [c.link(group, mesh.size) for group in mesh.groups(axis)]
            slowest = min(link.bandwidth for link in links)
            for link in links:
                assert link.bandwidth == link.rate({}) <= link.limit
                for port in link.ports:
                    assert port.load * slowest <= port.capacity * (1 + 1e-9)


@given(either, st.sampled_from(["multi", "single"]))
@settings(max_examples=40, deadline=None)
def test_several_rings_are_never_slower_than_one(parts, rings):
    c = Cluster("c", DEVICE, **parts, rings=rings)
    for mesh in map(Mesh, SHAPES):
        for axis in mesh.axes:
            assert c.bandwidth(mesh, axis) >= replace(c, rings="single").bandwidth(mesh, axis)


def test_loads_count_each_group_that_passes():
    """Counted here by hand: groups with members in the unit, of those that cross the level."""
    c = clusters.frontier(nodes=2)
    for axes in ({"dp": 4, "tp": 4}, {"dp": 2, "tp": 8}, {"dp": 8, "tp": 2}):
        mesh = Mesh(axes)
        for axis in axes:
            for group in mesh.groups(axis):
                for (level, unit, _), _, load in c.link(group, mesh.size).ports:
                    inner = [1, 2, 8][level]
                    outer = [2, 8, 16][level]
                    crossing = [
                        g
                        for g in mesh.groups(axis)
                        if any(r // inner == unit for r in g)
                        and len({r // inner for r in g if r // outer == unit * inner // outer}) > 1
                    ]
                    assert load == len(crossing)

"""A family's links from a few routes are those from a route of every group, ports and all."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tpviz import Cluster, Device, Dimension, Level, Mesh, clusters
from tpviz.cluster import traffic
from tpviz.cluster.routes import Link, Port, family, gates, level_route, torus_route

DEVICE = Device({"float32": 1e12}, 16e9, 1e12)
HIERARCHIES = [
    (Level("a", 3, 100.0, latency=1e-6), Level("b", 4, 10.0, 15.0, latency=5e-6)),
    (
        Level("a", 2, 10.0, 28.0, direct=True),
        Level("b", 3, 7.0, latency=3e-6),
        Level("c", 2, 3.0, 4.5),
    ),
    (Level("wires", 6, 10.0, 25.0, direct=True),),
]
TORI = [
    (Dimension("x", 4, 10.0, 1e-6), Dimension("y", 3, 5.0, 2.3e-6, 2)),
    (Dimension("x", 2, 10.0), Dimension("y", 3, 5.0, 2e-6), Dimension("z", 2, 7.0, 1e-6)),
    (Dimension("ring", 6, 3.0, 1e-6),),
]
MADE = [
    Cluster("c", DEVICE, levels, rings=rings)
    for levels in HIERARCHIES
    for rings in ("multi", "single")
] + [Cluster("c", DEVICE, torus=torus) for torus in TORI]


def links_by_every_group(cluster, members, world_size, shift=None):
    """{group: Link}, the rule alone: every group routed, every pass counted."""
    find = torus_route if cluster.torus else level_route
    routes = {g: find(cluster, g, shift) for g in family(members, world_size, shift)}
    loads = Counter(number for *_, passes in routes.values() for number in passes)
    ways, links = gates(cluster), {}
    for group, (limit, latency, passes) in routes.items():
        ports = []
        for number in dict.fromkeys(passes):
            place, gate = divmod(number, len(ways))
            part, inner, way, capacity = ways[gate]
            ports.append(Port((part, place // inner, way), capacity, loads[number]))
        bandwidth = min(limit, *(port.capacity / port.load for port in ports))
        links[group] = Link(bandwidth, latency, limit, tuple(ports), next(iter(routes)))
    return links


@pytest.mark.parametrize("made", MADE, ids=lambda c: f"{len(c.levels)} {len(c.torus)} {c.rings}")
@given(st.data())
@settings(max_examples=40, deadline=None)
def test_every_groups_link_is_that_of_its_own_route(made, data):
    world = data.draw(st.integers(2, made.size))
    first = data.draw(st.integers(0, world - 1))
    size = data.draw(st.integers(2, world))
    stride = data.draw(st.integers(1, world))
    evenly = tuple(range(first, world, stride))[:size]
    uneven = tuple(data.draw(st.permutations(range(world))))[:size]
    other = data.draw(st.integers(0, world - 1).filter(lambda rank: rank != first))
    for members, shift in ((evenly, None), (uneven, None), ((first, other), other - first)):
        if len(members) > 1:
            cluster = Cluster.from_json(made.to_json())  # which knows no links yet
            for group, link in links_by_every_group(made, members, world, shift).items():
                assert cluster.link(group, world, shift) == link


@pytest.mark.parametrize("made", MADE, ids=lambda c: f"{len(c.levels)} {len(c.torus)} {c.rings}")
def test_an_axis_has_the_link_of_its_slowest_group(made):
    for world in range(2, made.size + 1):
        for outer in (n for n in range(1, world + 1) if world % n == 0):
            for middle in (n for n in range(1, world // outer + 1) if world // outer % n == 0):
                mesh = Mesh({"a": outer, "b": middle, "c": world // outer // middle})
                check_axes(made, mesh)


def check_axes(cluster, mesh):
    for axis, size in mesh.axes.items():
        if size > 1:
            links = links_by_every_group(cluster, mesh.group(0, axis), mesh.size)
            slowest = min(links.values(), key=lambda link: (link.bandwidth, -link.latency))
            assert cluster.axis_link(mesh, axis) == slowest


@pytest.mark.parametrize(
    "big",
    [
        clusters.nvswitch_nodes(16, nics=3),
        clusters.frontier(8),
        clusters.nvlink_pairs(32, rings="single"),
        clusters.torus(8, 8),
    ],
)
def test_large_clusters(big):
    bare = Cluster("bare", big.device, big.levels, big.torus, big.rings)  # the rule, no table
    for inner in (2, 4, 8, 16, 32):
        check_axes(bare, Mesh({"dp": bare.size // inner, "tp": inner}))


def test_a_measured_rate_leaves_the_slowest_hop_to_decide():
    levels = (Level("in", 3, 100.0, latency=1e-6), Level("out", 2, 10.0, latency=9e-6))
    cluster = Cluster("c", DEVICE, levels, table={(1, 2): 50.0})
    mesh = Mesh({"dp": 3, "tp": 2})  # (0, 1) and (4, 5) inside a unit, (2, 3) across
    assert cluster.axis_link(mesh, "tp") == cluster.link((2, 3), 6)
    assert cluster.axis_link(mesh, "tp").latency == 9e-6
    even = Cluster("c", DEVICE, levels, table={(1, 2): 50.0}, latencies={(1, 2): 2e-6})
    assert even.axis_link(mesh, "tp") == even.link((0, 1), 6)  # of equals the first


def test_a_thousand_ranks_ask_few_routes(monkeypatch):
    """Groups that fall alike are routed once: 128 nodes' own as one, and 8 that join all nodes."""
    seen, route = [], level_route
    monkeypatch.setattr(traffic, "level_route", lambda *a: seen.append(a) or route(*a))
    big = clusters.nvswitch_nodes(nodes=128)
    for axes, routes in (
        ({"dp": 128, "tp": 8}, {"tp": 1, "dp": 8}),
        ({"dp": 2, "tp": 512}, {"tp": 1, "dp": 8}),
    ):
        for axis, count in routes.items():
            seen.clear()
            mesh = Mesh(axes)
            big.axis_link(mesh, axis)
            assert len(seen) == count
            for group in mesh.groups(axis)[:5]:
                big.link(group, mesh.size)
                big.link(group, mesh.size)
            assert len(seen) <= count + 5

"""Transfers on shared ports: who gets how much, and when each ends. Numbers worked out by hand."""

import pytest

from tpviz.cluster.clock.flows import Flows
from tpviz.cluster.routes import Link, Port


def link(capacity, load=1, key="nic", limit=float("inf")):
    return Link(min(limit, capacity / load), 0.0, limit, (Port((key,), capacity, load),))


def ends(flows):
    found = []
    while flows.next_time() is not None:
        flow = flows.step()
        if flow is not None:
            found.append((flow.owner, flow.end))
    return dict(found)


def test_alone_a_transfer_takes_latency_and_volume_over_bandwidth():
    flows = Flows()
    flows.add("a", "tp", link(100.0), 0.5, 200.0, start=1.0)
    assert ends(flows) == {"a": pytest.approx(1.0 + 0.5 + 2.0)}


def test_two_axes_share_a_port_while_both_send():
    # a sends 100 from 0, b 100 from 0.5, port 100/s: a has 50 left at 0.5, both get 50/s,
    # a ends at 1.5; b has 50 left then and ends at 2.0
    flows = Flows()
    flows.add("a", "tp", link(100.0), 0.0, 100.0, 0.0)
    flows.add("b", "dp", link(100.0), 0.0, 100.0, 0.5)
    assert ends(flows) == {"a": pytest.approx(1.5), "b": pytest.approx(2.0)}


def test_groups_of_one_axis_do_not_slow_each_other_further():
    # a load of 2 is in the bandwidth already: 100 / 2 = 50/s each, together or not
    flows = Flows()
    for name in "ab":
        flows.add(name, "tp", link(100.0, load=2), 0.0, 100.0, 0.0)
    assert ends(flows) == {"a": pytest.approx(2.0), "b": pytest.approx(2.0)}


def test_other_ports_do_not_matter():
    flows = Flows()
    flows.add("a", "tp", link(100.0, key="one"), 0.0, 100.0, 0.0)
    flows.add("b", "dp", link(100.0, key="two"), 0.0, 100.0, 0.0)
    assert ends(flows) == {"a": pytest.approx(1.0), "b": pytest.approx(1.0)}


def test_without_contention_each_axis_is_alone():
    flows = Flows(contention=False)
    flows.add("a", "tp", link(100.0), 0.0, 100.0, 0.0)
    flows.add("b", "dp", link(100.0), 0.0, 100.0, 0.5)
    assert ends(flows) == {"a": pytest.approx(1.0), "b": pytest.approx(1.5)}


def test_no_bytes_are_lost_whatever_the_order():
    """A port is never idle while somebody wants it: all is over when the bytes are through."""
    flows = Flows()
    volumes = [30.0, 70.0, 50.0, 90.0]
    for i, volume in enumerate(volumes):
        flows.add(i, f"axis{i}", link(10.0), 0.0, volume, 0.1 * i)
    assert max(ends(flows).values()) == pytest.approx(sum(volumes) / 10)

"""Widgets, recorders and exercises on two hosts; a world of six; faults that were drawn."""

import json
import sys

import pytest
from bed import hosts
from engines import cluster
from faults import KINDS, MOMENTS, Fault, draw, suffer

pytest.importorskip("ipyparallel")

WORK = """
import json, sys
import ipyparallel
import tpviz as tv

client = ipyparallel.Client(sys.argv[1])
client.wait_for_engines(int(sys.argv[2]), timeout=100)
tv.use(client)
gpt = tv.GPT(layers=1, hidden=16, heads=4, batch=4, seq=8)
said = {}

def train():
    import torch, torch.distributed as dist
    with tv.record() as rec:
        for _ in range(2):
            with rec.step():
                dist.all_reduce(torch.ones(10))
    return rec.trace

def mean(x):
    import torch.distributed as dist
    dist.all_reduce(x)
    return x / dist.get_world_size()
"""

TWO = """
view = tv.explore(gpt, strategy=tv.Megatron(tp=4))
view.guesses.on.value = False
view.run()
assert view.wait(100), view.error
said["explore"] = view.error or [view.trace.meta["hosts"][rank][0] for rank in range(4)]
recorded = tv.Trace.merge(tv.launch(train, world_size=4))
said["recorded"] = recorded.badge
said["exercise"] = bool(tv.check("mean_over_ranks", mean))
print(json.dumps(said))
"""

SIX = """
said["hosts"] = tv.launch(lambda: __import__("os").uname().nodename, world_size=12)
said["sum"] = tv.launch(lambda: mean(__import__("torch").ones(3)).tolist(), world_size=12)
wide = tv.GPT(layers=1, hidden=16, heads=4, batch=12, seq=8)
said["ok"] = tv.verify(tv.Megatron(tp=2) * tv.DataParallel(dp=6), wide).ok
said["badge"] = tv.Trace.merge(tv.launch(train, world_size=12)).badge
print(json.dumps(said))
"""


def told(n, work, **settings):
    """What a script says last, as JSON, on the first of ``n`` hosts with an engine each."""
    with hosts(n, clocks=[1000 * i for i in range(n)], **settings) as bed, cluster(bed) as file:
        script = bed[0].write("/tmp/script.py", WORK + work)
        done = bed[0].run([sys.executable, script, file, str(n)], timeout=250)
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_explore_record_and_exercises_take_ranks_of_hosts():
    found = told(2, TWO, delay=0.001)
    assert found["explore"] == ["host0", "host0", "host1", "host1"]
    assert "2 hosts, clocks within" in found["recorded"]
    assert found["exercise"]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_six_hosts():
    found = told(6, SIX)
    assert found["hosts"] == [f"host{rank // 2}" for rank in range(12)]
    assert found["sum"] == [[1.0] * 3] * 12
    assert found["ok"] and "6 hosts, clocks within" in found["badge"]


FAULTS = [
    Fault("kill rank", "host2", "in a collective", 0.5, 3),
    Fault("kill engine", "host1", "in compute", 0.5, 0),
    Fault("cut link", "host2", "between jobs", 0.5, 2),
    Fault("interrupt", "host1", "in a collective", 0.5, 0),
    Fault("stop rank", "host1", "in a collective", 0.5, 1),
    Fault("kill caller", "host1", "in a collective", 0.5, 0),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_is_named_all_ends_and_the_next_launch_works(fault):
    found = suffer(fault)
    assert not found.wrong, f"{found.wrong}: {found.said}"


def test_faults_are_drawn_of_all_kinds_at_all_moments():
    faults = draw(60, seed=3)
    assert faults == draw(60, seed=3) != draw(60, seed=4)
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {fault.moment for fault in faults} == set(MOMENTS)

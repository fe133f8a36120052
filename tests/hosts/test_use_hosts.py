"""``tv.use``: ranks of a notebook on two hosts, whose clocks are 1000 s apart."""

import json
import sys
import time
from subprocess import PIPE, STDOUT

import pytest
from bed import hosts
from engines import cluster

pytest.importorskip("ipyparallel")

CLIENT = """
import json, os, sys, threading
import ipyparallel
import tpviz as tv

client = ipyparallel.Client(sys.argv[1])
client.wait_for_engines(2, timeout=60)
tv.use(client)
gpt = tv.GPT(layers=1, hidden=16, heads=4, batch=4, seq=8)
plan = tv.Megatron(tp=2) * tv.DataParallel(dp=2)

def clock():
    from tpviz.ranks import offsets
    return [moment["ahead"] for moment in offsets.offset().get("moments", [])]

def fails(what):
    import torch.distributed as dist
    dist.barrier()
    if dist.get_rank() == 3:
        eval(what)
    dist.barrier()
"""


def told(bed, file, lines, timeout=100):
    """What a script of these lines prints last, as JSON, on the first host."""
    script = bed[0].write("/tmp/script.py", CLIENT + lines)
    done = bed[0].run([sys.executable, script, file], timeout)
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout.splitlines()[-1])


DELAY = 0.005  # seconds from one host to another, where links are calibrated

VERBS = """
verdict = tv.verify(plan, gpt)
trace = tv.run(plan, gpt)
print(json.dumps({
    "ok": verdict.ok,
    "badge": trace.badge,
    "hosts": [trace.meta["hosts"][rank][0] for rank in range(4)],
    "span": float(trace["end"].max() - trace["start"].min()),
    "step": trace.step_time,
    "clocks": tv.launch(clock, world_size=4),
}))
"""


def test_verbs_are_right_and_times_are_one_line():
    with hosts(2, delay=0.001, clocks=[0, 1000]) as bed, cluster(bed) as file:
        found = told(bed, file, VERBS)
    assert found["ok"] and found["hosts"] == ["host0", "host0", "host1", "host1"]
    assert "2 hosts, clocks within" in found["badge"]
    assert 0 < found["step"] <= found["span"] < 30, "not 1000 s"
    here, there = found["clocks"][:2], found["clocks"][2:]
    assert here == [[], []]
    assert all(abs(ahead - 1000) < 1e-3 for moments in there for ahead in moments) and there[0]


CALIBRATED = """
found = tv.calibrate(
    4, sizes=(2**12, 2**14, 2**16), repeats=1, dtypes=["float32"], gemm=64, progress=False
)
cluster, w = found.cluster, tv.GPT(batch=8)
print(json.dumps({
    "said": found.describe(),
    "name": cluster.name,
    "levels": [[level.units, level.latency] for level in cluster.levels],
    "cores": [cluster.hosts, cluster.cores],
    "orders": [
        tv.simulate(plan.with_order(order), w, cluster).step_time for order in ("tp-dp", "dp-tp")
    ],
}))
"""


@pytest.mark.timeout(300)
def test_calibrate_finds_the_links_between_hosts_and_tp_belongs_within_one():
    with hosts(2, delay=DELAY) as bed, cluster(bed, cores=True) as file:
        found = told(bed, file, CALIBRATED, timeout=250)
    (within, near), (between, far) = found["levels"]
    assert (within, between) == (2, 2) and far >= 0.8 * DELAY and far > near
    assert found["cores"] == [2, 1]
    assert found["name"].startswith("2 hosts (host")
    assert "Messages between hosts, one pair" in found["said"]
    inside, across = found["orders"]
    assert inside < across


LOST = """
import time
import signal
tv.launch(clock, world_size=4)
os.environ["DONE"] = "1"
print("ready", flush=True)
begun = time.monotonic()
try:
    tv.launch(fails, "__import__('time').sleep(60)", world_size=4)
except tv.RankError as error:
    said = str(error)
took = time.monotonic() - begun
sizes = tv.launch(int, world_size=4), len({where for where in tv.launch(os.uname, world_size=2)})
print(json.dumps({"said": said, "took": took, "sizes": sizes}))
"""


@pytest.mark.parametrize("how", ["cut", "kill"])
def test_a_host_that_is_lost_is_named_and_others_go_on(how):
    with hosts(2, delay=0.001, clocks=[0, 1000]) as bed, cluster(bed) as file:
        script = bed[0].write("/tmp/script.py", CLIENT + LOST)
        run = [sys.executable, script, file]
        with bed[0].popen(run, stdout=PIPE, stderr=STDOUT) as process:
            for line in process.stdout:
                if line == "ready\n":
                    break
            time.sleep(2)
            getattr(bed[1], how)()
            out, _ = process.communicate(timeout=60)
        assert process.returncode == 0, out
        found = json.loads(out.splitlines()[-1])
        assert "rank 2 on host1" in found["said"], found["said"]
        assert found["took"] < 2 + 10 + 2
        assert found["sizes"] == [[0] * 4, 1], "all on the host that is left"
        if how == "cut":
            until = time.monotonic() + 15
            while len(left := _forked(bed[1])) > 1 and time.monotonic() < until:
                time.sleep(0.5)
            assert len(left) == 1, "the lost host has ended its ranks, and keeps its fork server"


def _forked(host):
    return [line for line in host.processes().values() if "forkserver" in line]

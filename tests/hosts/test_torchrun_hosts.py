"""A torchrun world of two hosts, clocks 1000 s apart: every verb works, on one time line."""

import json
import subprocess
import sys

import pytest
from bed import hosts

AHEAD, DELAY = 1000, 0.001
SCRIPT = """
import json, os
import torch, torch.distributed as dist
import tpviz as tv

def train(steps):
    with tv.record() as rec:
        for _ in range(steps):
            with rec.step():
                y = torch.randn(128, 128) @ torch.randn(128, 128)
                dist.all_reduce(y)
    return rec.trace

def refused(call):
    try:
        call()
    except (ValueError, tv.RankError) as error:
        return str(error)

strategy = tv.Megatron(tp=2) * tv.DataParallel(dp=2, zero=1)
workload = tv.GPT(layers=2, hidden=64, heads=4, seq=32, batch=4)
said = {"verify": tv.verify(strategy, workload).ok}
parts = tv.launch(train, 3)
recorded = tv.Trace.merge(parts)
said["badge"], said["clocks"] = recorded.badge, recorded.fact("clocks")
said["moments"] = parts[2].fact("offsets")[2]["moments"]
# A collective ends on all ranks within the way of its last messages.
ends = [[e.end for e in recorded if e.rank == rank and e.kind == "comm"] for rank in range(4)]
said["apart"] = [max(of) - min(of) for of in zip(*ends)]
said["step_time"] = recorded.step_time
ran = tv.run(strategy, workload)
said["ledger"] = all(ran.ledger(rank=r, step=s) == strategy.ledger_of(workload, r)
                     for r in range(4) for s in ran.steps)
said["losses"], said["span"], said["ran"] = ran.fact("losses"), ran.step_time, ran.badge
said["bare"] = refused(lambda: tv.Trace.merge(
    [tv.Trace(t.columns, {k: v for k, v in t.meta.items() if k != "offsets"}) for t in parts]))
cluster = tv.clusters.nvswitch(4)
said["paced"] = refused(lambda: tv.run(strategy, workload, cluster, steps=1, warmup=0))
print("SAID", json.dumps(said), flush=True) if os.environ["RANK"] == "0" else None
"""


@pytest.fixture(scope="module")
def said():
    with hosts(2, delay=DELAY, clocks=[0, AHEAD]) as bed:
        processes = []
        for host in bed:
            host.write("/tmp/script.py", SCRIPT)
            command = f"--nnodes=2 --nproc-per-node=2 --node-rank={host.number} " + (
                f"--master-addr={bed[0].name} --master-port=29500 /tmp/script.py"
            )
            processes.append(
                host.popen(
                    [sys.executable, "-m", "torch.distributed.run", *command.split()],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0"},
                )
            )
        outputs = [process.communicate(timeout=120)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
    print(outputs[0])
    line = next(line for line in outputs[0].splitlines() if line.startswith("SAID"))
    return json.loads(line.removeprefix("SAID"))


def test_the_offset_is_the_true_one(said):
    first, last = said["moments"]
    for moment in (first, last):
        assert abs(moment["ahead"] - AHEAD) < 1e-3
        assert abs(moment["ahead"] - AHEAD) <= moment["error"]
        assert moment["error"] >= DELAY  # half a round trip
    assert last["time"] > first["time"] > AHEAD


def test_events_have_one_time(said):
    (bound,) = said["clocks"].values()
    assert said["badge"].endswith(f"2 hosts, clocks within {bound * 1e3:.2g} ms")
    assert max(error["error"] for error in said["moments"]) <= bound < 0.1
    assert said["step_time"] < 10 and said["span"] < 10
    assert min(said["apart"]) < 0.1


def test_programs_are_right_and_ledgers_exact(said):
    assert said["verify"] and said["ledger"]
    assert said["ran"].startswith("this machine, gloo; 2 hosts, clocks within ")


def test_what_needs_one_clock_is_refused(said):
    assert "whose offset nobody measured" in said["bare"]
    assert "an emulated cluster needs one" in said["paced"]

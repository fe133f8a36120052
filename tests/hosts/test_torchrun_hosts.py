"""A torchrun world of two hosts, clocks 1000 s apart: every verb works, on one time line."""

import json
import subprocess
import sys
import time

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


def torchrun(bed, script, *options, **env):
    """A torchrun on each host, with two ranks each."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", *options]
    return [
        host.popen(
            [*command, f"--node-rank={host.number}", host.write("/tmp/script.py", script)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "eth0", **env},
        )
        for host in bed
    ]


def said_by(output):
    """What a script says as JSON."""
    line = next(line for line in output.splitlines() if line.startswith("SAID"))
    return json.loads(line.removeprefix("SAID"))


@pytest.fixture(scope="module")
def said():
    with hosts(2, delay=DELAY, clocks=[0, AHEAD]) as bed:
        meet = f"--master-addr={bed[0].name}", "--master-port=29500"
        processes = torchrun(bed, SCRIPT, "--nnodes=2", *meet)
        outputs = [process.communicate(timeout=120)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0], outputs
    print(outputs[0])
    return said_by(outputs[0])


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


ELASTIC = """
import json, os, signal
import torch, torch.distributed as dist
import tpviz as tv

KEPT, STEPS = "/tmp/kept", 6  # of the first host, where rank 0 writes how many steps are done
LOST = "/tmp/lost"  # of the second host, where what is to be lost says so

def train():
    rank = dist.get_rank()
    done = int(open(KEPT).read()) if rank == 0 and os.path.exists(KEPT) else 0
    done = torch.tensor(done)
    dist.broadcast(done, 0)
    with tv.record() as rec:
        for step in range(int(done), STEPS):
            with rec.step():
                x = torch.ones(1000)
                dist.all_reduce(x)
            if rank == 0:
                open(KEPT, "w").write(str(step + 1))
            dist.barrier()
            if step == 2 and rank == 3:
                open(LOST, "w").close()
                LOSE
    return rec.trace

parts = tv.launch(train, timeout=20)
trace = tv.Trace.merge(parts)
if os.environ["RANK"] == "0":
    print("SAID", json.dumps({"ranks": len(parts), "badge": trace.badge,
                              "steps": len(trace.steps), "kept": open(KEPT).read()}), flush=True)
"""
KILLED = "os.kill(os.getpid(), signal.SIGKILL)"
WAITS = "__import__('time').sleep(60)"


def elastic(bed, lose, nodes):
    """What is said in the end; a rank that waits is lost with its host."""
    meet = "--rdzv-backend=c10d", f"--rdzv-endpoint={bed[0].name}:29400", "--rdzv-id=job"
    wait = "--rdzv-conf=last_call_timeout=3", "--max-restarts=2", "--monitor-interval=0.5"
    own = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}  # docs/schedulers.md has the reason
    script = ELASTIC.replace("LOSE", lose)
    processes = torchrun(bed, script, f"--nnodes={nodes}", *meet, *wait, **own)
    if lose == WAITS:
        until = time.monotonic() + 60
        while not bed[1].path("/tmp/lost").exists():
            assert time.monotonic() < until, "the job does not begin"
            time.sleep(0.1)
        bed[1].kill()
    outputs = [process.communicate(timeout=150)[0] for process in processes]
    assert processes[0].returncode == 0, "\n\n".join(outputs)
    return said_by(outputs[0] + outputs[1])


def test_a_killed_rank_is_started_again_and_the_job_goes_on():
    with hosts(2, delay=DELAY, clocks=[0, AHEAD]) as bed:
        said = elastic(bed, KILLED, "2")
    assert (said["ranks"], said["steps"], said["kept"]) == (4, 3, "6")
    assert "2 hosts, clocks within" in said["badge"]


def test_without_a_killed_host_the_job_goes_on_with_the_other():
    with hosts(2, delay=DELAY, clocks=[0, AHEAD]) as bed:
        said = elastic(bed, WAITS, "1:2")
    assert (said["ranks"], said["steps"], said["kept"]) == (2, 3, "6")

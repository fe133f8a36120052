"""Plain runs of 4 ranks on two hosts against `simulate` after `calibrate` alone; and a warm call.

Hosts are namespaces of this machine with a core each, joined by a bridge with a delay and a rate
(`tests/hosts/bed.py`); nothing else is emulated, and nothing paces the runs. The calibration times
collectives, messages and small models in one process: it sees none of the strategies. Beside it
what a step would take with kernels alone (`compute only`), and on `tpviz.clusters.laptop`, which
nobody measured here. A warm call of 4 ranks is compared with one on this machine, beside its two
round trips to the engines. Exits with 1 above a bound.

    python bench/bench_hosts.py [calls] [runs]
"""

import json
import sys
from pathlib import Path
from statistics import median

from harness import report, row, timing

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parents[1] / "tests" / "hosts"))

DELAY, RATE = 1e-3, 10e6  # seconds one way, bytes/s: nearly those of 100-Mbit Ethernet
BOUND, TIMES = 0.25, 3.0  # median error of a simulation; a warm call in local ones, less its trips
PATIENCE = 1500

BEGIN = """
import json, sys, time
from statistics import median
import ipyparallel
import tpviz as tv

client = ipyparallel.Client(sys.argv[1])
client.wait_for_engines(2, timeout=60)
tell = lambda **row: print("ROW", json.dumps(row), flush=True)
"""
CALLS = """
from concurrent.futures import wait
from tpviz.ranks import cluster

def seconds(call):
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun

def round_trip():
    wait([client[i].apply_async(int) for i in client.ids])

asked, ask = [], cluster.ClusterEngine.ask
def counted(self, function, *args):
    asked.append(function.__name__)
    return ask(self, function, *args)
cluster.ClusterEngine.ask = counted

on = {"here": None, "hosts": client}
call = {name: lambda of=of: tv.launch(int, world_size=4, cluster=of) for name, of in on.items()}
for turn in range(3 + 25):
    found = {name: seconds(one) for name, one in call.items()}
    found["trip"] = seconds(round_trip)
    questions = sum(name != "beat" for name in asked) / len(client.ids)
    asked.clear()
    if turn >= 3:
        tell(**found, questions=questions)
tv.shutdown()
"""
RUNS = """
from dataclasses import replace
tv.use(client)
w = tv.GPT(layers=2, hidden=128, heads=8, seq=64, batch=8, vocab=256)
moe = tv.GPT(layers=2, hidden=128, heads=8, seq=64, batch=8, vocab=256, experts=4, top_k=2)
plans = {
    "Megatron, tp within a host": (tv.Megatron(tp=2) * tv.DataParallel(dp=2), w),
    "Megatron, tp over hosts": (tv.Megatron(tp=4, sp=True), w),
    "ATP 2D": (tv.ATP(mesh=(2, 2)), w),
    "AxoNN": (tv.AxoNN(x=2, z=2), w),
    "ring attention": (tv.Context(cp=4, kind="ring"), w),
    "pipeline": (tv.Merak(pp=2, dp=2, microbatches=4, schedule="1f1b"), w),
    "ZeRO 3": (tv.DataParallel(dp=4, zero=3), w),
    "experts": (tv.Experts(ep=4), moe),
}
sizes = 2**14, 2**16, 2**17, 2**18
found = tv.calibrate(4, sizes=sizes, repeats=5, dtypes=["float32"], progress=False, timeout=None)
print(found.describe(), flush=True)
print(found.cluster.to_json(), flush=True)
inf = float("inf")
links = tuple(replace(level, p2p=inf, group=inf, latency=0.0) for level in found.cluster.levels)
free = replace(
    found.cluster, levels=links, table={}, latencies={}, factors={}, overhead=0.0, core_share=0.0
)
for name, (plan, of) in plans.items():
    run = tv.run(plan, of, steps=7, warmup=2, memory=False, progress=False, timeout=None)
    times = {
        "simulated": tv.simulate(plan, of, found.cluster),
        "predicted": tv.predict(plan, of, found.cluster),
        "compute only": tv.simulate(plan, of, free),
        "laptop": tv.simulate(plan, of, tv.clusters.laptop(4)),
    }
    tell(name=name, run=run.step_time, **{name: of.step_time for name, of in times.items()})
"""


def told(lines, **options):
    """Rows that a program of these lines tells, which runs on the first of two hosts."""
    import bed
    from engines import cluster

    bed.LIMIT = PATIENCE  # seconds that hosts stand
    with bed.hosts(2, delay=DELAY, **options) as hosts, cluster(hosts, cores=True) as file:
        script = hosts[0].write("/tmp/script.py", BEGIN + lines)
        with hosts[0].popen([sys.executable, script, file], stdout=-1, stderr=-2) as process:
            rows = []
            for line in process.stdout or ():
                if line.startswith("ROW "):
                    rows.append(json.loads(line[4:]))
                elif "The hostname of the client socket" not in line:
                    print(line, end="", flush=True)
        if process.wait():
            sys.exit("the program on the hosts failed")
    return rows


def calls():
    """Rows of a report: a warm call on hosts, and what is left of it beside its round trips."""
    rows = told(CALLS)
    times = {name: [r[name] for r in rows] for name in ("here", "hosts", "trip")}
    left = [(r["hosts"] - 2 * r["trip"]) / r["here"] for r in rows]
    words = {
        "here": "a warm call of 4 ranks on this machine",
        "hosts": "a warm call of 4 ranks on 2 hosts",
        "trip": "a question to both engines, and its answer",
    }
    found = [timing(words[name], of) for name, of in times.items()]
    questions = [r["questions"] for r in rows]
    found.append(row("questions to an engine in a warm call", median(questions), "", 3, questions))
    what = "a warm call on hosts less two round trips, over one on this machine"
    return [*found, row(what, median(left), "", TIMES, left)]


def runs():
    """Rows of a report: how far from plain runs simulation and the baselines are."""
    rows, found = told(RUNS, rate=RATE), []
    names = ("simulated", "predicted", "compute only", "laptop")
    print(f"{'':28} {'run':>8} " + " ".join(f"{name:>12}" for name in names))
    for r in rows:
        shares = " ".join(f"{r[name] / r['run']:12.2f}" for name in names)
        print(f"{r['name']:28} {1e3 * r['run']:5.0f} ms {shares}")
    for name in names:
        errors = [abs(r[name] / r["run"] - 1) for r in rows]
        bound = BOUND if name == "simulated" else None
        found.append(
            row(
                f"{name}: median error over {len(rows)} plain runs",
                median(errors),
                "",
                bound,
                errors,
            )
        )
    return found


def main():
    from bed import why_not

    if reason := why_not():
        sys.exit(print(f"nothing measured: {reason}"))
    asked = sys.argv[1:] or ["calls", "runs"]
    rows = [line for name in asked for line in {"calls": calls, "runs": runs}[name]()]
    report("hosts", "Two hosts: a warm call, and plain runs against simulation", rows)
    sys.exit(not all(r["ok"] for r in rows))


if __name__ == "__main__":
    main()

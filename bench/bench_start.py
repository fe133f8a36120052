"""From nothing to the first all-reduce done on 8 ranks: our pool beside its peers; memory of each.
And what ``import tpviz`` takes in a new interpreter, beside ``import torch``.

Warm means that the pool's fork server is there already, as it is from the second start of a
notebook on. Peers: ``torch.multiprocessing.spawn`` and
``torch.distributed.launcher.api.elastic_launch`` (what torchrun calls).
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from statistics import median

import torch
import torch.distributed as dist
from harness import interleaved, ratio, report, row, seconds, timing

import tpviz as tv

RANKS = 8
WARM_STARTS = 20
PEER_STARTS = 3


def first_all_reduce(pause=0.0):
    """On a rank with its group there: one all-reduce; ``pause`` leaves time to look at memory."""
    total = torch.ones(1)
    dist.all_reduce(total)
    time.sleep(pause)
    return total.item()


def start_pool(pause=0.0):
    """A new pool of ranks, used once; `tv.shutdown` ends the ranks, outside the timing."""
    assert tv.launch(first_all_reduce, pause, world_size=RANKS) == [RANKS] * RANKS


def spawned(rank, folder, pause):
    """What spawn runs on each rank."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=RANKS
    )
    assert first_all_reduce(pause) == RANKS
    dist.destroy_process_group()


def start_spawn(pause=0.0):
    """torch.multiprocessing.spawn, with the same file rendezvous as our pool."""
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(spawned, (folder, pause), nprocs=RANKS)  # pyright: ignore[reportPrivateImportUsage]


def elastic(pause):
    """What torchrun's engine runs on each rank."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    value = first_all_reduce(pause)
    dist.destroy_process_group()
    return value


def start_elastic(pause=0.0):
    """torchrun's engine from Python, with its own rendezvous."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=RANKS,
        run_id="bench",
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        monitor_interval=0.01,
    )
    results = elastic_launch(config, elastic)(pause)
    assert list(results.values()) == [RANKS] * RANKS


def peak_pss(function):
    """Most PSS (bytes) that all our descendants had together while ``function`` ran."""
    peak, done = [0], threading.Event()

    def sample():
        while not done.wait(0.1):
            peak.append(sum(map(pss, descendants(os.getpid()))))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        function()
    finally:
        done.set()
        sampler.join()
    return max(peak)


def descendants(pid):
    """Process ids below ``pid``."""
    below = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found = [int(child) for child in children.read_text().split()]
        except OSError:
            continue
        below += found + [p for child in found for p in descendants(child)]
    return below


def pss(pid):
    """Proportional set size of one process in bytes; 0 where it has just ended."""
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    return next((1024 * int(x.split()[1]) for x in rollup.splitlines() if x.startswith("Pss:")), 0)


def start_python(module):
    """A new interpreter that imports one module."""
    subprocess.run([sys.executable, "-c", f"import {module}"], check=True)


def main():
    os.environ["OMP_NUM_THREADS"] = "1"
    cold = seconds(start_pool)
    pool, spawn, elastic_times = [], [], []
    for turn in range(WARM_STARTS):
        tv.shutdown()
        pool.append(seconds(start_pool))
        if turn % (WARM_STARTS // PEER_STARTS) == 0 and len(spawn) < PEER_STARTS:
            spawn.append(seconds(start_spawn))
            elastic_times.append(seconds(start_elastic))
    tv.shutdown()
    memory = {
        name: peak_pss(lambda start=start: start(1.5))
        for name, start in [
            ("pool", start_pool),
            ("spawn", start_spawn),
            ("elastic_launch", start_elastic),
        ]
    }
    imports = interleaved({name: partial(start_python, name) for name in ("tpviz", "torch")}, 5)
    report(
        "start",
        f"Start of {RANKS} ranks, to the first all-reduce done",
        [
            timing("pool, warm", pool, "s", bound=0.3),
            row("pool, first start (fork server too)", cold, "s"),
            timing("torch.multiprocessing.spawn", spawn, "s"),
            timing("elastic_launch", elastic_times, "s"),
            row("spawn / warm pool", median(spawn) / median(pool), "x"),
            row("elastic_launch / warm pool", median(elastic_times) / median(pool), "x"),
            *(
                row(f"PSS of all, {name}", size / 2**20, "MiB", 300 if name == "pool" else None)
                for name, size in memory.items()
            ),
            timing("Python and import tpviz", imports["tpviz"], "s", bound=0.3),
            row("import tpviz / import torch", ratio(imports, "tpviz", "torch"), "x"),
        ],
        starts_s=pool,
    )
    tv.shutdown()


if __name__ == "__main__":
    sys.exit(main())

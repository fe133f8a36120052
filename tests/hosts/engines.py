"""Engines of ipyparallel on the hosts of a test-bed."""

import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from subprocess import DEVNULL

from bed import Bed, Host


@contextmanager
def cluster(
    bed: Bed, of: Sequence[Host] | None = None, cores: bool = False
) -> Generator[str, None, None]:
    """The client's connection file on the first host, with an engine on every host, or on those
    ``of`` them.

    cores : whether each host has a core of its own, number i of this machine's for host i, as far
    as there are so many.
    """
    address, folder = bed[0].address, "/tmp/ipython/security"
    at = [f"--ip={address}", f"--location={address}", "--profile-dir=/tmp/ipython"]
    bed[0].path("/tmp/ipython").mkdir()
    quiet = {"stdout": DEVNULL, "stderr": DEVNULL}
    started = [bed[0].popen([sys.executable, "-m", "ipyparallel.controller", *at], **quiet)]
    file = bed[0].path(f"{folder}/ipcontroller-engine.json")
    until = time.monotonic() + 30
    while not (file.exists() and bed[0].path(f"{folder}/ipcontroller-client.json").exists()):
        assert time.monotonic() < until, "the controller does not start"
        time.sleep(0.1)
    assert oct(file.stat().st_mode)[-3:] == "600", "its key is its owner's alone"
    every = sorted(os.sched_getaffinity(0))
    for host, core in zip(of or bed.hosts, every * len(bed)):
        own = host.write("/tmp/engine.json", file.read_text())
        host.path("/tmp/engine").mkdir()
        at = [f"--file={own}", "--profile-dir=/tmp/engine"]
        pinned = ["taskset", "-c", str(core)] if cores else []
        run = [*pinned, sys.executable, "-m", "ipyparallel.engine", *at]
        started.append(host.popen(run, **quiet))
    try:
        yield f"{folder}/ipcontroller-client.json"
    finally:
        for process in started:
            process.kill()
            process.wait()

"""A controller of ``ipyparallel`` on the first host of a bed, and engines on hosts of it."""

import os
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from subprocess import DEVNULL

from bed import Bed, Host, Process, end


class Engines:
    """What was started: the controller, engines by their hosts' names, and a client's file."""

    def __init__(self, bed: Bed, on: Sequence[Host], cores: bool = False):
        self.quiet = {"stdout": DEVNULL, "stderr": DEVNULL}
        address, folder = bed[0].address, "/tmp/ipython/security"
        self.client = f"{folder}/ipcontroller-client.json"
        self.engines: dict[str, Process] = {}
        at = [f"--ip={address}", f"--location={address}", "--profile-dir=/tmp/ipython"]
        bed[0].path("/tmp/ipython").mkdir()
        command = [sys.executable, "-m", "ipyparallel.controller"]
        command += ["--IPController.enable_curve=True", *at]
        self.controller = bed[0].popen(command, **self.quiet)
        try:
            self._start(bed, on, f"{folder}/ipcontroller-engine.json", cores)
        except BaseException:
            self.end()
            raise

    def _start(self, bed, on, file, cores):
        until = time.monotonic() + 60
        while not all(bed[0].path(name).exists() for name in (file, self.client)):
            assert time.monotonic() < until, "the controller does not start"
            time.sleep(0.1)
        key = bed[0].path(file)
        assert oct(key.stat().st_mode)[-3:] == "600", "its key is its owner's alone"
        every = sorted(os.sched_getaffinity(0))
        for host, core in zip(on, every * len(on)):
            own = host.write("/tmp/engine.json", key.read_text())
            host.path("/tmp/engine").mkdir()
            at = [f"--file={own}", "--profile-dir=/tmp/engine"]
            pinned = ["taskset", "-c", str(core)] if cores else []
            command = [*pinned, sys.executable, "-m", "ipyparallel.engine", *at]
            self.engines[host.name] = host.popen(command, **self.quiet)

    def end(self) -> None:
        end([*self.engines.values(), self.controller])


@contextmanager
def cluster(
    bed: Bed, of: Sequence[Host] | None = None, cores: bool = False
) -> Generator[str, None, None]:
    """The client's connection file on the first host, with an engine on every host, or on those
    ``of`` them.

    cores : whether each host has a core of its own, number i of this machine's for host i, as far
    as there are so many.
    """
    started = Engines(bed, of or bed.hosts, cores)
    try:
        yield started.client
    finally:
        started.end()

"""Runs a script whose processes and files can all be found again, however it ends."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

PATIENCE = 10  # seconds for processes that were told to end


def alive(mark):
    """Processes whose environment has this mark, as pid -> command line (zombies are gone)."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ")
        except OSError:  # it has just ended, or is another user's
            continue
    return found


class Script:
    """A Python process, every process that descends from it, and its temporary directory.

    A variable with a unique value marks the environment, which all descendants start with.
    """

    def __init__(self, source, folder):
        self.mark = f"TPVIZ_TEST_MARK={uuid.uuid4().hex}"
        self.folder = Path(folder) / "tmp"
        self.folder.mkdir()
        name, value = self.mark.split("=")
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source)],
            env={**os.environ, name: value, "TMPDIR": str(self.folder)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,  # as Jupyter starts kernels
        )

    def wait_for(self, text):
        """Read output up to a line with ``text``; that line."""
        for line in self.process.stdout:
            if text in line:
                return line
        raise AssertionError(f"the script ended without saying {text!r}")

    def signal(self, number, group=False):
        send = os.killpg if group else os.kill
        send(self.process.pid, number)

    def finish(self):
        """The rest of the output, once the process has ended."""
        output = self.process.stdout.read()
        self.process.wait()
        return output

    def alive(self):
        """Marked processes that are still there."""
        return alive(self.mark)

    def left(self):
        """Processes and files left, once all have had time to go."""
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until:
            left = [*self.alive().values(), *self.folder.rglob("*")]
            if not left:
                break
            time.sleep(0.05)
        return left

    def end(self):
        """Kill whatever is left; a failing test must not leave it to the next one."""
        for pid in self.alive():
            os.kill(pid, signal.SIGKILL)
        self.process.wait()
        self.process.stdout.close()

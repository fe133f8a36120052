"""Ending processes, and all that they have started; and their environment.

Only the standard library is imported here: ranks and the fork server need it before torch loads.
"""

import glob
import os
import signal
from collections.abc import Mapping
from contextlib import suppress


def set_environment(changes: Mapping[str, str | None]) -> None:
    """Set variables of this process's environment; None takes one away."""
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def kill_tree(pid: int) -> None:
    """SIGKILL a rank, its process group, and what it started in sessions of their own."""
    kill_below(pid)
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):  # it leads no group yet, or has just ended
            kill(pid, signal.SIGKILL)


def kill_below(pid: int) -> None:
    """SIGKILL all processes that ``pid`` has started, but not ``pid`` itself."""
    for child in descendants(pid):
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Processes started by ``pid``, directly or indirectly; [] on systems without ``/proc``."""
    found = []
    for children in glob.glob(f"/proc/{pid}/task/*/children"):
        with suppress(OSError), open(children) as file:
            for child in map(int, file.read().split()):
                found += [child, *descendants(child)]
    return found

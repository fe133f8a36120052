"""Nothing stays behind: what a rank and the fork server do so that the caller's death ends them.

A Jupyter kernel may be killed at any moment, without a chance to tidy up. Two guards see to it:

* every rank blocks a thread on a *life pipe* whose only writer is the caller; at end-of-file the
  rank removes the pool's directory and kills its own process group, so also what it had started;
* the fork server leaves when the caller is gone, and on its way out kills ranks that are left
  (a stopped process, or one stuck in C, cannot run its own guard) and removes the files.

This module is imported first in a rank, so it needs nothing but the standard library.
"""

import atexit
import ctypes
import mmap
import os
import re
import shutil
import signal
import sys
import threading
from time import monotonic, sleep
from typing import NamedTuple

JANITOR = "TPVIZ_JANITOR"
_ORPHANED_WITHIN = 1.0  # seconds
THREADS = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"


class Spec(NamedTuple):
    """All that a new rank is told: the fork server's own environment and path may be stale."""

    rank: int
    world_size: int
    backend: str
    device: str | None
    folder: str
    env: dict
    path: list
    cwd: str | None


def enter(spec: Spec, pipe, life):
    """The first thing a rank runs: guards and output first, then torch and the job loop."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _let_go_of_fork_server()
    threading.Thread(target=_watch, args=(life, spec.folder), daemon=True).start()
    _redirect(os.path.join(spec.folder, f"out-{spec.rank}"))
    os.environ.clear()
    os.environ.update(spec.env)
    os.environ.update(_own_environment(spec))
    sys.path[:] = spec.path
    if spec.cwd:
        os.chdir(spec.cwd)
    preloaded = "tpviz.runtime.worker" in sys.modules
    from tpviz.runtime import worker

    worker.main(spec, pipe, preloaded)


def _own_environment(spec):
    own = {
        "RANK": spec.rank,
        "LOCAL_RANK": spec.rank,
        "WORLD_SIZE": spec.world_size,
        "LOCAL_WORLD_SIZE": spec.world_size,
        **dict.fromkeys(THREADS, 1),
    }
    # Ranks of one machine talk over loopback, whatever the machine's name resolves to.
    if os.path.exists("/sys/class/net/lo") and "GLOO_SOCKET_IFNAME" not in os.environ:
        own["GLOO_SOCKET_IFNAME"] = "lo"
    return {name: str(value) for name, value in own.items()}


def _let_go_of_fork_server():
    # Each child of the fork server gets a copy of the pipe that keeps the server alive. Only the
    # caller may hold it, or the server would outlive the caller for as long as a rank is stuck.
    from multiprocessing.forkserver import _forkserver

    if _forkserver._forkserver_alive_fd is not None:
        os.close(_forkserver._forkserver_alive_fd)
        _forkserver._forkserver_alive_fd = None


def _watch(life, folder):
    try:
        life.recv_bytes()
    except (EOFError, OSError):
        pass
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def _redirect(path):
    # At the level of file descriptors, so that what C++ prints is caught as well.
    null = os.open(os.devnull, os.O_RDONLY)
    out = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(null, 0)
    os.dup2(out, 1)
    os.dup2(out, 2)
    os.close(null)
    os.close(out)
    sys.stdin = open(0, closefd=False)
    sys.stdout = open(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def serve_as_janitor():
    """In the fork server: leave no rank and no file when it exits because its parent is gone."""
    told = os.environ.pop(JANITOR, None)
    if told:
        atexit.register(_sweep, os.getpid(), os.getppid(), told.split(os.pathsep))


def _sweep(server, parent, folders):
    if os.getpid() != server or _lives_on(parent):
        return  # a rank, or a fork server that its living parent stops: the parent tidies up
    for pid in _children(server):
        kill_group(pid)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def _lives_on(parent):
    # The server hears that the parent's files are closed a moment before it is orphaned.
    until = monotonic() + _ORPHANED_WITHIN
    while os.getppid() == parent:
        if monotonic() > until:
            return True
        sleep(0.01)
    return False


def _children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except OSError:
        return []


def kill_group(pid: int):
    """SIGKILL the process group led by ``pid``, or the process where it leads no group yet."""
    for kill in (os.killpg, os.kill):
        try:
            return kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue


def unmap_clean_pages():
    """Give back pages of shared libraries that the fork server read but ranks may never need.

    They stay in the system's page cache and come back at the next touch; but a limit on memory,
    such as Binder's, counts them as long as they are mapped (40 to 60 MB after importing torch).
    Only mappings without a single page of their own are taken, so nothing written can be lost.
    """
    try:
        with open("/proc/self/smaps") as file:
            mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", file.read())
        madvise = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return  # not Linux: nothing is gained, nothing is lost
    for mapping in mappings:
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) r-.p \S+ \S+ [1-9]\d* +/", mapping)
        if head and re.search(r"^Anonymous: +0 kB$", mapping, re.MULTILINE):
            start, end = int(head[1], 16), int(head[2], 16)
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)

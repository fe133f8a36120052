"""The first thing a rank runs: it sees to it that nothing of the rank outlives the caller.

A Jupyter kernel may be killed at any moment, without a chance to tidy up. So every rank blocks a
thread on two *life pipes*, of its pool and of the caller, whose only writer is the caller. When
either is at end-of-file the rank kills its own process group, so also what it had started; when the
caller's is, it removes the caller's temporary files first. A rank that is stopped, or stuck in C,
cannot do that: `forkserver_hooks` is the second guard.

Only the standard library is imported at first, since the guard must stand before torch loads.
"""

import multiprocessing
import os
import shutil
import signal
import sys
import threading
from collections.abc import Sequence
from multiprocessing.connection import Connection, wait
from typing import NamedTuple, NoReturn

from .output import text_stream
from .processes import kill_below

_CLOSING = 0.5  # seconds in which the kernel closes all pipes of a process that has died
THREADS = "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"
OWN = "RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", *THREADS
"""Variables that are a rank's own, whatever its caller's are."""


class WorldSpec(NamedTuple):
    """What ranks of one world on one host have in common.

    A world on one host meets in a file. One on several meets at ``address``, in a `store` on rank
    0's host, for ranks that have the ``key``; there ``interface`` carries this host's messages.
    """

    world_size: int
    backend: str
    device: str | None
    local: range  # ranks on this host
    address: tuple[str, int] | None = None  # of the store
    key: bytes = b""  # of the store
    peers: Sequence[str] = ()  # addresses of all hosts; none: it is not known which
    interface: str | None = None
    host: str = ""  # its name, where a world has several


class RankSpec(NamedTuple):
    """All that a new rank is told: the fork server's own environment and path may be stale."""

    rank: int
    world: WorldSpec
    folder: str
    cleanup_dirs: list[str]  # directories that nobody needs once the caller is gone
    env: dict[str, str]
    path: list[str]
    cwd: str | None


def start_rank(
    spec: RankSpec, pipe: Connection, pool_life: Connection, caller_life: Connection
) -> NoReturn:
    """The first thing a rank runs: guards and output first, then torch and the job loop."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As in any program. The fork server's own method would leave each lock that a job makes (tqdm
    # makes one) to the caller's resource tracker, which warns of it when the caller ends.
    multiprocessing.set_start_method(None, force=True)
    _let_go_of_fork_server()
    threading.Thread(
        target=_watch, args=(pool_life, caller_life, spec.cleanup_dirs), daemon=True
    ).start()
    try:
        _redirect(os.path.join(spec.folder, f"out-{spec.rank}"))
    except FileNotFoundError:  # the pool was given up before this rank has begun
        os._exit(1)
    os.environ.clear()
    os.environ.update(spec.env)
    os.environ.update(_own_environment(spec))
    sys.path[:] = spec.path
    if spec.cwd:
        os.chdir(spec.cwd)
    preloaded = "tpviz.ranks.worker" in sys.modules
    from . import worker

    worker.main(spec, pipe, preloaded)


def _own_environment(spec):
    rank, world = spec.rank, spec.world
    sizes = rank, rank - world.local.start, world.world_size, len(world.local)
    own: dict[str, int | str] = dict(zip(OWN, (*sizes, *[1] * len(THREADS))))
    if world.interface:
        own["GLOO_SOCKET_IFNAME"] = world.interface
    # Ranks of one machine talk over loopback, whatever the machine's name resolves to.
    elif os.path.exists("/sys/class/net/lo") and "GLOO_SOCKET_IFNAME" not in os.environ:
        own["GLOO_SOCKET_IFNAME"] = "lo"
    return {name: str(value) for name, value in own.items()}


def _let_go_of_fork_server():
    # Each child of the fork server gets a copy of the pipe that keeps the server alive. Only the
    # caller may hold it, or the server would outlive the caller for as long as a rank is stuck.
    from multiprocessing.forkserver import _forkserver

    if _forkserver._forkserver_alive_fd is not None:  # pyright: ignore[reportAttributeAccessIssue]
        os.close(_forkserver._forkserver_alive_fd)  # pyright: ignore[reportAttributeAccessIssue]
        _forkserver._forkserver_alive_fd = None  # pyright: ignore[reportAttributeAccessIssue]


def _watch(pool_life, caller_life, cleanup_dirs):
    # Nobody writes to them: they become ready at end-of-file. A pool that has gone leaves no rank
    # behind, not even one that its caller never heard of; the files are the caller's.
    wait([pool_life, caller_life])
    if wait([caller_life], _CLOSING):
        for folder in cleanup_dirs:
            shutil.rmtree(folder, ignore_errors=True)
    kill_below(os.getpid())
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
    sys.stdout, sys.stderr = text_stream(1), text_stream(2)

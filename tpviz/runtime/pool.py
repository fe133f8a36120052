"""The pool: ranks kept alive between calls, started from a fork server with torch loaded.

Why a fork server: starting 8 ranks by ``spawn`` imports torch eight times (5 to 9 s, 1.2 GB),
while children forked from one process that has torch are ready in 0.1 s and share its memory; and
unlike a plain ``fork`` it is safe in a kernel full of threads or with a GPU in use. Why a file for
the rendezvous: with TCP, some starts of 8 ranks stalled for 5 s, with a file none did.

One pool at a time lives in a process. ``docs/architecture.md`` has the measurements.
"""

import atexit
import multiprocessing
import os
import pickle
import shutil
import signal
import sys
import tempfile
import threading
from contextlib import contextmanager
from multiprocessing import forkserver, util
from multiprocessing.connection import wait
from time import monotonic, sleep
from types import ModuleType

from tpviz.runtime import faults, guard
from tpviz.runtime.board import Board
from tpviz.runtime.output import Tail
from tpviz.runtime.stacks import user_line

_TICK = 0.05  # seconds between two looks at what ranks print
_START_LIMIT = 120.0  # seconds; a first start on a busy machine imports torch once
_GRACE = 0.25  # seconds for other ranks to report after one has failed
_home = None


class Pool:
    """Ranks of one group, ready to run functions.

    Parameters
    ----------
    world_size : number of ranks.
    backend : name of the torch.distributed backend.
    device : "cuda", "cpu" or None (cuda where there is a GPU).

    Raises ``RankError`` if a rank cannot start.
    """

    def __init__(self, world_size: int, backend: str = "tpviz", device: str | None = None):
        self.world_size, self.backend, self.device = world_size, backend, device
        self.folder = tempfile.mkdtemp(prefix="ranks-", dir=home())
        self.board = Board(os.path.join(self.folder, "board"), world_size)
        self.info = {}
        self._owner = os.getpid()
        self._tails = [Tail(self._file("out", rank), rank) for rank in range(world_size)]
        self._context = surroundings()
        self._processes, self._pipes = [], []
        try:
            self._start()
        except BaseException:
            self.kill()
            raise

    def _file(self, name, rank):
        return os.path.join(self.folder, f"{name}-{rank}")

    def _start(self):
        context = multiprocessing.get_context("forkserver")
        life, self._life = context.Pipe(duplex=False)
        with _blank_main():
            ensure_server()
            for rank in range(self.world_size):
                ours, theirs = context.Pipe()
                spec = guard.Spec(
                    rank, self.world_size, self.backend, self.device, self.folder, *self._context
                )
                process = context.Process(target=guard.enter, args=(spec, theirs, life))
                self._pipes.append(ours)
                self._processes.append(process)
                process.start()
                theirs.close()
        life.close()
        self.info = self._collect(monotonic() + _START_LIMIT, _START_LIMIT, "ready", None)

    def run(self, payload: bytes, timeout: float | None, show) -> list:
        """Run one shipped call on every rank; their pickled results in rank order.

        Raises ``RankError`` or ``RankTimeoutError``; the pool must then be killed.
        """
        context = pickle.dumps(self._changes())
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(context)
                pipe.send_bytes(payload)
            except OSError:
                raise self._death(rank, {}) from None
        deadline = None if timeout is None else monotonic() + timeout
        results = self._collect(deadline, timeout, "done", show)
        for tail in self._tails:
            tail.pump(everything=True)
            tail.rewind()
        return [results[rank] for rank in range(self.world_size)]

    def _changes(self):
        """Environment, path and directory of the caller, as far as they differ from last time."""
        old, self._context = self._context, surroundings()
        (env, path, cwd), (old_env, old_path, old_cwd) = self._context, old
        changed = {k: env.get(k) for k in env.keys() | old_env.keys() if env.get(k) != old_env.get(k)}
        return changed, path if path != old_path else None, cwd if cwd != old_cwd else None

    def _collect(self, deadline, limit, wanted, show):
        """Wait until every rank has sent ``wanted``: rank -> content."""
        answers = {}
        while len(answers) < self.world_size:
            left = _TICK if deadline is None else min(_TICK, deadline - monotonic())
            if left <= 0:
                raise faults.timed_out(limit, self.states(answers, stacks=wanted == "done"))
            failures = self._listen(answers, max(left, 0), show)
            for tail in self._tails:
                tail.pump()
            if failures:
                raise self._blame(failures, answers, show)
        return answers

    def _listen(self, answers, seconds, show):
        """Read what ranks sent; put answers in ``answers`` and return failures, rank -> dict."""
        failures = {}
        busy = {self._pipes[r]: r for r in range(self.world_size) if r not in answers}
        ends = {p.sentinel: r for r, p in enumerate(self._processes)}
        ready = wait([*busy, *ends], seconds)
        for pipe in ready:
            if pipe not in busy:
                continue
            rank = busy[pipe]
            try:
                kind, content = pipe.recv()
            except (EOFError, OSError):
                failures[rank] = None
                continue
            if kind == "progress":
                show(*content)
            elif kind == "error":
                failures[rank] = content
            else:
                answers[rank] = content
        failures.update({ends[end]: None for end in ready if end in ends})
        return failures

    def _blame(self, failures, answers, show):
        """The error for the rank it began with: one that died, else the first that raised."""
        first = next(iter(failures))
        until = monotonic() + _GRACE
        while (left := until - monotonic()) > 0 and len(failures) + len(answers) < self.world_size:
            for rank, failure in self._listen(answers, left, show).items():
                failures.setdefault(rank, failure)
                if failure is None:
                    failures[rank] = None
                    until = min(until, monotonic())
        states = self.states(answers, failures)
        dead = [rank for rank, failure in failures.items() if failure is None]
        if dead:
            return self._death(dead[0], states)
        states.pop(first)
        return faults.raised(first, failures[first], states)

    def _death(self, rank, states):
        process = self._processes[rank]
        process.join(1.0)
        return faults.died(rank, process.exitcode, {r: s for r, s in states.items() if r != rank})

    def states(self, answers=(), failures=None, stacks: bool = True) -> dict:
        """What each rank is doing, in words: rank -> text."""
        failures = failures or {}
        waiting = [
            r for r in range(self.world_size) if r not in answers and r not in failures
        ]
        lines = self._lines(waiting) if stacks else {}
        states = {}
        for rank in range(self.world_size):
            if rank in answers:
                states[rank] = "finished"
            elif rank in failures:
                failure = failures[rank]
                what = f"raised {failure['type']}: {failure['message']}" if failure else "died"
                states[rank] = what.splitlines()[0]
            else:
                states[rank] = _state(*self.board.read(rank)) + lines.get(rank, "")
        return states

    def _lines(self, ranks):
        """Where in the user's code ranks are: each is asked by a signal to write its stack."""
        for rank in ranks:
            if self._processes[rank].is_alive():
                os.kill(self._processes[rank].pid, signal.SIGUSR1)
        sleep(0.1)
        return {rank: user_line(self._file("stack", rank)) for rank in ranks}

    def dead(self) -> dict:
        """Ranks that have died since the last call: rank -> how."""
        return {
            rank: faults.end_of(process.exitcode)
            for rank, process in enumerate(self._processes)
            if not process.is_alive()
        }

    def kill(self):
        """End all ranks and what they started, and remove the pool's files."""
        if os.getpid() != self._owner:
            return
        for process in self._processes:
            if process.pid:
                guard.kill_group(process.pid)
        for process in self._processes:
            if process.pid:
                process.join(10)
        for tail in self._tails:
            tail.pump(everything=True)
            tail.close()
        for pipe in self._pipes:
            pipe.close()
        self._life.close()
        self.board.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self._tails, self._pipes, self._processes = [], [], []


def _state(text, age):
    if not text:
        return "starting"
    if text.startswith("waiting in"):
        return f"waiting {age:.1f} s in{text.removeprefix('waiting in')}"
    return f"{text} (for {age:.1f} s)"


def surroundings():
    """What a rank must share with its caller: environment, import path, working directory."""
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        cwd = None
    return dict(os.environ), list(sys.path), cwd


def home() -> str:
    """This process's private directory for everything that ranks need, made when missing."""
    global _home
    if _home is None or _home[0] != os.getpid() or not os.path.isdir(_home[1]):
        _home = os.getpid(), tempfile.mkdtemp(prefix="tpviz-")
    return _home[1]


def ensure_server():
    """Start the fork server unless it runs; it is told which files to remove at its end."""
    forkserver.set_forkserver_preload(["tpviz.runtime.worker"])
    os.environ[guard.JANITOR] = os.pathsep.join([home(), util.get_temp_dir()])
    try:
        forkserver.ensure_running()
    finally:
        del os.environ[guard.JANITOR]


def stop_server():
    """End the fork server, so that the next pool sees edited code; ranks must be gone."""
    server = forkserver._forkserver
    if server._forkserver_pid is not None:
        # Other children of the server keep it alive past a polite request.
        os.kill(server._forkserver_pid, signal.SIGTERM)
        server._stop()


def remove_home():
    """Remove the private directory if this process made one."""
    global _home
    if _home is not None and _home[0] == os.getpid():
        shutil.rmtree(_home[1], ignore_errors=True)
        _home = None


@contextmanager
def _blank_main():
    # multiprocessing would run the user's script again in each rank, to define names that we
    # ship by value anyway. It looks at sys.modules["__main__"]; let it find nothing there.
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main

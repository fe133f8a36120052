"""The pool: ranks kept alive between calls, started from a fork server with torch loaded.

Why a fork server: starting 8 ranks by ``spawn`` imports torch eight times (5 to 9 s, 1.2 GB),
while children forked from one process that has torch are ready in 0.1 s and share its memory; and
unlike a plain ``fork`` it is safe in a kernel full of threads or with a GPU in use. Why a file for
the rendezvous: with TCP, some starts of 8 ranks stalled for 5 s, with a file none did.

`launch` keeps one for each world size. ``docs/adr/0001`` has the measurements.
"""

import errno
import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Callable, Container
from contextlib import suppress
from multiprocessing.connection import wait
from time import monotonic, sleep
from typing import Any

from . import places, processes, rank_errors, server, sources, worker_bootstrap
from .board import Board, spoken
from .output import Tail
from .rank_errors import user_line

_NO_SPACE = os.strerror(errno.ENOSPC)
_TICK = 0.05  # seconds between two looks at what ranks print
_START_LIMIT = 120.0  # seconds; a first start on a busy machine imports torch once
_JOIN_LIMIT = 10.0  # seconds for a killed process to be gone
_STACK_TIME = 0.1  # seconds for a rank to write down its stack
_TIDY_LIMIT = 5.0  # seconds for a rank to undo what a job did to it, before it is replaced
_GRACE = 0.25  # seconds for other ranks to report after one has failed


class Pool:
    """Ranks of one group, ready to run functions.

    Parameters
    ----------
    world_size : number of ranks.
    backend : name of the torch.distributed backend.
    device : "cuda", "cpu" or None (cuda where there is a GPU).

    Raises ``ValueError`` for a device or backend that is not here, ``RankError`` if a rank cannot
    start, ``RuntimeError`` if the disk for its files is full.
    """

    def __init__(self, world_size: int, backend: str = "tpviz", device: str | None = None):
        self.world_size, self.backend, self.device = world_size, backend, device
        if full := server.full():
            raise RuntimeError(full)
        self.folder = tempfile.mkdtemp(prefix="ranks-", dir=server.home())
        self.board = Board(os.path.join(self.folder, "board"), world_size)
        self._places = places.Places(os.path.join(self.folder, "places"), world_size)
        self.info = {}
        self._job = 0  # number of the last job
        self.idle = False  # whether no launch has it, and its last job ended well
        self.used = monotonic()  # when it was last taken
        self.edited: list[str] = []  # files that have changed since ranks loaded them
        self._sources: set[sources.Source] = set()
        self._tails = [Tail(self._file("out", rank), rank) for rank in range(world_size)]
        self._context = server.surroundings()
        self._processes, self._pipes, self._life = [], [], None
        try:
            self._start()
            self.idle = True
        except BaseException:
            self.kill()
            raise

    def _file(self, name, rank):
        return os.path.join(self.folder, f"{name}-{rank}")

    def _start(self):
        context = multiprocessing.get_context("forkserver")
        ends, self._life = context.Pipe(duplex=False)
        with server.blank_main():
            server.ensure()
            for rank in range(self.world_size):
                self._start_rank(context, rank, ends)
        ends.close()
        said = self._collect(monotonic() + _START_LIMIT, _START_LIMIT, "ready", None)
        self.info = said[0] | {"preloaded": all(info["preloaded"] for info in said.values())}

    def _start_rank(self, context, rank, life):
        ours, theirs = context.Pipe()
        what = self.world_size, self.backend, self.device, self.folder, server.cleanup_dirs()
        spec = worker_bootstrap.RankSpec(rank, *what, *self._context)
        process = context.Process(
            target=worker_bootstrap.start_rank, args=(spec, theirs, life, server.life())
        )
        self._pipes.append(ours)
        self._processes.append(process)
        process.start()
        theirs.close()

    def take(self) -> bool:
        """Whether these ranks can do a job; they are then taken.

        Not where the last job was cut short, where a rank has died, where a job left something
        behind that `state` cannot undo, nor where a module that ranks have loaded was edited.
        """
        idle, self.idle = self.idle, False  # an interrupt from here on leaves the ranks marked busy
        return idle and not self.dead() and os.path.isdir(self.folder) and self._as_new()

    def _as_new(self):
        """Whether all ranks have undone what the last job did to them, agree on groups, and would
        load their modules as they have."""
        if not self._job:
            return True
        found = []
        for pipe in self._pipes:
            try:
                said = pipe.recv() if pipe.poll(_TIDY_LIMIT) else None
            except (EOFError, OSError):
                return False
            if said is None or said[:2] != ("tidy", self._job):
                return False
            found.append(said[2])
        left, used, loaded = zip(*found)
        self._sources.update(*loaded)
        self.edited = sources.edited(self._sources)
        return not any(left) and _agree(used) and not self.edited

    def run(
        self, payload: bytes, timeout: float | None, show: Callable[[int, int, str], Any]
    ) -> list[bytes]:
        """Run one shipped call on every rank; their pickled results in rank order.

        Raises ``RankError`` or ``RankTimeoutError``; the pool must then be killed.
        """
        self.idle, self._job, self.used = False, self._job + 1, monotonic()
        head = pickle.dumps((self._job, *self._changes()))
        for rank, pipe in enumerate(self._pipes):
            try:
                pipe.send_bytes(head)
                pipe.send_bytes(payload)
            except OSError:
                raise self._death(rank, {}) from None
        deadline = None if timeout is None else monotonic() + timeout
        results = self._collect(deadline, timeout, "done", show)
        for tail, pipe in zip(self._tails, self._pipes):
            tail.pump(everything=True)
            tail.rewind()
            with suppress(OSError):  # of a rank that has died since, which `take` will see
                pipe.send_bytes(b"")  # leave the groups of this job
        self.idle = True
        return [results[rank] for rank in range(self.world_size)]

    def _changes(self):
        """Environment, path and directory of the caller, as far as they differ from last time."""
        old, self._context = self._context, server.surroundings()
        (env, path, cwd), (old_env, old_path, old_cwd) = self._context, old
        names = (env.keys() | old_env.keys()).difference(worker_bootstrap.OWN)
        changed = {n: env.get(n) for n in names if env.get(n) != old_env.get(n)}
        return changed, path if path != old_path else None, cwd if cwd != old_cwd else None

    def _collect(self, deadline, limit, wanted, show):
        """Wait until every rank has sent ``wanted``: rank -> content."""
        answers, watch = {}, places.RankWatch(self._places)
        while len(answers) < self.world_size:
            left = _TICK if deadline is None else min(_TICK, deadline - monotonic())
            if left <= 0:
                raise self._late(limit, answers, wanted == "done")
            failures = self._listen(answers, max(left, 0), show)
            for tail in self._tails:
                tail.pump()
            if failures:
                raise self._blame(failures, answers, show)
            if wanted == "done" and (vain := watch.look(answers, monotonic())):
                states = self.states(answers)
                raise rank_errors.deadlock(self._reason(vain, answers), states)
        return answers

    def _late(self, limit, answers, at_work):
        watch = places.RankWatch(self._places, apart=0, every=0)
        before = watch.look(answers, monotonic())
        states = self.states(answers, stacks=at_work)
        vain = watch.look(answers, monotonic()) if at_work else {}
        reason = self._reason(vain, answers) if vain == before else ""
        what = "finish" if at_work else "start"
        return rank_errors.timed_out(limit, states, what, reason)

    def _reason(self, vain, answers):
        return rank_errors.reason(vain, {r: self.board.read(r)[0] for r in vain}, answers)

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
                kind, job, content = pipe.recv()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
            except (EOFError, OSError):
                failures[rank] = None
                continue
            if job != self._job or kind == "tidy":  # of a rank that failed: it is ended anyway
                continue
            if kind == "progress":
                show(*content)
            elif kind == "refused":
                raise ValueError(content)
            elif kind == "error":
                failures[rank] = content
            else:
                answers[rank] = content
        failures.update({ends[end]: None for end in ready if end in ends})
        return failures

    def _blame(self, failures, answers, show):
        """The error for the rank it began with: one that died, else the first that raised."""
        first = min(failures)  # among failures that arrive together
        until = monotonic() + _GRACE
        while (left := until - monotonic()) > 0 and len(failures) + len(answers) < self.world_size:
            new = self._listen(answers, left, show)
            failures.update(new)
            if None in new.values():
                break
        states = self.states(answers, failures)
        dead = [rank for rank, failure in failures.items() if failure is None]
        if dead:
            return self._death(dead[0], states)
        if rank_errors.follows(failures[first]):  # another one closed its connections
            first = next((r for r, f in failures.items() if not rank_errors.follows(f)), first)
        alike = [rank for rank, failure in failures.items() if _same(failure, failures[first])]
        first = min(alike)
        states.pop(first)
        full = server.full() if _NO_SPACE in failures[first]["message"] else ""
        return rank_errors.raised(first, failures[first], states, self._clash() or full)

    def _death(self, rank, states):
        process = self._processes[rank]
        process.join(1.0)
        others = {r: s for r, s in states.items() if r != rank}
        # so end a rank that cannot write before it can say so, and one that cannot in shared memory
        full = server.full() if process.exitcode in (1, -signal.SIGBUS) else ""
        return rank_errors.died(rank, process.exitcode, others, self._clash() or full)

    def _clash(self):
        return rank_errors.clash({r: self.board.read(r)[0] for r in range(self.world_size)})

    def states(
        self,
        answers: Container[int] = (),
        failures: dict[int, dict[str, str] | None] | None = None,
        stacks: bool = True,
    ) -> dict[int, str]:
        """{rank: what it is doing, in words}."""
        failures = failures or {}
        busy = [r for r in range(self.world_size) if r not in answers and r not in failures]
        lines = self._lines(busy) if stacks else {}
        states = {}
        for rank in range(self.world_size):
            if rank in answers:
                states[rank] = "finished"
                continue
            doing = spoken(*self.board.read(rank))
            if rank not in failures:
                states[rank] = doing + lines.get(rank, "")
                continue
            when = f", {doing}" if doing.startswith("waiting") else ""
            states[rank] = rank_errors.in_short(failures[rank]) + when
        return states

    def _lines(self, ranks):
        """Where in the user's code ranks are: each is asked by a signal to write its stack."""
        asked = [rank for rank in ranks if self._processes[rank].is_alive()]
        for rank in asked:
            os.kill(self._processes[rank].pid, signal.SIGUSR1)
        sleep(_STACK_TIME if asked else 0)
        return {rank: user_line(self._file("stack", rank)) for rank in asked}

    def dead(self) -> dict[int, str]:
        """Ranks that are no longer alive: rank -> how they ended."""
        return {
            rank: rank_errors.end_of(process.exitcode)
            for rank, process in enumerate(self._processes)
            if not process.is_alive()
        }

    def kill(self) -> None:
        """End all ranks and what they started, and remove the pool's files; may be repeated."""
        for process in self._processes:
            if process.pid:
                processes.kill_tree(process.pid)
        for process in self._processes:
            if process.pid:
                process.join(_JOIN_LIMIT)
        while self._tails:
            self._tails.pop(0).finish()
        self.let_go()
        shutil.rmtree(self.folder, ignore_errors=True)

    def let_go(self) -> None:
        """Close this process's ends of the pipes without notifying the ranks."""
        for pipe in [*self._pipes, self._life] if self._life else self._pipes:
            pipe.close()
        self.board.close()
        self._places.close()


def _agree(used):
    """Whether all ranks made as many groups, and their collectives of the world pair up.

    Otherwise those of the next job would meet what this one has left open. ``used``: of each rank,
    the number of groups it made, and its collectives: (members, whether a message) -> how many;
    None of a plain backend, which says too little to know that nothing is open.
    """
    if any(counts is None for _, counts in used):
        return False
    keys = {key for _, counts in used for key in counts}
    pairs = all(len({used[rank][1].get(key) for rank in key[0]}) == 1 for key in keys)
    return pairs and len({groups for groups, _ in used}) == 1


def _same(failure, other):
    return failure and (failure["type"], failure["message"]) == (other["type"], other["message"])

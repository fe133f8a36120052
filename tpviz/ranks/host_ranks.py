"""Ranks that are processes of this host: all of a world, or those that a host of a cluster has.

A `Pool` speaks with ranks through what is here, whether they are its own process's or an engine's
on another host (`cluster.ClusterRanks` has the same methods).
"""

import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
from collections.abc import Collection, Iterable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from time import sleep
from typing import Any

from . import board, output, places, processes, rank_errors, server, sources, worker_bootstrap
from .worker_bootstrap import RankSpec, WorldSpec

_JOIN_LIMIT = 10.0  # seconds for a killed process to be gone
_STACK_TIME = 0.1  # seconds for a rank to write down its stack

Surroundings = tuple[dict[str, str], list[str], str | None]
"""Environment, import path and working directory."""
Heard = tuple[int, Any]
"""A rank, and its message (kind, number of the job, content); None says that the rank has ended."""


class HostRanks:
    """The processes of one world on this host, with their pipes, board and files.

    world : what all of them are told. surroundings : where they run.
    Raises ``RuntimeError`` if the disk for their files is full.
    """

    hosts: tuple[str, ...] = ()  # of each rank its host's name, where a world has several

    def __init__(self, world: WorldSpec, surroundings: Surroundings):
        if full := server.full():
            raise RuntimeError(full)
        self.world = world
        self._context: Surroundings = surroundings
        self.folder = tempfile.mkdtemp(prefix="ranks-", dir=server.home())
        self._board = board.Board(self._file("board"), world.world_size)
        self._places = places.Places(self._file("places"), world.world_size)
        self._sources: set[sources.Source] = set()
        where = f" on {world.host}" if world.host else ""
        self._tails = {
            rank: output.Tail(self._file(f"out-{rank}"), f"rank {rank}{where}")
            for rank in world.local
        }
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Connection] = {}
        self._life: Connection | None = None
        try:
            self._start()
        except BaseException:
            output.show(self.kill())
            raise

    def _file(self, name):
        return os.path.join(self.folder, name)

    def _start(self):
        context = multiprocessing.get_context("forkserver")
        ends, self._life = context.Pipe(duplex=False)
        with server.blank_main():
            server.ensure()
            for rank in self.world.local:
                self._start_rank(context, rank, ends)
        ends.close()

    def _start_rank(self, context, rank, life):
        ours, theirs = context.Pipe()
        spec = RankSpec(rank, self.world, self.folder, server.cleanup_dirs(), *self._context)
        process = context.Process(
            target=worker_bootstrap.start_rank, args=(spec, theirs, life, server.life())
        )
        self._pipes[rank], self._processes[rank] = ours, process
        process.start()
        theirs.close()

    # -- a job -------------------------------------------------------------------------------------
    def begin(
        self, job: int, payload: bytes, surroundings: Surroundings, compare: bool = False
    ) -> None:
        """Send a shipped call to every rank; one that has died is heard of by `listen`. compare :
        whether clocks of hosts are compared before it."""
        head = pickle.dumps((job, compare, *self._changes(surroundings)))
        for pipe in self._pipes.values():
            with suppress(OSError):
                pipe.send_bytes(head)
                pipe.send_bytes(payload)

    def _changes(self, now):
        """What differs from the surroundings of the last job."""
        (env, path, cwd), (old_env, old_path, old_cwd) = now, self._context
        self._context = now
        names = (env.keys() | old_env.keys()).difference(worker_bootstrap.OWN)
        changed = {n: env.get(n) for n in names if env.get(n) != old_env.get(n)}
        return changed, path if path != old_path else None, cwd if cwd != old_cwd else None

    def answer(self, rank: int, answer: Any) -> None:
        """Answer a question of a rank (its message "ask")."""
        with suppress(OSError):  # it has died, as `listen` will say
            self._pipes[rank].send_bytes(pickle.dumps(answer))

    def finish(self) -> str:
        """All ranks have answered: they leave the job's groups; what they had still printed."""
        said = "".join(tail.pump(everything=True) for tail in self._tails.values())
        for rank, pipe in self._pipes.items():
            self._tails[rank].rewind()
            with suppress(OSError):  # of a rank that has died since, which `dead` will say
                pipe.send_bytes(b"")
        return said

    def listen(self, seconds: float) -> list[Heard]:
        """What ranks have sent, waited for so long at most; of those that ended, None each time."""
        pipes: dict[Any, int] = {pipe: rank for rank, pipe in self._pipes.items()}
        ends = {process.sentinel: rank for rank, process in self._processes.items()}
        heard: list[Heard] = []
        ready = wait([*pipes, *ends], seconds)
        for pipe in ready:
            if pipe in pipes:
                heard.append((pipes[pipe], self._received(pipe)))
        gone = {rank for rank, message in heard if message is None}
        return heard + [(ends[end], None) for end in ready if end in ends.keys() - gone]

    def _received(self, pipe):
        try:
            kind, job, content = pipe.recv()
        except (EOFError, OSError):
            return None
        if kind == "tidy":
            *content, loaded = content
            self._sources.update(loaded)
        return kind, job, content

    # -- what is seen of them ----------------------------------------------------------------------
    def look(self) -> bool:
        """Look at the ranks anew; whether their files are there, without which none can work."""
        return os.path.isdir(self.folder)

    def printed(self, answered: Collection[int] = ()) -> str:
        """Lines that ranks have printed since; of those that have answered everything."""
        return "".join(tail.pump(rank in answered) for rank, tail in self._tails.items())

    def boards(self) -> dict[int, tuple[str, float]]:
        """rank -> (what it has written on the board, seconds since)."""
        return {rank: self._board.read(rank) for rank in self.world.local}

    def places(self) -> dict[int, places.RankPlace]:
        """rank -> where it stands; nothing for worlds that are too large for this."""
        all_places = self._places.read()
        return {rank: all_places[rank] for rank in self.world.local if rank < len(all_places)}

    def lines(self, ranks: Iterable[int]) -> dict[int, str]:
        """Where in the user's code ranks are: each is asked by a signal to write its stack."""
        asked = [r for r in ranks if r in self._processes and self._processes[r].is_alive()]
        for rank in asked:
            os.kill(self._processes[rank].pid, signal.SIGUSR1)
        sleep(_STACK_TIME if asked else 0)
        return {rank: rank_errors.user_line(self._file(f"stack-{rank}")) for rank in asked}

    def dead(self) -> dict[int, str]:
        """Ranks that are no longer alive: rank -> how they ended."""
        return {
            rank: rank_errors.end_of(process.exitcode)
            for rank, process in self._processes.items()
            if not process.is_alive()
        }

    def ending(self, rank: int) -> tuple[str, str]:
        """How a rank ended, and a reason for it, or ""."""
        process = self._processes[rank]
        process.join(1.0)
        # so end a rank that cannot write before it can say so, and one that cannot in shared memory
        full = server.full() if process.exitcode in (1, -signal.SIGBUS) else ""
        return rank_errors.end_of(process.exitcode), full

    def edited(self) -> list[str]:
        """Names of files that have changed since ranks loaded them as modules."""
        return sources.edited(self._sources)

    # -- the end -----------------------------------------------------------------------------------
    def kill(self) -> str:
        """End all ranks and what they started, and remove their files; what they had still
        printed. May be repeated."""
        for process in self._processes.values():
            if process.pid:
                processes.kill_tree(process.pid)
        for process in self._processes.values():
            if process.pid:
                process.join(_JOIN_LIMIT)
        said = ""
        while self._tails:
            said += self._tails.pop(min(self._tails)).finish()
        self.let_go()
        shutil.rmtree(self.folder, ignore_errors=True)
        return said

    def let_go(self) -> None:
        """Close this process's ends of the pipes without notifying the ranks."""
        for end in (*self._pipes.values(), self._life):
            if end:
                end.close()
        self._board.close()
        self._places.close()

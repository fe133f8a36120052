"""The pool: ranks kept alive between calls, started from a fork server with torch loaded.

Why a fork server: starting 8 ranks by ``spawn`` imports torch eight times (5 to 9 s, 1.2 GB),
while children forked from one process that has torch are ready in 0.1 s and share its memory; and
unlike a plain ``fork`` it is safe in a kernel full of threads or with a GPU in use. Why a file for
the rendezvous: with TCP, some starts of 8 ranks stalled for 5 s, with a file none did.

The processes are this host's (`host_ranks`) or those of a cluster's hosts (`cluster`). `launch`
keeps a pool for each world size. ``docs/adr/0001`` has the measurements.
"""

import errno
import os
from collections.abc import Callable, Collection
from time import monotonic
from typing import Any

from . import debugger, output, places, rank_errors, server
from .board import spoken
from .frames import RankFailure
from .host_ranks import HostRanks
from .rank_errors import named
from .worker_bootstrap import WorldSpec

_NO_SPACE = os.strerror(errno.ENOSPC)
_TICK = 0.05  # seconds between two looks at what ranks print
_START_LIMIT = 120.0  # seconds; a first start on a busy machine imports torch once
_TIDY_LIMIT = 5.0  # seconds for a rank to undo what a job did to it, before it is replaced
_TURN = 0.5  # seconds without a word of the rank at a breakpoint, until another may be asked for
_GRACE = 0.25  # seconds for other ranks to report after one has failed
_LOST_GRACE = 9.0  # and for a host to be known as lost, where ranks of others miss those there


class Pool:
    """Ranks of one group, ready to run functions.

    Parameters
    ----------
    world_size : number of ranks.
    backend : name of the torch.distributed backend.
    device : "cuda", "cpu" or None (cuda where there is a GPU).
    cluster : the `cluster.Hosts` to start them on, None for this host.

    Raises ``ValueError`` for a device or backend that is not here, ``RankError`` if a rank cannot
    start, ``RuntimeError`` if the disk for its files is full or no host of the cluster is left.
    """

    def __init__(
        self,
        world_size: int,
        backend: str = "tpviz",
        device: str | None = None,
        cluster: Any = None,
    ):
        self.world_size, self.backend, self.device = world_size, backend, device
        self.info = {}
        self._job = 0  # number of the last job
        self.idle = False  # whether no launch has it, and its last job ended well
        self.used = monotonic()  # when it was last taken
        self.edited: list[str] = []  # files that have changed since ranks loaded them
        self._asked: dict[int, Any] = {}  # ranks at breakpoints, and what they say
        self._typed_at: dict[int, float] = {}  # ranks that were answered, when, the last one last
        self._tidy: dict[int, Any] = {}  # rank -> what the last job has left, and its groups
        world = WorldSpec(world_size, backend, device, range(world_size))
        self.ranks: Any = (
            cluster.start(world) if cluster else HostRanks(world, server.surroundings())
        )
        self.hosts = self.ranks.hosts
        try:
            said = self._collect(monotonic() + _START_LIMIT, _START_LIMIT, "ready", None)
            self.info = said[0] | {"preloaded": all(info["preloaded"] for info in said.values())}
            self.idle = True
        except BaseException:
            self.kill()
            raise

    def take(self) -> bool:
        """Whether these ranks can do a job; they are then taken.

        Not where the last job was cut short, where a rank has died, where a job left something
        behind that `state` cannot undo, nor where a module that ranks have loaded was edited.
        """
        idle, self.idle = self.idle, False  # an interrupt from here on leaves the ranks marked busy
        return idle and self.ranks.look() and not self.dead() and self._as_new()

    def _as_new(self):
        """Whether all ranks have undone what the last job did to them, agree on groups, and would
        load their modules as they have."""
        if not self._job:
            return True
        until = monotonic() + _TIDY_LIMIT
        while len(self._tidy) < self.world_size:
            left = until - monotonic()
            if left <= 0 or any(message is None for _, message in self._hear(left)):
                return False
        left_over, used = zip(*(self._tidy[rank] for rank in range(self.world_size)))
        self.edited = self.ranks.edited()
        return not any(left_over) and _agree(used) and not self.edited

    def run(
        self, payload: bytes, timeout: float | None, show: Callable[[int, int, str], Any]
    ) -> list[bytes]:
        """Run one shipped call on every rank; their pickled results in rank order.

        Raises ``RankError`` or ``RankTimeoutError``; the pool must then be killed.
        """
        self.idle, self._job, self.used = False, self._job + 1, monotonic()
        self._tidy.clear()
        self._asked.clear()
        self._typed_at.clear()
        self.ranks.begin(self._job, payload, server.surroundings())
        deadline = None if timeout is None else monotonic() + timeout
        results = self._collect(deadline, timeout, "done", show)
        output.show(self.ranks.finish())
        self.idle = True
        return [results[rank] for rank in range(self.world_size)]

    def _collect(self, deadline, limit, wanted, show):
        """Wait until every rank has sent ``wanted``: rank -> content."""
        answers, watch = {}, places.RankWatch(self)
        while len(answers) < self.world_size:
            left = _TICK if deadline is None else min(_TICK, deadline - monotonic())
            if left <= 0:
                raise self._late(limit, answers, wanted == "done")
            failures = self._listen(answers, max(left, 0), show)
            output.show(self.ranks.printed())
            if any(debugger.quits(failures.get(rank)) for rank in self._typed_at):
                raise KeyboardInterrupt
            if failures:
                raise self._blame(failures, answers, show)
            if self._asked:  # by ranks at breakpoints: no time passes for others meanwhile
                begun = monotonic()
                self._answer()
                deadline = deadline and deadline + max(monotonic() - begun, _TICK)
                watch = places.RankWatch(self)
            if wanted == "done" and (vain := watch.look(answers, monotonic())):
                states = self.states(answers)
                raise rank_errors.deadlock(self._reason(vain, answers), states, self.hosts)
        return answers

    def _answer(self):
        """Answer a rank that has asked: the last one again, and when it asks no more, others."""
        last = next(reversed(self._typed_at), -1)
        if last not in self._asked and monotonic() - self._typed_at.get(last, 0.0) < _TURN:
            return
        rank = last if last in self._asked else next(iter(self._asked))
        said = debugger.answer(named([rank], self.hosts), self._asked.pop(rank))
        self._typed_at.pop(rank, None)
        self._typed_at[rank] = monotonic()
        self.ranks.answer(rank, said)

    def read(self) -> list[places.RankPlace]:
        """Where each rank stands, for `places.RankWatch`; nothing where that is not known."""
        found = self.ranks.places()
        ranks = range(self.world_size)
        return [found[rank] for rank in ranks] if len(found) == self.world_size else []

    def _late(self, limit, answers, at_work):
        watch = places.RankWatch(self, apart=0, every=0)
        before = watch.look(answers, monotonic())
        states = self.states(answers, stacks=at_work)
        vain = watch.look(answers, monotonic()) if at_work else {}
        reason = self._reason(vain, answers) if vain == before else ""
        what = "finish" if at_work else "start"
        return rank_errors.timed_out(limit, states, what, reason, self.hosts)

    def _reason(self, vain, answers):
        return rank_errors.reason(vain, self._texts(), answers, self.hosts)

    def _texts(self):
        return {rank: text for rank, (text, _) in self.ranks.boards().items()}

    def _hear(self, seconds):
        """What ranks sent of the current job, but for "tidy", which is kept."""
        heard = []
        for rank, message in self.ranks.listen(seconds):
            if message and message[1] != self._job:  # of a rank that failed: it is ended anyway
                continue
            if message and message[0] == "tidy":
                self._tidy[rank] = message[2]
            else:
                heard.append((rank, message))
        return heard

    def _listen(self, answers, seconds, show):
        """Put answers in ``answers`` and return failures, rank -> dict, None if it died."""
        failures: dict[int, Any] = {}
        for rank, message in self._hear(seconds):
            kind, _, content = message or ("ended", 0, None)
            if kind == "progress" and content:
                show(*content)
            elif kind == "ask":
                self._asked[rank] = content
            elif kind == "refused":
                raise ValueError(content)
            elif kind in ("error", "ended"):
                failures[rank] = content
            else:
                answers[rank] = content
        return failures

    def _blame(self, failures, answers, show):
        """The error for the rank it began with: one that died, else the first that raised."""
        first = min(failures)  # among failures that arrive together
        until = monotonic() + self._grace(failures)
        while (left := until - monotonic()) > 0 and len(failures) + len(answers) < self.world_size:
            new = self._listen(answers, left, show)
            failures.update(new)
            if None in new.values():
                break
            until = min(until, monotonic() + self._grace(failures))
        error = self._error_of(first, failures, self.states(answers, failures))
        error.ranks = {r: RankFailure(**f) for r, f in sorted(failures.items()) if f}
        return error

    def _error_of(self, first, failures, states):
        dead = [rank for rank, failure in failures.items() if failure is None]
        if dead:
            return self._death(dead[0], states)
        if rank_errors.follows(failures[first]):  # another one closed its connections
            first = next((r for r, f in failures.items() if not rank_errors.follows(f)), first)
        alike = [rank for rank, failure in failures.items() if _same(failure, failures[first])]
        first = min(alike)
        states.pop(first)
        full = server.full() if _NO_SPACE in failures[first]["message"] else ""
        reason = self._clash() or full
        return rank_errors.raised(first, failures[first], states, reason, self.hosts)

    def _grace(self, failures):
        """Seconds to wait for what it began with: the loss of a host is known last of all."""
        only_follow = all(rank_errors.follows(failure) for failure in failures.values())
        return _LOST_GRACE if self.hosts and only_follow else _GRACE

    def _death(self, rank, states):
        others = {r: s for r, s in states.items() if r != rank}
        how, full = self.ranks.ending(rank)
        return rank_errors.died(rank, how, others, self._clash() or full, self.hosts)

    def _clash(self):
        return rank_errors.clash(self._texts(), self.hosts)

    def states(
        self,
        answers: Collection[int] = (),
        failures: dict[int, dict[str, str] | None] | None = None,
        stacks: bool = True,
    ) -> dict[int, str]:
        """{rank: what it is doing, in words}."""
        failures = failures or {}
        busy = [r for r in range(self.world_size) if r not in answers and r not in failures]
        lines = self.ranks.lines(busy) if stacks else {}
        boards, states = self.ranks.boards(), {}
        for rank in range(self.world_size):
            if rank in answers:
                states[rank] = "finished"
                continue
            doing = spoken(*boards[rank])
            if rank not in failures:
                states[rank] = doing + lines.get(rank, "")
                continue
            when = f", {doing}" if doing.startswith("waiting") else ""
            states[rank] = rank_errors.in_short(failures[rank]) + when
        return states

    def dead(self) -> dict[int, str]:
        """Ranks that are no longer alive: rank -> how they ended."""
        return self.ranks.dead()

    def kill(self) -> None:
        """End all ranks and what they started, and remove the pool's files; may be repeated."""
        output.show(self.ranks.kill())

    def let_go(self) -> None:
        """Close this process's ends of the pipes without notifying the ranks."""
        self.ranks.let_go()


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

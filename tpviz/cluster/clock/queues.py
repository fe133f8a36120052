"""The queue of a mesh axis on the clock of a step: which collectives are in flight, until when.

>>> queue = Queue()
>>> queue.put(1.0, [Transfer("tp", 2.0), Transfer("tp", 3.0)])  # both issued after 1 s
>>> queue.until(1, 1.0)[0], queue.until(0, 1.0)[0]  # all but the last one have ended; all
(3.0, 6.0)
"""

from collections.abc import Iterable
from itertools import chain
from math import isclose
from typing import NamedTuple


class Transfer(NamedTuple):
    """One collective of a mesh axis, alone on its links: seconds, how many of these are latency,
    and ``queued`` (`Cluster.queued`), which multiplies both if it waits for the one before."""

    axis: str
    seconds: float
    latency: float = 0.0
    queued: float = 1.0


State = tuple[float, float, list[tuple[float, float, float]]]


class Queue:
    """The collectives of an axis that are in flight one after another, since it was last idle."""

    __slots__ = "begin", "end", "past", "sent"

    def __init__(self) -> None:
        self.begin = self.end = 0.0
        self.past = 0.0  # seconds of the part that now runs, before `begin`
        self.sent: list[tuple[float, float, float]] = []  # (begin, end, how much of it is hops)

    def look_from(self, start: float, idle: bool) -> None:
        """Begin a part at ``start``. idle : nothing is in flight; forget the past."""
        self.past = 0.0
        if idle or self.end <= start:
            self.begin = self.end = start
            self.sent = []
        elif self.begin < start:
            self.begin = start

    def put(self, now: float, issued: Iterable[Transfer]) -> None:
        """Append transfers issued at ``now``; each begins when the one before it ends."""
        begin, alone = self.end, self.end <= now
        if alone:
            self.past += self.end - self.begin
            self.begin = begin = now
            self.sent = []
        append = self.sent.append
        for _, seconds, latency, queued in issued:
            factor = 1.0 if alone else queued
            alone = False
            end = begin + factor * seconds
            append((begin, end, factor * latency))
            begin = end
        self.end = begin

    def until(self, in_flight: int, now: float) -> tuple[float, float]:
        """(time when all but the last ``in_flight`` have ended, seconds of latency until then)."""
        last = len(self.sent) - 1 - in_flight
        if last < 0 or (end := self.sent[last][1]) <= now:
            return now, 0.0
        hops = 0.0
        for begin, stop, latency in reversed(self.sent[: last + 1]):
            if stop <= now:
                break
            hops += latency if begin >= now else latency * (stop - now) / (stop - begin)
        return end, hops

    def between(self, start: float, end: float) -> float:
        """Seconds with a transfer in flight, if nothing was issued since ``start``."""
        begin, stop = self.begin, self.end
        return (stop if stop < end else end) - (begin if begin > start else start)

    def ahead(self, now: float) -> "Ahead":
        """The queue's state at ``now``, as an `Ahead`."""
        return Ahead(now, self.end, self.sent, len(self.sent))

    def again(self, before: "Ahead", found: "Ahead", times: int) -> None:
        """Repeat ``times`` times what happened between the states ``before`` and ``found``."""
        if not found.grows(before):
            self.resume(self.state, times * (found.now - before.now))
            return
        later, sent = found.end - before.end, self.sent[before.count :]
        for k in range(1, times + 1):
            self.sent += [(a + k * later, b + k * later, hops) for a, b, hops in sent]
        self.end += times * later

    @property
    def state(self) -> State:
        """The queue's contents, for `resume`."""
        return self.begin, self.end, self.sent

    def resume(self, state: State, later: float) -> None:
        """Restore a `state`, shifted by ``later`` seconds."""
        begin, end, sent = state
        self.begin, self.end = begin + later, end + later
        self.sent = [(a + later, b + later, hops) for a, b, hops in sent]


class Ahead(NamedTuple):
    """A `Queue` at the time ``now``. sent : its own list, which grows; count : its length then."""

    now: float
    end: float
    sent: list[tuple[float, float, float]]
    count: int

    def recurs(self, before: "Ahead | None", waited: bool) -> bool:
        """Whether the queue will repeat what it did since ``before``. waited : do kernels wait for
        it."""
        if self.end <= self.now and (not before or before.end <= before.now):
            return True
        if not before:
            return False
        if not waited and self.grows(before):
            return True
        mine, its = self.pending(), before.pending()
        return len(mine) == len(its) and all(
            isclose(a, b, rel_tol=1e-9, abs_tol=1e-12 * self.now)
            for a, b in zip(chain(*mine), chain(*its))
        )

    def grows(self, before: "Ahead") -> bool:
        """Whether the queue was busy ever since ``before`` and its remaining work has grown."""
        return self.sent is before.sent and self.end - self.now > before.end - before.now > 0.0

    def pending(self) -> list[tuple[float, float, float]]:
        """[(seconds until it begins, seconds until it ends, its seconds of latency)] in flight."""
        now, sent = self.now, self.sent[: self.count]
        return [(begin - now, end - now, hops) for begin, end, hops in sent if end > now]

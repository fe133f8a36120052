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
    """One collective of a mesh axis, alone on its links: seconds, and how much of it is latency;
    `Cluster.queued`, where it waits for another."""

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
        """A part begins. idle : nothing is in flight, and times start anew."""
        self.past = 0.0
        if idle or self.end <= start:
            self.begin = self.end = start
            self.sent = []
        elif self.begin < start:
            self.begin = start

    def put(self, now: float, issued: Iterable[Transfer]) -> None:
        """These are issued now, and begin one after another behind what is in flight."""
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
        """(When all but the last ``in_flight`` have ended, seconds of hops from now to then)."""
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
        """Seconds from start to end with something in flight, where nothing was issued since."""
        begin, stop = self.begin, self.end
        return (stop if stop < end else end) - (begin if begin > start else start)

    def ahead(self, now: float) -> "Ahead":
        """What is in flight now."""
        return Ahead(now, self.end, self.sent, len(self.sent))

    def again(self, before: "Ahead", found: "Ahead", times: int) -> None:
        """As if what happened from one to the other, which `recurs`, did so many times more."""
        if not found.grows(before):
            self.resume(self.state, times * (found.now - before.now))
            return
        later, sent = found.end - before.end, self.sent[before.count :]
        for k in range(1, times + 1):
            self.sent += [(a + k * later, b + k * later, hops) for a, b, hops in sent]
        self.end += times * later

    @property
    def state(self) -> State:
        """What `resume` takes."""
        return self.begin, self.end, self.sent

    def resume(self, state: State, later: float) -> None:
        """What was in flight is so again, so many seconds later."""
        begin, end, sent = state
        self.begin, self.end = begin + later, end + later
        self.sent = [(a + later, b + later, hops) for a, b, hops in sent]


class Ahead(NamedTuple):
    """What a queue had in flight at a moment. sent : its list, which grows; count : its length."""

    now: float
    end: float
    sent: list[tuple[float, float, float]]
    count: int

    def recurs(self, before: "Ahead | None", waited: bool) -> bool:
        """Whether what follows goes as it went before. waited : kernels wait for this axis."""
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
        """Whether it was busy all the time since then, and has more to do now."""
        return self.sent is before.sent and self.end - self.now > before.end - before.now > 0.0

    def pending(self) -> list[tuple[float, float, float]]:
        """Of each that is in flight: in how many seconds it begins and ends, its hops."""
        now, sent = self.now, self.sent[: self.count]
        return [(begin - now, end - now, hops) for begin, end, hops in sent if end > now]

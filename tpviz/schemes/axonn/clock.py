"""An AxoNN rank's step on a clock: its kernels in order, and a queue for every group (derived).

What the knobs say about gathers and scatters is here: with OAG the next gather is sent for when the
present one is there, before the kernels that use it; with ORS scatters are waited for where the
next microbatch goes backward, or at the end.
"""

from collections.abc import Callable
from math import isclose
from typing import TYPE_CHECKING, NamedTuple

from tpviz.cost import Segment, Transfer
from tpviz.schemes.atp.step import Collective, Overlapped

if TYPE_CHECKING:
    from tpviz.schemes.gpt.kernels import Kernel

    from .step import Part
    from .strategy import AxoNN

PREFETCH = "z_ahead"
"""The axis of gathers that are sent for ahead: a group, and so a queue, of their own."""


class GatherWeight(NamedTuple):
    """The block of a weight is needed: ``payload`` bytes of all its pieces."""

    payload: int


class Scatter(NamedTuple):
    """The block's gradient is summed, and each rank keeps its piece."""

    payload: int


class Clock:
    """Turns `step.Part`s into `Segment`s. seconds: kernel -> s; moved(axis, collective, bytes)."""

    def __init__(
        self,
        strategy: "AxoNN",
        seconds: "Callable[[Kernel], float]",
        moved: Callable[[str, str, int], Transfer],
    ):
        self.seconds, self.moved = seconds, moved
        self.ahead, self.later = "oag" in strategy.overlap, "ors" in strategy.overlap
        self.now, self.free, self.scattering = 0.0, {}, []
        self.sent, self.place, self.left = None, 0, 0
        self.segment, self.compute, self.latency, self.before = None, 0.0, 0.0, ""

    def run(self, microbatch: "list[Part]", count: int, end: "list[Part]") -> list[Segment]:
        """``count`` times the parts of a microbatch, then those of the end.

        A microbatch that finds all queues as the one before found them takes as long, and so do all
        that follow but the last: they are not run again.
        """
        self.asks = [
            o.payload for part in microbatch for o in part.operations if isinstance(o, GatherWeight)
        ]
        found, stood = [], None
        for self.left in range(count, 0, -1):
            stands = self._stands()
            if self.left > 1 and stood is not None and self._same(stands, stood):
                found += found[-len(microbatch) :]
                continue
            found, stood = found + self._pass(microbatch), stands
        return found + self._pass(end)

    def _stands(self):
        """How long what is under way will take."""
        ends = [*self.free.values(), *(end for _, end in self.scattering)]
        ends += [self.sent[1]] if self.sent else []
        return [max(0.0, end - self.now) for end in ends]

    def _same(self, stands, stood):
        """Whether two of `_stands` are the same but for rounding."""
        return len(stands) == len(stood) and all(
            isclose(a, b, rel_tol=1e-9, abs_tol=1e-12 * self.now) for a, b in zip(stands, stood)
        )

    def _pass(self, parts):
        found = []
        for part in parts:
            self.segment = Segment(part.phase, part.layer, 0.0, {}, {})
            self.compute = self.latency = 0.0
            if part.phase != self.before and part.phase in ("backward", "sync"):
                self._collect()
            self.before = part.phase if part.phase != "recompute" else self.before
            for operation in part.operations:
                self._do(operation)
            found.append(self.segment._replace(compute=self.compute, latency=self.latency))
        return found

    def _do(self, operation):
        if isinstance(operation, Collective):
            self._wait(self._issue(*operation))
        elif isinstance(operation, Overlapped):
            sent = self._issue(*operation.move)
            self._kernel(operation.kernel)
            self._wait(sent)
        elif isinstance(operation, GatherWeight):
            self._gather(operation.payload)
        elif isinstance(operation, Scatter):
            sent = self._issue("z", "reduce_scatter", operation.payload)
            if self.later:
                self.scattering.append(sent)
            else:
                self._wait(sent)
        else:
            self._kernel(operation)

    def _gather(self, payload):
        axis = PREFETCH if self.ahead else "z"
        sent, self.sent = self.sent or self._issue(axis, "all_gather", payload), None
        self._wait(sent)
        self.place = (self.place + 1) % len(self.asks)
        if self.ahead and (self.place or self.left > 1):
            self.sent = self._issue(axis, "all_gather", self.asks[self.place])

    def _collect(self):
        for sent in self.scattering:
            self._wait(sent)
        self.scattering = []

    def _kernel(self, kernel):
        took = self.seconds(kernel)
        self.now += took
        self.compute += took

    def _issue(self, axis, collective, payload):
        found = self.moved(axis, collective, payload)
        if found.seconds:
            self.free[axis] = max(self.now, self.free.get(axis, 0.0)) + found.seconds
        return found, self.free.get(axis, 0.0)

    def _wait(self, sent):
        found, end = sent
        if not found.seconds:
            return
        waited = max(0.0, end - self.now)
        self.now += waited
        exposed, hidden, axis = self.segment.exposed, self.segment.hidden, found.axis  # pyright: ignore[reportOptionalMemberAccess]
        exposed[axis] = exposed.get(axis, 0.0) + waited
        hidden[axis] = hidden.get(axis, 0.0) + max(0.0, found.seconds - waited)
        self.latency += found.latency * min(1.0, waited / found.seconds)

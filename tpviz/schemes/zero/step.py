"""Data parallelism's step as data, by ZeRO stage: what is sent, and when (derived).

With P bytes of parameters, padded, in buckets:

ZeRO 0: an all-reduce of every gradient bucket: P.
ZeRO 1, 2: a reduce-scatter of every gradient bucket, an all-gather of every parameter bucket after
the update: 2 P in two halves, on a ring the same traffic as ZeRO 0 (Rajbhandari et al. 2020, arXiv
1910.02054, section 7).
ZeRO 3: every bucket is gathered before forward, the blocks' again before backward, gradients
reduce-scattered: the 1.5 x of the paper's section 7.2.2 (a little less: the root is gathered once).
Blocks that stay whole after forward are gathered once too, those of which 1/n stays then over n
ranks.

The collectives of the group run one after another. Bucket k is complete at ready_k, and reducing it
takes t_k.

ZeRO 0, 1: backward ends at max(its end, max over k of ready_k + t_k + t_{k+1} + ...): a bucket
waits for the buckets before it, kernels for none until the end. ZeRO 1, 2 then gather all buckets,
with nothing to hide them.
ZeRO 2, 3: before bucket k is issued, kernels wait for bucket k-1, so that at most one is in flight.
Hybrid sharding: so at every stage, since the all-reduce of bucket k-1's share across groups, 1/n of
its bytes with n ranks in a group, starts then. It is waited for at the end of the step. Likewise
where few bits are sent: what comes behind a bucket's first collective, see `sums`.
ZeRO 3: entering a block, kernels wait for its parameters, and the next block's are prefetched. The
block's reduce-scatter queues behind that all-gather, and the next all-gather behind it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING

from tpviz.core.step import (
    Collective,
    Issues,
    Operations,
    Part,
    Step,
    Wait,
    accumulated,
    microbatch_of,
)
from tpviz.schemes.gpt.step import update
from tpviz.schemes.strategy import step_of

from .buckets import gathered, unit_of
from .sums import gathers, sums

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy

    from .strategy import DataParallel


def step(strategy: "DataParallel", workload: "GPT") -> Step:
    """The inner strategy's step, with dp's collectives: at ZeRO 2 and 3 in every microbatch, else
    in the last one."""
    count = strategy.accumulation
    parts = inner_parts(strategy.inside, strategy.local(workload))
    if strategy.replicas.ranks == 1:
        return accumulated(parts, count)
    each = microbatch_of(parts)
    if strategy.zero >= 2 and count > 1:
        each = _Step(strategy, workload).over(parts, last=False)
    return accumulated(_Step(strategy, workload).over(parts), count, each)


def inner_parts(inside: "Strategy", local: "GPT") -> tuple[Part, ...]:
    """The step of the strategy inside, without what is done once for all replicas; those whose step
    has a `Repeat` are never inside."""
    local = replace(local, bias_balance=0.0) if local.bias_balance else local
    return tuple(part for part in step_of(inside, local) if isinstance(part, Part))


class ExchangeParts:
    """What `exchange.BucketExchange` does, as data: ``parts`` grows by what is issued and awaited.

    gathers : {unit: the collectives that gather it}, of those that stage 3 gathers one ahead.
    again : the same in backward, where these are others. second : {unit: what follows its gathers},
    in two levels, of which ``prompt`` waits for each sum before the next.
    """

    def __init__(
        self,
        zero: int,
        gathers: Mapping[str, Sequence[Collective]],
        again: Mapping[str, Sequence[Collective]] | None = None,
        second: Mapping[str, Sequence[Collective]] = MappingProxyType({}),
    ):
        self.zero, self.gathers = zero, gathers
        self.again = gathers if again is None else again
        self.parts, self.made = list[Part](), Operations()
        self.last, self.todo, self.asked = {}, [], {}
        self.then, self.added, self.left = (), {}, []
        self.second, self.prompt = second, bool(second) and zero >= 2

    def add(self, phase: str, layer: str = "") -> None:
        """End a part here, if there is anything in it."""
        if self.made:
            self.parts.append(Part(phase, layer, tuple(self.made)))
            self.made.clear()

    def begin(self, phase: str, units: Sequence[str]) -> None:
        """Begin a pass through these ``units`` in this order; stage 3 gathers the first one."""
        self.now = self.again if phase == "backward" else self.gathers
        self.todo = gathered(units, phase) if self.zero == 3 and self.now else []
        if self.todo:
            self._gather(self.todo[0])

    def enter(self, unit: str) -> None:
        """A unit's parameters are needed now, and the next one's soon."""
        if unit in self.todo:
            self.await_all(self.asked.get(unit, {}))
            self.one_by_one(self.second.get(unit, ()))
            for after in self.todo[self.todo.index(unit) + 1 :][:1]:
                self._gather(after)

    def _gather(self, unit):
        # none where all gradients are late
        self.asked[unit] = {move.axis: self.made.issue(move) for move in self.now.get(unit, ())}

    def one_by_one(self, moves: Iterable[Collective]) -> None:
        """Start each and wait for it."""
        for move in moves:
            self.made.wait(self.made.issue(move))

    def await_all(self, tickets: "Mapping[str, tuple[str, int] | None]") -> None:
        """Wait for {axis: the last collective on it}."""
        for ticket in tickets.values():
            self.made.wait(ticket)

    def reduce(
        self, moves: Iterable[Collective], phase: str = "", then: Sequence[Collective] = ()
    ) -> None:
        """Reduce a set of buckets, from stage 2 on behind the set before; ``then`` are what comes
        behind, one after the other."""
        if self.zero >= 2 or self.then:
            self.wait()
        for move in moves:
            self.last[move.axis] = self.made.issue(move, phase)
        self.then = then

    def wait(self) -> None:
        """Wait for what is being reduced, and start what comes behind."""
        if self.prompt:
            self.await_all(self.added)
        self.await_all(self.last)
        self.last = {}
        for move in self.then[:1]:
            self.added[move.axis] = self.made.issue(move)
            self.left.append(self.then[1:])
        self.then = ()

    def finish(self) -> None:
        """Wait until gradients are complete; what is left of each set's sum follows together."""
        self.wait()
        self.await_all(self.added)
        for moves in zip(*self.left):
            self.await_all({move.axis: self.made.issue(move) for move in moves})


class _Step(ExchangeParts):
    """The program of `program.DataParallelProgram`, event by event."""

    def __init__(self, strategy, workload):
        self.strategy, self.workload = strategy, workload
        self.buckets = strategy.buckets(workload)
        self.sums = [sums(strategy, bucket, workload.itemsize) for bucket in self.buckets]
        self.units = [f"blocks.{number}" for number in range(workload.layers)]
        self.all, self.rest, of_blocks, second = [], [], {}, {}
        for b in self.buckets:
            move, *rest = gathers(b, workload.itemsize, bool(strategy.within))
            self.all.append(move)
            self.rest.append(rest)
            of_blocks.setdefault(b.unit, []).append(move)
            second.setdefault(b.unit, []).extend(rest)
        second = second if strategy.within else {}
        again = of_blocks if strategy.reshard_after_forward else {}
        if strategy.kept > 1:
            again = {u: [m._replace(axis="reshard") for m in of] for u, of in of_blocks.items()}
        super().__init__(strategy.zero, of_blocks, again, second)
        self.missing = [1 if bucket.late else len(bucket.parts) for bucket in self.buckets]
        self.of = {
            name: k for k, b in enumerate(self.buckets) if not b.late for name, _, _ in b.parts
        }
        self.launched, self.entered = 0, None

    def over(self, parts, last=True):
        """Parts of the whole step from those of the inner one; or of a microbatch but the last."""
        after = ("sync", "optimizer")
        for part in parts:
            if part.phase in after:
                continue
            if self.zero == 3:
                self._before(part)
            self.parts.append(part)
            for name in part.ready:
                if name in self.of:
                    self.missing[self.of[name]] -= 1
            self._launch(last)
        sync, optimizer = ([p for p in parts if p.phase == phase] for phase in after)
        if last:
            self.parts += sync
            self.missing = [0] * len(self.missing)
            self._launch(last)
        self.finish()
        self.add("sync")
        if last:
            self._update(optimizer)
        return tuple(self.parts)

    def _launch(self, last):
        """Full buckets are sent in order, and shares of the last microbatch."""
        while self.launched < len(self.buckets) and not self.missing[self.launched]:
            first, *then = self.sums[self.launched]
            self.reduce([first], then=then if last or self.strategy.within else ())
            self.launched += 1
        self.add("sync")

    def _before(self, part):
        """At stage 3, what happens before a part: the roots, or a block's parameters."""
        phase, unit = part.phase, unit_of(part.layer)
        phase = "backward" if phase == "recompute" else phase
        if (phase, unit) == self.entered:
            return
        if self.entered is None:
            pairs = zip(self.buckets, self.all, self.rest)
            roots = [(move, rest) for b, move, rest in pairs if b.unit not in self.units]
            asked = {move.axis: self.made.issue(move) for move, _ in roots}  # pyright: ignore[reportAttributeAccessIssue]
            self.begin(phase, self.units)
            self.await_all(asked)
            self.one_by_one(chain.from_iterable(rest for _, rest in roots))
            self.add(phase, "embed")
        elif phase == "backward" and self.entered[0] == "forward":
            self.begin(phase, self.units[::-1])
        self.enter(unit)
        self.add(phase, unit if unit in self.units else "")
        self.entered = phase, unit

    def _update(self, optimizer):
        """The optimizer on this rank's share, then the gathers of what it updated."""
        if not self.zero:
            self.parts += optimizer
            return
        numel = sum(b.share for b in self.buckets)
        numel += sum(self.strategy.alone(self.workload).values())
        self.parts.append(Part("optimizer", "", (update(self.workload, numel),)))
        if self.zero < 3:
            self.made.append(Issues(tuple(self.all)))
            self.made += [Wait(axis) for axis in dict.fromkeys(move.axis for move in self.all)]
            self.one_by_one(chain.from_iterable(self.rest))
            self.add("optimizer")

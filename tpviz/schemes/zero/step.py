"""Data parallelism's step as data, by ZeRO stage: what is sent, and when (derived).

With P bytes of parameters, padded, in buckets:

ZeRO 0: an all-reduce of every gradient bucket: P.
ZeRO 1, 2: a reduce-scatter of every gradient bucket, an all-gather of every parameter bucket after
the update: 2 P in two halves, on a ring the same traffic as ZeRO 0 (Rajbhandari et al. 2020, arXiv
1910.02054, section 7).
ZeRO 3: every bucket is gathered before forward, the blocks' again before backward, gradients
reduce-scattered: the 1.5 x of the paper's section 7.2.2 (a little less: the root is gathered once).

The collectives of the group run one after another. Bucket k is complete at ready_k, and reducing it
takes t_k.

ZeRO 0, 1: backward ends at max(its end, max over k of ready_k + t_k + t_{k+1} + ...): a bucket
waits for the buckets before it, kernels for none until the end. ZeRO 1, 2 then gather all buckets,
with nothing to hide them.
ZeRO 2, 3: before bucket k is issued, kernels wait for bucket k-1, so that at most one is in flight.
ZeRO 3: entering a block, kernels wait for its parameters, and the next block's are prefetched. The
block's reduce-scatter queues behind that all-gather, and the next all-gather behind it.
"""

from typing import TYPE_CHECKING

from tpviz.core.step import (
    Collective,
    Issues,
    Operations,
    Part,
    Repeat,
    Step,
    Wait,
    accumulated,
    microbatch_of,
)
from tpviz.schemes.gpt.step import reference, update
from tpviz.schemes.strategy import step_of

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy

    from .strategy import DataParallel


def step(strategy: "DataParallel", workload: "GPT") -> Step:
    """The inner strategy's step, with dp's collectives: at ZeRO 2 and 3 in every microbatch, else
    in the last one."""
    local, inner, count = strategy.local(workload), strategy.inner, strategy.accumulation
    parts = inner_parts(inner, local, strategy.recompute)
    if strategy.dp == 1:
        return accumulated(parts, count)
    last = _Step(strategy, workload).over(parts)
    if count == 1:
        return last
    each = microbatch_of(parts)
    if strategy.zero >= 2:
        each = _Step(strategy, workload).over(parts, last=False)
    return Repeat(tuple(part._replace(ready=()) for part in each), count - 1), *last


def inner_parts(
    inner: "Strategy | None", local: "GPT", recompute: str = "none"
) -> tuple[Part, ...]:
    """The step of the strategy inside, or of one process; strategies whose step has a `Repeat` are
    never inside. recompute : of one process."""
    step = step_of(inner, local) if inner else reference(local, recompute)
    return tuple(part for part in step if isinstance(part, Part))


class _Step:
    """The program of `program.DataParallelProgram`, event by event."""

    def __init__(self, strategy, workload):
        self.strategy, self.zero, self.workload = strategy, strategy.zero, workload
        self.buckets = strategy.buckets(workload)
        sizes = [bucket.numel * workload.itemsize for bucket in self.buckets]
        self.sums = [
            Collective("dp", "reduce_scatter", size) if self.zero else strategy.summing(size)
            for size in sizes
        ]
        self.gathers = [Collective("dp", "all_gather", size) for size in sizes]
        self.missing = [1 if bucket.late else len(bucket.parts) for bucket in self.buckets]
        self.of = {
            name: k for k, b in enumerate(self.buckets) if not b.late for name, _, _ in b.parts
        }
        self.of_block = {b.block: k for k, b in enumerate(self.buckets) if b.block >= 0}
        self.launched, self.gathering, self.entered = 0, {}, None
        self.last = None
        self.parts, self.made = [], Operations()

    def over(self, parts, last=True):
        """Parts of the whole step from those of the inner one; or of a microbatch but the last."""
        after = ("sync", "optimizer")
        for part in parts:
            if part.phase in after:
                continue
            if self.zero == 3:
                self._before(part)
            self.parts.append(part)
            if part.ready:
                self._arrived(part.ready)
        sync, optimizer = ([p for p in parts if p.phase == phase] for phase in after)
        if last:
            self.parts += sync
            for k, bucket in enumerate(self.buckets):
                if bucket.late:
                    self.missing[k] = 0
                    self._launch()
        self.made.wait(self.last)
        self._add("sync")
        if last:
            self._update(optimizer)
        return tuple(self.parts)

    def _add(self, phase, layer=""):
        """What has been written, as a part."""
        if self.made:
            self.parts.append(Part(phase, layer, tuple(self.made)))
            self.made.clear()

    # -- gradients ---------------------------------------------------------------------------------
    def _arrived(self, names):
        for name in names:
            k = self.of.get(name)
            if k is not None:
                self.missing[k] -= 1
        self._launch()

    def _launch(self):
        """Full buckets are sent in order; from stage 2 on after the previous collective."""
        while self.launched < len(self.buckets) and not self.missing[self.launched]:
            if self.zero >= 2:
                self.made.wait(self.last)
            self.last = self.made.issue(self.sums[self.launched])
            self.launched += 1
        self._add("sync")

    # -- parameters --------------------------------------------------------------------------------
    def _before(self, part):
        """At stage 3, what happens before a part: the roots, or a block's parameters."""
        phase, block = part.phase, _block(part.layer)
        phase = "backward" if phase == "recompute" else phase
        if (phase, block) == self.entered:
            return
        if self.entered is None:
            roots = [
                self.made.issue(self.gathers[k]) for k, b in enumerate(self.buckets) if b.block < 0
            ]
            self._gather(0)
            self.made.wait(roots[-1])
            self._add(phase, "embed")
        elif phase == "backward" and self.entered[0] == "forward":
            self._gather(self.workload.layers - 1)
        if block >= 0:
            self.made.wait(self.gathering[block])
            self._gather(block + (1 if phase == "forward" else -1))
            self._add(phase, f"blocks.{block}")
        else:
            self._add(phase)
        self.entered = phase, block

    def _gather(self, block):
        if block in self.of_block:
            self.gathering[block] = self.made.issue(self.gathers[self.of_block[block]])

    def _update(self, optimizer):
        """The optimizer on this rank's share, then the gathers of what it updated."""
        if not self.zero:
            self.parts += optimizer
            return
        numel = sum(bucket.numel for bucket in self.buckets) // self.strategy.dp
        self.parts.append(Part("optimizer", "", (update(self.workload, numel),)))
        if self.zero < 3:
            self.made += [Issues(tuple(self.gathers)), Wait("dp")]
            self._add("optimizer")


def _block(layer):
    """Number of the block a layer is in, -1 for none."""
    return int(layer.split(".", 2)[1]) if layer.startswith("blocks.") else -1

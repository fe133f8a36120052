"""What one step of data parallelism sends, by ZeRO stage, and when (derived).

With P bytes of parameters, padded, in buckets:

ZeRO 0: all-reduce of every bucket's gradient: P.
ZeRO 1, 2: reduce-scatter of every gradient bucket, all-gather of every parameter bucket after the
update: 2 P in two halves, on a ring the same traffic as ZeRO 0 (Rajbhandari et al. 2020, arXiv
1910.02054, section 7).
ZeRO 3: every bucket is gathered before forward, the blocks' again before backward, gradients
reduce-scattered: the 1.5 x of the paper's section 7.2.2 (a little less, the root being gathered
once).

Times: the group's collectives queue. Bucket k is complete at ready_k, its sum takes t_k.

ZeRO 0, 1: backward ends at max(its end, max over k of ready_k + t_k + t_{k+1} + ...): a sum waits
for the sums before it, kernels for none until the end. ZeRO 1, 2 then gather all buckets in the
open.
ZeRO 2, 3: before bucket k is sent, kernels wait for bucket k-1's sum, so that one at most is in
flight.
ZeRO 3: entering a block, kernels wait for its parameters, and the next block's are sent for. Its
sum queues behind that gather, and the gather after it behind the sum.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tpviz.cost import Beside, Segment, transfer
from tpviz.schemes.gpt.cost import reference, update
from tpviz.trace import Ledger

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.mesh import Mesh
    from tpviz.workload import GPT

    from .buckets import Bucket
    from .strategy import DataParallel


def ledger(buckets: "Iterable[Bucket]", dp: int, zero: int, itemsize: int) -> Ledger:
    """The `Ledger` of one step of one rank over the axis dp."""
    entries = []
    for bucket in buckets:
        size = bucket.numel * itemsize
        entries.append(("dp", "reduce_scatter" if zero else "all_reduce", "sync", 1, size, dp))
        if zero in (1, 2):
            entries.append(("dp", "all_gather", "optimizer", 1, size, dp))
        if zero == 3:
            entries.append(("dp", "all_gather", "forward", 1, size, dp))
            entries.append(("dp", "all_gather", "backward", int(bucket.block >= 0), size, dp))
    return Ledger.of(entries)


def cost(
    strategy: "DataParallel", workload: "GPT", cluster: "Cluster", mesh: "Mesh"
) -> list[Segment]:
    """The inner strategy's segments on the local batch, with this axis's collectives beside."""
    local, inner = strategy.local(workload), strategy.inner
    segments = inner.cost(local, cluster, mesh) if inner else reference(local, cluster)
    if strategy.dp == 1:
        return segments
    return _Step(strategy, workload, cluster, mesh).over(segments)


class _Step(Beside):
    """The program of `program.DataParallelProgram`, event by event."""

    def __init__(self, strategy, workload, cluster, mesh):
        super().__init__("dp")
        self.strategy, self.zero = strategy, strategy.zero
        self.workload, self.cluster = workload, cluster
        self.buckets = strategy.buckets(workload)
        sizes = [bucket.numel * workload.itemsize for bucket in self.buckets]
        known = {
            size: [
                transfer(cluster, mesh, "dp", collective, size)
                for collective in ("reduce_scatter" if self.zero else "all_reduce", "all_gather")
            ]
            for size in set(sizes)
        }
        self.sums = [known[size][0] for size in sizes]
        self.gathers = [known[size][1] for size in sizes]
        self.missing = [1 if bucket.late else len(bucket.parts) for bucket in self.buckets]
        self.of = {
            name: k for k, b in enumerate(self.buckets) if not b.late for name, _, _ in b.parts
        }
        self.of_block = {b.block: k for k, b in enumerate(self.buckets) if b.block >= 0}
        self.launched, self.last, self.gathering, self.entered = 0, 0.0, {}, None

    def over(self, segments):
        """Segments of the whole step from those of the inner one."""
        after = ("sync", "optimizer")
        for segment in segments:
            if segment.phase in after:
                continue
            if self.zero == 3:
                self._before(segment)
            self.run(segment)
            self._arrived(segment.ready)
        sync, optimizer = ([s for s in segments if s.phase == phase] for phase in after)
        for segment in sync:
            self.run(segment)
        for k, bucket in enumerate(self.buckets):
            if bucket.late:
                self.missing[k] = 0
                self._launch()
        self.wait(self.last, "sync")
        self._update(optimizer)
        return self.finish()

    # -- gradients ---------------------------------------------------------------------------------
    def _arrived(self, names):
        for name in names:
            k = self.of.get(name)
            if k is not None:
                self.missing[k] -= 1
        self._launch()

    def _launch(self):
        """Full buckets are sent in order; from stage 2 on after the sum before."""
        while self.launched < len(self.buckets) and not self.missing[self.launched]:
            if self.zero >= 2:
                self.wait(self.last, "sync")
            self.last = self.issue(self.sums[self.launched])
            self.launched += 1

    # -- parameters --------------------------------------------------------------------------------
    def _before(self, segment):
        """At stage 3, what happens before a segment: the roots, or a block's parameters."""
        phase, block = segment.phase, _block(segment.layer)
        if (phase, block) == self.entered:
            return
        if self.entered is None:
            roots = [self.issue(self.gathers[k]) for k, b in enumerate(self.buckets) if b.block < 0]
            self._gather(0)
            self.wait(roots[-1], phase, "embed")
        elif phase == "backward" and self.entered[0] == "forward":
            self._gather(self.workload.layers - 1)
        if block >= 0:
            self.wait(self.gathering[block], phase, f"blocks.{block}")
            self._gather(block + (1 if phase == "forward" else -1))
        self.entered = phase, block

    def _gather(self, block):
        if block in self.of_block:
            self.gathering[block] = self.issue(self.gathers[self.of_block[block]])

    def _update(self, optimizer):
        """The optimizer on this rank's share, then the gathers of what it updated."""
        if not self.zero:
            for segment in optimizer:
                self.run(segment)
            return
        numel = sum(bucket.numel for bucket in self.buckets) // self.strategy.dp
        self.run(update(self.workload, self.cluster, numel).segment("optimizer"))
        if self.zero < 3:
            ends = [self.issue(moved) for moved in self.gathers]
            self.wait(ends[-1], "optimizer")


def _block(layer):
    """Number of the block a layer is in, -1 for none."""
    return int(layer.split(".", 2)[1]) if layer.startswith("blocks.") else -1

"""The kernels and sums of one microbatch on one stage, as segments (derived).

With g a GEMM's forward, d and v those of its two gradients, r a sum over tp, and of subs ' and ":

level 0   g r                                     d max(r, v); split backward: d r, and v later
level 1   g' (g" under r') r"                     d' (d" under r') (v under r"); split: v later
level 2   A' (A" under r') (M' under r") ..       the parts the other way round, subs too
level 3   the same through all blocks that follow each other

A is attention's kernels, M the MLP's. What a part waits for is the sum of its own sub. Backward of
a part is the inputs' gradients, then the weights' under the sum.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

from tpviz.cost import Segment, Stretch, Transfer, transfer
from tpviz.schemes.gpt.cost import Times, times
from tpviz.schemes.megatron.cost import sizes

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.mesh import Mesh
    from tpviz.workload import GPT


class Stretches:
    """Segments of a stage's pieces. w : the workload of one microbatch; split : weights' gradients
    are left for later."""

    def __init__(self, w: "GPT", cluster: "Cluster", mesh: "Mesh", level: int, split: bool):
        self.w, self.cluster, self.mesh, self.split = w, cluster, mesh, split
        self.tp = mesh.axes["tp"]
        self.level = level if self.tp > 1 else 0
        self._sum = cache(self._sum_of)

    # -- kernels and sums --------------------------------------------------------------------------
    @cached_property
    def whole(self) -> Times:
        """Seconds of the kernels of the whole microbatch."""
        return times(self.w, self.cluster, self.tp)

    @cached_property
    def halves(self) -> list[Times]:
        """Seconds of the kernels of each sub."""
        return [
            times(self.w.with_batch(rows), self.cluster, self.tp) for rows in halves(self.w.batch)
        ]

    @cached_property
    def sums(self) -> list[Transfer]:
        """The sum over tp of each sub's activations."""
        return [self._sum(rows) for rows in halves(self.w.batch)]

    def _sum_of(self, rows):
        payload = sizes(self.w.with_batch(rows), self.tp)[0]
        return transfer(self.cluster, self.mesh, "tp", "all_reduce", payload)

    # -- both ends ---------------------------------------------------------------------------------
    def embed(self) -> list[Segment]:
        """The embedding's forward; its backward sends nothing."""
        return [Stretch().blocking(self._sum(self.w.batch)).segment("forward", "embed")]

    def head(self) -> list[Segment]:
        """The last LayerNorm, the head and the loss."""
        pairs = transfer(self.cluster, self.mesh, "tp", "all_gather", sizes(self.w, self.tp)[1])
        return [Stretch().kernel(self.whole.head[0]).blocking(pairs).segment("forward", "head")]

    def head_back(self) -> list[Segment]:
        """Their backward."""
        return [
            self._column_back(
                Stretch(), [self._sum(self.w.batch)], [self.whole.head], self.whole.head
            ).segment("backward", "head")
        ]

    # -- blocks ------------------------------------------------------------------------------------
    def forward(
        self, blocks: Sequence[int], phase: str = "forward", skip_last_allreduce: bool = False
    ) -> list[Segment]:
        """Forward of blocks that follow each other. lean : without the last sum."""
        if self.level < 2:
            found = [segment for number in blocks for segment in self._block(number, phase)]
            if skip_last_allreduce and found:
                found[-1] = self._mlp(phase, blocks[-1], skip_last_allreduce=True)
            return found
        runs = self._runs(blocks)
        return [self._run(run, phase, skip_last_allreduce and run == runs[-1]) for run in runs]

    def _runs(self, blocks):
        """Which blocks are one run: each by itself, or at level 3 all that follow each other."""
        return [[number] for number in blocks] if self.level == 2 else [list(blocks)] * bool(blocks)

    def _block(self, number, phase):
        t = self.whole
        attention = Stretch().kernel(t.qkv[0], t.core[0])
        return [
            self._row(attention, "out").segment(phase, f"blocks.{number}.attention"),
            self._mlp(phase, number),
        ]

    def _mlp(self, phase, number, skip_last_allreduce=False):
        stretch = Stretch().kernel(self.whole.up[0])
        if skip_last_allreduce:
            stretch.kernel(self.whole.down[0])
        else:
            self._row(stretch, "down")
        return stretch.segment(phase, f"blocks.{number}.mlp")

    def _row(self, stretch, layer):
        """A row-parallel layer: its sums, at level 1 each sub's under the next one's GEMM."""
        if self.level == 0:
            return stretch.kernel(getattr(self.whole, layer)[0]).blocking(self._sum(self.w.batch))
        lanes, issued = stretch.lanes(), []
        for t, moved in zip(self.halves, self.sums):
            lanes.kernel(getattr(t, layer)[0])
            issued.append(lanes.issue(moved))
        for sent in issued:
            lanes.wait(sent)
        lanes.done()
        return stretch

    def _run(self, run, phase, skip_last_allreduce):
        """Level 2 and 3: parts of the subs in turn."""
        stretch = Stretch()
        lanes, sent = stretch.lanes(), {}
        for part in range(2 * len(run)):
            for sub, t in enumerate(self.halves):
                lanes.wait(sent.pop(sub, None))
                for kernel in (t.up, t.down) if part % 2 else (t.qkv, t.core, t.out):
                    lanes.kernel(kernel[0])
                if not (skip_last_allreduce and part == 2 * len(run) - 1):
                    sent[sub] = lanes.issue(self.sums[sub])
        for issued in sent.values():
            lanes.wait(issued)
        lanes.done()
        return stretch.segment(phase, _name(run))

    # -- backward ----------------------------------------------------------------------------------
    def backward(self, blocks: Sequence[int]) -> list[Segment]:
        """Backward of blocks that follow each other, the last one first."""
        if self.level < 2:
            return [segment for number in reversed(blocks) for segment in self._back(number)]
        return [self._run_back(run) for run in reversed(self._runs(blocks))]

    def _back(self, number):
        t, found = self.whole, []
        for first, core, second, part in (
            ("up", None, "down", "mlp"),
            ("qkv", t.core[1], "out", "attention"),
        ):
            row, stretch = getattr(t, second), Stretch()
            found.append(
                Stretch()
                .kernel(*row[1 : 2 + (not self.split)])
                .segment("backward", f"blocks.{number}.{part}.{second}")
            )
            if core:
                stretch.kernel(core)
            if self.level:
                parts, sums = [getattr(half, first) for half in self.halves], self.sums
            else:
                parts, sums = [getattr(t, first)], [self._sum(self.w.batch)]
            found.append(
                self._column_back(stretch, sums, parts, getattr(t, first)).segment(
                    "backward", f"blocks.{number}.{part}.{first}"
                )
            )
        return found

    def _column_back(self, stretch, sums, parts, whole):
        """A column-parallel layer: the input's gradient in parts, each one's sum under what comes
        after it."""
        lanes = stretch.lanes()
        issued = []
        for part, moved in zip(parts, sums):
            lanes.kernel(part[1])
            issued.append(lanes.issue(moved))
        if not self.split:
            lanes.kernel(whole[2])
        for sent in issued:
            lanes.wait(sent)
        lanes.done()
        return stretch

    def _run_back(self, run):
        stretch = Stretch()
        lanes, sent = stretch.lanes(), {}
        for part in reversed(range(2 * len(run))):
            for sub in reversed(range(len(self.halves))):
                t = self.halves[sub]
                lanes.wait(sent.pop(sub, None))
                kernels = (t.down, t.up) if part % 2 else (t.out, t.core, t.qkv)
                for kernel in kernels:
                    lanes.kernel(kernel[1])
                sent[sub] = lanes.issue(self.sums[sub])
                for kernel in kernels if not self.split else ():
                    lanes.kernel(sum(kernel[2:]))
        for sub in sorted(sent, reverse=True):
            lanes.wait(sent[sub])
        lanes.done()
        return stretch.segment("backward", _name(run))

    def weights(self, blocks: Sequence[int], head: bool) -> list[Segment]:
        """The gradients of the weights, where they come later."""
        per_block = [self.whole] if self.level < 2 else self.halves
        found = [
            Stretch()
            .kernel(*(kernel[2] for t in per_block for kernel in (t.down, t.up, t.out, t.qkv)))
            .segment("backward", f"blocks.{number}")
            for number in reversed(blocks)
        ]
        last = [Stretch().kernel(self.whole.head[2]).segment("backward", "head")] if head else []
        return last + found


def halves(batch: int) -> list[int]:
    """Rows of each sub: two, as equal as can be, or one."""
    return [size for size in (-(-batch // 2), batch // 2) if size]


def _name(run):
    return f"blocks.{run[0]}" if len(run) == 1 else f"blocks.{run[0]} to {run[-1]}"

"""One microbatch on one stage as data: its kernels and all-reduces (derived).

With g a GEMM's forward, d and v those of its two gradients, r an all-reduce over tp, and of subs '
and ":

level 0   g r                                     d max(r, v); split backward: d r, and v later
level 1   g' (g" under r') r"                     d' (d" under r') (v under r"); split: v later
level 2   A' (A" under r') (M' under r") ..       the parts the other way round, subs too
level 3   the same through all blocks that follow each other

A is attention's kernels, M the MLP's. A part waits for the all-reduce of its own sub. Backward of a
part is the inputs' gradients, then the weights' under the all-reduce.

Sequence parallelism, at level 0: r is a reduce-scatter, and an all-gather comes before each g of a
column-parallel layer and each d of a row-parallel one, and runs during the d of a column-parallel
one, whose input is gathered again (`tpviz.schemes.megatron.step`).
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

from tpviz.schemes.gpt.step import Kernels, kernels, payloads
from tpviz.step import Collective, Operation, Operations, Overlapped, Part

if TYPE_CHECKING:
    from tpviz.workload import GPT


class Microbatch:
    """Parts of a stage. w : the workload of one microbatch; level : of the sub-pipeline;
    split : weights' gradients are left for later; sp : sequence parallelism; again : backward
    recomputes attention's core."""

    def __init__(
        self,
        w: "GPT",
        tp: int,
        level: int,
        split: bool,
        sp: bool = False,
        again: bool = False,
    ):
        self.w, self.tp, self.split, self.again = w, tp, split, again
        self.level, self.sp = (level, sp) if tp > 1 else (0, False)
        self._run, self._run_back = cache(self._run), cache(self._run_back)  # alike in all blocks

    # -- kernels and all-reduces -------------------------------------------------------------------
    @cached_property
    def whole(self) -> Kernels:
        """The kernels of the whole microbatch."""
        return kernels(self.w, self.tp)

    @cached_property
    def halves(self) -> list[Kernels]:
        """The kernels of each sub."""
        return [kernels(self.w.with_batch(rows), self.tp) for rows in halves(self.w.batch)]

    @cached_property
    def sums(self) -> list[Collective]:
        """The all-reduce of each sub's activations."""
        return [self._sum(rows) for rows in halves(self.w.batch)]

    def _sum(self, rows):
        kind = "reduce_scatter" if self.sp else "all_reduce"
        return Collective("tp", kind, payloads(self.w.with_batch(rows), self.tp).activation)

    @cached_property
    def _gather(self):
        """(the all-gather of a sequence), or nothing without sequence parallelism."""
        return (self._sum(self.w.batch)._replace(collective="all_gather"),) * self.sp

    def _parts(self, whole):
        """[(kernels, all-reduce)] of the subs that a layer's forward, or backward, has."""
        if self.level == 0:
            return [(whole, self._sum(self.w.batch))]
        return list(zip(self.halves, self.sums))

    # -- both ends ---------------------------------------------------------------------------------
    @cached_property
    def embed(self) -> list[Part]:
        """The embedding's forward."""
        return [Part("forward", "embed", (self._sum(self.w.batch),))]

    @cached_property
    def embed_back(self) -> list[Part]:
        """Its backward, which sends something under sequence parallelism alone."""
        return [Part("backward", "embed", self._gather)]

    @cached_property
    def head(self) -> list[Part]:
        """The last LayerNorm, the head and the loss."""
        pairs = Collective("tp", "all_gather", payloads(self.w, self.tp).loss)
        return [Part("forward", "head", (*self._gather, self.whole.head[0], pairs))]

    @cached_property
    def head_back(self) -> list[Part]:
        """Their backward."""
        _, of_input, of_weight = self.whole.head
        operations = self._column_back([(of_input, self._sum(self.w.batch))], of_weight)
        return [Part("backward", "head", operations)]

    # -- blocks ------------------------------------------------------------------------------------
    def forward(
        self, blocks: Sequence[int], phase: str = "forward", skip_last_allreduce: bool = False
    ) -> list[Part]:
        """Forward of blocks that follow each other."""
        if self.level >= 2:
            runs = self._runs(blocks)
            return [
                Part(
                    phase, _name(run), self._run(len(run), skip_last_allreduce and run == runs[-1])
                )
                for run in runs
            ]
        parts = [
            Part(phase, f"blocks.{number}.{layer}", operations)
            for number in blocks
            for layer, operations in (("attention", self._attention), ("mlp", self._mlp))
        ]
        if skip_last_allreduce and parts:
            up, down = self.whole.up[0], self.whole.down[0]
            parts[-1] = parts[-1]._replace(operations=(*self._gather, up, down))
        return parts

    def _runs(self, blocks):
        """Which blocks are one run: each by itself, or at level 3 all that follow each other."""
        return [[number] for number in blocks] if self.level == 2 else [list(blocks)] * bool(blocks)

    @cached_property
    def _attention(self):
        return (*self._gather, self.whole.qkv[0], self.whole.core[0], *self._row("out"))

    @cached_property
    def _mlp(self):
        return (*self._gather, self.whole.up[0], *self._row("down"))

    def _row(self, layer):
        """A row-parallel layer: its all-reduces, at level 1 each under the next sub's GEMM."""
        made, tickets = Operations(), []
        for k, move in self._parts(self.whole):
            made.append(getattr(k, layer)[0])
            tickets.append(made.issue(move))
        made.wait(tickets[-1])
        return made

    def _run(self, count, skip_last_allreduce):
        """Level 2 and 3: parts of the subs in turn, through so many blocks."""
        made, sent = Operations(), {}
        for part in range(2 * count):
            for sub, k in enumerate(self.halves):
                made.wait(sent.pop(sub, None))
                made += [kernel[0] for kernel in ((k.up, k.down) if part % 2 else k[:3])]
                if not (skip_last_allreduce and part == 2 * count - 1):
                    sent[sub] = made.issue(self.sums[sub])
        return _finished(made, sent)

    # -- backward ----------------------------------------------------------------------------------
    def backward(self, blocks: Sequence[int]) -> list[Part]:
        """Backward of blocks that follow each other, the last one first."""
        if self.level >= 2:
            return [
                Part("backward", _name(run), self._run_back(len(run)))
                for run in reversed(self._runs(blocks))
            ]
        return [
            Part(phase, f"blocks.{number}.{layer}", operations)
            for number in reversed(blocks)
            for phase, layer, operations in self._back
        ]

    @cached_property
    def _back(self):
        """[(phase, layer, operations)] of a block."""
        made = []
        for part, first, core, second in (
            ("mlp", "up", (), "down"),
            ("attention", "qkv", self.whole.core[1:], "out"),
        ):
            row = *self._gather, *getattr(self.whole, second)[1 : 2 + (not self.split)]
            parts = [(getattr(k, first)[1], move) for k, move in self._parts(self.whole)]
            column = self._column_back(parts, getattr(self.whole, first)[2])
            made.append(("backward", f"{part}.{second}", row))
            if core and self.again:
                made.append(("recompute", part, self.whole.core[:1]))
            made.append(("backward", f"{part}.{first}", (*core, *column)))
        return made

    def _column_back(self, parts, of_weight):
        """A column-parallel layer: the input's gradient in parts, each one's all-reduce under what
        comes after it."""
        made = Operations()
        for kernel, move in parts:
            made += [Overlapped(again, kernel) for again in self._gather] or [kernel]
            ticket = made.issue(move)
        if not self.split:
            made.append(of_weight)
        made.wait(ticket)
        return tuple(made)

    def _run_back(self, count):
        made, sent = Operations(), {}
        for part in reversed(range(2 * count)):
            for sub in reversed(range(len(self.halves))):
                k = self.halves[sub]
                made.wait(sent.pop(sub, None))
                layers = (k.down, k.up) if part % 2 else (k.out, k.core, k.qkv)
                again = self.again and not part % 2
                made += [kernel[1] for kernel in layers] + [k.core[0]] * again
                sent[sub] = made.issue(self.sums[sub])
                if not self.split:
                    made += [kernel for layer in layers for kernel in layer[2:]]
        return _finished(made, sent)

    def weights(self, blocks: Sequence[int], head: bool) -> list[Part]:
        """The gradients of the weights, where they come later."""
        last = [Part("backward", "head", self.whole.head[2:])] if head else []
        return last + [
            Part("backward", f"blocks.{number}", self._weights) for number in reversed(blocks)
        ]

    @cached_property
    def _weights(self):
        per_block = [self.whole] if self.level < 2 else self.halves
        return tuple(layer[2] for k in per_block for layer in (k.down, k.up, k.out, k.qkv))


def halves(batch: int) -> list[int]:
    """Rows of each sub: two, as equal as can be, or one."""
    return [size for size in (-(-batch // 2), batch // 2) if size]


def _finished(made: Operations, sent) -> tuple[Operation, ...]:
    """With what is left in flight waited for."""
    for ticket in sent.values():
        made.wait(ticket)
    return tuple(made)


def _name(run):
    return f"blocks.{run[0]}" if len(run) == 1 else f"blocks.{run[0]} to {run[-1]}"

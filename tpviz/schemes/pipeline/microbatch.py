"""One microbatch on one stage as data: its kernels and collectives (derived).

By itself it is what the factor inside has, cut at the stage's ends; a split backward leaves the
weights' gradients for later. Merak's sub-pipeline changes the blocks of Megatron-LM's: with g a
GEMM's forward, d and v those of its two gradients, r an all-reduce over tp, and of subs ' and ":

level 0   g r                                     d max(r, v); split backward: d r, and v later
level 1   g' (g" under r') r"                     d' (d" under r') (v under r"); split: v later
level 2   A' (A" under r') (M' under r") ..       the parts the other way round, subs too
level 3   the same through all blocks that follow each other

A is attention's kernels, M the MLP's. A part waits for the all-reduce of its own sub. Backward of a
part is the inputs' gradients, then the weights' under the all-reduce.
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import TYPE_CHECKING

from tpviz.core.step import Collective, Operation, Operations, Part
from tpviz.schemes.gpt.step import Kernels, backward, forward, kernels, named, payloads

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.grid.tensor import TensorParallel


class Microbatch:
    """Parts of a stage. inside : the tensor-parallel factor; w : a rank's workload of one
    microbatch; level : of the sub-pipeline (0: none); split : whether weight gradients are
    deferred; again : whether backward recomputes attention's core."""

    def __init__(
        self, inside: "TensorParallel", w: "GPT", level: int, split: bool, again: bool = False
    ):
        self.w, self.tp, self.split, self.again = w, inside.layout.i, split, again
        self.level = level if self.tp > 1 else 0
        self.of_kind = {kind: named(inside.pieces(kind, split)) for kind, _ in w.kinds()}
        self.of = self.of_kind[w] if w.alike else named(inside.pieces(w, split))
        self.embed, self.embed_back = self._end("embed", "embed"), self._end("embed_back", "embed")
        self.head = self._end("head", "head")
        norm = self._end("norm_back", "norm")
        self.head_back = self._end("head_back", "head") + norm * bool(self.of["norm_back"])
        self._run, self._run_back = cache(self._run), cache(self._run_back)  # alike in all blocks

    def _end(self, name, layer):
        phase = "backward" if name.endswith("back") else "forward"
        return [Part(phase, layer, self.of[name])]

    # -- kernels and all-reduces of subs -----------------------------------------------------------
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
        return [
            Collective("tp", "all_reduce", payloads(self.w.with_batch(rows), self.tp).activation)
            for rows in halves(self.w.batch)
        ]

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
            part
            for number in blocks
            for part in forward(self._subs if self.level else self._of(number), [number], phase)
        ]
        if skip_last_allreduce and parts:
            unsummed = self._of(blocks[-1])["mlp_unsummed"]
            parts[-1] = parts[-1]._replace(operations=unsummed)
        return parts

    def _of(self, block):
        """{part of the block: its operations}."""
        return self.of_kind[self.w.like(block)]

    def _runs(self, blocks):
        """Which blocks are one run: each by itself, or at level 3 all that follow each other."""
        return [[number] for number in blocks] if self.level == 2 else [list(blocks)] * bool(blocks)

    @cached_property
    def _subs(self):
        """Level 1: {part of a block: its operations}, all-reduces under the next sub's GEMM."""
        return {
            "attention": (self.whole.qkv[0], self.whole.core[0], *self._row("out")),
            "mlp": (self.whole.up[0], *self._row("down")),
        }

    def _row(self, layer):
        """A pair's second layer."""
        made, tickets = Operations(), []
        for k, move in zip(self.halves, self.sums):
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
        subs, again = self._subs_back if self.level else {}, "selective" if self.again else "none"
        parts = (
            part
            for number in reversed(blocks)
            for part in backward(self._of(number) | subs, number, again)
        )
        return [part for part in parts if part.operations]

    @cached_property
    def _subs_back(self):
        """Level 1: backward of a pair's first layers, the input's gradient in parts, each one's
        all-reduce under what comes after it."""
        found = {}
        for layer in ("up", "qkv"):
            made = Operations()
            for k, move in zip(self.halves, self.sums):
                made.append(getattr(k, layer)[1])
                ticket = made.issue(move)
            if not self.split:
                made.append(getattr(self.whole, layer)[2])
            made.wait(ticket)
            found[f"{layer}_back"] = tuple(made)
        return found

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
        """The gradients of the weights, where they are deferred."""
        last = [Part("backward", "head", self.of["head_weight"])] if head else []
        return last + [
            Part("backward", f"blocks.{number}", self._weights(number))
            for number in reversed(blocks)
        ]

    def _weights(self, block):
        if self.level < 2:
            return self._of(block)["weights"]
        return tuple(layer[2] for k in self.halves for layer in (k.down, k.up, k.out, k.qkv))


def halves(batch: int) -> list[int]:
    """Rows of each half ("sub") of a microbatch: two nearly equal numbers; one for one row."""
    return [size for size in (-(-batch // 2), batch // 2) if size]


def _finished(made: Operations, sent) -> tuple[Operation, ...]:
    """With what is left in flight waited for."""
    for ticket in sent.values():
        made.wait(ticket)
    return tuple(made)


def _name(run):
    return f"blocks.{run[0]}" if len(run) == 1 else f"blocks.{run[0]} to {run[-1]}"

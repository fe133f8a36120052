"""T3's training step as data: which GEMMs are fused with which collectives, tile by tile (derived).

With A = B s h elements, L layers and n = tp ranks, 2L reduce-scatters forward (out, down) and
2L + 1 backward (qkv, up, the head) are fused with their GEMMs: of each a rank sends and receives
the n - 1 chunks of A/n that are not its own, in as many messages as they have tiles. Then:

gather="after": an all-gather of A for each; the embedding and the loss are Megatron-LM's.
gather="consumer": nothing is gathered after them. 2L + 1 gathers forward (before qkv, up, the head)
and 4L + 1 backward (those again, and the gradients entering out and down) feed a GEMM, each n - 1
chunks of A/n in messages; the embedding is a reduce-scatter and an all-gather, and the gradients of
what is replicated are summed once, as with Megatron-LM's ``sp``.

All ranks do the same at the same time, so a rank's own sends are the receives that it waits for,
and the ring is one queue: tile i of m a chunk, with its GEMM's end e_i and its partial sum's
arrival a_i,

    e_i = max(e_{i-1} + g_i, a_{i-m}),    a_i = max(e_i, a_{i-1}) + c_i.

`tv.simulate` gives the same where all links of the ring are alike; where they are not, all are
taken for the slowest, of any replica's ring.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tpviz.core.step import RING_SHIFT, Collective, Kernel, Operation, Operations, Overlapped
from tpviz.schemes.gpt.kernels import attending, gemm
from tpviz.schemes.gpt.step import kernels, payloads, update
from tpviz.schemes.grid.step import num_local_parameters, num_whole_parameters

from .tiles import bands, sizes, whole_chunk

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .strategy import T3


class Layers:
    """Operations of T3's layers, on tokens and features of one rank. later : gradients of weights
    are left for later, as in `tpviz.schemes.grid.step.pieces`."""

    def __init__(self, s: "T3", w: "GPT", later: bool = False):
        self.s, self.w, self.rows, self.later = s, w, w.batch * w.seq // s.tp, later
        self.payloads, self.kernels = payloads(w, s.tp), kernels(w, s.tp)
        self.core = attending(w, w.heads // s.tp, w.num_kv_heads // s.tp)

    def pieces(self) -> dict[str, list[Operation]]:
        """{piece of the network: its operations}, for `assemble`."""
        w, s, k = self.w, self.s, self.kernels
        q, f, v = w.query_features // s.tp, w.mlp_width // s.tp, w.vocab // s.tp
        qkv, up = w.qkv_features // s.tp, w.up_features // s.tp
        loss = Collective("tp", "all_gather", self.payloads.loss)
        whole = num_whole_parameters(s.layout, w) * w.itemsize
        replicated = Collective("tp", "all_reduce", whole)
        return {
            "embed": [self.whole("reduce_scatter" if s.split else "all_reduce")],
            "attention": [*self.column("qkv", qkv), *self.core[0], *self.row("out", q)],
            "mlp": (mlp := [*self.column("up", up), *self.row("down", f)]),
            "mlp_unsummed": mlp,  # the sum is part of the GEMM
            "head": [*self.column("head", v), loss],
            "head_back": self.column_back("head", v),
            "down_back": self.row_back("down", f),
            "up_back": self.column_back("up", up),
            "out_back": self.row_back("out", q),
            "core": self.core[0],
            "core_back": self.core[1],
            "qkv_back": self.column_back("qkv", qkv),
            "embed_back": [self.whole("all_gather")] if s.split else [],
            "sync": [replicated] if s.split else [],
            "update": [update(w, num_local_parameters(s.layout, w))],
            "head_weight": [k.head[2]] if self.later else [],
            "weights": [getattr(k, n)[2] for n in ("down", "up", "out", "qkv")]
            if self.later
            else [],
        }

    def whole(self, collective: str) -> Collective:
        """A collective on the whole activation."""
        return Collective("tp", collective, self.payloads.activation)

    def column(self, layer: str, features: int) -> list[Operation]:
        """Operations of a pair's first layer in forward; its weight is (h, features)."""
        kernel = getattr(self.kernels, layer)[0]
        if not self.s.split:
            return [kernel]
        h, bias = self.w.hidden, self.w.bias * features * (layer != "head")
        return self.gathered(kernel, self.s.tiles, lambda rows: self.gemm(rows, h, features, bias))

    def column_back(self, layer: str, features: int) -> list[Operation]:
        """Operations of the first layer's backward; the sum of the input's gradient is fused."""
        _, of_input, of_weight = getattr(self.kernels, layer)
        summed = self.scattered(of_input, features)
        if self.later:
            return [*summed, self.whole("all_gather")]
        if not self.s.split:
            return [*summed, Overlapped(self.whole("all_gather"), of_weight)]
        h = self.w.hidden
        gathered = self.gathered(of_weight, whole_chunk, lambda rows: self.gemm(features, rows, h))
        return [*summed, *gathered]

    def row(self, layer: str, features: int) -> list[Operation]:
        """Operations of a pair's second layer in forward; its weight is (features, h)."""
        summed = self.scattered(getattr(self.kernels, layer)[0], features)
        return summed if self.s.split else [*summed, self.whole("all_gather")]

    def row_back(self, layer: str, features: int) -> list[Operation]:
        """Operations of the second layer's backward."""
        _, of_input, of_weight = getattr(self.kernels, layer)
        if not self.s.split:
            return [of_input] if self.later else [of_input, of_weight]
        h = self.w.hidden
        return [
            *self.gathered(of_input, self.s.tiles, lambda rows: self.gemm(rows, h, features)),
            of_weight,
        ]

    def gemm(self, m: int, k: int, n: int, bias: int = 0) -> Kernel:
        """(m, k) @ (k, n)."""
        return gemm(m, k, n, self.w.itemsize, bias)

    def shift(self, height: int, width: int) -> Collective:
        """The message that sends a tile of this size to the rank before."""
        return Collective("tp", RING_SHIFT, height * width * self.w.itemsize)

    def scattered(self, whole: Kernel, features: int) -> list[Operation]:
        """A GEMM fused with the reduce-scatter of its output. whole : the unfused GEMM."""
        s, h = self.s, self.w.hidden
        if s.tp == 1 or s.mode == "sequential":
            return [whole, self.whole("reduce_scatter")]
        made, tickets, tiles = Operations(), [], sizes(s.tiles(self.rows, h))
        parts = [(self.gemm(m, features, n), self.shift(m, n)) for m, n in tiles]
        for position in range(s.tp):
            for kernel, message in parts:
                made.append(kernel)
                if position:
                    made.wait(tickets[-len(tiles)])
                tickets.append(made.issue(message if position < s.tp - 1 else None))
        return made

    def gathered(
        self,
        whole: Kernel,
        cut: Callable[[int, int], list[tuple[slice, slice]]],
        kernel: Callable[[int], Kernel],
    ) -> list[Operation]:
        """A GEMM fused with its input's all-gather. whole : unfused; kernel : rows -> `Kernel`."""
        s, h = self.s, self.w.hidden
        if s.tp == 1 or s.mode == "sequential":
            return [self.whole("all_gather"), whole]
        made, tickets = Operations(), []
        heights = [band.stop - band.start for band in bands(cut(self.rows, h))]
        parts = [(kernel(height), self.shift(height, h)) for height in heights]
        for position in range(s.tp):
            for product, message in parts:
                if position:
                    made.wait(tickets[-len(heights)])
                tickets.append(made.issue(message if position < s.tp - 1 else None))
                made.append(product)
        return made

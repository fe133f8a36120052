"""The training step of a layout as data: the kernels and collectives of each layer, in order.

Derived. AR: all-reduce, AG: all-gather, RS: reduce-scatter. With A = B s h elements, i and s the
sizes of *inside* and *stream*, a block sends:

=========  ================================  ===================================================
layer      forward                           backward
=========  ================================  ===================================================
qkv        stream: A1 AR of 3A/i, A3 RS      inside: AR of A/s; A3: stream, AG of the gradient
out        inside: AR of A/s; A3: stream,    stream: A1 AR of A/i, A3 RS
           AG of A/i before
up         stream: AR of 4A/i, 2F/h A/i      inside: AR of A/s
           if gated
down       inside: AR of A/s                 stream: AR of 4A/i
norms      L1: stream, AR of two numbers     L1: as many; L2: stream, AG of A
           a token; L2: AG of A
=========  ================================  ===================================================

On a ring that is (8 A / N) ((i - 1) + 3 (s - 1)) elements a rank and block without the norms, N =
i s. Under ``sp`` the all-reduces over *inside* are halves: a first layer gathers before and
reduce-scatters its gradient, a second one reduce-scatters and gathers its gradient, and a first
layer gathers its input again for the weight's gradient, which keeps activations small.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from tpviz.core.step import Chunks, Collective, Operation, Overlapped, PairInChunks
from tpviz.schemes.experts.cut import cut_of
from tpviz.schemes.gpt.kernels import adamw, attending, gemm
from tpviz.schemes.gpt.memory import statistics
from tpviz.schemes.gpt.step import completes

from . import latent

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .layout import Layout


def pieces(at: "Layout", w: "GPT", split: bool = False) -> dict[str, list[Operation]]:
    """{part of the network, as in `tpviz.schemes.gpt.step.PIECES`: its operations in order}.

    "mlp_unsummed" is the MLP without its last sum, for recomputation. split : gradients of weights
    are left for later: "weights" has those of a block, "head_weight" the head's, and backward's
    parts are without them.
    """
    made = _Pieces(at, w, split).all()
    if w.experts and cut_of(at, w).halves > 1:
        experts = import_module("tpviz.schemes.experts.step")
        made |= experts.halves_in_turn(lambda half: _Pieces(at, half), w)
    return made


def completion_order(at: "Layout") -> dict[str, tuple[str, ...]]:
    """The order of a block's gradients (`completes`): biases are added after a sum over ranks."""
    kinds = []
    for contracted, spread in ((at.s, at.i), (at.i, at.s)):
        kinds.append("after" if contracted > 1 else "inside" if spread > 1 else "plain")
    ready = completes(*kinds)
    if at.pipelined:  # one function for both layers of the MLP
        up = ready["up_back"] if kinds[0] == "inside" else ("mlp.up.weight", "mlp.up.bias")
        ready |= {"down_back": (), "up_back": ("mlp.down.weight", *up)}
        if kinds[1] == "inside":
            ready["entering"] = ("mlp.down.bias",)
    return ready


def num_local_parameters(at: "Layout", w: "GPT") -> int:
    """Number of parameters of a rank."""
    ends = (2 - w.tied) * w.vocab * w.hidden // (at.i * at.s)
    blocks = sum(n * _num_cut(at, kind) for kind, n in w.kinds())
    return ends + blocks + num_whole_parameters(at, w)


def _num_cut(at, w):
    """Those of a block that are cut over *inside*, and its experts."""
    mlp = 0 if w.experts else w.hidden * (w.up_features + w.mlp_width)
    attention = latent.num_matrices(w) if w.kv_lora else w.hidden * w.qkv_features
    matrices = attention + w.hidden * w.mixed_features + mlp
    biases = w.up_features * (not w.experts)
    biases += 0 if w.kv_lora else w.qkv_features // (at.s if at.a3 else 1)
    experts = cut_of(at, w).num_parameters(w) if w.experts else 0
    return matrices // (at.i * at.s) + w.bias * (biases // at.i) + experts


def num_whole_parameters(at: "Layout", w: "GPT") -> int:
    """Number of parameters on a rank that are not cut over *inside*, experts' aside."""
    norms = (2 * w.layers + 1) * len(w.norm_shapes("")) * w.hidden
    biased = sum(n * (1 if kind.experts else 2) for kind, n in w.kinds())
    rest = ((not w.rotary) * w.num_positions + w.bias * biased) * w.hidden
    latents = w.layers * latent.num_whole(w) if w.kv_lora else 0
    return norms // (1 if at.l2 else at.s) + rest // at.s + latents


class _Pieces:
    """Collects the operations; tokens, features and bytes are those of one rank."""

    def __init__(self, at: "Layout", w: "GPT", split: bool = False):
        self.at, self.w, self.item = at, w, w.itemsize
        self.split, self.later = split, []
        self.tokens = w.batch * w.seq
        self.h, self.f = w.hidden, w.mlp_width
        self.activation = self.tokens * w.hidden * self.item
        self.wide = max(w.itemsize, 4)

    def all(self):
        """{piece: operations}."""
        w, at = self.w, self.at
        heads = w.heads // (at.i * at.s if at.a3 else at.i)
        keys = heads * w.num_kv_heads // w.heads
        core, core_back = attending(w, heads, keys)
        qkv, out = (self.h, w.qkv_features), (w.mixed_features, self.h)
        up, down, head = (self.h, w.up_features), (self.f, self.h), (self.h, w.vocab)
        norm, head_back = self.statistics(), self.first_back(*head)  # of what waits the first
        if w.experts:
            experts = import_module("tpviz.schemes.experts.step")
            mlp, down_back, up_back = experts.pieces(self, w)
            mlp_unsummed = mlp
        else:
            mlp, mlp_unsummed = self.mlp(up, down), self.mlp(up, down, False)
            down_back, up_back = self.second_back(*down), self.first_back(*up)
        out_back = self.second_back(*out, halves=at.a3)
        if w.kv_lora:
            before, qkv_back = latent.pieces(self, w)
        else:
            before = self.first(*qkv, scatter=at.a3)
            qkv_back = self.first_back(*qkv, scattered=at.a3)
        return {
            "embed": self.sum_inside("reduce_scatter") + self.join(),
            "attention": [*norm, *before, *core, *self.second(*out, gather=at.a3), *self.join()],
            "mlp": [*norm, *mlp, *self.join()],
            "mlp_unsummed": [*norm, *mlp_unsummed, *self.join()],
            "head": [*norm, *self.first(*head, chunks=1), *self.loss()],
            "head_back": head_back,
            "norm_back": self.norm_back(),
            "down_back": down_back,
            "up_back": up_back,
            "norm2_back": self.norm_back(),
            "out_back": out_back,
            "core": core,
            "core_back": core_back,
            "qkv_back": qkv_back,
            "norm1_back": self.norm_back(),
            "embed_back": self.gather_inside(),
            "sync": self.replicated(),
            "update": [adamw(num_local_parameters(at, w) * self.item)],
        } | {"head_weight": self.later[:1], "weights": self.later[1:]}

    # -- collectives -------------------------------------------------------------------------------
    def move(self, axis, collective, payload):
        """[`Collective`], or nothing on an axis of one."""
        size = self.at.i if axis == self.at.inside else self.at.s
        return [Collective(axis, collective, payload)] if size > 1 else []

    def over_inside(self, collective):
        return self.move(self.at.inside, collective, self.activation // self.at.s)

    def sum_inside(self, half):
        """A stream-shaped sum: under sequence parallelism only this half of it."""
        return self.over_inside(half if self.at.sp else "all_reduce")

    def gather_inside(self):
        """The sequence of what is shaped like the stream, where it is cut."""
        return self.over_inside("all_gather") if self.at.sp else []

    def over_stream(self, collective, features):
        """Of a tensor whose ``features`` are cut over *inside*."""
        payload = self.tokens * (features // self.at.i) * self.item
        return self.move(self.at.stream, collective, payload)

    def statistics(self):
        """Two numbers a token of a cut LayerNorm, one of a cut RMSNorm."""
        at = self.at
        tokens = self.tokens // (at.i if at.sp else 1)
        numbers = statistics(self.w) * tokens * self.wide
        return self.move(at.stream, "all_reduce", numbers) if at.l1 else []

    def join(self):
        """The whole stream gathered, for LayerNorm."""
        at = self.at
        payload = self.activation // (at.i if at.sp else 1)
        return self.move(at.stream, "all_gather", payload) if at.l2 else []

    def norm_back(self):
        return self.join() + self.statistics()

    def loss(self):
        """Every rank's two numbers a token."""
        return self.move(self.at.inside, "all_gather", 2 * self.at.i * self.tokens * self.wide)

    def replicated(self):
        """Gradients of what is not cut over *inside*, summed once under sequence parallelism."""
        numel = num_whole_parameters(self.at, self.w)
        return self.move(self.at.inside, "all_reduce", numel * self.item) if self.at.sp else []

    # -- layers ------------------------------------------------------------------------------------
    def first(self, features_in, features_out, scatter=False, chunks=None, bias=True):
        """Contracts over *stream*: qkv, up, head."""
        k, n = features_in // self.at.s, features_out // self.at.i
        moved = self.over_stream("reduce_scatter" if scatter else "all_reduce", features_out)
        bias = 0 if moved or chunks else n * (bias and self.w.bias)  # of the head there is none
        return self.gather_inside() + self.summed(k, n, bias, moved, chunks or self.at.chunks)

    def second(self, features_in, features_out, gather=False, summed=True):
        """Contracts over *inside*: out, down. ``gather``: its input is cut over *stream* too."""
        k, n = features_in // self.at.i, features_out // self.at.s
        gathered = self.over_stream("all_gather", features_in) if gather else []
        moved = self.sum_inside("reduce_scatter")
        bias = 0 if moved else n * self.w.bias
        return gathered + self.summed(k, n, bias, moved if summed else [], self.at.chunks)

    def summed(self, k, n, bias, moved, chunks):
        """The GEMM and the all-reduce of its results, in chunks."""
        if not moved:
            return [gemm(self.tokens, k, n, self.item, bias)]
        if chunks == 1:
            return [gemm(self.tokens, k, n, self.item), *moved]
        return [Chunks(gemm(self.tokens // chunks, k, n, self.item), part(moved, chunks), chunks)]  # pyright: ignore[reportArgumentType]

    def mlp(self, up, down, summed=True):
        """Both layers, one after the other or as a pipeline."""
        at, count = self.at, self.at.chunks
        if not at.pipelined:
            return self.first(*up) + self.second(*down, summed=summed)
        tokens, (k, n), (inner, _) = self.tokens // count, up, down
        summed_up, summed = self.over_stream("all_reduce", n), self.sum_inside("")
        bias = 0 if summed_up else n // at.i * self.w.bias
        first = gemm(tokens, k // at.s, n // at.i, self.item, bias)
        second = gemm(tokens, inner // at.i, k // at.s, self.item)
        return [PairInChunks(first, part(summed_up, count), second, part(summed, count), count)]

    def first_back(self, features_in, features_out, scattered=False):
        """Gradients of qkv, up, head: the input's is summed while the weight's is computed."""
        k, n = features_in // self.at.s, features_out // self.at.i
        of_input, of_weight = self.gradients(k, n)
        gathered = self.over_stream("all_gather", features_out) if scattered else []
        again = self.gather_inside()  # the input, once more
        before = [Overlapped(again[0], of_input)] if again else [of_input]
        return [*gathered, *before, *self.under(self.sum_inside("reduce_scatter"), of_weight)]

    def second_back(self, features_in, features_out, halves=False):
        """Gradients of out and down."""
        k, n = features_in // self.at.i, features_out // self.at.s
        of_input, of_weight = self.gradients(k, n)
        moved = self.over_stream("reduce_scatter" if halves else "all_reduce", features_in)
        return [*self.gather_inside(), of_input, *self.under(moved, of_weight)]

    def gradients(self, k, n):
        """The GEMMs of the input's and the weight's gradient."""
        return gemm(self.tokens, n, k, self.item), gemm(n, self.tokens, k, self.item)

    def under(self, moved, of_weight):
        """The weight's gradient, over the collective if there is one; or noted for later."""
        if not self.split:
            return [Overlapped(moved[0], of_weight)] if moved else [of_weight]
        self.later.append(of_weight)
        return moved


def part(moved: list[Collective], count: int) -> Collective | None:
    """One of ``count`` equal parts of the collective in ``moved``; None if the list is empty."""
    return moved[0]._replace(payload=moved[0].payload // count) if moved else None

"""Attention over sequences that are cut, as autograd functions on plain messages and collectives.

Blocks of attention are added up by online softmax (Milakov and Gimelshein 2018, arXiv 1805.02867):
each has its output and the log-sum-exp of its scores, and two outputs add up with the weights
exp(their log-sum-exp - that of both). Backward needs only the log-sum-exp of all. Ring attention
(Liu et al. 2023, arXiv 2310.01889) passes keys and values round the ranks; backward passes them
again, with their gradients one position behind. Ulysses (Jacobs et al. 2023, arXiv 2309.14509)
exchanges tokens for heads; around the attention of a ring as around that of whole sequences.

Shapes: B batch, T tokens of a rank, c of a chunk, S of the sequence, N heads of queries, K of keys
and values, D numbers of a head, n ranks.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import scaled_dot_product_attention

from tpviz.core.labels import label
from tpviz.schemes.collectives import gather_first, scatter_first
from tpviz.schemes.gpt.heads import Heads
from tpviz.schemes.operators import Exchange
from tpviz.schemes.ring import Neighbours, RingMessages, neighbours

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .sequence import SequenceCut


# -- one block -------------------------------------------------------------------------------------
def block(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """(output (B, N, c, D), log-sum-exps (B, N, c)) of queries (B, N, c, D), keys (B, K, c, D)."""
    if q.device.type == "cpu":
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        return flash(q, k, v, 0.0, causal)
    scores = _scores(q, k, causal)
    sums = scores.logsumexp(-1)
    return ((scores - sums.unsqueeze(-1)).exp() @ _repeated(v, q)).to(q.dtype), sums


def block_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, causal: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k, v through one block. out, sums : of all blocks of these queries."""
    if q.device.type == "cpu":
        flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        return flash(grad, q, k, v, out, sums, 0.0, causal)
    shares = (_scores(q, k, causal) - sums.unsqueeze(-1)).exp()
    wide, scale = grad.to(shares.dtype), q.shape[-1] ** -0.5
    inner = wide @ _repeated(v, q).transpose(-1, -2) - (wide * out).sum(-1, keepdim=True)
    of_scores = shares * inner * scale
    of_k, of_v = (
        (left.transpose(-1, -2) @ right).unflatten(1, (k.shape[1], -1)).sum(2)
        for left, right in ((of_scores, q.to(wide.dtype)), (shares, wide))
    )
    return of_scores @ _repeated(k, q), of_k, of_v


def _scores(q, k, causal):
    """Where there is no fused operator that gives log-sum-exps for every dtype."""
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(wide) @ _repeated(k, q).transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(above, -torch.inf)
    return scores


def _repeated(k, q):
    """Keys or values (B, K, c, D) for each head of queries, in float32 at least."""
    wide = k.to(torch.promote_types(k.dtype, torch.float32))
    return wide.repeat_interleave(q.shape[1] // k.shape[1], 1)


# -- where keys and values come from ---------------------------------------------------------------
class RingKeys:
    """Keys and values of all ranks, passed round. documents : lengths of those packed in each
    sequence; (): one."""

    def __init__(self, cut: "SequenceCut", ring: Neighbours, documents: tuple[int, ...] = ()):
        self.cut, self.ring, self.rank, self.documents = cut, ring, ring.rank, documents

    def all(self, own: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield (rank, its keys and values (2, B, K, T, D)), this rank's ``own`` first."""
        messages = RingMessages(self.ring, 1)
        for position, rank in enumerate(self.cut.passing(self.rank)):
            own = messages.take() if position else own
            if position < self.cut.ring - 1:
                messages.pass_on(own)
            yield rank, own
        messages.finish()

    def summing(self) -> "RingSums":
        """What adds up their gradients."""
        return RingSums(self.ring)


class RingSums:
    """Adds up gradients of keys and values one position behind them, until they are home."""

    def __init__(self, ring: Neighbours):
        self.messages, self.begun = RingMessages(ring, 1), False

    def add(self, rank: int, gradient: Tensor) -> None:
        """The part that this rank has of the gradient of ``rank``'s keys and values."""
        if self.begun:
            gradient += self.messages.take()
        self.begun = True
        self.messages.pass_on(gradient)

    def own(self) -> Tensor:
        """The whole gradient of this rank's."""
        found = self.messages.take()
        self.messages.finish()
        return found


class GatheredKeys:
    """Keys and values of all ranks, all-gathered while a rank computes its own blocks. documents :
    as of `RingKeys`."""

    def __init__(self, cut: "SequenceCut", group: Any, documents: tuple[int, ...] = ()):
        self.cut, self.group, self.rank, self.documents = cut, group, group.rank(), documents

    def all(self, own: Tensor) -> Iterator[tuple[int, Tensor]]:
        """As of `RingKeys`."""
        whole, work = gather_first(own, self.group)
        yield self.rank, own
        work.wait()
        parts = whole.chunk(self.cut.ring)
        for rank in self.cut.passing(self.rank):
            if rank != self.rank:
                yield rank, parts[rank]

    def summing(self) -> "ScatteredSums":
        """What adds up their gradients."""
        return ScatteredSums(self.group)


class ScatteredSums:
    """Adds up gradients of keys and values by one reduce-scatter."""

    def __init__(self, group: Any):
        self.group, self.parts = group, dict[int, Tensor]()

    def add(self, rank: int, gradient: Tensor) -> None:
        """As of `RingSums`."""
        self.parts[rank] = gradient

    def own(self) -> Tensor:
        """As of `RingSums`."""
        found, work = scatter_first(
            torch.cat([self.parts[rank] for rank in sorted(self.parts)]), self.group
        )
        work.wait()
        return found


# -- attention block by block ----------------------------------------------------------------------
class BlockAttention(torch.autograd.Function):
    """Causal attention of a rank's queries to the keys of all ranks before them."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, source: RingKeys | GatheredKeys
    ) -> Tensor:
        B, N, T, D = q.shape
        wide = torch.promote_types(q.dtype, torch.float32)
        # as the fused kernel lays out its own: tokens before heads
        out = q.new_empty((B, T, N, D), dtype=wide).transpose(1, 2)
        sums = q.new_empty((B, T, N), dtype=wide).transpose(1, 2)
        own = torch.stack((k, v))
        for position, (rank, keys) in enumerate(source.all(own)):
            with label(chunk=position):
                for rows, columns, causal in _blocks(source, rank, T):
                    k_block, v_block = keys[:, :, :, columns]
                    found = block(q[:, :, rows], k_block, v_block, causal)
                    # of a row, the block on the diagonal is the first
                    _merge(out[:, :, rows], sums[:, :, rows], *found, first=causal)
        result = out.to(q.dtype)
        ctx.source = source
        ctx.save_for_backward(q, own, result, sums)
        return result

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        source, (q, own, out, sums) = ctx.source, ctx.saved_tensors
        wide = torch.promote_types(q.dtype, torch.float32)
        of_q, adding = torch.zeros_like(q, dtype=wide), source.summing()
        for position, (rank, keys) in enumerate(source.all(own)):
            with label(chunk=position):
                of_keys = torch.zeros_like(own, dtype=wide, memory_format=torch.contiguous_format)
                for rows, columns, causal in _blocks(source, rank, q.shape[2]):
                    mine, queries, result, scores = (t[:, :, rows] for t in (grad, q, out, sums))
                    k_block, v_block = keys[:, :, :, columns]
                    of_rows, *of_block = block_backward(
                        mine, queries, k_block, v_block, result, scores, causal
                    )
                    of_q[:, :, rows] += of_rows
                    for part, more in zip(of_keys[:, :, :, columns], of_block):
                        part += more
                adding.add(rank, of_keys)
        of_k, of_v = adding.own().to(q.dtype)
        return of_q.to(q.dtype), of_k, of_v, None


def _blocks(source, rank, tokens):
    """The `sequence.Rectangle` list of this rank's ``tokens`` and the keys of ``rank``."""
    lengths = source.documents or (tokens * source.cut.ring,)
    return source.cut.rectangles(lengths, source.rank, rank)


def _merge(out, sums, more, of_more, first):
    """Add a block to what there is of the rows: online softmax."""
    if first:
        out.copy_(more)
        sums.copy_(of_more)
        return
    both = torch.logaddexp(sums, of_more)
    out.mul_((sums - both).exp_().unsqueeze(-1))
    out.add_(more * (of_more - both).exp_().unsqueeze(-1))
    sums.copy_(both)


class BlockHeads(Heads):
    """`Heads` whose keys come from all ranks."""

    def __init__(self, w: "GPT", source: RingKeys | GatheredKeys, where: Tensor, **kw: Any):
        super().__init__(w, where=where, **kw)
        self.source = source

    def mixed(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return BlockAttention.apply(q, k, v, self.source)  # pyright: ignore[reportReturnType]


# -- tokens for heads ------------------------------------------------------------------------------
class ExchangedHeads(Heads):
    """``inside`` on all tokens of a part of the heads: an all-to-all before, one behind."""

    def __init__(self, inside: Heads, group: Any):
        self.inside, self.group = inside, group

    def attend(self, qkv: Tensor, sequence_first: bool) -> Tensor:
        n, dim = self.group.size(), int(not sequence_first)
        parts: Any = Exchange.apply(qkv.unflatten(-1, (n, -1)).movedim(-2, 0), self.group)
        y = self.inside.attend(parts.movedim(0, dim).flatten(dim, dim + 1), sequence_first)
        back: Any = Exchange.apply(y.unflatten(dim, (n, -1)).movedim(dim, 0), self.group)
        return back.movedim(0, -2).flatten(-2)


def heads(cut: "SequenceCut", w: "GPT", mesh: Any, **kw: Any) -> Heads:
    """Implements `sequence.SequenceCut.heads`."""
    axis, ranks = cut.exchange
    inside = Heads(w, **kw)
    if cut.ring > 1:
        where = cut.positions(w.num_positions, mesh, exchanged=True)
        inside = BlockHeads(w, _source(cut, mesh, w.documents), where, **kw)
    return inside if ranks == 1 else ExchangedHeads(inside, mesh.get_group(axis))


# -- attention of a module that is not ours --------------------------------------------------------
def attention(cut: "SequenceCut", mesh: Any) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A function of q (B, N, T, D) and k, v (B, K, T, D) of this rank's tokens that gives their
    causal attention to all tokens, (B, N, T, D): what `heads` computes for our own model."""
    (axis, ranks), source = cut.exchange, _source(cut, mesh) if cut.ring > 1 else None

    def inside(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        if source:
            return BlockAttention.apply(q, k, v, source)  # pyright: ignore[reportReturnType]
        grouped = q.shape[1] > k.shape[1]
        return scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)

    return inside if ranks == 1 else partial(_exchanged, mesh.get_group(axis), inside)


def _exchanged(group, inside, *qkv):
    """As `ExchangedHeads`, of q, k and v apart: they travel side by side."""
    n = group.size()
    packed = torch.cat([x.unflatten(1, (n, -1)) for x in qkv], 2)  # (B, n, heads of one, T, D)
    parts: Any = Exchange.apply(packed.movedim(1, 0), group)
    parts = parts.movedim(0, 2).flatten(2, 3).split([x.shape[1] // n for x in qkv], 1)
    back: Any = Exchange.apply(inside(*parts).unflatten(2, (n, -1)).movedim(2, 0), group)
    return back.movedim(0, 1).flatten(1, 2)


def _source(cut, mesh, documents=()):
    if cut.kind == "all_gather":
        return GatheredKeys(cut, mesh.get_group("cp"), documents)
    return RingKeys(cut, Neighbours(*neighbours(mesh, "cp")), documents)

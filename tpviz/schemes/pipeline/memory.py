"""Bytes of a pipeline's training step on one rank (derived; tests compare with tracked ones).

What backward needs of a microbatch on a stage: its blocks' activations
(`tpviz.schemes.grid.memory`), of dropped blocks only the input of the first, of the last stage the
head's and the loss's besides.
The rank's row of the schedule says how many microbatches are held when; at the peak one of them is
in memory whole, and of the others what is kept: M_s of `paper`, here counted action by action.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from tpviz.cluster.clock.cost import Memory
from tpviz.schemes.experts.memory import experts_moments
from tpviz.schemes.gpt.memory import statistics, under_adamw
from tpviz.schemes.grid.memory import block_kept, dropped_bytes
from tpviz.schemes.zero.memory import flat_states
from tpviz.schemes.zero.paper import model_states

from .p2p_plan import PREFETCH
from .sharding import most_whole
from .step import message_bytes, num_local_parameters, numels, units_at

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .staged import Staged


def memory(s: "Staged", w: "GPT") -> Memory:
    """The `Memory` of the rank that needs most, under AdamW: two moments, and 4 bytes a tensor to
    count steps."""
    return max((memory_of(s, w, place) for place in range(s.pp)), key=lambda m: m.total)


def least(s: "Staged", w: "GPT") -> Memory:
    """A lower bound of `memory`: the weights, gradients and moments of the first stage's rank or of
    the largest stage, and the activations that the first rank keeps."""
    numels, found = num_local_parameters(s, w), []
    ranks = [(max(numels), 0)]
    if s.schedule in IN_FLIGHT:
        ranks.append((sum(numels[:: s.pp]), least_activations(s, w)))
    for numel, kept in ranks:
        states = under_adamw(numel * w.itemsize, 0)
        found.append(Memory(model_states(states, s.zero_stage, s.replicas.ranks), activations=kept))
    return max(found, key=lambda memory: memory.total)


IN_FLIGHT: dict[str, Callable[[int, int], int]] = {
    **dict.fromkeys(("1f1b", "early_recompute", "last_no_recompute", "zb_h1"), lambda p, v: p),
    "shifted_critical_path": lambda p, v: p,
    "interleaved_1f1b": lambda p, v: (v - 1) * p + 2 * (p - 1) + 1,
}
"""{schedule: of p ranks with v stages each, how many microbatches, times stages, the first has in
flight}, where there are so many."""


def least_activations(s: "Staged", w: "GPT") -> int:
    """Bytes that the first rank keeps of the microbatches that it has in flight, at least."""
    each, drops = s.stages // s.pp, s.recompute in ("full", "stage_aware")
    flying = min(IN_FLIGHT[s.schedule](s.pp, each), s.microbatches * each)
    kept = [
        _kept(
            s, w, w.kinds(blocks[:0] if drops else blocks), w.kinds(blocks[: drops * len(blocks)])
        )
        for blocks in s.blocks(w)[:: s.pp]
    ]
    whole = min(one.dropped for one in kept) * (s.recompute == "full")
    least = flying * min(one.after_forward for one in kept)
    return 16 * w.batch * s.inside.part(w).seq // s.dp + least + whole


def memory_of(s: "Staged", w: "GPT", place: int) -> Memory:
    """The `Memory` of the ranks whose index along pp is ``place``."""
    stages = s.schedule_of(w).stages_of(place)
    sizes = [(k.of.ranks, n * w.itemsize) for stage in stages for k, n in numels(s, w, stage)]
    size, blocks, kept = sum(n for _, n in sizes), s.blocks(w), activations(s, w, place)
    if s.zero_stage:
        whole = 0
        if s.zero_stage > 1:
            whole = max(most_whole(s, w, units_at(s, w, stage)) for stage in stages) * w.itemsize
        each = [(n, n // ranks) for ranks, n in sizes if ranks > 1]
        states = flat_states(each, s.zero_stage, whole, whole * (s.zero_stage > 1))
        names = (name for of, names in s.classes(w).items() if of.ranks == 1 for name in names)
        tensors = sum(s.stage_of(name, w) in stages for name in names)
        alone = under_adamw(sum(n for ranks, n in sizes if ranks == 1), tensors)
        return Memory({kind: n + alone[kind] for kind, n in states.items()}, activations=kept)
    tensors = sum(
        sum(n * len(kind.block_shapes()) for kind, n in w.kinds(blocks[stage]))
        + (2 - w.rotary) * (stage == 0)
        + (1 + len(w.norm_shapes(""))) * (stage == s.stages - 1)
        for stage in stages
    )
    return under_adamw(size, tensors, kept)


def of_microbatch(s: "Staged", w: "GPT") -> tuple[tuple[int, int], ...]:
    """Per stage (all bytes that backward needs of a microbatch, those that are kept from its
    forward on): the rest is dropped and recomputed."""
    parts = [_kept(s, w, *what) for what in _stages(s, w).values()]
    return tuple((part.after_forward + part.dropped, part.after_forward) for part in parts)


def activations(s: "Staged", w: "GPT", place: int) -> int:
    """Bytes of activations at the peak, including all tokens and targets (int64)."""
    schedule = s.schedule_of(w)
    kept = {
        stage: _kept(s, w, *what)
        for stage, what in _stages(s, w).items()
        if schedule.rank_of[stage] == place
    }
    peak = 0
    for (kind, stage, begun), most in schedule.moments[place].items():
        parts = kept[stage]
        now = max(
            sum(n * kept[at].after_forward + full * kept[at].dropped for at, n, full in counts)
            for counts in most
        )
        if kind == "F":
            peak = max(peak, now + parts.in_forward)
        elif kind == "I":  # what backward notes takes the place of what it frees
            peak = max(peak, *(now + more + parts.noted for more, _ in parts.in_backward))
        elif kind == "W":
            peak = max(peak, *(now + weight for _, weight in parts.in_backward))
        elif kind != "R":  # a weight's first gradient stays, unless in a flat buffer
            added = begun or s.zero_stage > 0
            peak = max(peak, *(now + more + added * weight for more, weight in parts.in_backward))
    beside = {
        schedule.rank_of[n]
        for stage in kept
        for n in (stage - 1, stage + 1)
        if 0 <= n < schedule.stages
    } - {place}
    tokens = 16 * w.batch * s.inside.part(w).seq // s.dp
    return tokens + peak + PREFETCH * len(beside) * message_bytes(s, w)


@lru_cache(maxsize=256)
def _stages(s, w):
    """{stage: (its blocks that are kept, those that are recomputed, both as `GPT.kinds`, whether it
    is the first, the last)}."""
    parts = zip(s.blocks(w), s.num_recomputed(w))
    return {
        stage: (w.kinds(blocks[n:]), w.kinds(blocks[:n]), not stage, stage == s.stages - 1)
        for stage, (blocks, n) in enumerate(parts)
    }


@lru_cache(maxsize=256)
def _kept(s, w, kept, drop, first=False, last=False):
    """The `_Kept` of a stage; few stages of a pipeline differ."""
    return _Kept(s, w, kept, drop, first, last)


class _Kept:
    """Bytes that a stage holds of one microbatch.

    after_forward : from forward to backward. dropped : more, once it is recomputed. in_forward :
    for a moment besides. in_backward : the same, a weight's gradient apart, of a block and perhaps
    of the head. noted : besides where a weight's gradient waits: its input, before it is all.
    """

    def __init__(self, s, w, kept, drop, first, last):
        local, item, wide = s.local(w), w.itemsize, max(w.itemsize, 4)
        tokens, at = local.batch * local.seq, s.inside.layout
        stream = message_bytes(s, w)
        sp, n = at.sp, at.i if at.sp else 1
        whole = tokens * w.hidden // at.s * item  # gathered
        gathered, beside = s.inside.gathered(local)
        again = "selective" if s.recompute == "selective" else "none"

        def bytes_of(kinds):
            locals_of = ((s.local(kind), n) for kind, n in kinds if n)
            return sum(
                n * (block_kept(at, one) + gathered - dropped_bytes(at, one, again))
                for one, n in locals_of
            )

        logits = tokens * w.vocab // at.i
        self.dropped = bytes_of(drop)
        self.after_forward = bytes_of(kept) + stream * (1 + any(n for _, n in drop))
        self.in_forward = beside
        kinds = {kind for kind, n in (*kept, *drop) if n}
        widths = {kind.mlp_width // at.i * item for kind in kinds}
        self.noted = tokens * max(widths, default=0)
        ends = w.vocab // at.i * w.hidden // at.s * item
        inside = stream + sp * whole + beside
        self.in_backward = [
            (inside + tokens * width, w.hidden // at.s * width) for width in widths
        ] or [(0, first * ends)]
        for kind in kinds:
            moments = experts_moments(at, s.local(kind)) if kind.experts else ()
            self.in_backward += [(inside + more, weight) for more, weight in moments]
        if last:
            head = (
                2 * stream + statistics(w) * tokens // n * wide + logits * wide
            )  # gone when blocks go backward
            self.after_forward += head
            self.in_forward += (2 if at.i == 1 else 1) * logits * wide
            self.in_backward = [
                *((more - head, weight) for more, weight in self.in_backward if widths),
                (logits * item + stream + sp * 2 * whole, ends),
            ]

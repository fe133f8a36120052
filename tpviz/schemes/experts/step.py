"""Experts as data: a rank's products, and the rows that go between ranks (derived).

With T tokens of a rank, k experts of each, E experts, H features, b bytes a number, a rank sends
for one MLP, forward and in backward again:

    an all-to-all of E numbers of rows (int64), in forward alone, but under a capacity;
    an all-to-all of as many rows as it has for experts of others, of at most T k H b bytes;
    one of as many rows as others have for its experts, back.

Where `ExpertCut.gathered` says so, it sends instead, of n ranks of ep,

    an all-gather of two numbers for each choice, three under a capacity; in backward a
    reduce-scatter of one, the weights' gradients: n T k numbers;
    an all-gather of n T H numbers, and a reduce-scatter of as many.

Where `ExpertCut.overlap` says so, shared experts' first layer is computed while rows go there, and
the second while they come back; backward likewise, the second first.

Under tensor parallelism with ``etp`` = tp, what a pair of layers sends
(`tpviz.schemes.grid.step`); with ``etp`` = 1 under sequence parallelism nothing, else an all-gather
of the results, and one of the gradients of what was cut. The router's scores are in float32 at
least. The counts of a balance loss, B E numbers, are added up over ranks with parts of sequences.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpviz.cluster.exchanges import UNEQUAL
from tpviz.core.step import Collective, Issue, Kernel, Operation, Operations, Wait
from tpviz.schemes.gpt.kernels import gemm

from .cut import ExpertCut, cut_of, parts_over

if TYPE_CHECKING:
    from collections.abc import Callable

    from tpviz.core.workload import GPT

ROWS = UNEQUAL  # its payload is what a rank sends to others


def pieces(at: Any, w: "GPT") -> tuple[list[Operation], ...]:
    """Operations of (the MLP, also of a recomputation; backward through its experts; to its input).
    As of `segments`."""
    (pre, there, mid, back, post), (post_back, out, mid_back, home, pre_back) = segments(at, w)
    return (
        [*pre, *there, *mid, *back, *post],
        [*post_back, *out, *mid_back],
        [*home, *pre_back],
    )


def segments(at: Any, w: "GPT") -> tuple[tuple[list[Any], ...], ...]:
    """Operations of an MLP (before rows go, there, until they go back, back, after that), and those
    of backward in its order.

    Where ``place`` does not say of which rank of ep, those of one that has most rows to compute,
    for which all others wait. at : the `tpviz.schemes.grid.step` pieces of the layout around.
    """
    cut = cut_of(at.at, w)
    index = cut.at(w)
    loads = [int(n) for n in cut.loads(w, index)]
    tokens = w.batch * w.seq // cut.parts
    item, h, parts, wide = w.itemsize, w.hidden, cut.etp, max(w.itemsize, 4)
    dtype = "float32" if item < 4 else ""
    score = lambda m, k, n: gemm(m, k, n, wide)._replace(dtype=dtype)
    ups, downs = (h, w.up_features // parts), (w.mlp_width // parts, h)
    told, there, back, told_back = (_gathered if cut.gathered else _routed)(cut, w, index)
    counts = [
        Collective(axis, "all_reduce", w.batch * w.experts * wide)
        for axis in parts_over(cut, w) * bool(w.aux_loss)
    ]
    before, after, before_back, after_back = _around(at, cut)
    n = w.shared_experts
    both = lambda rows, k, n: (gemm(rows, n, k, item), gemm(n, rows, k, item))
    layers = (h, n * ups[1]), (n * downs[0], h)
    shared = [[gemm(tokens, *layer, item)] * bool(n) for layer in layers]
    shared_back = [[*both(tokens, *layer)] * bool(n) for layer in layers]
    over = cut.overlap and n
    forward = (
        [*before, score(tokens, h, w.experts), *told],
        under(there, shared[0]) if over else there,
        [gemm(load, *layer, item) for load in loads for layer in (ups, downs)],
        under(back, shared[1]) if over else back,
        [*([] if over else [*shared[0], *shared[1]]), *after, *counts],
    )
    backward = (
        [*after_back, *([] if over else [*shared_back[1], *shared_back[0]])],
        under(there, shared_back[1]) if over else there,
        [
            kernel
            for load in reversed(loads)
            for layer in (downs, ups)
            for kernel in both(load, *layer)
        ],
        under(back, shared_back[0]) if over else back,
        [*told_back, score(tokens, w.experts, h), score(w.experts, tokens, h), *before_back],
    )
    return forward, backward


ATTENTION_BACK = "norm2_back", "out_back", "core_back", "qkv_back", "norm1_back"


def halves_in_turn(pieces_of: "Callable[[GPT], Any]", w: "GPT") -> dict[str, Any]:
    """{piece: operations} of a block through which two halves go in turn: while rows of one travel,
    the other computes. pieces_of : the collector of `tpviz.schemes.grid.step` for a workload."""
    one_half = replace(w.with_batch(w.batch // 2), cut=w.cut._replace(halves=1))
    half = (of := pieces_of(one_half)).all()
    (pre, there, mid, back, post), of_back = segments(of, one_half)
    post_back, out, mid_back, home, pre_back = of_back
    made = Operations()
    tickets: list[Any] = [None, None]

    def turns(operations, moves=()):
        for one in range(2):
            made.wait(tickets[one])
            made.extend(operations)
            tickets[one] = made.issue(next(iter(moves), None))

    turns([*half["attention"], *pre], there)
    turns(mid, back)
    turns(post)
    behind = len(made)
    turns(post_back, out)
    turns(mid_back, home)
    experts_done = len(made)
    made.wait(tickets[0])  # of the second half, with which backward begins
    made.extend([*pre_back, *(o for name in ATTENTION_BACK for o in half[name])])
    made.wait(tickets[1])
    made.extend(pre_back)
    forward = made[:behind]
    return {
        "attention": [],
        "mlp": forward,
        "mlp_unsummed": forward,
        "down_back": made[behind:experts_done],
        "up_back": made[experts_done:],
    } | {name: half[name] for name in ATTENTION_BACK}


def under(moves: list[Collective], kernels: list[Kernel]) -> list[Operation]:
    """The kernels while the collective, if there is one, is in flight."""
    return [*map(Issue, moves), *kernels, *(Wait(move.axis) for move in moves)]


def _routed(cut, w, index):
    """(numbers of rows; rows there; back; nothing in backward) of the rank with this index."""
    sent = cut.sent(w)
    for_ranks = sent.reshape(cut.ep, -1).sum(1)
    own, size = int(for_ranks[index]), w.hidden * w.itemsize
    each = tuple((size * for_ranks).tolist())  # to each rank, from all of them; and back
    if w.capacity and cut.ep > 1:
        there = [Collective("ep", "all_to_all", int(sent.sum()) * size)]
        return [], there, there, []
    numbers = [Collective("ep", "all_to_all", 8 * w.experts)] * (cut.ep > 1)
    there = rows(cut, (int(sent.sum()) - own) * size, each)
    back = rows(cut, (cut.ep * own - own) * size, tuple((part,) for part in each))
    return numbers, there, back, []


def _gathered(cut, w, index):
    """(weights and choices of all tokens; the tokens; the sums back; the weights' gradients)."""
    tokens, wide = w.batch * w.seq // cut.parts * cut.ep, max(w.itemsize, 4)
    move = lambda kind, numbers, size: [Collective("ep", kind, tokens * numbers * size)]
    there, back = (move(k, w.hidden, w.itemsize) for k in ("all_gather", "reduce_scatter"))
    told = (3 if w.capacity else 2) * w.top_k
    weights = move("reduce_scatter", w.top_k, wide)
    return move("all_gather", told, wide), there, back, weights


def rows(cut: ExpertCut, payload: int, parts: tuple[Any, ...]) -> list[Collective]:
    """The all-to-all in which a rank sends so many bytes to others. parts : of all ranks."""
    return [Collective("ep", ROWS, payload, parts)] * (cut.ep > 1)


def _around(at, cut):
    """(before forward, after it, before backward ends, as it begins) of the tensor parallelism."""
    if cut.etp > 1:
        return (
            at.gather_inside(),
            at.sum_inside("reduce_scatter"),
            at.sum_inside("reduce_scatter"),
            at.gather_inside(),
        )
    if cut.parts == 1 or at.at.sp:
        return [], [], [], []
    whole = at.over_inside("all_gather")
    return [], whole, whole, []

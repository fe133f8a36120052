"""Bytes that a mixture of experts keeps, and has for a moment, of one block (derived)."""

from typing import TYPE_CHECKING

from tpviz.schemes.gpt.memory import mlp_kept

from .cut import cut_of

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.grid.layout import Layout


def experts_kept(at: "Layout", w: "GPT") -> int:
    """Bytes that autograd keeps of the MLP until backward: rows that the rank computes and what
    `mlp_kept` has of each; the results of its own choices; scores, and the orders of rows."""
    cut = cut_of(at, w)
    tokens, wide = w.batch * w.seq // cut.parts, max(w.itemsize, 4)
    rows, loads = tokens * w.top_k, int(cut.loads(w, cut.at(w)).sum())
    width, own = mlp_kept(w) // cut.etp, cut.tp > 1 and (cut.etp > 1) == at.sp
    numbers = loads * (w.hidden + width) + rows * w.hidden
    numbers += tokens * (w.shared_experts * width + own * w.hidden)
    return numbers * w.itemsize + tokens * w.experts * wide + 8 * (3 * rows + 2 * loads)


def experts_backward(at: "Layout", w: "GPT") -> int:
    """Bytes that backward has for a moment besides: as it begins, gradients of the rank's choices,
    twice; as it ends, those of all matrices, second layers' once more as one tensor, where what
    `experts_kept` has of rows is gone."""
    cut = cut_of(at, w)
    choices = w.batch * w.seq // cut.parts * w.top_k * w.hidden
    loads, own = int(cut.loads(w, cut.at(w)).sum()), w.experts // cut.ep
    weights = own * w.hidden * (w.up_features + 2 * w.mlp_width) // cut.etp
    gone = loads * (w.hidden + mlp_kept(w) // cut.etp)
    return max(2 * choices, choices + weights - gone) * w.itemsize

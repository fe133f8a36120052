"""Bytes that a mixture of experts keeps, and has for a moment, of one block (derived)."""

from typing import TYPE_CHECKING

from tpviz.schemes.gpt.memory import mlp_kept

from .cut import cut_of

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.grid.layout import Layout


def experts_kept(at: "Layout", w: "GPT") -> int:
    """Bytes that autograd keeps of the MLP until backward: rows that the rank computes and what
    `mlp_kept` has of each; the results of its own choices, where all ranks get all tokens those of
    the rows; scores, and the orders of rows."""
    cut = cut_of(at, w)
    tokens, wide = w.batch * w.seq // cut.parts, max(w.itemsize, 4)
    rows, loads = tokens * w.top_k, int(cut.loads(w, cut.at(w)).sum())
    width, own = mlp_kept(w) // cut.etp, cut.tp > 1 and (cut.etp > 1) == at.sp
    numbers = loads * (w.hidden + width) + (loads if cut.gathered else rows) * w.hidden
    numbers += tokens * (w.shared_experts * width + own * w.hidden)
    orders = (1 + cut.ep) * rows + loads if cut.gathered else 3 * rows + 2 * loads
    shares = loads * wide * cut.gathered
    return numbers * w.itemsize + tokens * w.experts * wide + shares + 8 * orders


def experts_backward(at: "Layout", w: "GPT") -> int:
    """The most bytes that backward has for a moment besides, by `experts_moments`."""
    return max(more + weight for more, weight in experts_moments(at, w))


def experts_moments(at: "Layout", w: "GPT") -> list[tuple[int, int]]:
    """[(bytes that backward has for a moment besides, those of new gradients)]: as it begins,
    gradients of the rank's choices, twice; as it ends, those of all matrices, second layers' once
    more as one tensor, where what `experts_kept` has of rows is gone. Where all ranks get all
    tokens, these and the rows' own take the place of the choices."""
    cut = cut_of(at, w)
    choices = w.batch * w.seq // cut.parts * w.top_k * w.hidden
    loads, own = int(cut.loads(w, cut.at(w)).sum()), w.experts // cut.ep
    if cut.gathered:
        choices = (w.batch * w.seq // cut.parts * cut.ep + loads) * w.hidden
    second = own * w.hidden * w.mlp_width // cut.etp
    both = own * w.hidden * (w.up_features + w.mlp_width) // cut.etp
    gone = loads * (w.hidden + mlp_kept(w) // cut.etp)
    item = w.itemsize
    return [(2 * choices * item, 0), ((choices + second - gone) * item, both * item)]

"""What attention over a part of the sequences keeps for backward (derived).

Block by block a rank keeps its keys and values once more, side by side as they travel: 2 K D
numbers a token. Ulysses keeps what is kept without it, of all tokens and a part of the heads.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .sequence import SequenceCut


def kept(cut: "SequenceCut", w: "GPT") -> int:
    """Implements `sequence.SequenceCut.kept`."""
    return 0 if cut.kind == "ulysses" else 2 * w.num_kv_heads * w.head_size

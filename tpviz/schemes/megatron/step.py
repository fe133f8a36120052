"""Megatron-LM's training step as data: ATP's on a mesh of one axis (derived).

With A = B s h bytes per element, L layers and n = tp ranks:

without sp: 2L + 1 all-reduces of A forward (attention, MLP of each block; the embedding) and as
many backward (qkv, up of each block; the head);
with sp: each becomes a reduce-scatter and an all-gather of A. Backward, the input of each
column-parallel layer is gathered once more, which keeps activations at 1/n (Korthikanti et al.
2022, section 4.2.2), and the gradients of what is replicated (LayerNorm, output biases, positions)
are all-reduced once, together.
With chunks: each of the blocks' 2L all-reduces forward is cut into that many.

Times, g a layer's forward GEMM, d and w those of its two gradients, r an all-reduce of A, or its
reduce-scatter under sp, and a the all-gather that sp has:

=========  ============================================  ==================
layer      forward                                       backward
=========  ============================================  ==================
qkv, up,   g                                             d + max(r, w)
head       sp: a + g                                     sp: max(a, d) + max(r, w)
out, down  g + r; in chunks c: max(g + r_c, g_c + r)     d + w; sp: a + d + w
=========  ============================================  ==================

Attention needs no collective, the embedding is r forward (sp: and a backward), the loss gathers two
numbers a token.
"""

from typing import TYPE_CHECKING

from tpviz.schemes.atp.layout import Layout
from tpviz.schemes.atp.step import step as step_of_layout

if TYPE_CHECKING:
    from tpviz.step import Part
    from tpviz.workload import GPT

    from .strategy import Megatron


def step(s: "Megatron", w: "GPT") -> "tuple[Part, ...]":
    """The parts of one step of a rank."""
    sp = s.sp and s.tp > 1
    return step_of_layout(
        Layout("tp", "", s.tp, 1, s.chunks, "batch", a3=False, l2=False, sp=sp), w, s.recompute
    )

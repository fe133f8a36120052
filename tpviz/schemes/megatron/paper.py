"""Megatron-LM's communication: what a layer sends, and how long that takes.

Shoeybi et al. 2019, https://arxiv.org/abs/1909.08053 (tensor parallelism, ``tp``); Korthikanti et
al. 2022, https://arxiv.org/abs/2205.05198 (sequence parallelism, ``sp``). n = tp ranks, t in the
second paper; A = B s h elements, e bytes each. The papers' operators f and g are the two sums of
`tpviz.schemes.grid.operators.Linear`, their layers `tpviz.schemes.grid.layers.GridLinear` on one
axis, their step `tpviz.schemes.grid.step`; activation memory is in `tpviz.schemes.grid.memory`.

    V = 8 A (n-1)/n        (1)  elements that a rank sends for a layer; with sp 10 A (n-1)/n
    T = layers V e / B     (2)  seconds; B: bus bandwidth of the ring

Times of a layer in that step (derived), g its forward GEMM, d and w those of its two gradients, r
an all-reduce of A, or its reduce-scatter under sp, and a the all-gather that sp has:

=========  ============================================  ==================
layer      forward                                       backward
=========  ============================================  ==================
qkv, up,   g                                             d + max(r, w)
head       sp: a + g                                     sp: max(a, d) + max(r, w)
out, down  g + r; in chunks c: max(g + r_c, g_c + r)     d + w; sp: a + d + w
=========  ============================================  ==================

>>> from tpviz import GPT
>>> w = GPT(batch=1, seq=1)
>>> volume(w, 4) / w.hidden, volume(w, 4, sp=True) / w.hidden
(6.0, 7.5)
"""

from typing import TYPE_CHECKING

from tpviz.cluster.collectives import cost
from tpviz.core.mesh import Mesh

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT
    from tpviz.schemes.t3.strategy import T3

    from .strategy import Megatron


def volume(w: "GPT", n: int, sp: bool = False) -> float:
    """Elements that each of ``n`` ranks sends for one layer, forward and backward, by (1).

    Four ring all-reduces of A: attention and MLP, f in backward and g in forward (arXiv 1909.08053,
    section 3). With ``sp`` each is a reduce-scatter and an all-gather, the same bytes, and the
    inputs of qkv and up are gathered once more in backward (arXiv 2205.05198, section 4.2.2): the
    bytes of five (derived).
    """
    _, sent = cost("ring", "all_reduce", w.batch * w.seq * w.hidden, n)
    return (5 if sp else 4) * sent


def communication(
    strategy: "Megatron | T3", w: "GPT", cluster: "Cluster", mesh: Mesh | None = None
) -> float:
    """Seconds of all layers by (2), from bytes alone: no latency, embedding or head (derived).

    Blocks that are recomputed send once more what they send forward, two all-reduces. mesh :
    default: the strategy's own.
    """
    if strategy.tp == 1:
        return 0.0
    bandwidth = cluster.bandwidth(mesh or Mesh(strategy.axes), "tp")
    sent = volume(w, strategy.tp, strategy.layout.sp)
    if strategy.recompute == "full":
        sent += volume(w, strategy.tp) / 2
    return w.layers * (sent * w.itemsize / bandwidth)

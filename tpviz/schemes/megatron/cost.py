"""What one step of Megatron-LM's tensor parallelism sends, and how long it takes (derived).

With A = B s h bytes per element, L layers and n = tp ranks:

without sp: 2L + 1 all-reduces of A forward (attention, MLP of each block; the embedding) and as
many backward (qkv, up of each block; the head);
with sp: each becomes a reduce-scatter and an all-gather of A. Backward, the input of each
column-parallel layer is gathered once more, which keeps activations at 1/n (Korthikanti et al.
2022, section 4.2.2), and the gradients of what is replicated (LayerNorm, output biases, positions)
are summed once, in one piece.
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

Attention is on no group's way, the embedding is r forward (sp: and a backward), the loss gathers
two numbers a token.
"""

from typing import TYPE_CHECKING

from tpviz.cost import Segment, Stretch, Transfer, transfer
from tpviz.schemes.gpt.cost import Step, completes, seconds_of, segments, times, update
from tpviz.schemes.gpt.kernels import gemm
from tpviz.schemes.gpt.memory import held
from tpviz.trace import Ledger

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.mesh import Mesh
    from tpviz.workload import GPT

    from .strategy import Megatron


def ledger(workload: "GPT", tp: int, sp: bool, chunks: int = 1) -> Ledger:
    """The `Ledger` of one step of one rank."""
    w, activations, loss, replicated = workload, *sizes(workload, tp)
    pairs = 2 * w.layers + 1
    entries = [("tp", "all_gather", "forward", 1, loss, tp)]
    if not sp:
        return Ledger.of(
            entries
            + [
                ("tp", "all_reduce", "forward", 1, activations, tp),
                ("tp", "all_reduce", "forward", 2 * w.layers * chunks, activations // chunks, tp),
                ("tp", "all_reduce", "backward", pairs, activations, tp),
            ]
        )
    return Ledger.of(
        entries
        + [
            ("tp", "all_gather", "forward", pairs, activations, tp),
            ("tp", "reduce_scatter", "forward", pairs, activations, tp),
            ("tp", "all_gather", "backward", 2 * pairs, activations, tp),
            ("tp", "reduce_scatter", "backward", pairs, activations, tp),
            ("tp", "all_reduce", "sync", 1, replicated, tp),
        ]
    )


def sizes(w: "GPT", tp: int) -> tuple[int, int, int]:
    """Bytes of (an activation, the loss's gathered pairs, what sp replicates)."""
    loss = 2 * tp * w.batch * w.seq * max(w.itemsize, 4)  # every rank's two numbers per token
    replicated = (w.seq + 6 * w.layers + 2) * w.hidden * w.itemsize
    return w.batch * w.seq * w.hidden * w.itemsize, loss, replicated


def order(tp: int) -> dict[str, tuple[str, ...]]:
    """`completes` of a block: one rank runs torch's own layers."""
    return completes("inside", "after") if tp > 1 else completes()


def cost(strategy: "Megatron", w: "GPT", cluster: "Cluster", mesh: "Mesh") -> list[Segment]:
    """The segments of one step of one rank; the table above."""
    tp, sp = strategy.tp, strategy.sp and strategy.tp > 1
    activations, loss, replicated = sizes(w, tp)
    t = times(w, cluster, tp)
    whole = transfer(cluster, mesh, "tp", "reduce_scatter" if sp else "all_reduce", activations)
    gathered = synced = Transfer("tp", 0.0)
    if sp:
        gathered = transfer(cluster, mesh, "tp", "all_gather", activations)
        synced = transfer(cluster, mesh, "tp", "all_reduce", replicated)
    row = _row(strategy, w, cluster, mesh, whole)

    def column(stretch, layer):
        return stretch.blocking(gathered).kernel(layer[0])

    def column_back(stretch, layer):
        return stretch.covered(gathered, layer[1]).covered(whole, layer[2])

    def row_back(layer):
        return Stretch().blocking(gathered).kernel(*layer[1:])

    return segments(
        w,
        Step(
            embed=Stretch().blocking(whole),
            attention=row(column(Stretch(), t.qkv).kernel(t.core[0]), t.out[0], w.hidden // tp),
            mlp=row(column(Stretch(), t.up), t.down[0], w.mlp_ratio * w.hidden // tp),
            head=column(Stretch(), t.head).blocking(
                transfer(cluster, mesh, "tp", "all_gather", loss)
            ),
            head_back=column_back(Stretch(), t.head),
            down_back=row_back(t.down),
            up_back=column_back(Stretch(), t.up),
            out_back=row_back(t.out),
            core_back=Stretch().kernel(t.core[1]),
            qkv_back=column_back(Stretch(), t.qkv),
            embed_back=Stretch().blocking(gathered),
            sync=Stretch().blocking(synced),
            update=update(w, cluster, held(w, tp)),
            ready=order(tp),
        ),
    )


def _row(strategy, w, cluster, mesh, whole):
    """How a row-parallel layer follows in a stretch: (stretch, its GEMM's seconds, columns)."""
    chunks = strategy.chunks if strategy.tp > 1 else 1
    if chunks == 1:
        return lambda stretch, seconds, features: stretch.kernel(seconds).blocking(whole)
    tokens, seconds_in = w.batch // chunks * w.seq, seconds_of(w, cluster)
    part = transfer(cluster, mesh, "tp", "all_reduce", tokens * w.hidden * w.itemsize)

    def row(stretch, seconds, features):
        kernel = gemm(tokens, features, w.hidden, w.itemsize)
        return stretch.chunked(seconds_in(kernel), part, chunks)

    return row

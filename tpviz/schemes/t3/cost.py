"""What a rank of T3's sends in a step, and how long the step takes (derived).

With A = B s h bytes per element, L layers and n = tp ranks, 2L sums forward (out, down) and 2L + 1
backward (qkv, up, the head) are fused with their GEMMs: of each a rank sends and receives the n - 1
chunks of A/n that are not its own, in as many messages as they have tiles. Then:

gather="after": an all-gather of A for each; the embedding and the loss are Megatron-LM's.
gather="consumer": nothing is gathered after them. 2L + 1 gathers forward (before qkv, up, the head)
and 4L + 1 backward (those again, and the gradients entering out and down) feed a GEMM, each n - 1
chunks of A/n in messages; the embedding is a reduce-scatter and an all-gather, and the gradients of
what is replicated are summed once, as with Megatron-LM's ``sp``.

Time: all ranks do the same at the same time, so a rank's own sends are the receives that it waits
for, and the ring is one queue (max-plus): tile i of m a chunk, with its GEMM's end e_i and its
partial sum's arrival a_i,

    e_i = max(e_{i-1} + g_i, a_{i-m}),    a_i = max(e_i, a_{i-1}) + c_i.

`simulate` says the same where all links of the ring are alike; where they are not, all are taken
for the slowest, of any replica's ring.
"""

from collections.abc import ValuesView
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

from tpviz.cost import Stretch, Transfer, transfer
from tpviz.schemes.gpt.cost import Step, completes, seconds_of, segments, times, update
from tpviz.schemes.gpt.kernels import gemm
from tpviz.schemes.gpt.memory import held
from tpviz.schemes.megatron.cost import sizes
from tpviz.trace import Ledger

from .tiles import bands, whole_chunk
from .tiles import sizes as sizes_of

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.cluster.routes import Link
    from tpviz.cost import Segment
    from tpviz.mesh import Mesh
    from tpviz.workload import GPT

    from .strategy import T3


def ledger(s: "T3", w: "GPT") -> Ledger:
    """The `Ledger` of one step of one rank, the same on all."""
    n, (activations, loss, replicated) = s.tp, sizes(w, s.tp)
    rows, L = w.batch * w.seq // n, w.layers
    entries = [("tp", "all_gather", "forward", 1, loss, n)]

    def fused(phase, collective, count, tiles):
        if s.mode == "sequential":
            return [("tp", collective, phase, count, activations, n)]
        return [
            ("tp", way, phase, count * (n - 1), height * width * w.itemsize, min(n, 2))
            for height, width in tiles
            for way in ("send", "recv")
        ]

    tiles = sizes_of(s.tiles(rows, w.hidden))
    for phase, sums in (("forward", 2 * L), ("backward", 2 * L + 1)):
        entries += fused(phase, "reduce_scatter", sums, tiles)
        if not s.split:
            entries.append(("tp", "all_gather", phase, sums, activations, n))
    if not s.split:
        return Ledger.of([*entries, ("tp", "all_reduce", "forward", 1, activations, n)])
    pieces = [(part.stop - part.start, w.hidden) for part in bands(s.tiles(rows, w.hidden))]
    whole = [(rows, w.hidden)]
    return Ledger.of(
        [
            *entries,
            *fused("forward", "all_gather", 2 * L + 1, pieces),
            *fused("backward", "all_gather", 2 * L, pieces),
            *fused("backward", "all_gather", 2 * L + 1, whole),
            ("tp", "reduce_scatter", "forward", 1, activations, n),  # the embedding
            ("tp", "all_gather", "backward", 1, activations, n),
            ("tp", "all_reduce", "sync", 1, replicated, n),
        ]
    )


def order(tp: int) -> dict[str, tuple[str, ...]]:
    """`completes` of a block: one rank runs torch's own layers."""
    return completes("inside", "after") if tp > 1 else completes()


def cost(s: "T3", w: "GPT", cluster: "Cluster", mesh: "Mesh") -> "list[Segment]":
    """The segments of one step of one rank."""
    t, made = times(w, cluster, s.tp), Layers(s, w, cluster, mesh)
    h, f, v, L = w.hidden // s.tp, w.mlp_ratio * w.hidden // s.tp, w.vocab // s.tp, Stretch
    embed, embed_back, sync = made.ends()
    loss = transfer(cluster, mesh, "tp", "all_gather", sizes(w, s.tp)[1])
    return segments(
        w,
        Step(
            embed=embed,
            attention=made.row(made.column(L(), t.qkv, 3 * h).kernel(t.core[0]), t.out, h),
            mlp=made.row(made.column(L(), t.up, f), t.down, f),
            head=made.column(L(), t.head, v, bias=False).blocking(loss),
            head_back=made.column_back(t.head, v),
            down_back=made.row_back(t.down, f),
            up_back=made.column_back(t.up, f),
            out_back=made.row_back(t.out, h),
            core_back=L().kernel(t.core[1]),
            qkv_back=made.column_back(t.qkv, 3 * h),
            embed_back=embed_back,
            sync=sync,
            update=update(w, cluster, held(w, s.tp)),
            ready=order(s.tp),
        ),
    )


class Layers:
    """Stretches of T3's layers; a layer's times: (forward, input's gradient, weight's gradient)."""

    def __init__(self, s: "T3", w: "GPT", cluster: "Cluster", mesh: "Mesh"):
        self.s, self.w, self.cluster, self.mesh = s, w, cluster, mesh
        self.seconds, self.rows = seconds_of(w, cluster), w.batch * w.seq // s.tp
        self.activations, _, self.replicated = sizes(w, s.tp)
        self.message = lru_cache(self._message)

    @cached_property
    def links(self) -> "ValuesView[Link]":
        """Of neighbours in the rings of all replicas, one of each bandwidth and latency."""
        links = (
            self.cluster.link((a, b), self.mesh.size, b - a)
            for ring in self.mesh.groups("tp")
            for a, b in zip(ring, ring[-1:] + ring)
        )
        return {link[:2]: link for link in links}.values()

    def _whole(self, collective, payload=None):
        return transfer(self.cluster, self.mesh, "tp", collective, payload or self.activations)

    def _message(self, height, width):
        """The `Transfer` of a tile to the next rank, on the slowest link of all rings."""
        payload = height * width * self.w.itemsize
        latency, sending = max(
            (self.cluster.collective_parts("send", payload, 2, link) for link in self.links),
            key=sum,
        )
        return Transfer("tp", latency + sending, latency)

    def ends(self) -> tuple[Stretch, Stretch, Stretch]:
        """Stretches of (the embedding, its backward, the sum of what is replicated)."""
        if not self.s.split:
            return Stretch().blocking(self._whole("all_reduce")), Stretch(), Stretch()
        return (
            Stretch().blocking(self._whole("reduce_scatter")),
            Stretch().blocking(self._whole("all_gather")),
            Stretch().blocking(self._whole("all_reduce", self.replicated)),
        )

    def column(
        self, stretch: Stretch, layer: tuple[float, ...], features: int, bias: bool = True
    ) -> Stretch:
        """A pair's first layer: (h, features) of weight."""
        if not self.s.split:
            return stretch.kernel(layer[0])
        h = self.w.hidden
        return self._gathered(
            stretch,
            layer[0],
            self.s.tiles,
            lambda rows: self._gemm(rows, h, features, bias * features),
        )

    def column_back(self, layer: tuple[float, ...], features: int) -> Stretch:
        stretch = self._scattered(Stretch(), layer[1], features)
        if not self.s.split:
            return stretch.covered(
                self._whole("all_gather") if self.s.tp > 1 else Transfer("tp", 0.0), layer[2]
            )
        return self._gathered(
            stretch, layer[2], whole_chunk, lambda rows: self._gemm(features, rows, self.w.hidden)
        )

    def row(self, stretch: Stretch, layer: tuple[float, ...], features: int) -> Stretch:
        """A pair's second layer: (features, h) of weight."""
        stretch = self._scattered(stretch, layer[0], features)
        return stretch if self.s.split else stretch.blocking(self._whole("all_gather"))

    def row_back(self, layer: tuple[float, ...], features: int) -> Stretch:
        if not self.s.split:
            return Stretch().kernel(*layer[1:])
        h = self.w.hidden
        return self._gathered(
            Stretch(), layer[1], self.s.tiles, lambda rows: self._gemm(rows, h, features)
        ).kernel(layer[2])

    def _gemm(self, m, k, n, bias=0):
        return self.seconds(gemm(m, k, n, self.w.itemsize, bias))

    def _scattered(self, stretch, seconds, features):
        """A GEMM with the sum of its results fused; ``seconds``: of the GEMM whole."""
        s, h = self.s, self.w.hidden
        if s.tp == 1 or s.mode == "sequential":
            return stretch.kernel(seconds).blocking(self._whole("reduce_scatter"))
        tiles, lanes, issued = sizes_of(s.tiles(self.rows, h)), stretch.lanes(), []
        kernels = [self._gemm(height, features, width) for height, width in tiles]
        for position in range(s.tp):
            for number, kernel in enumerate(kernels):
                lanes.kernel(kernel)
                if position:
                    lanes.wait(issued[-len(tiles)])
                issued.append(position < s.tp - 1 and lanes.issue(self.message(*tiles[number])))
        lanes.done()
        return stretch

    def _gathered(self, stretch, seconds, pieces, kernel):
        """A GEMM fed by a gather; ``seconds``: of the GEMM whole, kernel: rows -> seconds."""
        s, h = self.s, self.w.hidden
        if s.tp == 1 or s.mode == "sequential":
            return stretch.blocking(self._whole("all_gather")).kernel(seconds)
        lanes, issued = stretch.lanes(), []
        heights = [rows.stop - rows.start for rows in bands(pieces(self.rows, h))]
        for position in range(s.tp):
            for height in heights:
                if position:
                    lanes.wait(issued[-len(heights)])
                issued.append(position < s.tp - 1 and lanes.issue(self.message(height, h)))
                lanes.kernel(kernel(height))
        lanes.done()
        return stretch

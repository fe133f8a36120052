"""T3's equations: when a tile is sent, what memory reads and writes, how long a sublayer takes.

Pati et al. 2024 (ASPLOS), https://arxiv.org/abs/2401.16677. We used the abstract and published
notes on the paper, not the paper itself: what is marked *derived* is ours. N GPUs; S bytes of a
GEMM's output, in N chunks of c = S / N; position j = 0..N-1 of a chunk in the order in which a GPU
computes them (`tiles.order`); L bytes/s of a link, BW of memory, F FLOP/s.

    updates of an element before its tile is sent: 1 at j = 0, else 2       (`updates_per_element`)
    reduce-scatter reads (2N - 1) c alone, (N - 2) c fused                  (`dram_chunks`)
    sequential: g + RS + AG; ideal: max(g, RS) + AG; T3: of a simulated GPU
    ideal speedup: (x + 2) / (max(x, 1) + 1), x = K L N / ((N - 1) F)       (`ideal_speedup`)

`tracker` applies the first to real ranks, simulated GPUs (`tpviz.evidence.t3_hardware`) apply all.

>>> updates_per_element(0), dram_chunks("t3", 4, 1)["read"], ideal_speedup(1.0)
(1, 1, 1.5)
"""


# -- tracker and memory ----------------------------------------------------------------------------
def updates_per_element(position: int) -> int:
    """The tracker's rule: a tile is sent once each element has had so many updates.

    On a ring the chunk at position 0 of a rank's order has its own GEMM's only, every later one the
    neighbour's partial sum too (Pati et al. 2024, arXiv 2401.16677, section 4; positions derived).
    """
    return 1 + (position > 0)


def dram_chunks(config: str, ranks: int, position: int) -> dict[str, int]:
    """{what moves: chunks} through one GPU's memory for the chunk at a position (derived).

    config : "sequential", the GEMM and then a ring reduce-scatter by kernels, or any other: T3.

    * sequential: the GEMM writes N. A step of the reduce-scatter reads a rank's own chunk, and from
      the second step on what came in too; what comes in is written; the last sum reads two and
      writes one: 2N - 1 reads, N writes.
    * T3: the first chunk's stores go over the link. What comes in is added in memory, and a DMA
      reads each chunk once, but the first and the last: N - 2 reads, N - 1 writes.
    """
    last, first = position == ranks - 1, position == 0
    if config == "sequential":
        return {"gemm": 1, "incoming": int(not first), "read": 1 if first else 2, "sum": int(last)}
    return {
        "gemm": int(not first),
        "incoming": int(not first),
        "read": int(not first and not last),
        "sum": 0,
    }


# -- a GEMM with its collectives -------------------------------------------------------------------
def ideal_speedup(x: float) -> float:
    """Of ideal overlap over sequential, with RS = AG and x = g / RS: sequential takes g + 2 RS,
    overlapped max(g, RS) + RS. At most 1.5, at x = 1 (derived)."""
    return (x + 2) / (max(x, 1.0) + 1)

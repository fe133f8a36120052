"""T3's equations: when a tile is sent, what memory reads and writes, how long a sublayer takes.

Pati et al. 2024 (ASPLOS), https://arxiv.org/abs/2401.16677. We used the abstract and published
notes on the paper, not the paper itself: what is marked *derived* is ours. N GPUs; S bytes of a
GEMM's output, in N chunks of c = S / N; position j = 0..N-1 of a chunk in the order in which a GPU
computes them (`tiles.order`); L bytes/s of a link, BW of memory, F FLOP/s.

    updates of an element before its tile is sent: 1 at j = 0, else 2       (`updates_per_element`)
    reduce-scatter reads (2N - 1) c alone, (N - 2) c fused                  (`dram_chunks`)
    sequential: g + RS + AG; ideal: max(g, RS) + AG; T3: see `SublayerTimes`
    ideal speedup: (x + 2) / (max(x, 1) + 1), x = K L N / ((N - 1) F)       (`ideal_speedup`)

`tracker` applies the first to real ranks, `hardware` all of them to simulated GPUs.

>>> from tpviz.schemes.t3.hardware import Gemm
>>> found = sublayer_times(Gemm(8192, 4256, 2128), 8)
>>> print(f"{1e6 * found.gemm:.0f} {1e6 * found.rs:.0f} {1e6 * found.ag:.0f} us, ideal "
...       f"{found.sequential / found.ideal:.3f}x")
1294 439 410 us, ideal 1.257x
"""

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from tpviz.checks import number, whole_number
from tpviz.cluster.collectives import cost

if TYPE_CHECKING:
    from .hardware.machine import Gemm, Machine

BETA = {"t3": 0.94, "t3_mca": 0.29}
"""{configuration: share of communication's memory time that is not hidden}: fitted to the geomeans
of the paper's two small models, where they give 1.200 and 1.300."""


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
class SublayerTimes(NamedTuple):
    """Seconds of one sublayer's parts (derived).

    gemm : g = max(2 m n k / F, (A + B + S) / BW), both inputs A and B read once. rs : (N - 1)
    (c / L + latency) + 3 c / BW: the link hides every addition but the last, which reads two chunks
    and writes one. rs_nmc, ag : (N - 1) (c / L + latency); rs_nmc adds in memory. lead : the first
    stage's, g / stages: nothing is sent before. memory : communication's,
    [(N - 2) + u (N - 1)] / N S / BW, u the cost of an update.
    """

    gemm: float
    rs: float
    rs_nmc: float
    ag: float
    lead: float
    memory: float

    @property
    def sequential(self) -> float:
        """g + RS + AG."""
        return self.gemm + self.rs + self.ag

    @property
    def ideal(self) -> float:
        """max(g, RS) + AG: reduce-scatter and GEMM at once, neither slows the other."""
        return max(self.gemm, self.rs) + self.ag

    @property
    def ideal_nmc(self) -> float:
        """max(g, RS_nmc) + AG: sums are made in memory."""
        return max(self.gemm, self.rs_nmc) + self.ag

    def t3(self, beta: float = 0.0) -> float:
        """max(g + beta memory, lead + RS_nmc) + AG. beta : 0..1, `BETA` of a configuration; 0:
        nothing is in the GEMM's way."""
        beta = number("beta", beta, 0.0, 1.0)
        return max(self.gemm + beta * self.memory, self.lead + self.rs_nmc) + self.ag


def sublayer_times(gemm: "Gemm", ranks: int, machine: "Machine | None" = None) -> SublayerTimes:
    """The `SublayerTimes` of a `Gemm` summed over ``ranks`` on a `Machine`: what the simulation
    must meet (derived; the configurations are those of arXiv 2401.16677)."""
    from .hardware.machine import Machine

    machine, n = machine or Machine(), whole_number("ranks", ranks)
    rate, chunk = machine.efficiency * machine.dram, gemm.bytes / n
    read = (gemm.m + gemm.n) * gemm.k * gemm.itemsize
    g = max(gemm.flops / machine.rate, (read + gemm.bytes) / rate)
    hops, sent = cost("ring", "reduce_scatter", gemm.bytes, n)
    passed = hops * machine.latency + sent / machine.link
    down, across = gemm.tiles
    moved = (max(n - 2, 0) + machine.update * (n - 1)) * chunk
    last = 3 * chunk / rate if n > 1 else 0.0
    return SublayerTimes(
        g, passed + last, passed, passed, g / ceil(down * across / machine.slots), moved / rate
    )


def gemm_over_ring(k: int, ranks: int, machine: "Machine") -> float:
    """x: the seconds of a GEMM of inner dim ``k`` on a rank over those of its ring reduce-scatter,
    by rates alone: K L N / ((N - 1) F) for elements of 2 bytes; rows and columns cancel (derived).
    """
    return k * machine.link * ranks / ((ranks - 1) * machine.rate)


def ideal_speedup(x: float) -> float:
    """Of ideal overlap over sequential, with RS = AG and x = g / RS: sequential takes g + 2 RS,
    overlapped max(g, RS) + RS. At most 1.5, at x = 1 (derived)."""
    return (x + 2) / (max(x, 1.0) + 1)

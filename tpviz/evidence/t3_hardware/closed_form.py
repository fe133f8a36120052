"""Seconds of a sublayer in closed form (derived): what the simulated GPUs must meet.

Symbols are those of `tpviz.schemes.t3.paper`.

>>> from tpviz.evidence.t3_hardware import Gemm
>>> found = sublayer_times(Gemm(8192, 4256, 2128), 8)
>>> print(f"{1e6 * found.gemm:.0f} {1e6 * found.rs:.0f} {1e6 * found.ag:.0f} µs, ideal "
...       f"{found.sequential / found.ideal:.3f}x")
1294 439 410 µs, ideal 1.257x
"""

from math import ceil
from typing import NamedTuple

from tpviz.cluster.collectives import cost
from tpviz.core.checks import number, whole_number

from .machine import Gemm, Machine

BETA = {"t3": 0.94, "t3_mca": 0.29}
"""{configuration: share of communication's memory time that is not hidden}: fitted to the geomeans
of the paper's two small models, where they give 1.200 and 1.300."""


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


def sublayer_times(gemm: Gemm, ranks: int, machine: Machine | None = None) -> SublayerTimes:
    """The `SublayerTimes` of a `Gemm` summed over ``ranks`` on a `Machine`: what the simulation
    must meet (derived; the configurations are those of arXiv 2401.16677)."""
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


def gemm_over_ring(k: int, ranks: int, machine: Machine) -> float:
    """x: the seconds of a GEMM of inner dim ``k`` on a rank over those of its ring reduce-scatter,
    by rates alone: K L N / ((N - 1) F) for elements of 2 bytes; rows and columns cancel (derived).
    """
    return k * machine.link * ranks / ((ranks - 1) * machine.rate)

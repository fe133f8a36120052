"""The sublayer by formula (derived here, without the paper's text): what `simulate` must meet.

S is the output's bytes, c = S / N a chunk, L the link, BW the memory's streaming rate.

>>> from .machine import Gemm
>>> found = closed(Gemm(8192, 4256, 2128), 8)
>>> print(f"{1e6 * found.gemm:.0f} {1e6 * found.rs:.0f} {1e6 * found.ag:.0f} us, ideal "
...       f"{found.sequential / found.ideal:.3f}x")
1294 439 410 us, ideal 1.257x
"""

from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from tpviz.checks import number, whole_number

from .machine import Machine

if TYPE_CHECKING:
    from .machine import Gemm

BETA = {"t3": 0.94, "t3_mca": 0.29}
"""{configuration: share of communication's memory time that is not hidden}: fitted to the geomeans
of the paper's two small models, where they give 1.200 and 1.300."""


class Closed(NamedTuple):
    """Seconds. gemm : g = max(2 m n k / F, (A + B + S) / BW), A and B read once. rs : (N - 1)
    (c / L + latency) + 3 c / BW: sums hide behind the link but the last, which reads twice and
    writes. rs_nmc, ag : (N - 1) (c / L + latency). lead : of the first wave, before which nothing
    is sent: g / waves. memory : of communication, [(N - 2) + u (N - 1)] / N S / BW with u the cost
    of an update."""

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
        """max(g, RS_nmc) + AG: reduction in memory."""
        return max(self.gemm, self.rs_nmc) + self.ag

    def t3(self, beta: float = 0.0) -> float:
        """max(g + beta memory, lead + RS_nmc) + AG. beta : 0..1, `BETA` of a configuration; 0:
        nothing is in the GEMM's way."""
        beta = number("beta", beta, 0.0, 1.0)
        return max(self.gemm + beta * self.memory, self.lead + self.rs_nmc) + self.ag


def closed(gemm: "Gemm", ranks: int, machine: Machine | None = None) -> Closed:
    """The `Closed` of a `Gemm` summed over ``ranks`` on a `Machine`."""
    machine, n = machine or Machine(), whole_number("ranks", ranks)
    rate, chunk = machine.efficiency * machine.dram, gemm.bytes / n
    read = (gemm.m + gemm.n) * gemm.k * gemm.itemsize
    g = max(gemm.flops / machine.rate, (read + gemm.bytes) / rate)
    passed = (n - 1) * (chunk / machine.link + machine.latency)
    down, across = gemm.tiles
    moved = (max(n - 2, 0) + machine.update * (n - 1)) * chunk
    last = 3 * chunk / rate if n > 1 else 0.0
    return Closed(
        g, passed + last, passed, passed, g / ceil(down * across / machine.slots), moved / rate
    )

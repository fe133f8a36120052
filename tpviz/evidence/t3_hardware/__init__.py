"""T3's hardware, simulated tile by tile: tracker, trigger, near-memory reduction, arbitration.

from tpviz.evidence.t3_hardware import Gemm, Machine, simulate
simulate(Gemm(8192, 4256, 2128), 8, Machine(), config="t3_mca")
"""

from .machine import Gemm, Machine
from .map_errors import check
from .maps import COLLECTIVES, Dma, Local, Remote, maps
from .run import CONFIGS, SimResult, simulate

__all__ = [
    "COLLECTIVES",
    "CONFIGS",
    "Dma",
    "Gemm",
    "Local",
    "Machine",
    "Remote",
    "SimResult",
    "check",
    "maps",
    "simulate",
]

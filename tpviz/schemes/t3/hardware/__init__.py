"""T3's hardware, simulated tile by tile: tracker, trigger, sums in memory, arbitration.

from tpviz.schemes.t3.hardware import Gemm, Machine, play
play(Gemm(8192, 4256, 2128), 8, Machine(), config="t3_mca")
"""

from .faults import check
from .machine import Gemm, Machine
from .maps import COLLECTIVES, Dma, Local, Remote, maps
from .run import CONFIGS, Played, play

__all__ = [
    "COLLECTIVES",
    "CONFIGS",
    "Dma",
    "Gemm",
    "Local",
    "Machine",
    "Played",
    "Remote",
    "check",
    "maps",
    "play",
]

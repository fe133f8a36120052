"""A machine on which a GEMM of few tiles has many waves, for the tile-by-tile views."""

from dataclasses import replace
from math import sqrt

from .machine import Machine

FULL, PART = Machine(), 10
SMALL_GPU = replace(
    FULL,
    cus=FULL.cus // PART,
    llc=FULL.llc // PART,
    dram=FULL.dram / PART,
    link=FULL.link / PART,
    dma_buffer=FULL.dma_buffer // PART,
    tracker_sets=FULL.tracker_sets // PART,
    starvation=FULL.starvation * sqrt(PART),
)
"""A tenth of the paper's GPU in every amount and rate. Amounts over rates stay, so times do, as the
latency's (derived). But tiles are no smaller: the reads of a wave grow with the root of its tiles,
so bursts of reads last sqrt(10) times as long, and the limit of starvation with them (derived); and
the memory's queue keeps its bytes, so that it holds as many requests of a tile (derived)."""

"""A machine on which a GEMM of few tiles has many stages: what is drawn tile by tile runs on it."""

from dataclasses import replace

from .machine import Machine

FULL, PART = Machine(), 10
TENTH = replace(FULL, cus=FULL.cus // PART, llc=FULL.llc // PART, dram=FULL.dram / PART,
                link=FULL.link / PART, dma_buffer=FULL.dma_buffer // PART,
                tracker_sets=FULL.tracker_sets // PART, entry=FULL.entry // PART)
"""A tenth of the paper's GPU in every amount and rate. Times are the paper's: amounts over rates
stay, so latency and the limit of starvation do too (derived)."""

"""Pipelines' equations: the bubble, and what fills it.

Huang et al. 2019 (GPipe), https://arxiv.org/abs/1811.06965; Narayanan et al. 2021 (1F1B and
interleaved stages), https://arxiv.org/abs/2104.04473; Qi et al. 2023 (zero bubble: gradients of
weights wait), https://arxiv.org/abs/2401.10241. p ranks, m microbatches, v stages a rank:

    bubble / ideal time = (p - 1) / (v m)       (2104.04473, section 2.2)

Makespans of all schedules, with their sources: `tpviz.core.schedules.formulas`.

>>> bubble(4, 8), bubble(4, 8, 2)
(0.375, 0.1875)
"""


def bubble(ranks: int, microbatches: int, chunks: int = 1) -> float:
    """Time without work over time of work, of GPipe and of 1F1B with ``chunks`` stages a rank."""
    return (ranks - 1) / (chunks * microbatches)

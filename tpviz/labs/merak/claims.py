"""Claims of Merak's paper about its runs: shown next to ours, never reproduced here.

Only its abstract was at hand: which part of the gain is whose, on which machine and with which
sizes, is not in it. What its schedule alone can give is `tpviz.schemes.merak.paper.makespan_saved`.
"""

from typing import NamedTuple

from tpviz.schemes.merak.paper import makespan_saved

ABSTRACT = "abstract of arXiv 2206.04959"


class Claim(NamedTuple):
    """Up to how many times as fast as frameworks before it (Megatron-LM and DeepSpeed are named),
    on 64 GPUs."""

    model: str
    speedup: float
    source: str = ABSTRACT


CLAIMS = (Claim("1.5B", 1.42), Claim("2.5B", 1.39), Claim("8.3B", 1.43), Claim("20B", 1.61))


def told() -> tuple[str, str]:
    """Claims and expectation in one sentence each."""
    models = ", ".join(f"{c.model} {c.speedup:.2f}x" for c in CLAIMS)
    saved = ", ".join(
        f"{100 * makespan_saved(p, m):.0f} % at p={p}, m={m}"  # pyright: ignore[reportOperatorIssue]
        for p, m in ((4, 8), (8, 32))
    )
    return (
        f"Theirs, at most: {models} over 3D-parallel frameworks before it, on 64 GPUs "
        f"({ABSTRACT}; the gain of each part is not in it; not reproduced here).",
        "Derived: against 1F1B with early recomputation the shifted critical path alone saves "
        f"{saved} (equal stages, backward twice forward): a constant per step, which cannot "
        "explain that.",
    )

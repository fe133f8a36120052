"""Claims of Merak's paper about its runs: shown next to ours, never reproduced here.

We used only its abstract, which does not give the gain of each part, the machine or the sizes. The
gain of the schedule alone is derived here, from the closed forms.
"""

from typing import NamedTuple

from tpviz.schedules.formulas import makespan

ABSTRACT = "abstract of arXiv 2206.04959"


class Claim(NamedTuple):
    """Up to how many times as fast as frameworks before it (Megatron-LM and DeepSpeed are named),
    on 64 GPUs."""

    model: str
    speedup: float
    source: str = ABSTRACT


CLAIMS = (Claim("1.5B", 1.42), Claim("2.5B", 1.39), Claim("8.3B", 1.43), Claim("20B", 1.61))


def shifting(
    pp: int, microbatches: int, forward: float = 1.0, backward: float = 2.0
) -> float | None:
    """The part (0..1) of 1F1B's makespan with early recomputation that the shifted critical path
    saves (derived: equal stages, all recomputed, messages free).

    At backward = 2 forward that is 3 forwards of (4 m + 3 (p - 1)): the same seconds at any number
    m of microbatches. None where the closed form does not hold, see `formulas`.
    """
    early, shifted = (
        makespan(name, pp, microbatches, forward, backward, forward)
        for name in ("early_recompute", "shifted_critical_path")
    )
    return None if early is None or shifted is None else 1 - shifted / early


def told() -> tuple[str, str]:
    """Claims and expectation in one sentence each."""
    models = ", ".join(f"{c.model} {c.speedup:.2f}x" for c in CLAIMS)
    saved = ", ".join(f"{100 * shifting(p, m):.0f} % at p={p}, m={m}" for p, m in ((4, 8), (8, 32)))  # pyright: ignore[reportOperatorIssue]
    return (
        f"Theirs: at most {models} as fast as 3D-parallel frameworks before it, on 64 GPUs "
        f"({ABSTRACT}; the gain of each part is not in it; not reproduced here).",
        "Derived: against 1F1B with early recomputation the shifted critical path alone saves "
        f"{saved} (equal stages, backward twice forward): a constant per step, which cannot "
        "explain that.",
    )

"""Where Merak's claims are, and what its schedule alone can give."""

from tpviz.schemes.merak.paper import makespan_saved


def told() -> tuple[str, str]:
    """Both in one sentence each."""
    saved = ", ".join(
        f"{100 * makespan_saved(p, m):.0f} % at p={p}, m={m}"  # pyright: ignore[reportOperatorIssue]
        for p, m in ((4, 8), (8, 32))
    )
    return (
        "The claims of the paper's abstract for 64 GPUs beside ours: tv.claims('Merak').",
        "Derived: against 1F1B with early recomputation the shifted critical path alone saves "
        f"{saved} (equal stages, backward twice forward): a constant per step, which cannot "
        "explain them.",
    )

"""The largest part of its layers that the first stage can keep, for a memory budget.

The released code takes this number from its user; here it follows from the bytes of a microbatch
(`memory`, derived, or what a profile of one says).
"""

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from tpviz.core.tables import show_bytes
from tpviz.schemes.pipeline.memory import memory

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .strategy import Merak


def keeps(s: "Merak", w: "GPT") -> list[float]:
    """The values of ``keep``, from 1 down to 0, at which a stage keeps a layer less."""
    found = {0.0, 1.0}
    for share, blocks in zip(s.shares(), s.blocks(w)):
        found |= {kept / (len(blocks) or 1) / (share or 1.0) for kept in range(len(blocks) + 1)}
    return sorted((keep for keep in found if keep <= 1), reverse=True)


def within(
    s: "Merak", w: "GPT", budget: float, need: "Callable[[Merak], float] | None" = None
) -> "Merak":
    """``s`` with stage-aware recomputation that recomputes as little as fits in ``budget`` bytes of
    a rank. need(strategy) : bytes of the rank that needs most, `memory`'s total unless given.

    Raises ``ValueError`` where not even recomputing everything fits, with the bytes that it takes.
    """
    need = need or (lambda strategy: memory(strategy, w).total)
    for keep in keeps(s, w):
        made = replace(s, recompute="stage_aware", keep=keep)
        if need(made) <= budget:
            return made
    raise ValueError(
        f"{s.short} needs {show_bytes(need(made))} of a rank even where it recomputes "
        f"every layer, more than {show_bytes(budget)}: use more ranks, more "
        "microbatches, or a larger budget"
    )

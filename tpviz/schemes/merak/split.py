"""Which part of a GPT is on which stage of the pipeline (no torch)."""

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpviz.workload import GPT

TOKENS, HEAD = "embed.token.weight", "head.weight"
"""The two ends' weights; where they are one, the last stage has a copy under the second name."""


@lru_cache(maxsize=256)
def layers_of(layers: int, stages: int) -> tuple[range, ...]:
    """The blocks of each stage: contiguous ranges, as equal as can be, the later ones larger.

    Stage 0 has the embedding besides, the last one the head.
    """
    cuts = [layers * s // stages for s in range(stages + 1)]
    return tuple(range(a, b) for a, b in pairwise(cuts))


def stage_of(name: str, workload: "GPT", stages: int) -> int:
    """The stage that has the parameter or module ``name``."""
    part, _, rest = name.partition(".")
    if part != "blocks":
        return 0 if part == "embed" else stages - 1
    block = int(rest.split(".")[0])
    owned = layers_of(workload.layers, stages)
    return next(s for s, blocks in enumerate(owned) if block in blocks)

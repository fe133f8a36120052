"""Known schemes that are special cases of AxoNN's grid: one axis or two, with equal volumes.

A case sends as many bytes as the scheme. Group names and fused messages differ, except that
``gather="block"`` fuses a block's weights as FSDP does. Not among them: SUMMA, Colossal-AI's 2D and
2.5D, CAGNET, which move data otherwise (by broadcasts and shifts), whatever the grid.

>>> from tpviz import AxoNN
>>> [case.name for case in cases(AxoNN(x=4, z=1))]
['Megatron-LM']
"""

from collections.abc import Callable
from typing import NamedTuple

from tpviz.schemes.axonn.strategy import AxoNN


class GridCase(NamedTuple):
    """A scheme that a grid may be.

    is_reached : whether an `AxoNN` is it; what : one sentence; source : how that is known:
    "derived" (here, from the volumes), "code" (the authors'), "authors" (they say so), "measured"
    (by tests of the ledgers).
    """

    name: str
    is_reached: Callable[[AxoNN], bool]
    what: str
    source: tuple[str, ...]


def cases(strategy: AxoNN) -> tuple[GridCase, ...]:
    """The `GridCase`s that an `AxoNN` equals; none on most grids."""
    return tuple(case for case in KNOWN if case.is_reached(strategy))


def larger(strategy: AxoNN) -> str:
    """The axes of more than one rank, as a string in the order x, y, z, d (data)."""
    s = strategy
    return "".join(a for a, n in zip("xyzd", (s.x, s.y, s.z, s.data)) if n > 1)


def kept(strategy: AxoNN) -> bool:
    """Whether gathered weights of the blocks stay from forward to backward."""
    return strategy.keep and strategy.recompute != "full"


KNOWN = (
    GridCase(
        "one device",
        lambda s: larger(s) == "",
        "no axis has more than one rank: nothing is sent.",
        ("derived",),
    ),
    GridCase(
        "Megatron-LM",
        lambda s: larger(s) == "x",
        "x alone is 1D tensor parallelism: four all-reduces a block, each of tokens x hidden size "
        "numbers.",
        ("derived", "measured"),
    ),
    GridCase(
        "reversed Megatron-LM",
        lambda s: larger(s) == "y",
        "y alone cuts first layers by rows: wide all-reduces (3h, MLP), about three times the "
        "bytes of x alone.",
        ("derived", "measured"),
    ),
    GridCase(
        "FSDP (ZeRO-3)",
        lambda s: larger(s) == "z" and not kept(s),
        "z alone shards all weights, gathered again for backward: three passes or more; "
        "gather='block' fuses messages as FSDP does.",
        ("code", "authors", "measured"),
    ),
    GridCase(
        "ZeRO-2-like",
        lambda s: larger(s) == "z" and kept(s),
        "z alone, gathered weights kept until backward: two passes over them, but the memory of "
        "whole weights.",
        ("code", "authors", "measured"),
    ),
    GridCase(
        "HSDP",
        lambda s: larger(s) == "zd",
        "weights sharded over z, gradients of the shards all-reduced over data (as in MiCS and "
        "ZeRO++ hpZ).",
        ("derived",),
    ),
    GridCase(
        "DDP",
        lambda s: larger(s) == "d",
        "data alone: every rank has the whole model, gradients are all-reduced at the end.",
        ("derived", "measured"),
    ),
    GridCase(
        "Tensor3D (2D)",
        lambda s: s.z == 1 and s.x > 1 and s.y > 1,
        "without z this is 2D tensor parallelism, the authors' first scheme (Tensor3D: that and "
        "data).",
        ("authors", "derived"),
    ),
    GridCase(
        "like Colossal-AI 3D",
        lambda s: s.x == s.y == s.z > 1,
        "x = y = z = q: k x n weights on m tokens send (kn + 2mn)(q-1)/q³ numbers forward, "
        "theirs (mk + kn + mn)(q-1)/q³; q ranks hold each activation.",
        ("derived",),
    ),
)
"""In the order in which views list them; of each axis alone, then of several."""

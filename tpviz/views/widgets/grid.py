"""AxoNN's cube of ranks as a widget: a transformer block's collectives, step by step.

>>> view = GridView(tv.AxoNN(x=2, y=2, z=2), tv.GPT(), rank=5)      # doctest: +SKIP
"""

from tpviz.core.mesh import Mesh
from tpviz.core.workload import GPT
from tpviz.schemes.axonn.strategy import AxoNN
from tpviz.views.figures.blocks import Story, check
from tpviz.views.films.grid import grid_frames
from tpviz.views.films.grid_cases import cases

from .blocks import BlocksView

UNSEEN = ("tune", "clip")
"""Knobs that change nothing in a block: not shown, they stay as the strategy has them."""


def story(strategy: AxoNN, workload: GPT) -> Story:
    """The `Story` of an `AxoNN`.

    Raises ValueError on another strategy, and on sizes that clash.
    """
    if not isinstance(strategy, AxoNN):
        raise ValueError(f"GridView shows tv.AxoNN, not {getattr(strategy, 'short', strategy)}")
    mesh = Mesh({axis: n for axis, n in strategy.axes.items() if n > 1} or {"x": 1})
    check(mesh, 0)  # a grid beyond what can be shown is not walked
    strategy.check(workload)
    frames = tuple(grid_frames(strategy, workload))
    return Story(strategy.short, mesh, workload, frames, strategy, cases(strategy))


class GridView(BlocksView):
    """One block on AxoNN's grid: the cube of ranks, weight shards in flight, and all-reduces.

    Every step is an operation of the program, with the matrices in it, the parts of the chosen rank
    filled, the groups that communicate, other collectives in flight, and bytes. The schemes that
    the grid equals (Megatron-LM, FSDP, ...) are named. Knobs above it change the grid.

    Parameters
    ----------
    strategy : `tpviz.AxoNN`; None is ``AxoNN()``.
    workload : `tpviz.GPT`; None is ``GPT()``.
    rank : whose blocks are shown.
    autoplay : start playing (never where the reader prefers reduced motion).

    ``strategy``, ``rank``, ``step``, ``error`` and what is raised: as of `BlocksView`.
    """

    _default, _story, _hidden = AxoNN, staticmethod(story), UNSEEN

"""A transformer block under ATP as a widget: each rank's shards, step by step, with explanations.

>>> view = BlocksView(tv.ATP(mesh=(2, 2)), tv.GPT(), rank=1)      # doctest: +SKIP
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any, ClassVar

from tpviz.core.mesh import Mesh
from tpviz.core.workload import GPT
from tpviz.schemes.atp.strategy import ATP
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.schemes.strategy import Strategy
from tpviz.views.figures import blocks as figure
from tpviz.views.films.blocks import block_frames

from .base import Film, Framed, named
from .knobs import Knobs, slider

MOST = 8
"""Ranks in the menu of meshes; a strategy passed in may have up to 16."""


class BlockSteps(Film):
    """The picture of `BlocksView`: `show` gives it a `figures.blocks.Story`, and the rank
    from which it is seen; it stays at the same place in the block."""

    kind, _figure, _scene_of = "blocks", figure, staticmethod(figure.blocks_scene)

    def _chosen_in(self, scene, before):
        step = self._same_place(before) if before else scene["opens"]
        return {"rank": scene["rank"], "step": step}

    def _same_place(self, before):
        """The frame that comes nearest to the one shown of the story before."""
        old = before.frames[min(self.step, len(before.frames) - 1)]
        alike = [
            (f[:2] == old[:2]) * (2 + (bool(f.product) == bool(old.product))) + (f.part == old.part)
            for f in self.subject.frames
        ]
        return alike.index(max(alike))

    def _told(self):
        return figure.describe(self.subject, self.rank)

    def _words(self):
        return f"{self.scene['about']}, rank {self.rank}, {self.scene['captions'][self.step]}"


def story(strategy: Strategy, workload: GPT) -> figure.Story:
    """The `tpviz.views.figures.blocks.Story` of a strategy.

    Raises ValueError on another strategy than ATP and Megatron, and on sizes that clash.
    """
    if not isinstance(strategy, ATP | Megatron):
        raise ValueError(
            f"BlocksView shows tv.ATP, or tv.Megatron as the mesh of one axis, not {strategy!r}"
        )
    if workload.experts or workload.kv_lora:
        raise ValueError(
            "a block is shown with two pairs of layers: use a workload without experts and kv_lora"
        )
    strategy.check(workload)
    local = strategy.local(workload)  # of several microbatches one is shown
    named = [
        f"{f.name}={value!r}"
        for f in fields(strategy)
        if (value := getattr(strategy, f.name)) != f.default or f.name in ("mesh", "tp")
    ]
    return figure.Story(
        f"{type(strategy).__name__}({', '.join(named)})",
        Mesh(strategy.axes),
        local,
        tuple(block_frames(strategy.layout, local)),
    )


class BlocksView(Framed):
    """One block, forward and backward: matrices sharded over the mesh, collectives, and bytes sent.

    Every step is a kernel or a collective of the program, with the tensors in it, the blocks of the
    chosen rank filled, and the groups that communicate. Knobs above it change the strategy.

    Parameters
    ----------
    strategy : `tpviz.ATP`, or `tpviz.Megatron` as the mesh of one axis; None is ``ATP()``.
    workload : `tpviz.GPT`; None is ``GPT()``.
    rank : whose blocks are shown.
    autoplay : start playing (never where the reader prefers reduced motion).

    ``strategy`` is the one shown, ``rank`` and ``step`` (from 0) can be set, ``error`` says why the
    current knobs cannot be shown, or is "". Raises ValueError on another strategy or workload, on
    sizes that clash, above 16 ranks, and for an unknown rank; TypeError on an argument that does
    not exist.
    """

    picture: BlockSteps
    _default: ClassVar[Any] = ATP
    _story: ClassVar[Callable[..., figure.Story]] = staticmethod(story)
    _hidden: ClassVar[Sequence[str]] = ("accumulation", "recompute", "offload")
    """What another view of a block has instead; knobs that it does not show."""

    @named()
    def __init__(
        self,
        strategy: Strategy | None = None,
        workload: GPT | None = None,
        rank: int = 0,
        *,
        autoplay: bool = False,
    ):
        strategy = self._default() if strategy is None else strategy
        self.workload = GPT() if workload is None else workload
        if not isinstance(self.workload, GPT):
            name = type(self).__name__
            raise ValueError(f"{name} needs a workload such as tv.GPT(), not {workload!r}")
        self.strategy, picture = strategy, BlockSteps(autoplay)
        picture.show(self._story(strategy, self.workload), rank)
        self._rank = slider("rank", rank, "whose blocks are shown", 0, MOST, 1)
        self._rank.max = strategy.world_size - 1  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        given, hidden = vars(strategy), self._hidden
        knobs = Knobs(type(strategy), given, MOST, compact=True, hidden=hidden)
        [row] = knobs.children
        row.children = [*row.children, self._rank]
        super().__init__(knobs, picture)
        self.hear("rank", self._rank)
        self.picture.observe(lambda change: self._clicked(change.new), "rank")

    # -- what moves ----------------------------------------------------------------------------
    def _read(self):
        strategy = self.knobs.cls(**self.knobs.values())  # pyright: ignore[reportAttributeAccessIssue]
        drawn = self._story(strategy, self.workload)
        figure.check(drawn.mesh, 0)
        self.strategy = strategy
        rank = min(self._rank.value, strategy.world_size - 1)  # pyright: ignore[reportAttributeAccessIssue]
        self._rank.max = strategy.world_size - 1  # pyright: ignore[reportAttributeAccessIssue]
        return drawn, rank

    def _made_with(self):
        rank = min(self._rank.value, self.strategy.world_size - 1)  # pyright: ignore[reportAttributeAccessIssue, reportOptionalMemberAccess]
        return {"strategy": self.strategy, "workload": self.workload, "rank": rank}

    def _clicked(self, rank):
        """A rank was chosen in the picture."""
        if rank != self._rank.value and 0 <= rank <= self._rank.max:  # pyright: ignore[reportAttributeAccessIssue]
            self._rank.value = rank  # pyright: ignore[reportAttributeAccessIssue]

    @property
    def rank(self) -> int:
        """The rank whose blocks are shown."""
        return self.picture.rank

    @rank.setter
    def rank(self, rank: int) -> None:
        figure.check(Mesh(self.strategy.axes), rank)  # pyright: ignore[reportOptionalMemberAccess]
        self._rank.value = rank  # pyright: ignore[reportAttributeAccessIssue]

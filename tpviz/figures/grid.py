"""A walk through a block of AxoNN -> scene: the cube of ranks, weights on their way, known cases.

Built as `tpviz.figures.blocks`, which counts and words the frames; here is what the depth axis and
the replicas add. Everything is counted from the program's operations; there are no times here.
"""

from typing import Any, NamedTuple

from tpviz.mesh import Mesh

from . import blocks
from .svg import amount


class GridStory(NamedTuple):
    """What the picture is of: words for it, the axes of more than one rank, the workload, the
    frames of `tpviz.schemes.axonn.walk.walk`, the strategy, and (case, is it reached?) pairs."""

    title: str
    mesh: Mesh
    workload: Any
    frames: tuple
    strategy: Any
    cases: tuple


def grid_scene(story, rank=0):
    """The scene of a `GridStory`, ready for JSON, with the fields of
    `tpviz.figures.blocks.blocks_scene`.

    Raises ValueError on a rank that is not there, and above 16 ranks.
    """
    from .grid_svg import pictures

    check(story.mesh, rank)
    return {
        "title": story.title,
        "badge": blocks.BADGE,
        "rank": rank,
        "captions": [caption(story, i) for i in range(len(story.frames))],
        "words": [words(story, i) for i in range(len(story.frames))],
        "facts": facts(story),
        "top": 34,
        **pictures(story, rank),
    }


check = blocks.check


def mesh_of(strategy):
    """The axes of more than one rank; x where there is none."""
    return Mesh({axis: n for axis, n in strategy.axes.items() if n > 1} or {"x": 1})


# -- words -----------------------------------------------------------------------------------------
def caption(story, number):
    """One frame in words."""
    return blocks.caption(story, number)


def words(story, number):
    """The line of a frame, what it means, and what goes on meanwhile."""
    frame = story.frames[number]
    parts = [f"{blocks.sentence(frame)}.", frame.words, *under_way(frame)]
    return " ".join(parts)


def under_way(frame):
    """What is on its way over z during a frame, a line for each kind."""
    ahead = [f for f in frame.under_way if f.collective == "all_gather"]
    leaving = [f.layer for f in frame.under_way if f.collective == "reduce_scatter"]
    return [f"Sent for ahead: {f.name}." for f in ahead] + (
        [f"Not waited for yet: dW of {', '.join(leaving)}."] if leaving else []
    )


def reached(story):
    """The cases that the grid is."""
    return [case for case, yes in story.cases if yes]


def facts(story):
    """(label, text) pairs for the line above the picture."""
    s, total = story.strategy, blocks.running(story)[-1]
    sends = ", ".join(f"{amount(n)} over {axis}" for axis, n in total.items() if n) or "nothing"
    found = [
        ["grid", ", ".join(f"{a} = {n}" for a, n in grid(s).items())],
        ["a rank sends, in a block", sends],
    ]
    if s.accumulation > 1:
        found.append(
            [
                "microbatches",
                f"{s.accumulation}, the last is shown, each sends as much before the end",
            ]
        )
    return found


def grid(strategy):
    """{axis: ranks} as the paper writes them: x, y, z, data."""
    return {axis: strategy.axes[axis] for axis in ("x", "y", "z", "data")}


def to_table(story):
    """Rows of strings, header first: one frame each."""
    head, *rows = blocks.to_table(story)
    return [
        [*head, "under way"],
        *([*row, " ".join(under_way(frame))] for row, frame in zip(rows, story.frames)),
    ]


def describe(story, rank, number):
    """The block, the known schemes that the grid is, and one frame, in words."""
    w, s, total = story.workload, story.strategy, blocks.running(story)[-1]
    where = ", ".join(f"{axis} {i}" for axis, i in story.mesh.coords(rank).items())
    sends = " and ".join(f"{amount(n)} over {axis}" for axis, n in total.items() if n) or "nothing"
    names = " and ".join(case.name for case in reached(story))
    known = f"As a known scheme: {names}. " if names else ""
    part = f", in microbatches of {w.batch // s.accumulation}" if s.accumulation > 1 else ""
    return (
        f"One block of {story.title}, {w.batch} x {w.seq} tokens{part}, hidden size {w.hidden},"
        f" in {len(story.frames)} steps. {known}A rank sends {sends} on rings. Rank {rank} is "
        f"at {where}. Shown: {caption(story, number)}. {words(story, number)}"
    )

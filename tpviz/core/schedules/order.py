"""Who waits for whom in a schedule: the order in which it can be done, or the ring that hangs.

A forward on stage s needs the activation of stage s - 1, a backward (B, RB, I) the gradient of
stage s + 1; all else an action needs is on its own stage, and so before it on its own rank.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .actions import Action
    from .table import Schedule

MAKES = {"F": "activation", "B": "gradient", "RB": "gradient", "I": "gradient"}
"""The message of each kind of action to the next or previous stage."""


class Step(NamedTuple):
    """An action in `walk`'s order: where it is, and what is before it.

    needs : place in the order of the action whose result it waits for, or -1; is_message : whether
    that result comes from another rank.
    """

    rank: int
    index: int
    needs: int
    is_message: bool


class StuckRank(NamedTuple):
    """A rank that can do no more: the index it stands at, and the result that is missing."""

    rank: int
    index: int
    what: str
    stage: int
    microbatch: int


def needs(action: "Action", stages: int) -> tuple[str, int, int] | None:
    """(what, stage, microbatch) that the action waits for from another stage, or None."""
    what, stage = MAKES.get(action.kind), action.stage
    if what == "activation" and stage > 0:
        return what, stage - 1, action.microbatch
    if what == "gradient" and stage < stages - 1:
        return what, stage + 1, action.microbatch
    return None


def walk(schedule: "Schedule") -> tuple[tuple[Step, ...], list[StuckRank]]:
    """(steps, waits): `Step`s in an order that can run, and the `StuckRank`s that cannot finish.

    Each rank does its actions in their order and goes on as soon as it can; sends never block. An
    overlapped pair begins when both its actions can. ``waits`` is empty if there is no deadlock.
    """
    steps, made = [], {}
    at = [0] * schedule.ranks

    def missing(rank):
        row, index = schedule.actions[rank], at[rank]
        both = row[index : index + 1 + ((rank, index) in schedule.pairs)]
        wanted = (needs(action, schedule.stages) for action in both)
        return next((w for w in wanted if w is not None and w not in made), None)

    pairs, last = schedule.pairs, schedule.stages - 1
    moved = True
    while moved:
        moved = False
        for rank, row in enumerate(schedule.actions):
            for index in range(at[rank], len(row)):
                kind, stage, microbatch = row[index]
                what, place, sender = MAKES.get(kind), -1, rank
                if (what == "activation" and stage > 0) or (what == "gradient" and stage < last):
                    beside = stage - 1 if what == "activation" else stage + 1
                    place, sender = made.get((what, beside, microbatch), (None, None))
                if place is None or ((rank, index) in pairs and missing(rank)):
                    break
                if what:
                    made[what, stage, microbatch] = len(steps), rank
                steps.append(Step(rank, index, place, sender != rank))
                at[rank] = index + 1
                moved = True
    return tuple(steps), [
        StuckRank(rank, at[rank], *missing(rank))  # pyright: ignore[reportOptionalIterable, reportArgumentType]
        for rank, row in enumerate(schedule.actions)
        if at[rank] < len(row)
    ]


def rings(schedule: "Schedule", waits: Iterable[StuckRank]) -> list[list[StuckRank]]:
    """The rings among ``waits``: lists of `StuckRank`, each waiting for the rank of the next.

    A rank that waits for a result that no rank produces is in no ring.
    """
    standing = {wait.rank: wait for wait in waits}
    maker = {
        (MAKES[a.kind], a.stage, a.microbatch): rank
        for rank, row in enumerate(schedule.actions)
        for a in row
        if a.kind in MAKES
    }
    found, seen = [], set()
    for rank in standing:
        path = []
        while rank in standing and rank not in seen:
            seen.add(rank)
            path.append(rank)
            wait = standing[rank]
            rank = maker.get((wait.what, wait.stage, wait.microbatch))
        if rank in path:
            found.append([standing[r] for r in path[path.index(rank) :]])
    return found

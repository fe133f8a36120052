"""From a plain order of forwards and backwards to a `Schedule`, with recompute put in.

A generator says in which order a rank goes forward and backward ("F", "B", or "I" and "W") and
which backwards may recompute early; whether there is recompute, and of what kind, is decided here:

=========================  ================
plain                      where recomputed
=========================  ================
F, W                       F, W
B, if ``early``            R, B
B                          RB
I                          R, I
=========================  ================
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from .actions import Action
from .table import Schedule


class Plan(NamedTuple):
    """What a schedule's generator returns.

    rank_of : stage -> rank. rows : per rank a list of plain `Action`s; a tuple of two is an
    overlapped pair. recomputes : bool per stage, whether it can recompute. early(action) : whether
    its backward recomputes early.
    """

    rank_of: tuple[int, ...]
    rows: Sequence[Sequence[Action | tuple[Action, Action]]]
    recomputes: tuple[bool, ...]
    early: Callable[[Action], bool] = lambda action: False


def looped(ranks: int, chunks: int = 1) -> tuple[int, ...]:
    """rank_of where stages go round the ranks: 0, 1, .., p-1, 0, 1, .. (Megatron)."""
    return tuple(range(ranks)) * chunks


def v_shape(ranks: int) -> tuple[int, ...]:
    """rank_of where stages go down the ranks and come back: 0, 1, .., p-1, p-1, .., 0."""
    return (*range(ranks), *reversed(range(ranks)))


def finish(name: str, plan: Plan, microbatches: int, recompute: bool | Sequence[bool]) -> Schedule:
    """The `Schedule` of a plan. recompute : a bool, or one for each stage; see `schedule`."""
    stages = len(plan.rank_of)
    asked = _asked(recompute, stages)
    does = tuple(may and wish for may, wish in zip(plan.recomputes, asked))
    rows, pairs = [], set()
    for rank, plain in enumerate(plan.rows):
        row = []
        for item in plain:
            both = (item,) if isinstance(item, Action) else item
            if len(both) == 2:
                pairs.add((rank, len(row)))
            for action in both:
                row += _recomputing(action, plan.early) if does[action.stage] else [action]
        rows.append(tuple(row))
    return Schedule(
        name, len(rows), stages, microbatches, plan.rank_of, tuple(rows), does, frozenset(pairs)
    )


def _recomputing(action, early):
    """The actions of a recomputing stage in the place of a plain one."""
    kind, *place = action
    if kind == "I" or (kind == "B" and early(action)):
        return [Action("R", *place), action]
    return [Action("RB", *place)] if kind == "B" else [action]


def _asked(recompute: Any, stages: int) -> tuple[bool, ...]:
    if isinstance(recompute, bool):
        return (recompute,) * stages
    asked = tuple(recompute) if hasattr(recompute, "__iter__") else (recompute,)
    if len(asked) != stages or not all(isinstance(wish, bool) for wish in asked):
        raise ValueError(
            f"recompute={recompute!r}: use True, False, or a tuple of them, one for "
            f"each of the {stages} stages"
        )
    return asked

"""Exercises graded by numbers and by the trace.

tv.exercise("mean_over_ranks")                  # shows the task
tv.check("mean_over_ranks", mean_over_ranks)    # runs it on real ranks and answers with a hint
tv.hint("mean_over_ranks")                      # where to look, the idea, the shape of the answer
"""

from .catalogue import EXERCISES, find
from .grade import Result, check, hint
from .task import Exercise

__all__ = ["Exercise", "Result", "check", "exercise", "exercises", "hint"]


def exercise(name: str) -> Exercise:
    """The exercise called ``name``, which shows its task. Raises ValueError for an unknown name."""
    return find(name)


def exercises() -> list[Exercise]:
    """All exercises, in the order of the course."""
    return list(EXERCISES.values())

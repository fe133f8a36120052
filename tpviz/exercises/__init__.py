"""Exercises graded by numbers and by the trace.

tv.exercises()                                  # the table of all, with your progress
tv.exercise("mean_over_ranks")                  # shows the task
tv.check("mean_over_ranks", mean_over_ranks)    # runs it on real ranks and answers with a hint
tv.hint("mean_over_ranks")                      # where to look, the idea, the shape of the answer
"""

import sys
from types import ModuleType

from .catalogue import find
from .course import Exercises, exercises
from .grade import Result, check, hint
from .task import Exercise

__all__ = ["Exercise", "Exercises", "Result", "check", "exercise", "exercises", "hint"]


def exercise(name: str) -> Exercise:
    """The exercise called ``name``, which shows its task. Raises ValueError for an unknown name."""
    return find(name)


class _Callable(ModuleType):
    """This module, which ``tpviz.exercises`` is once it is imported: called, it is the function."""

    def __call__(self, notebook: str | None = None, topic: str | None = None) -> Exercises:
        return exercises(notebook, topic)


sys.modules[__name__].__class__ = _Callable

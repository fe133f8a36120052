"""Exercises graded by numbers and by the trace.

tv.exercises()                                  # the table of all, with your progress
tv.exercise("mean_over_ranks")                  # shows the task
tv.check("mean_over_ranks", mean_over_ranks)    # runs it on real ranks and answers with a hint
tv.hint("mean_over_ranks")                      # where to look, the idea, the shape of the answer
"""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from tpviz import _load  # pyright: ignore[reportAttributeAccessIssue]

if TYPE_CHECKING:
    from .catalogue import exercise
    from .course import Exercises, exercises
    from .grade import Result, check, hint
    from .task import Exercise

__all__ = ["Exercise", "Exercises", "Result", "check", "exercise", "exercises", "hint"]
_HOME = {"Exercise": "task", "exercise": "catalogue", "Exercises": "course", "exercises": "course"}
__dir__ = lambda: __all__


def __getattr__(name: str) -> Any:  # when first used: ranks, which run answers, need few
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(_load(f"{__name__}.{_HOME.get(name, 'grade')}"), name)


class _Callable(ModuleType):
    """This module, which ``tpviz.exercises`` is once it is imported: called, it is the function."""

    def __call__(self, notebook: str | None = None, topic: str | None = None) -> "Exercises":
        return self.exercises(notebook, topic)


sys.modules[__name__].__class__ = _Callable

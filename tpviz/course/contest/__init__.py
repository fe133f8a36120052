"""The public leaderboard: tasks and entries are files of data, and a grade is the same anywhere.

An entry holds no code, so none runs: a plan as the command line reads it, or the messages of an
all-reduce. Real ranks compare it with one process; then its score is simulated or counted.
"""

from .entries import Entrant, Task, entry, scored, task, verified
from .grading import Grade, entries, grade, grade_all, ranked

__all__ = [
    "Entrant",
    "Grade",
    "Task",
    "entries",
    "entry",
    "grade",
    "grade_all",
    "ranked",
    "scored",
    "task",
    "verified",
]

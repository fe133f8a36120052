"""The table of all exercises, with the learner's progress."""

from collections.abc import Iterable, Mapping
from html import escape

from tpviz.core.tables import html_table, text_table

from . import progress
from .catalogue import EXERCISES
from .progress import Done
from .task import Exercise


class Exercises(tuple[Exercise, ...]):
    """Exercises in the order of the course; a notebook shows them as a table.

    done : {name: tries and whether solved}, when the table was made. note : what is wrong with the
    file of progress, or nothing.
    """

    done: Mapping[str, Done] = {}
    note: str = ""

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first."""
        head = ["notebook", "exercise", "topic", "difficulty", "minutes", "tries", "solved"]
        return [head, *map(self._row, self)]

    def _row(self, task):
        done = self.done.get(task.name, Done())
        level = "●" * task.difficulty + "○" * (3 - task.difficulty)
        counts = f"{task.minutes}", f"{done.tries or ''}", "✓" * done.solved
        return [task.notebook, task.name, task.topic, level, *counts]

    @property
    def _words(self):
        left = [t.minutes for t in self if not self.done.get(t.name, Done()).solved]
        total = f"{len(self) - len(left)} of {len(self)} solved"
        rest = f", about {sum(left) / 60:.1f} hours left" if left else ""
        return self.note or f'{total}{rest}. `tv.exercise("{self[0].name}")` shows a task.'

    def __repr__(self):
        return "\n".join([*text_table(self.to_table(), right=(4, 5)), self._words])

    def _repr_html_(self):
        table = html_table(self.to_table(), "class='tpviz-lab'")
        return f"{table}<p>{escape(self._words)}</p>"


def exercises(notebook: str | None = None, topic: str | None = None) -> Exercises:
    """The exercises with their notebook, topic, difficulty, minutes, and your progress: tries up to
    the first right answer, and which are solved.

    notebook, topic : only those whose notebook or topic begins so, such as "02". Progress is kept
    in ``TPVIZ_PROGRESS``, or ``tpviz/progress.json`` in your data folder. Raises ValueError where
    there is no such exercise, with what there is.
    """
    found: Iterable[Exercise] = EXERCISES.values()
    for what, start in (("notebook", notebook), ("topic", topic)):
        known = dict.fromkeys(getattr(task, what) for task in found)
        found = [t for t in found if start is None or getattr(t, what).startswith(start)]
        if not found:
            raise ValueError(f"no exercise has {what}={start!r}: there are {', '.join(known)}")
    made = Exercises(found)
    made.done, made.note = progress.load()
    return made

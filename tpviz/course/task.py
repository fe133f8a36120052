"""An exercise as plain data, so that tests can solve it and a notebook can show it.

The learner writes a function; the kind of the exercise says how it is graded: `checks.RankProgram`
by its numbers and its collectives on real ranks, `formula.Formula` by its answers to questions.
Hints end before the answer, which is not in the package. (The shape of a task, with graded hints
and a reason for success, follows LLM Cluster Simulator; scoring by the memory accesses of the code
follows GPU-Puzzles.)
"""

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from .told import Words

HINT_KINDS = {
    "concept": "where to look",
    "principle": "the idea",
    "shape": "the shape of the answer",
}
"""Fields of an exercise, in the order in which `tpviz.hint` gives them, and what each says."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Exercise:
    """The texts of one exercise, by `told` from its Markdown file.

    starter: code whose last function, which gives the exercise its name, is the one to complete.
    concept, principle, shape: the hints. success: the message for a right answer. messages: those
    for wrong ones by key, with ``{...}`` for what is filled in. notebook, topic, difficulty (1 to
    3), minutes: by `course.json`.
    """

    title: str
    prompt: str
    starter: str
    concept: str
    principle: str
    shape: str
    success: str
    messages: Mapping[str, str] = field(default_factory=dict, repr=False)
    notebook: str = ""
    topic: str = ""
    difficulty: int = 1
    minutes: int = 0

    @property
    def hints(self) -> tuple[str, ...]:
        """In the order in which they are given."""
        return tuple(getattr(self, kind) for kind in HINT_KINDS)

    @cached_property
    def function(self) -> ast.FunctionDef:
        """The function to complete, as the starter has it."""
        functions = [n for n in ast.parse(self.starter).body if isinstance(n, ast.FunctionDef)]
        return functions[-1]

    def say(self, key: str, /, **facts: Any) -> Words:
        """The message of this key, filled in. Raises KeyError where there is none."""
        return Words(self.messages[key].format(**facts))

    @property
    def name(self) -> str:
        """The name of the function that the learner writes."""
        return self.function.name

    @property
    def parameters(self) -> list[str]:
        """The names of that function's parameters."""
        return [argument.arg for argument in self.function.args.args]

    def __repr__(self):
        return f"{self.title}\n\n{self.prompt}\n\n{self.starter}"

    def _repr_markdown_(self):
        return (
            f'**{self.title}**\n\n{self.prompt}\n\nGrade it with `tv.check("{self.name}", '
            f'{self.name})`; stuck? `tv.hint("{self.name}")`.'
        )


@dataclass(frozen=True)
class Hint:
    """One hint: its number, counted from 1, and its text."""

    number: int
    text: str

    @property
    def _heading(self):
        return f"Hint {self.number} of {len(HINT_KINDS)}, {[*HINT_KINDS.values()][self.number - 1]}"

    def __repr__(self):
        return f"{self._heading}: {self.text}"

    def _repr_markdown_(self):
        return f"**{self._heading}:** {self.text}"

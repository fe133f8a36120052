"""Exercises whose answer is a function of numbers, a cluster or a trace: a formula, a choice.

The learner's function is asked a few questions; the first answer that is wrong is explained.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from sys import float_info
from typing import Any, NamedTuple

from .task import Exercise

CLOSE = 1e-6  # relative: formulas differ only in the order of float operations


class NoAnswer(NamedTuple):
    """What was returned is no number, name or tuple of these, but of this type."""

    type: str

    def __repr__(self):
        return self.type


class Question(NamedTuple):
    """Arguments by name, in the order of the function's parameters, and the right answer.

    words: how to call the arguments in a message; made of their names and values when left out.
    known: more facts for the judges.
    """

    arguments: dict[str, Any]
    answer: Any
    words: str = ""
    known: dict[Any, Any] = {}

    def __str__(self):
        return self.words or ", ".join(f"{k}={_show(v)}" for k, v in self.arguments.items())


@dataclass(frozen=True, repr=False)
class Formula(Exercise):
    """An exercise asked on numbers. ``make``: random generator -> list of `Question`.

    ``checks`` are functions (question, answer) that return what is wrong with a wrong answer, or
    None where they do not know; ``needs`` is not used.
    """

    def judge(self, question: Question, got: Any) -> str | None:
        """What is wrong with an answer, or None where it is right."""
        problem = _wrong_type(question, got)
        if problem is None and same(got, question.answer):
            return None
        judges = (judge(question, got) for judge in self.checks if problem is None)
        return (
            problem
            or next(filter(None, judges), None)
            or (
                f"for {question} the answer is {_show(question.answer)}; you returned {_show(got)}."
            )
        )

    def praise(self, answers: Sequence[Any]) -> str:
        """What a learner whose answers are all right is told."""
        return f"Right on {len(answers)} questions. {self.success}"


def same(got: Any, want: Any) -> bool:
    """Whether two answers are equal: numbers up to rounding, names and lengths exactly."""
    if isinstance(want, tuple):
        return len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, str) or isinstance(got, str):
        return got == want
    return math.isclose(got, want, rel_tol=CLOSE)


def _wrong_type(question, got):
    kinds = {
        tuple: f"a tuple of {len(question.answer)} numbers"
        if isinstance(question.answer, tuple)
        else "",
        str: "a name (a string)",
    }
    want = kinds.get(type(question.answer), "a number")
    kind = type(question.answer) if type(question.answer) in kinds else (int, float)
    if isinstance(got, NoAnswer) or not isinstance(got, kind):
        name = got.type if isinstance(got, NoAnswer) else type(got).__name__
        return (
            f"for {question} your function returned {name}, not {want}. "
            "Does every path of your function end in `return`?"
        )
    if isinstance(got, tuple) and not all(isinstance(part, (int, float)) for part in got):
        return f"for {question} your function returned {_show(got)}, not {want}."
    if not all(
        isinstance(part, str) or abs(part) <= float_info.max
        for part in (got if isinstance(got, tuple) else (got,))
    ):
        return f"for {question} your function returned {got!r}, but every number is to be finite."
    return None


def _show(value):
    if isinstance(value, tuple) and not isinstance(value, NoAnswer):
        return f"({', '.join(map(_show, value))})"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:.6g}" if number else repr(value)

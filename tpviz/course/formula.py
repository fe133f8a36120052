"""Exercises whose answer is a function of numbers, a cluster or a trace: a formula, a choice.

The learner's function is called for a few questions; the first wrong answer is explained.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from sys import float_info
from typing import Any, NamedTuple

import numpy as np

from tpviz.core.tables import show_seconds

from .causes import Cause, Given, first_wrong, likeliest, same
from .changes import changed
from .task import Exercise
from .told import Words, general

DRAWS = 200
"""At most so many are drawn until each mistake shows."""
NEAR = 1.01
"""A `ChoiceQuestion` is right if it takes at most this many times the best time."""


class NoAnswer(NamedTuple):
    """The returned value is no number, name or tuple of these, but of this type."""

    type: str

    def __repr__(self):
        return self.type


class Question(NamedTuple):
    """Arguments by name, in the order of the function's parameters, and the right answer.

    words: the arguments in a message; by default their names and values. known: more facts for the
    judges.
    """

    arguments: dict[str, Any]
    answer: Any
    words: str = ""
    known: dict[Any, Any] = {}

    def __str__(self):
        return self.words or ", ".join(f"{k}={_show(v)}" for k, v in self.arguments.items())


class Asked(NamedTuple):
    """The values of a question's arguments, with its words and what is known."""

    values: tuple[Any, ...]
    words: str = ""
    known: dict[Any, Any] = {}


@dataclass(frozen=True, kw_only=True, repr=False)
class Formula(Exercise):
    """An exercise asked on numbers.

    draw: random generator -> the questions: tuples of values of the parameters, `Asked` or whole
    `Question`s. solution: the right answer to such values. mistakes: {key of the message: the
    answer with this mistake, None if impossible, ... for a right part} of such values, always as
    many and in the same order; each differs from the right answer in some question of a draw, or
    another one is drawn. parts: names of the answer's numbers, if several. wrong: (question,
    answer) -> the error of another wrong answer, or None if unknown; then `causes.general` are
    tried. overall: all (question, answer) of a draw -> their cause, if one rule gives every answer.
    verdict: (question, answer) -> the error, or None if right, if answers are run instead of
    compared. measured: right answers -> a remark.
    """

    draw: Callable[[np.random.Generator], Iterable[tuple[Any, ...]]] = lambda rng: ()
    solution: Callable[..., Any] = lambda *values: ()
    mistakes: Callable[..., dict[str, Any]] = lambda *values: {}
    wrong: Callable[[Question, Any], str | None] = lambda question, got: None
    overall: Callable[[Sequence[tuple[Question, Any]]], str | None] = lambda answers: None
    verdict: Callable[[Question, Any], str | None] | None = None
    measured: Callable[[Sequence[Any]], str] = lambda answers: f"Right on {len(answers)} questions."
    parts: tuple[str, ...] = ()

    def make(self, rng: np.random.Generator) -> list[Question]:
        """The questions of one draw, in which each mistake shows."""
        for _ in range(DRAWS):
            drawn = [q if isinstance(q, Question) else self._question(q) for q in self.draw(rng)]
            if not self.hidden(drawn):
                break
        return drawn  # pyright: ignore[reportPossiblyUnbound]

    def _question(self, asked):
        values, words, known = asked if isinstance(asked, Asked) else Asked(asked)
        named = dict(zip(self.parameters, values))
        return Question(named, self.solution(*values), words, known)

    def hidden(self, questions: Sequence[Question]) -> set[int]:
        """Numbers of the mistakes that give the right answer to all questions."""
        told, count = set(), 0
        for question in questions:
            made = self._listed(question)
            count = max(count, len(made))
            told |= {
                number
                for number, cause in made.items()
                if cause.value is not None and not same(cause.value, question.answer)
            }
        return set(range(count)) - told

    def _listed(self, question):
        mistakes = self.mistakes(*question.arguments.values())
        made = (
            (self._said(key, question), _filled(value, question.answer))
            for key, value in mistakes.items()
        )
        return dict(enumerate(Cause(*each, general=False) for each in made))

    def _said(self, key, question):
        """A mistake's message, in which the question's arguments are filled in."""
        return key if isinstance(key, Words) else self.say(key, **question.arguments)

    def judge(
        self, question: Question, got: Any, draw: Iterable[tuple[Question, Any]] = ()
    ) -> str | None:
        """The error of an answer, or None if it is right. draw: all questions with the answers,
        which tell mistakes apart."""
        if self.verdict:
            return self.verdict(question, got)
        problem = _wrong_type(question, got)
        if problem is None and same(got, question.answer):
            return None
        if problem:
            return problem
        answers = [*draw]
        if why := self.overall(answers) if len(answers) > 1 else None:
            return f"for {question}: {why}"
        cause = self._cause(question, got, answers)
        listed = cause and not cause.general and f"for {question}: {cause.words}"
        if cause and listed and cause.sure:
            return listed
        words = f"for {question} {self._both(question, got)}"
        if not listed and (known := self.wrong(question, got)):
            return known
        if cause and not listed:
            return f"{words}: {cause.words}"
        if change := self._change(answers):
            return f"{words}: it is right but for this: {change}."
        return listed or f"{words}."

    def _change(self, answers):
        """What is changed in the right formula, if all answers of a draw are those of that."""
        for words, other in changed(self.solution) if len(answers) > 1 else ():
            if all(same(got, _answered(other, question)) for question, got in answers):
                return words
        return None

    def _both(self, question, got):
        """The right answer and the one given, the wrong part alone if that has a name."""
        want, place = question.answer, first_wrong(got, question.answer)
        if place is not None and self.parts:
            return (
                f"the {self.parts[place]} should be {_show(want[place])}, not {_show(got[place])}"
            )
        return f"the answer is {_show(want)}; you returned {_show(got)}"

    def _cause(self, question, got, draw):
        """The likeliest mistake."""
        first, *draw = (self._given(*each) for each in ((question, got), *draw))
        return likeliest(first, draw, self.solution, self._seen)

    def _given(self, question, got):
        return Given(question.arguments, question.answer, got, self._listed(question))

    @cached_property
    def _seen(self):
        """{argument: its different values in a draw}."""
        questions = self.make(np.random.default_rng(0))
        return {
            name: list({repr(q.arguments[name]): q.arguments[name] for q in questions}.values())
            for name in self.parameters
        }

    def praise(self, answers: Sequence[Any]) -> str:
        """The message for right answers."""
        return f"{self.measured(answers)} {self.success}"


@dataclass(frozen=True, kw_only=True, repr=False)
class ChoiceQuestion(Formula):
    """Asks for the choice with the least time; near ties are right as well.

    solution: the values of the parameters -> {choice: seconds}, which is what the `Question` knows.
    kind: a choice in words. unit: what the time is of. missing: (question, answer) -> the message
    for an unknown choice; None: lists the known ones.
    """

    kind: str = ""
    unit: str = "a step"
    missing: Callable[[Question, Any], str | None] = lambda question, got: None

    def _question(self, asked):
        question = super()._question(asked)
        return question._replace(answer=least(question.answer), known=question.answer)

    def _cause(self, question, got, draw):
        first, *draw = (self._given(*each) for each in ((question, got), *draw))
        return likeliest(first, draw)

    def _given(self, question, got):
        """Choices as names: they are equal or not."""
        listed = {
            number: cause._replace(value=None if cause.value is None else repr(cause.value))
            for number, cause in self._listed(question).items()
        }
        mine = repr(chosen(question.known, got))
        return Given(question.arguments, repr(question.answer), mine, listed)

    def _listed(self, question):
        """The choices that wrong times lead to."""
        return {
            number: cause._replace(
                value=least(cause.value) if isinstance(cause.value, dict) else cause.value
            )
            for number, cause in super()._listed(question).items()
        }

    def judge(
        self, question: Question, got: Any, draw: Iterable[tuple[Question, Any]] = ()
    ) -> str | None:
        """The error of an answer, or None if its time is near the least."""
        times = question.known
        got = chosen(times, got)
        if got not in times:  # what `ask` gives is hashable
            return self.missing(question, got) or (
                f"for {question} your function returned {got!r}, which is not {self.kind}: one "
                f"of {', '.join(map(repr, times))}."
            )
        if times[got] <= NEAR * min(times.values()):
            return None
        cause = self._cause(question, got, draw)
        why = cause and cause.words[0].upper() + cause.words[1:], self.wrong(question, got)
        return (
            f"for {question}: {got!r} takes {show_seconds(times[got])} {self.unit}, "
            f"{show_seconds(min(times.values()))} is possible. {' '.join(filter(None, why))}"
        )


def _answered(solution, question):
    """Its answer to a question, or None."""
    try:
        return solution(*question.arguments.values())
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None


def _filled(value, answer):
    """A mistake's answer, with the right parts in place of ``...``."""
    if not isinstance(value, tuple):
        return value
    return tuple(right if part is ... else part for part, right in zip(value, answer))


def listed(got: Any, kind: type = object) -> bool:
    """Whether an answer is a list, of things of this type."""
    is_list = isinstance(got, tuple) and not isinstance(got, NoAnswer)
    return is_list and all(isinstance(part, kind) for part in got)


def least(times: dict[Any, float]) -> Any:
    """The key of the smallest value."""
    return min(times, key=times.__getitem__)


def chosen(choices: Iterable[Any], got: Any) -> Any:
    """The choice that an answer equals, whose sizes may be floats (8 / 2, say), or the answer."""
    return next((choice for choice in choices if choice == got), got)


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
        return general("wrong type", question=question, name=name, want=want)
    if isinstance(got, tuple) and not all(isinstance(part, (int, float)) for part in got):
        return f"for {question} your function returned {_show(got)}, not {want}."
    if not all(
        isinstance(part, str) or abs(part) <= float_info.max
        for part in (got if isinstance(got, tuple) else (got,))
    ):
        return f"for {question} your function returned {got!r}, but every number must be finite."
    return None


def _show(value):
    if isinstance(value, tuple) and not isinstance(value, NoAnswer):
        return f"({', '.join(map(_show, value))})"
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return f"{value:.6g}" if number else repr(value)

"""Marks of a submission that is a plan with numbers: points for the distance to the best plan, and
for each number that is as recomputed.

>>> AskedNumber("memory", 2e6, show_bytes, {"That is in MB.": 2.0}).mark({"memory": 2}, 10).words
'You have 2 B, recomputed it is 2 MB. That is in MB.'
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

from tpviz.core.tables import show_bytes, show_seconds

from .task import Exercise

CLOSE = 0.01
"""A number is right within this share of ours."""


class Mark(NamedTuple):
    """Points for one part of a submission, of ``most``, and what is wrong or remarkable."""

    name: str
    points: float
    most: float
    words: str = ""


@dataclass(frozen=True)
class Marks:
    """What a submission gets. plan : in short. regret : by how much its step is slower than that of
    the best plan, as a share; None where it has no step. figures : {name: our value}, SI units."""

    marks: tuple[Mark, ...]
    plan: str = ""
    regret: float | None = None
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def points(self) -> float:
        """Of 100; what could not be asked of this plan does not count."""
        most = sum(mark.most for mark in self.marks)
        return round(100 * sum(mark.points for mark in self.marks) / most, 1)

    def __str__(self):
        lines = [f"{m.name}: {m.points:.3g} of {m.most:g}. {m.words}".rstrip() for m in self.marks]
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True, repr=False)
class PlanExercise(Exercise):
    """An exercise whose answer is {name: a plan or a number}, graded by points.

    given : seed -> what the function is called with. mark : (answer, seed) -> `Marks`. keys : of
    the answer. least : points of 100 that pass.
    """

    given: Callable[[int], tuple[Any, ...]]
    mark: Callable[[Mapping[str, Any], int], Marks]
    keys: tuple[str, ...]
    least: float

    def unknown(self, answer: Mapping[Any, Any]) -> str:
        """A sentence on keys that are not asked for; "" where there are none."""
        others = [repr(key)[:80] for key in answer if key not in self.keys]
        return f"Not asked for: {', '.join(others)}." if others else ""


class AskedNumber(NamedTuple):
    """A number that is asked for. show : it in words. mistakes : {words: the value with this
    mistake}. room : absolute tolerance, beside `CLOSE`. hint : said of any other wrong value."""

    name: str
    value: float
    show: Callable[[float], str]
    mistakes: dict[str, float] = {}
    room: float = 0.0
    hint: str = ""

    def mark(self, answer: Mapping[str, Any], most: float) -> Mark:
        """The `Mark` of an answer's number."""
        words = self._wrong(answer.get(self.name))
        return Mark(self.name, 0.0 if words else most, most, words)

    def _wrong(self, got):
        problem = no_number(got)
        if problem or self._same(got, self.value):
            return problem
        mistakes = (why for why, wrong in self.mistakes.items() if self._same(got, wrong))
        why = next(mistakes, self.hint)
        mine, ours = self.show(got), self.show(self.value)
        if mine == ours:
            mine, ours = f"{got:.6g}", f"{self.value:.6g}"
        return f"You have {mine}, recomputed it is {ours}. {why}".rstrip()

    def _same(self, got, want):
        return math.isclose(got, want, rel_tol=CLOSE, abs_tol=self.room)


def no_number(got: Any) -> str:
    """What is wrong with a value that should be a finite number; "" where it is one."""
    if got is None:
        return "Not given."
    if isinstance(got, bool) or not isinstance(got, Real):
        return f"A number is asked for, not a {type(got).__name__}."
    try:
        finite = math.isfinite(got)
    except OverflowError:
        finite = False
    return "" if finite else "A number must be finite."


def mark_sent(
    sent: Any, axes: Mapping[str, float], payloads: Mapping[str, float], most: float
) -> Mark:
    """The `Mark` of {axis: bytes that a rank sends}: each axis counts alike. payloads : {axis:
    bytes of the tensors}, a usual mistake."""
    if sent is None:
        return Mark("sent", 0.0, most, "Not given.")
    if not isinstance(sent, Mapping):
        words = (
            f"Give {{axis: bytes}} with the axes {', '.join(axes)}, not a {type(sent).__name__}."
        )
        return Mark("sent", 0.0, most, words)
    problems = []
    for axis, size in axes.items():
        mistakes = {"That is the payload: the wire has other bytes.": payloads[axis]}
        words = AskedNumber(axis, size, show_bytes, mistakes).mark(sent, 1).words
        problems += [f"{axis}: {words[:1].lower()}{words[1:]}"] * bool(words)
    problems += [
        f"{axis!r:.40}: nothing is sent on such an axis."
        for axis, size in sent.items()
        if axis not in axes and (no_number(size) or size != 0)
    ]
    wrong = min(len(problems), max(1, len(axes)))
    return Mark("sent", most * (1 - wrong / max(1, len(axes))), most, " ".join(problems))


def of_plan(name: str, best: float, own: float, most: float) -> Mark:
    """The `Mark` of a plan whose step takes ``own`` seconds where ``best`` is known: their ratio.
    Which plan that is, it does not say."""
    words = f"None that is known is faster than {show_seconds(own)}."
    if own > best:
        more = f"{100 * (own / best - 1):.1f} % more than {show_seconds(best)}, the best known"
        words = f"Its step takes {show_seconds(own)}, {more}."
    return Mark(name, most * min(1.0, best / own), most, words)


def share(value: float) -> str:
    """A share in per cent."""
    return f"{100 * value:.3g} %"

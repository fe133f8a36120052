"""Grading: run the learner's function on real ranks, judge numbers and trace, answer with a hint.

Every attempt gets new random inputs (one process computes the expected result), on each world of
the exercise; nobody can choose them, so hard-coded answers fail. Failed inputs can be repeated by
their seed. A function that raises or hangs is an answer too: the result has the rank's traceback,
shortened to the learner's lines, or names the rank that waits and its collective.
"""

import ast
import inspect
import re
import textwrap
import traceback
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any

import numpy as np

from tpviz.core.checks import whole_number
from tpviz.core.here import has_torch
from tpviz.core.trace import Ledger, Trace
from tpviz.ranks.rank_errors import RankError, RankTimeoutError, listed

from . import catalogue, progress
from .answers import answers
from .checks import Attempt, Case, RankProgram
from .formula import Formula, Question
from .marks import Marks, PlanExercise
from .task import Hint
from .told import general

CASES = 3  # random inputs per world
_hints_given = Counter()


@dataclass(frozen=True)
class Result:
    """The verdict on one attempt; draw its ``trace`` with ``tv.Timeline``.

    seed : draws the inputs that the verdict is about. case : the ones that went wrong, a
    `checks.Case` or a `formula.Question`; None where all are right, or a rank raised or hung.
    note : what is wrong with the file of progress, or nothing.
    marks : the points of a submission with a plan, `marks.Marks`; else None.
    """

    name: str
    passed: bool
    message: str
    ledger: Ledger | None = field(default=None, repr=False)
    trace: Trace | None = field(default=None, repr=False)
    seed: int = 0
    case: Case | Question | None = field(default=None, repr=False)
    note: str = ""
    marks: Marks | None = field(default=None, repr=False)

    def __bool__(self):
        return self.passed

    @property
    def _headline(self):
        points = f", {self.marks.points:g} of 100 points" if self.marks else ""
        return f"{'✓ passed' if self.passed else '✗ not yet'}: {self.name}{points}"

    def __repr__(self):
        ledger = f"\nOne call, on the busiest rank:\n{self.ledger}" if self.ledger else ""
        lines = self._headline, f"{self.message}{ledger}", self._again, self.note
        return "\n".join(filter(None, lines))

    @property
    def _again(self):
        """How a learner repeats the same inputs."""
        if self.passed or self.marks:
            return ""
        case = "" if self.case is None else " `result.case` has the failed case."
        return (
            f'The same inputs first: `result = tv.check("{self.name}", {self.name}, '
            f"seed={self.seed})`.{case}"
        )

    def _repr_html_(self):
        colour = "#009E73" if self.passed else "#D55E00"
        ledger, text = "", lambda words: re.sub("`(.+?)`", r"<code>\1</code>", escape(words))
        if self.ledger:
            ledger = "<p>One call, on the busiest rank:</p>" + self.ledger._repr_html_()
        words, _, details = self.message.partition("\n")
        details = details and f"<pre>{escape(details.strip())}</pre>"
        style = f"border-left: 4px solid {colour}; padding-left: 1em"
        return (
            f"<div class='tpviz-result' style='{style}'><b>{escape(self._headline)}</b>"
            f"<p>{text(words)}</p>{details}{ledger}"
            + "".join(f"<p>{text(words)}</p>" for words in (self._again, self.note) if words)
            + "</div>"
        )


def check(
    name: str, fn: Callable[..., Any], timeout: float = 10, seed: int | None = None
) -> Result:
    """Grade ``fn`` as the answer to exercise ``name``; what ``fn`` raises becomes a `Result` too.
    An attempt counts in `tpviz.exercises`, unless it is the starter as it was given.

    timeout: seconds after which waiting ranks are stopped. seed: begins with the inputs of an
    earlier attempt (``result.seed``); a right answer gets new ones as well. Of an exercise that
    asks for a plan it chooses the cluster, 0 unless said, and there is no time-out. Raises
    ValueError for an unknown name, an ``fn`` that is no function, a seed that is no whole number.
    """
    exercise = catalogue.exercise(name)
    if not callable(fn):
        raise ValueError(
            f"check({name!r}, fn) needs the function itself, without calling it; "
            f"got a {type(fn).__name__}"
        )
    seed = None if seed is None else whole_number("seed", seed, 0)
    if isinstance(exercise, PlanExercise):
        result = _on_plan(exercise, fn, seed or 0)
    else:
        grade = _on_questions if isinstance(exercise, Formula) else _on_all_worlds
        result = None if seed is None else grade(exercise, fn, timeout, seed)
        if result is None or result.passed:
            result = grade(exercise, fn, timeout, _fresh())
    if _is_starter(exercise, fn):
        return result
    return replace(result, note=progress.record(name, result.passed))


def _is_starter(exercise, fn):
    """Whether the function is the one of the task, unchanged."""
    try:
        written = ast.parse(textwrap.dedent(inspect.getsource(fn))).body[0]
    except (OSError, TypeError, SyntaxError):
        return False
    return ast.dump(written) == ast.dump(exercise.function)


def _fresh():
    """An unpredictable seed."""
    return int(np.random.default_rng().integers(2**31))


def _on_all_worlds(exercise, fn, timeout, seed):
    """The verdict on a function of tensors: the first world where it is wrong, or the first."""
    results = []
    for axes in exercise.worlds:
        results.append(_on_one_world(exercise, fn, axes, timeout, seed, len(results)))
        if not results[-1].passed:
            return results[-1]
    return results[0]


def _on_plan(exercise, fn, seed):
    """The verdict on a plan with numbers; the function runs in this process."""
    try:
        answer = fn(*exercise.given(seed))
    except Exception:
        return _raised(exercise, seed)
    if not isinstance(answer, Mapping):
        asked = f"a dict of {', '.join(exercise.keys)}"
        message = f"Your function returned a {type(answer).__name__}, not {asked}."
        return Result(exercise.name, False, message, seed=seed)
    marks = exercise.mark(answer, seed)
    passed = marks.points >= exercise.least
    words = exercise.success if passed else f"{exercise.least:g} of 100 points pass."
    message = "\n".join(filter(None, (words, marks.plan, str(marks), exercise.unknown(answer))))
    return Result(exercise.name, passed, message, seed=seed, marks=marks)


def hint(name: str, step: int | None = None) -> Hint:
    """The next hint for exercise ``name``, or the one of this ``step``: 1 says where to look, 2 the
    idea, 3 the shape of the answer, which is the last.

    Raises ValueError for an unknown name, and for a step that is none of the three.
    """
    exercise = catalogue.exercise(name)
    last = len(exercise.hints)
    if step is None:
        step = min(_hints_given[name] + 1, last)
    if whole_number("step", step, 1) > last:
        raise ValueError(f"step={step}: there are {last} hints for {name}, 1 to {last}")
    _hints_given[name] = step
    return Hint(step, exercise.hints[step - 1])


def _on_questions(exercise, fn, timeout, seed):
    """The verdict on a function of numbers; it runs in this process where there can be no ranks."""
    questions = exercise.make(np.random.default_rng(seed))
    if not has_torch():
        try:
            found = answers(fn, [list(question.arguments.values()) for question in questions])
        except Exception:
            return _raised(exercise, seed)
        return on_answers(exercise, questions, found, seed)
    from .on_ranks import ask

    try:
        found = ask(fn, questions, timeout)
    except (RankError, RankTimeoutError) as error:
        return Result(exercise.name, False, _sentence(_explain(error)), seed=seed)
    return on_answers(exercise, questions, found, seed)


def _raised(exercise, seed):
    """The verdict on a function that has just raised in this process."""
    message = f"Your function raised an error:\n{_own_frames(traceback.format_exc())}"
    return Result(exercise.name, False, message, seed=seed)


def on_answers(
    exercise: Formula, questions: Sequence[Question], answers: Sequence[Any], seed: int
) -> Result:
    """The verdict on the answers to the questions of this seed."""
    for question, got in zip(questions, answers):
        message = exercise.judge(question, got, zip(questions, answers))
        if message:
            return Result(exercise.name, False, _sentence(message), seed=seed, case=question)
    return Result(exercise.name, True, exercise.praise(answers), seed=seed)


def _on_one_world(exercise, fn, axes, timeout, seed, passed):
    """The verdict on the mesh ``axes``, after ``passed`` other worlds."""
    from .on_ranks import run  # imports torch, which showing a task or a hint does not need

    cases = cases_of(exercise, passed, seed)
    try:
        attempts, trace = run(exercise, fn, axes, cases, timeout)
    except (RankError, RankTimeoutError) as error:
        message = _context(exercise, axes, passed, _explain(error))
        return Result(exercise.name, False, message, seed=seed)
    return on_attempts(exercise, attempts, trace, passed, seed)


def cases_of(exercise: RankProgram, world: int, seed: int) -> list[Case]:
    """The problems of this seed on the exercise's world of this number."""
    rng = np.random.default_rng([seed, world])
    return [exercise.make(rng, exercise.worlds[world]) for _ in range(CASES)]


def on_attempts(
    exercise: RankProgram, attempts: Sequence[Attempt], trace: Trace, passed: int, seed: int
) -> Result:
    """The verdict on the attempts at the `cases_of` a world, after ``passed`` others."""
    for attempt in attempts:
        message = exercise.judge(attempt)
        if message:
            message = _context(exercise, attempt.axes, passed, message)
            return Result(exercise.name, False, message, attempt.ledger, trace, seed, attempt.case)
    first = attempts[0]
    return Result(exercise.name, True, _praise(exercise, first), first.ledger, trace, seed)


def _sentence(message):
    """A name such as dX stays as it is."""
    word = message.split()[0]
    return message[0].upper() + message[1:] if word.islower() else message


def _context(exercise, axes, passed, message):
    """The message as a sentence that names its world, if others passed."""
    if passed:
        return f"Right on {_world(exercise.worlds[0])}, but on {_world(axes)}: {message}"
    return _sentence(message)


def _world(axes):
    mesh = " x ".join(f"{name} {size}" for name, size in axes.items())
    return f"{axes['world']} ranks" if "world" in axes else f"the mesh {mesh}"


def _praise(exercise, attempt):
    worlds = " and ".join(_world(axes) for axes in exercise.worlds)
    facts = {"cases": CASES, "worlds": worlds, "success": exercise.success}
    return general("praise", attempt=attempt, **facts)


def _explain(error):
    """The error inside the ranks, for the author of the function."""
    if isinstance(error, RankTimeoutError):
        states = listed(error.states, "State of each rank")
        if all(" in recv " in state for state in error.states.values()):
            return general("all receive", states=states)
        return general("no return", states=states)
    if not error.traceback:
        return str(error)
    why = general("overflow") * ("OverflowError: " in error.traceback)
    return f"rank {error.rank} raised an error{why}:\n{_own_frames(error.traceback)}"


def _own_frames(traceback):
    """A traceback without the frames of the grader itself."""
    lines, kept, ours = traceback.splitlines(), [], False
    for line in lines:
        if line.startswith('  File "'):
            graders = 'on_ranks.py", ', 'course/answers.py", ', "in _on_plan", "in _on_questions"
            ours = any(part in line for part in graders)
        elif not line.startswith("    "):
            ours = False
        if not ours:
            kept.append(line)
    return "\n".join(kept)

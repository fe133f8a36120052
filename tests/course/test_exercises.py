"""Every exercise is solved by its reference, and every known wrong answer fails with the right
hint."""

import ast
import inspect
import re
import sys
import textwrap
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
import solutions
import solutions_start
from batches import TABLES, questions_of, verdicts

from tpviz.course import check, exercise, exercises, grade, hint
from tpviz.course.answers import bare
from tpviz.course.checks import Attempt, RankProgram
from tpviz.course.task import HINT_KINDS
from tpviz.ranks.launch import launch, shutdown

RIGHT = [(name, fn) for name, fns in solutions.RIGHT.items() for fn in fns]
HINTED = "13_t3", "08_beat_the_cluster"
WRONG = [(name, fn, words) for name, cases in solutions.WRONG.items() for fn, words in cases]


@pytest.fixture(scope="module", autouse=True)
def _room():
    """Exercises take turns on worlds of 2, 3, 4, 6 and 8 ranks: new ones import answers anew."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TPVIZ_MAX_RANKS", "24")
        yield


@pytest.mark.parametrize(("name", "fn"), RIGHT, ids=lambda v: getattr(v, "__name__", v))
def test_right_answers_pass(name, fn):
    result = verdicts(name)[fn]
    assert result.passed, result.message
    assert result
    assert "passed" in repr(result)


@pytest.mark.parametrize(("name", "fn", "words"), WRONG, ids=lambda v: getattr(v, "__name__", ""))
def test_wrong_answers_fail_with_their_hint(name, fn, words):
    result = verdicts(name)[fn]
    assert not result.passed
    assert re.search(words, result.message, re.IGNORECASE), result.message


@pytest.mark.parametrize(
    "task",
    [t for t in exercises() if t.notebook in HINTED and t.name != "t3_bugs"],
    ids=lambda task: task.name,
)
def test_hints_do_not_hang_on_the_draw(task):
    """Asked in this process, which is cheap."""
    for seed in range(2, 7):
        questions = questions_of(task.name, seed)
        for fn, words in solutions.WRONG[task.name]:
            message = next(
                filter(None, (task.judge(q, bare(fn(*q.arguments.values()))) for q in questions))
            )
            assert re.search(words, message, re.IGNORECASE), (seed, message)


@pytest.mark.parametrize("task", exercises(), ids=lambda task: task.name)
def test_every_exercise_has_solutions_wrong_answers_and_a_starter_that_runs(task):
    assert solutions.RIGHT[task.name]
    assert len(solutions.WRONG[task.name]) >= 3
    result = verdicts(task.name)["starter"]
    assert not result.passed
    assert "Traceback" not in result.message


@pytest.mark.parametrize("task", exercises(), ids=lambda task: task.name)
def test_every_wrong_answer_has_a_message_of_its_own(task):
    """Two that return the same from the same trace are one wrong answer: one of them is listed."""
    found = verdicts(task.name)
    wrong = [fn for of in (solutions, *TABLES) for fn, _ in of.WRONG.get(task.name, ())]
    messages = Counter(found[fn].message for fn in wrong)
    assert [words for words, times in messages.items() if times > 1] == []


def test_a_raising_answer_shows_the_learners_lines_only():
    result = check("mean_over_ranks", solutions_start.mean_raises)
    assert not result.passed
    assert "NameError: name 'number_of_ranks' is not defined" in result.message
    assert "in mean_raises" in result.message
    assert "return x / number_of_ranks" in result.message
    assert "_in_rank" not in result.message


def test_a_hanging_answer_names_who_waits_in_what():
    result = check("mean_over_ranks", solutions_start.mean_hangs, timeout=4)
    assert not result.passed
    assert "all_reduce" in result.message
    assert "rank 2: finished" in result.message
    assert check("mean_over_ranks", solutions_start.mean).passed


def test_a_seed_repeats_the_inputs():
    first, again, other = (
        check("mean_over_ranks", solutions_start.mean_by_gathering, seed=seed) for seed in (5, 5, 6)
    )
    assert first.seed == 5
    assert first.message == again.message != other.message


def test_the_result_shows_ledger_and_trace():
    result = check("mean_over_ranks", solutions_start.mean_by_gathering)
    assert "all_gather" in repr(result)
    assert "<table" in result._repr_html_()
    assert result.trace.ranks == [0, 1, 2, 3]


def test_a_message_of_many_lines_keeps_them_in_a_notebook():
    result = check("mean_over_ranks", solutions_start.mean_raises)
    assert "<p>Rank 0 raised an error:</p><pre>Traceback" in result._repr_html_()


def test_hints_go_from_where_to_look_to_the_shape_and_stay_there():
    given = [hint("row_parallel") for _ in range(len(HINT_KINDS) + 1)]
    assert [h.number for h in given] == [1, 2, 3, 3]
    assert [words in repr(h) for h, words in zip(given, HINT_KINDS.values())] == [True] * 3
    assert hint("row_parallel", step=1) == given[0]
    assert hint("row_parallel") == given[1]
    for step, words in ((4, "3 hints for row_parallel"), (0, "step"), ("1", "step")):
        with pytest.raises(ValueError, match=words):
            hint("row_parallel", step)


@pytest.mark.parametrize("task", exercises(), ids=lambda task: task.name)
def test_hints_end_before_the_answer(task):
    """No line of a right answer that computes something, and no ``return``, is in a hint."""
    text = "".join("".join(task.hints).split())
    assert "`return" not in text
    known = "".join(task.starter.split()) + "".join(task.prompt.split())
    for fn in solutions.RIGHT[task.name]:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
        values = [n.value for n in ast.walk(tree) if isinstance(n, ast.Assign | ast.Return)]
        for value in filter(None, values):
            line = "".join(ast.unparse(value).split())
            if len(list(ast.walk(value))) > 8 and line not in known:
                assert line not in text


def test_a_rank_that_runs_an_answer_imports_no_other_exercise():
    """All of them took each new rank half a second."""
    shutdown()
    assert check("mean_over_ranks", solutions_start.mean)
    (names,) = set(launch(lambda: " ".join(name for name in sys.modules if ".course" in name)))
    assert "tpviz.course.on_ranks" in names and "catalogue" not in names


def test_the_task_shows_itself():
    task = exercise("mlp_on_mesh")
    assert [t.name for t in exercises() if not repr(t).startswith(f"{t.title}\n\n")] == []
    assert 'tv.check("mlp_on_mesh", mlp_on_mesh)' in task._repr_markdown_()


def test_bad_names_and_bad_answers_are_errors():
    with pytest.raises(ValueError, match="there are mean_over_ranks, row_parallel"):
        check("mean", solutions_start.mean)
    with pytest.raises(ValueError, match="without calling it; got a int"):
        check("mean_over_ranks", 3)


def test_an_exercise_has_three_hints():
    task = exercise("mean_over_ranks")
    fields = {name: getattr(task, name) for name in task.__dataclass_fields__}
    assert task.hints == (task.concept, task.principle, task.shape)
    with pytest.raises(TypeError, match="'shape'"):
        type(task)(**{name: value for name, value in fields.items() if name != "shape"})


class Unread(Exception):
    """A judge looks at the trace, where there are only numbers."""


class NoTrace:
    def __getattr__(self, name):
        raise Unread(name)


@pytest.mark.parametrize(
    "task",
    [task for task in exercises() if isinstance(task, RankProgram)],
    ids=lambda task: task.name,
)
def test_right_numbers_are_no_mistake_for_any_inputs(task):
    """A wrong formula gives the right numbers for a few inputs: relu of what is positive, say.

    Of judges that read the trace no more is asked."""
    alone = [replace(task, judges=(judge,)) for judge in task.judges]
    for seed, (number, axes) in product(range(200), enumerate(task.worlds)):
        for case in grade.cases_of(task, number, seed):
            needed, ranks = task.needed(axes, case), len(case.expected)
            attempt = Attempt(
                axes,
                case,
                list(case.expected),
                needed,
                needed,
                case.flops,
                groups=(0,) * ranks,
                trace=NoTrace(),
            )
            for judged in alone:
                with suppress(Unread):
                    assert judged.judge(attempt) is None, seed

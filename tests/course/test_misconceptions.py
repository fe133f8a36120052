"""What a learner may plausibly get wrong is told in the right words, in every exercise, and nothing
that was learned by heart passes."""

import re
from collections import Counter

import misconceptions
import numpy as np
import pytest
import solutions
from batches import SEED, TABLES, questions_of, verdicts

from tpviz.course import check, exercise, exercises, grade
from tpviz.course.answers import bare
from tpviz.course.formula import Formula

WRONG = [
    (name, fn, words)
    for table in TABLES
    for name, answers in table.WRONG.items()
    for fn, words in answers
]
RIGHT = [(name, fn) for table in TABLES for name, answers in table.RIGHT.items() for fn in answers]
BY_HAND = {
    "axonn_grid_for",
    "atp_mesh_for",
    "atp_chunk_count",
    "t3_tile",
    "merak_schedule",
    "merak_early",
    "cp_kind",
}
"""Asked for a choice for each of some machines, or for a schedule: what is written down for them is
the answer."""
RUNS = {"find_straggler", "atp_bugs", "axonn_bugs", "merak_bugs", "t3_bugs", "axonn_gathers"}
RUNS |= {"context_bugs", "experts_bugs"}
"""Their questions are runs, each of which is drawn."""


@pytest.mark.parametrize(("name", "fn", "words"), WRONG, ids=lambda v: getattr(v, "__name__", ""))
def test_a_misconception_is_called_what_it_is(name, fn, words):
    result = verdicts(name)[fn]
    assert not result, "it passed"
    assert re.search(words, result.message, re.IGNORECASE), result.message


@pytest.mark.parametrize(("name", "fn"), RIGHT, ids=lambda v: getattr(v, "__name__", v))
def test_a_right_answer_may_be_written_otherwise(name, fn):
    result = verdicts(name)[fn]
    assert result, result.message


def test_most_kinds_of_exercises_have_right_answers_by_three_other_roads():
    found = Counter(name for name, fns in solutions.RIGHT.items() for _ in fns[1:])
    found += Counter(name for name, _ in RIGHT)
    many = [name for name in found if found[name] >= 3]
    assert len(many) >= 15
    assert len([n for n in many if not isinstance(exercise(n), Formula)]) >= 5


@pytest.mark.parametrize(
    "task",
    [t for t in exercises() if isinstance(t, Formula) and t.name not in RUNS],
    ids=lambda t: t.name,
)
def test_what_is_no_answer_passes_nowhere(task):
    questions = questions_of(task.name)
    for fn in misconceptions.NO_ANSWERS:
        answers = [bare(fn(*q.arguments.values())) for q in questions]
        assert any(map(task.judge, questions, answers)), fn.__name__


# -- learned by heart ------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "task",
    [t for t in exercises() if isinstance(t, Formula) and t.name not in BY_HAND | RUNS],
    ids=lambda t: t.name,
)
def test_the_answers_of_one_draw_are_wrong_in_others(task):
    def asked(seed):
        return {repr(q.arguments): q.answer for q in questions_of(task.name, seed)}

    known = asked(SEED)
    assert sum(asked(seed).items() <= known.items() for seed in range(2, 6)) <= 1


def test_an_answer_of_a_draw_fails_where_that_draw_was_asked_for(monkeypatch):
    """Not even with the seed it was learned from; the verdict says how to get what went wrong."""
    monkeypatch.setattr(grade, "_fresh", lambda: 2)
    asked = [(tuple(q.arguments.values()), q.answer) for q in questions_of("ring_time")]

    def by_heart(*sizes):
        return dict(asked).get(sizes, 0.0)

    result = check("ring_time", by_heart, seed=SEED)
    assert not result.passed and result.seed == 2
    assert tuple(result.case.arguments.values()) not in dict(asked)
    assert '`result = tv.check("ring_time", ring_time, seed=2)`' in repr(result)
    assert "seed=2" in result._repr_html_()
    again = check("ring_time", by_heart, seed=2)
    assert (again.message, again.case) == (result.message, result.case)


def test_tensors_of_a_draw_fail_on_others(monkeypatch):
    monkeypatch.setattr(grade, "_fresh", lambda: 3)
    known = [
        (case.inputs[rank][0], case.expected[rank])
        for case in grade.cases_of(exercise("mlp_on_mesh"), 0, SEED)
        for rank in range(4)
    ]

    def by_heart(x, w1, w2, mesh):
        import torch
        import torch.distributed as dist

        y = (x @ w1) @ w2
        dist.all_reduce(y, group=mesh.get_group("tp"))
        return next(
            (torch.from_numpy(want) for given, want in known if np.array_equal(given, x.numpy())), y
        )

    result = check("mlp_on_mesh", by_heart, seed=SEED)
    assert not result.passed and result.seed == 3
    assert result.message == "Relu is missing: Y = relu(X W1) W2."
    assert not any(np.array_equal(result.case.inputs[0][0], x) for x, _ in known)


def test_what_passes_says_nothing_of_seeds():
    result = check("ring_time", solutions.RIGHT["ring_time"][0], seed=SEED)
    assert result.passed and result.case is None
    assert "seed" not in repr(result)


@pytest.mark.parametrize("seed", [-1, 1.5, "1", True])
def test_a_seed_is_a_whole_number(seed):
    with pytest.raises(ValueError, match="seed"):
        check("ring_time", solutions.RIGHT["ring_time"][0], seed=seed)


# -- groups ----------------------------------------------------------------------------------------
def ties_made_by_members(grads, mesh):
    import torch.distributed as dist

    grad = grads.mean(0)
    if dist.get_rank() in (0, 3):
        dist.all_reduce(grad, group=dist.new_group([0, 3]))
    return grad


def test_groups_that_only_members_make_are_counted_and_the_ranks_replaced():
    result = check("merak_ties", ties_made_by_members)
    assert not result.passed
    assert "ranks 1, 2 made 0, ranks 0, 3 made 1 groups. Every rank must call" in result.message
    assert check("mlp_on_mesh", solutions.RIGHT["mlp_on_mesh"][0]).passed
    result = check("merak_ties", solutions.RIGHT["merak_ties"][0])
    assert result.passed and "1 x all_reduce on ranks 0,3," in result.message

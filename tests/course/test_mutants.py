"""Results of ranks known by running the right program with a mistake in it, or by their shape."""

import numpy as np
import pytest

from tpviz.course import exercises
from tpviz.course.checks import RankProgram
from tpviz.course.grade import cases_of
from tpviz.course.mutants import Steps, mutants
from tpviz.course.shapes import joined_otherwise

PROGRAMS = [t for t in exercises() if isinstance(t, RankProgram) and cases_of(t, 0, 0)[0].program]


@pytest.mark.parametrize("task", PROGRAMS, ids=lambda task: task.name)
def test_a_program_without_a_mistake_is_right_and_with_one_mostly_wrong(task):
    for world, axes in enumerate(task.worlds):
        for case in cases_of(task, world, 7):
            found = case.program(Steps(axes))
            for got, want in zip(found, case.expected, strict=True):
                np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
            of_one = [*mutants(case.program, axes, together=1)]
            wrong = [
                words
                for words, made in of_one
                if any(a.shape != b.shape or (a != b).any() for a, b in zip(made, case.expected))
            ]
            assert len(wrong) >= 0.7 * len(of_one) > 0


def test_mistakes_are_said_in_words():
    task = next(task for task in PROGRAMS if task.name == "mlp_on_mesh")
    case = cases_of(task, 0, 0)[0]
    one = dict(mutants(case.program, {"dp": 2, "tp": 2}, together=1))
    assert "relu of H is missing" in one
    assert "Y is added over axis dp, not over axis tp" in one
    two = dict(mutants(case.program, {"dp": 2, "tp": 2}, together=2))
    first, second = (
        "H is added over axis tp, but ranks have no terms of one sum there",
        "Y is not added over axis tp",
    )
    assert f"{first}; and {second}" in two


WANT = np.arange(12.0).reshape(4, 3)


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda rank: np.concatenate(np.split(WANT, 4), 1), "joined along dim 1"),
        (lambda rank: np.stack(np.split(WANT, 4)), "stacked along a new dim"),
        (lambda rank: WANT.T, "transposed"),
        (lambda rank: WANT.ravel(), "give them the shape"),
        (lambda rank: np.split(WANT, 4)[rank], "a part of the right numbers alone"),
        (lambda rank: np.concatenate([WANT / 4] * 4), "joined along dim 0, not added"),
        (lambda rank: np.stack([WANT / 4] * 4), "along a new dim: add them"),
    ],
)
def test_another_shape_says_how_the_parts_were_joined(made, words):
    assert words in joined_otherwise([made(rank) for rank in range(4)], [WANT] * 4)


def test_a_shape_that_nothing_explains_is_left_alone():
    assert joined_otherwise([WANT[:, :2]] * 4, [WANT] * 4) == ""
    assert joined_otherwise([WANT + 1] * 4, [WANT] * 4) == ""


def test_all_tokens_where_a_rank_returns_its_own():
    mine = np.split(WANT, 4)
    assert "returns its own part" in joined_otherwise([WANT] * 4, mine)

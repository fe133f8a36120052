"""Exercises asked on numbers: what may be returned, what is explained, what is the same again."""

import pkgutil
from importlib import import_module
from math import inf, nan

import numpy as np
import pytest
import solutions_costs

from tpviz import exercises
from tpviz.core.mesh import Mesh
from tpviz.course import check
from tpviz.course.axes import _WIRED, _times
from tpviz.course.catalogue import EXERCISES
from tpviz.course.causes import same
from tpviz.course.formula import Formula, NoAnswer, Question
from tpviz.course.task import Exercise

FORMULAS = [task for task in EXERCISES.values() if isinstance(task, Formula)]
SLOW = {
    "find_straggler",
    "axonn_gathers",
    "merak_schedule",
    "merak_cuts",
    "atp_bugs",
    "axonn_bugs",
    "merak_bugs",
    "t3_bugs",
}
"""Their questions are runs, or traced graphs."""


def test_a_function_without_an_end_is_stopped():
    def for_ever(collective, payload, n, seconds):
        while True:
            pass

    result = check("bus_bandwidth", for_ever, timeout=1)
    assert "did not return" in result.message
    assert check("bus_bandwidth", solutions_costs.bus_bandwidth).passed


def test_a_raising_function_shows_its_own_lines_only():
    message = check("ring_time", solutions_costs.time_raises).message
    assert "in time_raises" in message
    assert "_in_rank_0" not in message


def test_a_seed_repeats_the_questions():
    first, again, other = (
        check("ring_time", solutions_costs.time_of_half, seed=s) for s in (3, 3, 4)
    )
    assert first.message == again.message != other.message


def test_passing_says_what_it_is_good_for_and_has_no_ledger():
    result = check("ring_time", solutions_costs.ring_time)
    assert result.message.startswith("Right on 4 questions. This is the alpha-beta model:")
    assert "✓ passed" in repr(result)
    assert "One call" not in result._repr_html_()


@pytest.mark.parametrize(
    ("got", "want", "equal"),
    [
        (1.0, 1, True),
        (1 + 1e-9, 1.0, True),
        (1.001, 1.0, False),
        ("x", "x", True),
        ("x", 1.0, False),
        ((1, 2.0), (1.0, 2), True),
        ((1,), (1, 2), False),
    ],
)
def test_equal_up_to_rounding(got, want, equal):
    assert same(got, want) is equal


@pytest.mark.parametrize("got", [NoAnswer("bool"), "many", (1.0, 2.0)])
def test_what_is_no_number_is_named(got):
    task = EXERCISES["ring_time"]
    question = Question({"n": 2}, 3.0)
    assert "for n=2 your function returned" in task.judge(question, got)
    assert task.judge(question, 3) is None


def test_a_tuple_of_other_things():
    task = EXERCISES["scale_rates"]
    question = Question({"c": 8}, (1.0, 2.0), "a test")
    assert "not a tuple of 2 numbers" in task.judge(question, (1.0, "x"))


def in_floats(value):
    if isinstance(value, tuple):
        return tuple(map(in_floats, value))
    return float(value) if isinstance(value, int) else value


def strange(question):
    """Answers of any kind: of another type, not finite, too long, with floats for whole numbers."""
    right, nothing = question.answer, NoAnswer("NoneType")
    yield from (
        inf,
        nan,
        -1,
        2.5,
        1e300,
        10**400,
        "x",
        nothing,
        (),
        ((),),
        (nan, nan),
        (nothing,),
        (((0, (inf,)),),),
        tuple(((c, (nan, "update", 1)),) for c in range(4)),
    )
    yield from map(in_floats, (right, *question.known))
    for i in range(len(right)) if isinstance(right, tuple) else ():
        for part in (inf, nan, -1, 0.5, 1e300, nothing):
            yield (*right[:i], part, *right[i + 1 :])
        yield right[:i]


@pytest.mark.parametrize("task", [t for t in FORMULAS if t.name not in SLOW], ids=lambda t: t.name)
def test_no_answer_is_an_error_of_the_judge(task):
    for question in task.make(np.random.default_rng(0)):
        for got in strange(question):
            assert isinstance(task.judge(question, got), str | None), got


def test_whole_sizes_may_be_floats():
    """What a learner's divisions give; what is no strategy's is refused by the strategies."""
    for name in ("atp_mesh_for", "axonn_grid_for", "axonn_special", "t3_tile"):
        for question in EXERCISES[name].make(np.random.default_rng(0)):
            assert EXERCISES[name].judge(question, in_floats(question.answer)) is None
    megatron = next(
        q
        for q in EXERCISES["axonn_special"].make(np.random.default_rng(0))
        if q.arguments["scheme"] == "Megatron-LM"
    )
    assert "with y alone" in EXERCISES["axonn_special"].judge(
        megatron, (1.0, float(megatron.arguments["ranks"]), 1.0, 1.0)
    )


def test_each_axis_is_the_best_one_on_some_cluster_and_clearly():
    best = []
    for cluster, axes, payload in _WIRED:
        times = sorted(_times(cluster, Mesh(axes), payload).items(), key=lambda item: item[1])
        assert times[1][1] > 1.5 * times[0][1]
        best.append(times[0][0])
    assert sorted(best) == ["x", "x", "y", "z"]


def test_every_exercise_of_the_package_is_in_the_catalogue():
    modules = pkgutil.iter_modules(exercises.__path__, f"{exercises.__name__}.")
    defined = [v for m in modules for v in vars(import_module(m.name)).values()]
    assert {v.name for v in defined if isinstance(v, Exercise)} == set(EXERCISES)
    assert len(FORMULAS) > len(EXERCISES) / 2

"""All answers to an exercise graded as `tv.check` grades them, but together: one launch for all of
them on a world, and one draw for all that are asked with the same seed."""

from functools import cache

import misconceptions
import misconceptions_context
import misconceptions_experts
import misconceptions_layers
import misconceptions_ranks
import misconceptions_schemes
import misconceptions_told
import numpy as np
import otherwise
import otherwise_ranks
import solutions
import solutions_costs

from tpviz import launch
from tpviz.core.mesh import Mesh
from tpviz.course import check, exercise, grade
from tpviz.course.answers import bare
from tpviz.course.formula import Formula
from tpviz.course.marks import PlanExercise
from tpviz.course.on_ranks import _in_rank, _in_rank_0, attempts_of

SEED = 1
"""Of wrong answers: hints depend on the draw in rare cases, and a test must repeat."""
TABLES = (
    misconceptions_ranks,
    misconceptions_layers,
    misconceptions,
    misconceptions_schemes,
    misconceptions_context,
    misconceptions_experts,
    misconceptions_told,
    otherwise,
    otherwise_ranks,
)
ALONE = {solutions_costs.time_raises}
"""Who raises ends the launch of all."""


def starter(task):
    """The function that the learner begins with."""
    namespace = {}
    used = "import torch\nimport torch.distributed as dist\nimport tpviz as tv\n"
    exec(used + task.starter, namespace)
    return namespace[task.name]


@cache
def questions_of(name, seed=SEED):
    """The questions of this draw."""
    return exercise(name).make(np.random.default_rng(seed))


@cache
def verdicts(name):
    """{answer: `Result`} of right, wrong and plausible answers, and of the starter, as "starter";
    right ones and the starter on inputs that nobody knows before."""
    task, fresh = exercise(name), grade._fresh()
    tries = {fn: fresh for fn in solutions.RIGHT[name]} | {"starter": fresh}
    tries |= {fn: SEED for fn, _ in solutions.WRONG[name]}
    for table in TABLES:
        tries |= {fn: SEED for fn in table.RIGHT.get(name, ())}
        tries |= {fn: SEED for fn, _ in table.WRONG.get(name, ())}
    results = {fn: check(name, fn, seed=SEED) for fn in ALONE & tries.keys()}
    together = {fn: seed for fn, seed in tries.items() if fn not in results}
    code = {fn: starter(task) if fn == "starter" else fn for fn in together}
    if isinstance(task, PlanExercise):
        return {fn: check(name, code[fn]) for fn in together}
    if isinstance(task, Formula):
        return results | _asked(task, together, code)
    return results | dict(zip(together, _run(task, list(together.items()), code)))


def answers(name):
    """(right answers, wrong ones) of all tables."""
    of = (solutions, *TABLES)
    right = [fn for table in of for fn in table.RIGHT.get(name, ())]
    wrong = [fn for table in of for fn, _ in table.WRONG.get(name, ())]
    return [[fn for fn in fns if fn not in ALONE] for fns in (right, wrong)]


def passed(task, tries):
    """Whether each (answer, seed) passes. Formulas are asked in this process; on ranks all answers
    to a world's problems run in one launch."""
    if not isinstance(task, Formula):
        return [bool(result) for result in _run(task, tries, {fn: fn for fn, _ in tries})]
    return [not asked_here(task, fn, seed) for fn, seed in tries]


def asked_here(task, fn, seed):
    """The error of a formula's answer to the questions of this seed, or None; in this process."""
    questions = questions_of(task.name, seed)
    answers = [bare(fn(*question.arguments.values())) for question in questions]
    draw = list(zip(questions, answers))
    return next(filter(None, (task.judge(*each, draw) for each in draw)), None)


def _asked(task, tries, code):
    """Of a formula: every answer to the questions of its seed."""
    questions = {seed: questions_of(task.name, seed) for seed in set(tries.values())}
    values = {seed: [[*q.arguments.values()] for q in of] for seed, of in questions.items()}
    sent = [(code[fn], values[seed]) for fn, seed in tries.items()]
    answers = launch(_all_in_rank_0, sent, timeout=120, progress=False)[0]
    return {
        fn: grade.on_answers(task, questions[seed], mine, seed)
        for (fn, seed), mine in zip(tries.items(), answers)
    }


def _run(task, tries, code, most=100):
    """Of a rank's program, the result of each (answer, seed): on one world after the other, as long
    as it is right, ``most`` in one launch."""
    results = {}
    for world, axes in enumerate(task.worlds):
        left = [each for each in tries if world == 0 or results[each]]
        cases = {seed: grade.cases_of(task, world, seed) for seed in {seed for _, seed in left}}
        inputs = {seed: [case.inputs for case in of] for seed, of in cases.items()}
        for start in range(0, len(left), most):
            part = left[start : start + most]
            sent = [(code[fn], inputs[seed], axes) for fn, seed in part]
            size = Mesh(axes).size
            ranks = launch(_all_in_rank, sent, world_size=size, timeout=300, progress=False)
            for (fn, seed), mine in zip(part, zip(*ranks)):
                attempts, trace = attempts_of(task, axes, cases[seed], mine)
                result = grade.on_attempts(task, attempts, trace, world, seed)
                if world == 0 or not result:
                    results[fn, seed] = result
    return [results[each] for each in tries]


def _all_in_rank_0(tries):
    return [_in_rank_0(*each) for each in tries]


def _all_in_rank(tries):
    return [_in_rank(*each) for each in tries]

"""The capstone, notebook 09: a plan for a described cluster, a layout for a published model on 512
GPUs, each with the numbers that explain it; and an all-reduce over two levels of links."""

from typing import Any

import numpy as np

from .checks import (
    Case,
    Mistake,
    RankProgram,
    fewest_bytes,
    ran_along,
    right_numbers,
    right_shape,
    same_ledger,
    silent,
    whole_numbers,
)
from .marks import PlanExercise
from .told import told
from .variants import Terms


def _graded(name: str) -> Any:
    """A function of `capstone_grade`, which loads torch, as showing a task does not."""

    def later(*asked: Any) -> Any:
        from . import capstone_grade

        return getattr(capstone_grade, name)(*asked)

    return later


# --- capstone_cluster ---
CLUSTER = PlanExercise(
    **told("capstone_cluster"),
    given=_graded("described"),
    mark=_graded("mark_cluster"),
    keys=("plan", "predicted", "simulated", "exposed", "sent", "memory", "run", "residual"),
    least=90.0,
)


# --- capstone_published ---
PUBLISHED = PlanExercise(
    **told("capstone_published"),
    given=lambda seed: (_graded("group_of")(seed),),
    mark=_graded("mark_published"),
    keys=("layout", "predicted", "exposed", "bubble", "memory", "sent"),
    least=75.0,
)


# --- capstone_levels ---
def _levels_case(rng, axes):
    ranks = axes["node"] * axes["gpu"]
    inputs = [(whole_numbers(rng, 4 * axes["gpu"]),) for _ in range(ranks)]
    terms = [x for (x,) in inputs]

    def program(steps):
        shards = steps.scatter("`x`", terms, "gpu")
        return steps.gather("the sum", steps.sum("the shard", shards, "node"), "gpu")

    return Case(inputs, [np.sum(terms, axis=0)] * ranks, None, Terms(terms, "all"), program)


LEVELS = RankProgram(
    **told("capstone_levels"),
    make=_levels_case,
    worlds=({"node": 2, "gpu": 2}, {"node": 2, "gpu": 3}),
    judges=(
        silent,
        ran_along("your all_reduce ran on all ranks", "world", "all_reduce"),
        Mistake(
            "nothing was sent between the nodes",
            lambda a: "node" not in {row.axis for row in a.ledger},
        ),
        Mistake(
            "nothing was sent between the gpus",
            lambda a: "gpu" not in {row.axis for row in a.ledger},
        ),
        Mistake(
            "you send whole tensors between",
            lambda a: a.ledger.total(axis="node")[2] > a.needed.total(axis="node")[2],
        ),
        right_shape,
        right_numbers,
        fewest_bytes,
        same_ledger,
    ),
)

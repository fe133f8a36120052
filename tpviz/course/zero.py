"""The exercises of the notebook on data parallelism: gradients in one bucket, what a ZeRO stage
keeps and sends, and a step of ZeRO-1."""

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np

from .checks import GENERAL, Attempt, Case, Mistake, RankProgram, silent, wasteful, whole_numbers
from .formula import Formula
from .told import told
from .variants import Terms, Variant, Variants


def _drawn(rng, axes, shapes):
    return [[whole_numbers(rng, *shape) for shape in shapes] for _ in range(axes["world"])]


# --- zero_bucket ---
def _make_bucket(rng, axes):
    rows, columns = (int(size) for size in rng.integers(2, 6, size=2))
    inputs = _drawn(rng, axes, [(rows, columns), (columns,), (columns, rows + 1)])
    flat = [np.concatenate([one.ravel() for one in own]) for own in inputs]
    mean = np.mean(flat, axis=0)
    terms = Terms(flat, finish=lambda rank, total: total / len(flat), mean=True)
    return Case([tuple(own) for own in inputs], [mean] * len(flat), terms=terms)


def _bucket_variants(attempt):
    """Buckets of other layouts, or of fewer gradients."""
    inputs = attempt.case.inputs
    means = [np.mean([own[k] for own in inputs], axis=0) for k in range(3)]
    n = len(inputs)
    for words, parts in (
        (
            BUCKET.say("gradients stand in another order"),
            [[means[k].ravel() for k in order] for order in permutations(range(3))],
        ),
        (
            BUCKET.say("matrix is flattened by columns"),
            [[means[0].T.ravel(), means[1], means[2].T.ravel()]],
        ),
    ):
        for order in parts:
            yield words, [np.concatenate(order)] * n
    for k, which in enumerate(("first", "second", "third")):
        yield (
            BUCKET.say("the gradient", which=which),
            [
                np.concatenate([(own if j == k else means)[j].ravel() for j in range(3)])
                for own in inputs
            ],
        )
        scaled = [means[j].ravel() * (n if j == k else 1) for j in range(3)]
        yield BUCKET.say("gradient is the sum over", which=which), [np.concatenate(scaled)] * n


BUCKET = RankProgram(
    **told("zero_bucket"),
    make=_make_bucket,
    sends=lambda axes, case: [("world", "all_reduce", 1, case.expected[0].nbytes)],
    judges=(
        silent,
        Mistake("you have the sums over", lambda a: a.matches(lambda mean: mean * a.size)),
        Variants(_bucket_variants),
        Mistake("that is one collective", lambda a: a.all_right and a.count("all_reduce") > 1),
        wasteful(
            "all_gather brings every rank the gradients",
            lambda a: "all_gather" in a.names() and "reduce_scatter" not in a.names(),
        ),
        *GENERAL,
    ),
)


# --- zero_step ---
KEPT = 0.5
"""The share of the momentum that a step keeps."""


def _make_step(rng, axes):
    n = axes["world"]
    length = n * int(rng.integers(2, 6))
    weights, gradients = whole_numbers(rng, length), _drawn(rng, axes, [(length,)])
    momentum = [2 * whole_numbers(rng, length // n) for _ in range(n)]
    case = Case([(weights, own[0], one) for own, one in zip(gradients, momentum)], [])
    return case._replace(expected=[_stepped(case)] * n)


def _stepped(case, kept=KEPT, times=1.0, moved=1.0, momentum=None, gradients=None):
    """The new weights, with mistakes: shares of the momentum and of the mean gradient, of the step;
    other momentum or gradients."""
    weights, own, shards = zip(*case.inputs)
    mean = np.mean(own if gradients is None else gradients, axis=0)
    momentum = np.concatenate(shards) if momentum is None else momentum
    return weights[0] - moved * (kept * momentum + times * mean)


def _step_variants(attempt: Attempt) -> Iterator[Variant]:
    case = attempt.case
    weights, own, momentum = zip(*case.inputs)
    n = len(weights)
    everyone = lambda whole: [whole] * n
    shards = np.split(case.expected[0], n)
    yield STEP.say("you subtracted the sum"), everyone(_stepped(case, times=n))
    yield STEP.say("momentum is left out"), everyone(_stepped(case, kept=0))
    yield STEP.say("step keeps half"), everyone(_stepped(case, kept=1))
    yield STEP.say("half of the momentum is kept"), everyone(_stepped(case, times=0.5))
    yield STEP.say("new momentum is subtracted not"), everyone(_stepped(case, moved=-1))
    yield STEP.say("mean gradient is added"), everyone(_stepped(case, kept=-KEPT))
    yield STEP.say("you gathered the old weights"), everyone(weights[0])
    yield STEP.say("mean gradient is left out"), everyone(_stepped(case, times=0))
    yield STEP.say("you divided by the number"), everyone(_stepped(case, times=1 / n))
    tiled = [_stepped(case, momentum=np.tile(one, n)) for one in momentum]
    yield STEP.say("every shard has the momentum"), tiled
    alone = [np.split(_stepped(case, gradients=[own[rank]]), n)[rank] for rank in range(n)]
    yield STEP.say("each shard was updated with its"), everyone(np.concatenate(alone))
    yield STEP.say("you gathered the updates or"), everyone(weights[0] - case.expected[0])
    old = np.split(weights[0], n)
    mixed = ([*old[:rank], shards[rank], *old[rank + 1 :]] for rank in range(n))
    yield STEP.say("weights outside of the rank's"), list(map(np.concatenate, mixed))
    yield STEP.say("each rank returned its own updated"), shards


STEP = RankProgram(
    **told("zero_step"),
    make=_make_step,
    sends=lambda axes, case: [
        ("world", half, 1, case.expected[0].nbytes) for half in ("reduce_scatter", "all_gather")
    ],
    judges=(
        silent,
        Mistake("you all-reduced the gradient as plain", lambda a: "all_reduce" in a.names()),
        Mistake(
            "you gathered the weights and then",
            lambda a: (
                "all_gather" in a.names()
                and a.equals(lambda rank: np.split(a.case.expected[0], a.size)[rank])
            ),
        ),
        Variants(_step_variants),
        Mistake(
            "you gathered every rank's gradients",
            lambda a: "reduce_scatter" not in a.names() and a.all_right,
        ),
        Mistake(
            "you gathered the bytes needed", lambda a: a.count("all_gather") > 1 and a.all_right
        ),
        *GENERAL,
    ),
)


# --- zero_states ---
def states(parameters: int, dp: int, zero: int) -> tuple[float, float, float]:
    """Bytes of a GPU's (parameters, gradients, optimizer states), mixed precision with Adam;
    Rajbhandari et al. 2020 (arXiv 1910.02054), section 3.1 and figure 1."""
    each = (2, 2, 12)
    sharded_from = (3, 2, 1)
    kept = [n * parameters / (dp if zero >= stage else 1) for n, stage in zip(each, sharded_from)]
    return tuple(kept)  # pyright: ignore[reportReturnType]


def _draw_stages(rng):
    for zero in rng.permutation(4).tolist():
        yield int(rng.integers(1, 70)) * 10**9, int(2 ** rng.integers(2, 8)), zero


_NAMES = "parameters", "gradients", "optimizer states"
_OPTIMIZER = {
    4: "you have the copy alone, or one moment",
    8: "you have two of the three",
    6: "you have them in 2 bytes",
    16: "you have one too many",
}
"""{bytes of a parameter's optimizer states: what was counted}."""


def _kept(parameters, dp, zero, stages):
    """Bytes of each where it is sharded from its stage on."""
    sizes = zip((2, 2, 12), stages)
    return tuple(n * parameters / (dp if zero >= stage else 1) for n, stage in sizes)


def _states_mistakes(parameters, dp, zero):
    by = dp if zero else 1
    return {
        "without zero every replica keeps everything": states(parameters, dp, min(zero + 1, 3)),
        "parameters too": states(parameters, dp, max(zero - 1, 0)),
        "no stage shards all three": states(parameters, dp, 3),
        "stages shard in this order": _kept(parameters, dp, zero, (1, 2, 3)),
        **{
            STATES.say("too you have", order=" then ".join(_NAMES[k] for k in order)): (
                _kept(parameters, dp, zero, [1 + order.index(k) for k in range(3)])
            )
            for order in permutations(range(3))
            if order not in ((2, 1, 0), (2, 0, 1))
        },
        **{
            STATES.say("moments 4 bytes", why=why): (..., ..., size * parameters / by)
            for size, why in _OPTIMIZER.items()
        },
        **{
            STATES.say("moments and a stage shards all", what=what): (
                (..., ..., (whole + (12 - whole) / by) * parameters)
            )
            for whole, what in ((4, "the copy, or one moment,"), (8, "two of them"))
        },
        **{
            STATES.say("are whole in stages before alone", name=_NAMES[k], stage=3 - k): tuple(
                n * parameters * (1 if i == k or zero < 3 - i else 1 / dp)
                for i, n in enumerate((2, 2, 12))
            )
            for k in (0, 1, 2)
        },
        "that is replicated": states(parameters, dp, 0),
    }


STATES = Formula(
    **told("zero_states"),
    draw=_draw_stages,
    solution=states,
    mistakes=_states_mistakes,
    parts=_NAMES,
)


# --- zero_sent ---
def sent(size: float, dp: int, zero: int) -> float:
    """Bytes that a rank sends in a step, of parameters of ``size`` bytes with gradients of the
    same; Rajbhandari et al. 2020 (arXiv 1910.02054), section 7."""
    return (3 if zero == 3 else 2) * (dp - 1) / dp * size


def _no_ring(size: float, dp: int, zero: int) -> Any:
    return sent(size, dp, zero) * dp / (dp - 1)


def _sent_mistakes(size, dp, zero):
    third, times = zero == 3, lambda count: count * (dp - 1) / dp * size
    return {
        "stage reduce-scatters gradients and then": times(1) if zero in (1, 2) else None,
        "half not all": _no_ring(size, dp, zero),
        "all-reduce is a reduce-scatter": times(1),
        "half and stage 3": 2 * size if third else None,
        "in stage 3 gradients are reduce-scattered": times(4) if third else None,
        "stage 3 gathers the parameters twice": times(2) if third else None,
        "before stage 3 no rank gathers": None if third else times(3),
        "sharded gradients are reduced over all": times(zero + 2) if zero else None,
    }


SENT = Formula(**told("zero_sent"), draw=_draw_stages, solution=sent, mistakes=_sent_mistakes)

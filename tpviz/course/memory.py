"""The exercises of the notebook on memory and precision: model states by recipe, recomputation,
dynamic loss scaling, and master weights that all ranks update or none."""

from functools import partial
from itertools import product
from math import inf
from typing import Any

import numpy as np

from .checks import Case, RankProgram, right_numbers, right_shape, silent
from .formula import Formula
from .told import told

# --- mem_states ---
RECIPES = {
    "float32": (4, 4, 0, 4),
    "mixed": (2, 2, 4, 4),
    "mixed, float32 gradients": (2, 4, 4, 4),
    "bfloat16": (2, 2, 0, 2),
}
"""{recipe: bytes per parameter of (weight, gradient, master weight, each moment)}."""
MOMENTS = {"sgd": 0, "momentum": 1, "adam": 2}


def states(parameters: int, recipe: str, optimizer: str) -> tuple[int, int, int, int]:
    """Bytes of (weights, gradients, master weights, moments); Rajbhandari et al. 2020 (arXiv
    1910.02054), section 3.1, for "mixed" with Adam."""
    weight, gradient, master, moment = RECIPES[recipe]
    each = weight, gradient, master, MOMENTS[optimizer] * moment
    return tuple(parameters * size for size in each)  # pyright: ignore[reportReturnType]


def _draw_states(rng):
    pairs = [*product(RECIPES, MOMENTS)]  # all of them: SGD's master weights tell, say
    for number in rng.permutation(len(pairs)).tolist():
        yield int(rng.integers(1, 100)) * 10**9, *pairs[number]


def _states_wrong(question, got):
    parameters, recipe, optimizer = question.arguments.values()
    if len(got) != 4 or 0 < max(got) < parameters:  # of one parameter
        return None
    of = STATES.say("bytes per parameter", question=question)
    for part, mine, right in zip(
        ("weight", "gradient", "master weight", "moments"), got, question.answer
    ):
        if mine != right:
            words = STATES.say("has and should have", of=of, part=part, mine=mine / parameters)
            return f"{words} {right / parameters:g}. {_why(part, recipe, optimizer)}"


def _why(part, recipe, optimizer):
    if part == "master weight":
        return (
            STATES.say("mixed precision keeps a float32 copy")
            if recipe.startswith("mixed")
            else STATES.say("only mixed precision has a second")
        )
    if part == "moments" and recipe.startswith("mixed"):
        return STATES.say(
            "updates the master weights", optimizer=optimizer, moments=MOMENTS[optimizer]
        )
    if part == "moments":
        return STATES.say("it updates", optimizer=optimizer, moments=MOMENTS[optimizer])
    return STATES.say("recipe gives its precision")


STATES = Formula(**told("mem_states"), draw=_draw_states, solution=states, wrong=_states_wrong)


# --- mem_recompute ---
def recomputed(
    layers: int, every: int, inputs: float, whole: float, f: float, b: float
) -> tuple[float, float]:
    """(peak bytes of activations, seconds) where each ``every``-th layer's input is kept; Chen et
    al. 2016 (arXiv 1604.06174), section 4."""
    return (layers // every - 1) * inputs + every * whole, layers * (2 * f + b)


def _draw_recompute(rng):
    for every in (1, *rng.choice([2, 3, 4, 6], 2, replace=False).tolist()):
        layers, inputs = every * int(rng.integers(4, 20)), int(rng.integers(1, 9)) * 10**6
        f = int(rng.integers(2, 20))
        yield layers, every, inputs, inputs * int(rng.integers(9, 18)), f, 2 * f + 1


def _recompute_mistakes(layers, every, inputs, whole, f, b):
    peak, seconds = recomputed(layers, every, inputs, whole, f, b)
    kept = layers // every * inputs
    return {
        "seconds are those without recomputation": (peak, layers * (f + b)),
        "that is without recomputation": (layers * whole, layers * (f + b)),
        "nothing is recomputed twice": (peak, layers * (2 * f + 2 * b)),
        "all segments but one are recomputed": (peak, layers * (2 * f + b) - every * f),
        "bytes during backward of a segment": (kept, seconds),
        "bytes all layers of a segment": (
            ((layers // every - 1) * inputs + whole, seconds) if every > 1 else None
        ),
        "bytes only each segment's first input": (
            ((layers - 1) * inputs + every * whole, seconds) if every > 1 else None
        ),
        "bytes whole includes the input": (kept + every * whole, seconds),
        "bytes every layer is whole only": (layers * whole, seconds),
        "bytes every is the layers": (
            ((every - 1) * inputs + layers // every * whole, seconds) if every > 1 else None
        ),
    }


RECOMPUTE = Formula(
    **told("mem_recompute"),
    draw=_draw_recompute,
    parts=("peak", "seconds"),
    solution=recomputed,
    mistakes=_recompute_mistakes,
)

# --- loss_scale ---
MOST = 65504.0
"""The largest float16."""


def scaled_run(
    gradients: list[float],
    scale: float,
    interval: int,
    halve: bool = True,
    restart: bool = True,
    again: bool = True,
    each: bool = False,
    divide: bool = True,
) -> tuple[float, float, int]:
    """(weight, scale, steps taken) of dynamic loss scaling; Micikevicius et al. 2018 (arXiv
    1710.03740), section 3.2. The flags are for mistakes."""
    weight, good, taken = 0.0, 0, 0
    for gradient in gradients:
        if abs(gradient * scale) > MOST:
            scale, good = scale / 2 if halve else scale, 0 if restart else good
            continue
        weight -= gradient if divide else gradient * scale
        good, taken = good + 1, taken + 1
        if good == interval or (each and good > interval):
            scale, good = 2 * scale, 0 if again and not each else good
    return weight, scale, taken


def _draw_scale(rng):
    for interval in rng.permutation([2, 3, 4]).tolist():
        yield _run_of(rng), 2.0 ** int(rng.integers(12, 15)), interval


def _run_of(rng):
    """True gradients, three of them large."""
    found = [int(k) / 8 for k in rng.integers(1, 12, size=14)]
    for place in rng.choice(range(1, 13), 3, replace=False).tolist():
        found[place] *= 64.0
    return found


def _scale_mistakes(gradients, scale, interval):
    run = partial(scaled_run, gradients, scale, interval)
    weight, last, taken = run()
    return {
        "you took the step although": (-sum(gradients), last, len(gradients)),
        "weight moved by the scaled": run(divide=False),
        "scale must be halved after": run(halve=False),
        "good steps in a row double": run(restart=False),
        "after the scale was doubled": run(again=False),
        "your scale doubles in every step": run(each=True),
        "scale never grew": scaled_run(gradients, scale, 10**9),
        "steps counted are those": (weight, last, len(gradients)),
        "scale never changes": scaled_run(gradients, scale, 10**9, halve=False),
        "gradient descent subtracts the gradient": (-weight, ..., ...),
        "what is counted are the steps": (..., ..., len(gradients) - taken),
        "one more": scaled_run(gradients, scale, interval + 1),
        "one less": scaled_run(gradients, scale, interval - 1),
    }


SCALE = Formula(
    **told("loss_scale"),
    draw=_draw_scale,
    parts=("weight", "scale", "number of steps"),
    solution=scaled_run,
    mistakes=_scale_mistakes,
)

# --- master_weights ---
STEP, SCALE_UP = 2.0**-11, 2.0**10
"""Size of one update, which float16 rounds away next to 2, and the scale of the gradients."""
TINY = 2.0**-16
"""A gradient that float16 holds, but not its quotient by the scale: 2^-26."""


def _make_master(rng, axes):
    n, steps, size = axes["world"], int(rng.integers(5, 8)), int(rng.integers(9, 13))
    shards = [rng.integers(2, 4, size).astype(np.float32) for _ in range(n)]
    grads = [
        (rng.integers(1, 4, (steps, size)) * SCALE_UP * STEP).astype(np.float16) for _ in range(n)
    ]
    for shard, grad in zip(shards, grads):
        small = rng.choice(size, 3, replace=False)
        shard[small], grad[:, small] = 0, rng.integers(1, 4, (steps, 3)) * TINY
    first, second, of_all = rng.choice(range(1, steps - 1), 3, replace=False).tolist()
    one, other = rng.permutation(n)[:2].tolist()
    for rank, step in ((one, first), (other, second), *((rank, of_all) for rank in range(n))):
        grads[rank][step, int(rng.integers(size))] = inf
    return Case([*zip(shards, grads)], _results([*zip(shards, grads)]))


def _overflows(inputs):
    """Steps with an overflow on any rank."""
    return {
        step for _, grads in inputs for step, row in enumerate(grads) if not np.isfinite(row).all()
    }


def _results(inputs, skipped=None, by=1 / SCALE_UP, dtype: Any = np.float32, keep=slice(None)):
    """Every rank's weights. skipped : rank -> steps that it skips; None: those with an overflow on
    any rank."""
    lost, found = _overflows(inputs), []
    for rank, (master, grads) in enumerate(inputs):
        mine = master.astype(dtype)
        for step in range(len(grads))[keep]:
            if step not in (lost if skipped is None else skipped(rank)):
                mine = (mine - (grads[step].astype(np.float32) * by).astype(dtype)).astype(dtype)
        found.append(mine.astype(np.float32))
    return found


def _by_update(attempt):
    """Judge: how the weights were updated."""
    if attempt.all_right:
        return None
    inputs = attempt.case.inputs
    everyone = set.intersection(*(_overflows([own]) for own in inputs))
    if not all(np.isfinite(got).all() for got in attempt.outputs):
        return _not_finite(attempt, everyone)
    made = _updates(inputs)
    return next((words for words, found in made if attempt.equals(found.__getitem__)), None)


def _updates(inputs):
    """(words, results) of wrong updates, the likeliest first."""
    n, lost = len(inputs), _overflows(inputs)
    own, first = lambda rank: _overflows([inputs[rank]]), min(lost)
    say, later = MASTER.say, {step + 1 for step in lost}
    yield say("each rank skipped the steps"), _results(inputs, own)
    for skipped in (None, own):
        yield say("updates were rounded away"), _results(inputs, skipped, dtype=np.float16)
    yield say("nothing was updated"), _results(inputs, lambda rank: range(10**3))
    masked = [(master, np.where(np.isfinite(grads), grads, 0)) for master, grads in inputs]
    yield say("infinite numbers were replaced"), _results(masked, lambda rank: ())
    yield say("gradients were added"), _results(inputs, by=-1 / SCALE_UP)
    yield say("each rank's gradient is of its"), _results(inputs, by=1 / SCALE_UP / n)
    yield say("scale 1024 not multiplied"), _results(inputs, by=SCALE_UP)
    yield say("scale twice"), _results(inputs, by=1 / SCALE_UP**2)
    yield say("are half of what they should"), _results(inputs, by=1 / 2 / SCALE_UP)
    yield say("are twice what they should be"), _results(inputs, by=2 / SCALE_UP)
    yield "the scale is 1024, not 1000.", _results(inputs, by=1 / 1000)
    yield say("first step is missing"), _results(inputs, keep=slice(1, None))
    yield say("last step is missing"), _results(inputs, keep=slice(0, -1))
    yield say("also the step after an overflow"), _results(inputs, lambda rank: lost | later)
    yield say("step was skipped"), _results(inputs, lambda rank: later | own(rank))
    for other in range(n):
        heard = _results(inputs, lambda rank, other=other: own(other) | own(rank))
        yield say("only rank is heard", other=other), heard
    yield say("gradients are of a scaled"), _results(inputs, by=1.0)
    yield say("after the first overflow nothing"), _results(inputs, keep=slice(0, first))


def _not_finite(attempt, everyone):
    """What the weights say of the steps that were taken; everyone: those in which all overflow."""
    inputs = attempt.case.inputs
    for skipped, words in (
        (set(), MASTER.say("no step was skipped whatever")),
        (everyone, MASTER.say("only the step in which every")),
        ({*range(len(inputs[0][1]))} - everyone, MASTER.say("one step that was taken")),
    ):
        found = _results(inputs, lambda rank, skipped=skipped: skipped)
        if all(np.array_equal(*two, equal_nan=True) for two in zip(attempt.outputs, found)):
            return MASTER.say("finite", words=words)
    return MASTER.say("step with an infinite gradient")


def _divided_in_half(attempt):
    """Judge: quotients that float16 does not hold; `right_numbers` allows more than they are."""
    for got, want in zip(attempt.outputs, attempt.case.expected):
        wrong = ~np.isclose(got, want, rtol=1e-5, atol=0)
        if attempt.all_right and wrong.any():
            return MASTER.say("weight that began at 0", mine=got[wrong][0], right=want[wrong][0])
    return None


def _flags_alone(attempt):
    """Judge: what was sent."""
    steps = len(attempt.case.inputs[0][1])
    limit = 8 * steps * attempt.size  # a number of 8 bytes from each rank
    large = [row for row in attempt.ledger if row.payload_bytes > limit]
    if large:
        return MASTER.say("sent bytes ranks need to know", large=large)


def _summed(attempt):
    """Judge: ranks add up gradients of different weights."""
    inputs = attempt.case.inputs
    lost = _overflows(inputs)
    total = sum(np.where(np.isfinite(grads), grads, 0).astype(np.float32) for _, grads in inputs)
    found = _results([(master, total) for master, _ in inputs], lambda rank: lost)
    if attempt.equals(lambda rank: found[rank]):
        return MASTER.say("you reduced the gradients over")


MASTER = RankProgram(
    **told("master_weights"),
    make=_make_master,
    sends=lambda axes, case: [("world", "all_reduce", len(case.inputs[0][1]), 4)],
    judges=(
        right_shape,
        _by_update,
        silent,
        _summed,
        right_numbers,
        _divided_in_half,
        _flags_alone,
    ),
)

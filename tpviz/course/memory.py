"""The exercises of the notebook on memory and precision: model states by recipe, recomputation,
dynamic loss scaling, and master weights that all ranks update or none."""

from itertools import product
from math import inf
from typing import Any

import numpy as np

from .checks import Case, RankProgram, right_numbers, right_shape, silent
from .formula import Formula

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
    of = f"for {question}, bytes per parameter:"
    for part, mine, right in zip(
        ("weight", "gradient", "master weight", "moments"), got, question.answer
    ):
        if mine != right:
            words = f"{of} the {part} has {mine / parameters:g}, and should have"
            return f"{words} {right / parameters:g}. {_why(part, recipe, optimizer)}"


def _why(part, recipe, optimizer):
    if part == "master weight":
        return (
            "Mixed precision keeps a float32 copy that the optimizer updates."
            if recipe.startswith("mixed")
            else "Only mixed precision has a second copy of the weights."
        )
    if part == "moments" and recipe.startswith("mixed"):
        return (
            f"{optimizer} has {MOMENTS[optimizer]}, each in the precision of the weights that it "
            "updates, the master weights: 4 bytes, not the 2 of the working weights."
        )
    if part == "moments":
        return (
            f"{optimizer} has {MOMENTS[optimizer]}, each in the precision of the weights that it "
            "updates."
        )
    return "The recipe gives its precision: 4 bytes in float32, 2 in half precision."


STATES = Formula(
    title="Model states by recipe",
    prompt="Return the bytes of (weights, gradients, master weights, moments) of a model with "
    '`parameters` parameters under one of four recipes: "float32" (all in float32); "mixed" '
    '(weights and gradients of 2 bytes, master weights and moments in float32); "mixed, float32 '
    'gradients"; "bfloat16" (all in bfloat16, no master weights). `optimizer` is "sgd" (no '
    'moment), "momentum" (one) or "adam" (two).',
    starter="""def mem_states(parameters, recipe, optimizer):
    return 2 * parameters, 2 * parameters, 0, 0""",
    concept="List what is kept for each parameter between two steps, and during one.",
    principle="A weight, a gradient, a master weight where the recipe has one, and the moments of "
    "the optimizer, which have the precision of the weights that it updates.",
    shape="A table of four bytes by recipe, the number of moments by optimizer, and four products.",
    success="Mixed precision with Adam takes 16 bytes, as float32 does. Frameworks that sum "
    "gradients in float32 take 18.",
    draw=_draw_states,
    solution=states,
    wrong=_states_wrong,
)


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
        "the seconds are those without recomputation: each forward runs once more.": (
            peak,
            layers * (f + b),
        ),
        "that is without recomputation.": (layers * whole, layers * (f + b)),
        "nothing is recomputed twice: each layer has two forwards and a backward.": (
            peak,
            layers * (2 * f + 2 * b),
        ),
        "all segments but one are recomputed once more, you say; but the last one's activations "
        "were not kept either.": (peak, layers * (2 * f + b) - every * f),
        "bytes: during backward of a segment, the activations of its layers are whole.": (
            kept,
            seconds,
        ),
        "bytes: all layers of a segment are recomputed before its backward starts, not one.": (
            ((layers // every - 1) * inputs + whole, seconds) if every > 1 else None
        ),
        "bytes: only each segment's first input is kept, not that of each layer.": (
            ((layers - 1) * inputs + every * whole, seconds) if every > 1 else None
        ),
        "bytes: `whole` includes the input of the segment in backward; you counted it twice.": (
            kept + every * whole,
            seconds,
        ),
        "bytes: every layer is whole only in the segment that is in backward.": (
            layers * whole,
            seconds,
        ),
        "bytes: `every` is the layers of a segment, not the number of segments.": (
            ((every - 1) * inputs + layers // every * whole, seconds) if every > 1 else None
        ),
    }


RECOMPUTE = Formula(
    title="What recomputation saves and costs",
    prompt="`layers` equal layers, in segments of `every` layers (it divides layers). Forward "
    "keeps only the input of each segment, `inputs` bytes. Before the backward of a segment, all "
    "its layers run forward again and keep what backward needs: `whole` bytes for each layer, its "
    "input among them. Return (the peak bytes of activations, the seconds of the step), where a "
    "layer's forward takes `f` and its backward `b`. The last segment is recomputed like the "
    "others. Without recomputation it would be (layers * whole, layers * (f + b)).",
    starter="""def mem_recompute(layers, every, inputs, whole, f, b):
    return layers * whole, layers * (f + b)""",
    concept="At the moment when most is held, which segments hold only their input?",
    principle="The first backward is the worst moment: one segment is whole, all others hold their "
    "input. And each layer runs forward twice.",
    shape="Two numbers. The first is a sum of two products, the second a product.",
    success="Longer segments keep fewer inputs and more of one segment: the best length is "
    "the root of layers * inputs / whole. With b = 2 f the compute is 4/3, for any length.",
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
    weight, last, _ = scaled_run(gradients, scale, interval)
    return {
        "you took the step although the gradient was not finite: skip it.": (
            -sum(gradients),
            last,
            len(gradients),
        ),
        "the weight moved by the scaled gradient: divide it by the scale first.": scaled_run(
            gradients, scale, interval, divide=False
        ),
        "the scale must be halved after an overflow.": scaled_run(
            gradients, scale, interval, halve=False
        ),
        f"{interval} good steps in a row double the scale; an overflow restarts the count.": (
            scaled_run(gradients, scale, interval, restart=False)
        ),
        "after the scale was doubled, the count starts again from 0.": scaled_run(
            gradients, scale, interval, again=False
        ),
        "your scale doubles in every step from then on: the count starts again from 0 when it has "
        "doubled.": scaled_run(gradients, scale, interval, each=True),
        "the scale never grew: double it after `interval` good steps in a row.": scaled_run(
            gradients, scale, 10**9
        ),
        "the steps counted are those that moved the weight.": (weight, last, len(gradients)),
        "the scale never changes: halve it after an overflow, double it after `interval` good "
        "steps in a row.": scaled_run(gradients, scale, 10**9, halve=False),
        "gradient descent subtracts the gradient.": (-weight, ..., ...),
        "what is counted are the steps that were taken, not those skipped.": (
            ...,
            ...,
            len(gradients) - scaled_run(gradients, scale, interval)[2],
        ),
        "the scale doubles after `interval` good steps in a row, not after one more.": scaled_run(
            gradients, scale, interval + 1
        ),
        "the scale doubles after `interval` good steps in a row, not after one less.": scaled_run(
            gradients, scale, interval - 1
        ),
    }


SCALE = Formula(
    title="Dynamic loss scaling",
    prompt="Train one weight, which starts at 0, by gradient descent with learning rate 1. "
    "`gradients` are its true gradients, one for each step. A step has the gradient of the scaled "
    "loss, gradient * scale, in float16: above 65504 it is infinite. If it is not finite, skip the "
    "step and halve the scale. Otherwise divide by the scale, update the weight, and after "
    "`interval` good steps in a row double the scale. Return (weight, scale, number of steps "
    "taken). No gradient here underflows, and none needs rounding.",
    starter="""def loss_scale(gradients, scale, interval):
    weight, taken = 0.0, 0
    for gradient in gradients:
        scaled = torch.tensor(gradient * scale, dtype=torch.float16).item()
        weight -= scaled / scale
        taken += 1
    return weight, scale, taken""",
    concept="Which state is kept from step to step? What happens to each part of it after an "
    "overflow, and after a good step?",
    principle="Three things are kept: the weight, the scale, and how many good steps there were "
    "since the scale last changed or a step was skipped.",
    shape="A loop with two branches. One of them skips the rest of the step; the other ends in a "
    "comparison of a counter with `interval`.",
    success="This is what `torch.amp.GradScaler` does, with an interval of 2000 steps. The "
    "scale grows until it overflows, so a skipped step now and then is normal.",
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

    def are(found):
        return attempt.equals(lambda rank: found[rank])

    def own(rank):
        return _overflows([inputs[rank]])

    first = min(_overflows(inputs))
    everyone = set.intersection(*(own(rank) for rank in range(len(inputs))))
    if not all(np.isfinite(got).all() for got in attempt.outputs):
        return _not_finite(attempt, everyone)
    if are(_results(inputs, own)):
        return (
            "each rank skipped the steps in which its own shard overflowed. The others took them, "
            "so the shards are of different steps: all ranks must know of each overflow."
        )
    for skipped in (None, own):
        if are(_results(inputs, skipped, dtype=np.float16)):
            return (
                "the updates were rounded away: next to 2 the step of float16 is 2^-9, an update "
                "here 2^-11. Update in float32."
            )
    if are(_results(inputs, lambda rank: range(10**3))):
        return "nothing was updated: skip only the steps with an overflow on some rank."
    masked = [(master, np.where(np.isfinite(grads), grads, 0)) for master, grads in inputs]
    if are(_results(masked, lambda rank: ())):
        return (
            "the infinite numbers were replaced, and the step was taken: skip all of it, on every "
            "rank."
        )
    if are(_results(inputs, by=-1 / SCALE_UP)):
        return "the gradients were added: gradient descent subtracts them."
    n = len(inputs)
    for by, words in (
        (1 / SCALE_UP / n, "each rank's gradient is of its own shard: do not divide by the ranks."),
        (SCALE_UP, "the gradients are divided by the scale, 1024, not multiplied by it."),
        (1 / SCALE_UP**2, "the gradients are divided by the scale twice."),
        (1 / 2 / SCALE_UP, "the scale is 1024: the updates are half of what they should be."),
        (2 / SCALE_UP, "the scale is 1024: the updates are twice what they should be."),
        (1 / 1000, "the scale is 1024, not 1000."),
    ):
        if are(_results(inputs, by=by)):
            return words
    for keep, words in (
        (slice(1, None), "the first step is missing: look at the ends of your loop."),
        (slice(0, -1), "the last step is missing: look at the ends of your loop."),
    ):
        if are(_results(inputs, keep=keep)):
            return words
    lost = _overflows(inputs)
    if are(_results(inputs, lambda rank: lost | {step + 1 for step in lost})):
        return "also the step after an overflow was skipped: each step's flag is its own."
    if are(_results(inputs, lambda rank: {step + 1 for step in lost} | own(rank))):
        return "a step was skipped by the flag of the step before: each has its own."
    for other in range(n):
        if are(_results(inputs, lambda rank, other=other: own(other) | own(rank))):
            return (
                f"only rank {other} is heard: all ranks skip its overflows, and their own. Reduce "
                "the flags of all ranks."
            )
    if are(_results(inputs, by=1.0)):
        return "the gradients are of a scaled loss: divide them by `scale`, 1024."
    if are(_results(inputs, keep=slice(0, first))):
        return "after the first overflow nothing was updated any more: skip that step alone."
    return None


def _not_finite(attempt, everyone):
    """What the weights say of the steps that were taken; everyone: those in which all overflow."""
    inputs = attempt.case.inputs
    for skipped, words in (
        (set(), "no step was skipped, whatever the ranks told each other"),
        (
            everyone,
            "only the step in which every rank overflows was skipped. One rank's overflow is "
            "enough: combine the flags so that a single one counts",
        ),
        (
            {*range(len(inputs[0][1]))} - everyone,
            "the one step that was taken is that in which every rank overflows. Your flag says "
            "that a gradient is finite, and the ranks skip where it is set: turn it round",
        ),
    ):
        found = _results(inputs, lambda rank, skipped=skipped: skipped)
        if all(np.array_equal(*two, equal_nan=True) for two in zip(attempt.outputs, found)):
            return f"a weight is not finite: {words}."
    return (
        "a weight is not finite: a step with an infinite gradient was taken. Skip it on every "
        "rank, if any rank has one."
    )


def _divided_in_half(attempt):
    """Judge: quotients that float16 does not hold; `right_numbers` allows more than they are."""
    for got, want in zip(attempt.outputs, attempt.case.expected):
        wrong = ~np.isclose(got, want, rtol=1e-5, atol=0)
        if attempt.all_right and wrong.any():
            return (
                f"a weight that began at 0 is {got[wrong][0]:.3g}; it should be "
                f"{want[wrong][0]:.3g}. Its gradients are multiples of 2^-16, and 2^-16 / 1024 is "
                "2^-26. The smallest number of float16 is 2^-24: convert the gradient to float32 "
                "**before** you divide."
            )
    return None


def _flags_alone(attempt):
    """Judge: what was sent."""
    steps = len(attempt.case.inputs[0][1])
    limit = 8 * steps * attempt.size  # a number of 8 bytes from each rank
    large = [row for row in attempt.ledger if row.payload_bytes > limit]
    if large:
        return (
            f"{large[0].collective} sent {large[0].payload_bytes:g} bytes. Ranks need to know of "
            "each other's overflows alone, one number for each step."
        )


def _summed(attempt):
    """Judge: ranks add up gradients of different weights."""
    inputs = attempt.case.inputs
    lost = _overflows(inputs)
    total = sum(np.where(np.isfinite(grads), grads, 0).astype(np.float32) for _, grads in inputs)
    found = _results([(master, total) for master, _ in inputs], lambda rank: lost)
    if attempt.equals(lambda rank: found[rank]):
        return (
            "you reduced the gradients over the ranks. Each rank has the gradient of its own "
            "shard, of other weights: only the flag is reduced."
        )


MASTER = RankProgram(
    title="Master weights, and steps that all ranks skip",
    prompt="Each rank has the float32 master weights of its own shard, `master[N]`, "
    "and that shard's gradients of some steps, `grads[steps, N]`, in float16, of a "
    "loss that was multiplied by 1024. In each step: if **any** rank's gradient is not finite, no "
    "rank updates. Otherwise subtract the gradient, divided by 1024, from the weights, in float32 "
    "(learning rate 1). Return the new master weights. Gradients are not sent: ranks tell each "
    "other only whether there was an overflow.",
    starter="""def master_weights(master, grads):
    # master: [N], float32; grads: [steps, N], float16
    weights = master.half()
    for grad in grads:
        if grad.isfinite().all():
            weights -= grad / 1024
    return weights.float()""",
    concept="Can a rank see from its own gradients that another rank overflowed?",
    principle="Each rank turns its check into a number, and the largest of all ranks' numbers says "
    "whether to skip. The update is computed in the precision of the master weights.",
    shape="In the loop: one line that computes a flag, a tensor; one collective with "
    "`op=dist.ReduceOp.MAX` (or a sum); one condition; one line that updates.",
    success="ZeRO and tensor parallelism need this flag. Plain data parallelism does not: after "
    "its all-reduce every rank has the same gradients, infinite ones included.",
    make=_make_master,
    sends=lambda axes, case: [("world", "all_reduce", len(case.inputs[0][1]), 4)],
    judges=(
        right_shape,
        _by_update,
        silent(
            "the trace shows no collective: each rank decided by its own gradients alone, so ranks "
            "skip different steps."
        ),
        _summed,
        right_numbers,
        _divided_in_half,
        _flags_alone,
    ),
)

"""The exercises of the notebook on data parallelism: gradients in one bucket, what a ZeRO stage
keeps and sends, and a step of ZeRO-1."""

from collections.abc import Iterator
from itertools import permutations
from typing import Any

import numpy as np

from .checks import GENERAL, Attempt, Case, Mistake, RankProgram, silent, wasteful, whole_numbers
from .formula import Formula
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
            "the gradients stand in another order: first, second, third are asked for",
            [[means[k].ravel() for k in order] for order in permutations(range(3))],
        ),
        (
            "a matrix is flattened by columns: `flatten()` goes row by row, as PyTorch stores it",
            [[means[0].T.ravel(), means[1], means[2].T.ravel()]],
        ),
    ):
        for order in parts:
            yield words, [np.concatenate(order)] * n
    for k, which in enumerate(("first", "second", "third")):
        yield (
            f"the {which} gradient is that of each rank alone, not the mean over the ranks",
            [
                np.concatenate([(own if j == k else means)[j].ravel() for j in range(3)])
                for own in inputs
            ],
        )
        scaled = [means[j].ravel() * (n if j == k else 1) for j in range(3)]
        yield (
            f"the {which} gradient is the sum over the ranks, not the mean",
            [np.concatenate(scaled)] * n,
        )


BUCKET = RankProgram(
    title="Gradients in one bucket",
    prompt="Every rank has the gradients of three parameters: two matrices and a vector. Return "
    "their means over the ranks, flattened and one after the other, on every rank, with **one** "
    "collective.",
    starter="""def zero_bucket(first, second, third):
    # gradients of this rank, each of another shape
    gradients = [first, second, third]
    return torch.cat([gradient.flatten() for gradient in gradients])""",
    concept="Each collective costs its latency. What decides how many you need: the number of "
    "tensors, or the number of buffers?",
    principle="An all-reduce adds element by element, so it does not matter which parameter an "
    "element belongs to: one flat buffer can hold all gradients.",
    shape="`[N]`, flat: one line that joins, one collective on the joined tensor, one division.",
    success="This is a bucket of PyTorch's DDP. DDP has several, so that the first can be reduced "
    "while backward still computes the gradients of the next.",
    make=_make_bucket,
    sends=lambda axes, case: [("world", "all_reduce", 1, case.expected[0].nbytes)],
    judges=(
        silent("the trace shows no collective: every rank still has only its own gradients."),
        Mistake(
            lambda a: a.matches(lambda mean: mean * a.size),
            "you have the sums over the ranks, not the means: divide by the number of ranks.",
        ),
        Variants(_bucket_variants),
        Mistake(
            lambda a: a.all_right and a.count("all_reduce") > 1,
            "the numbers are right, but that is one collective for each parameter. A model "
            "has hundreds, and each collective costs its latency: flatten first, then all-reduce "
            "once.",
        ),
        wasteful(
            lambda a: "all_gather" in a.names() and "reduce_scatter" not in a.names(),
            "the numbers are right, but all_gather brings every rank the gradients of all ranks "
            "({a.sent:g} bytes sent per rank, {a.least:g} will do). Use a collective that reduces.",
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
    yield (
        "you subtracted the sum of the gradients over the ranks. The mean divides by their number, "
        "or the learning rate grows with it.",
        everyone(_stepped(case, times=n)),
    )
    yield (
        "the momentum is left out: a step moves by half of the old momentum and the mean gradient.",
        everyone(_stepped(case, kept=0)),
    )
    yield (
        "a step keeps half of the old momentum, not all of it.",
        everyone(_stepped(case, kept=1)),
    )
    yield (
        "half of the momentum is kept, and the whole mean gradient is added.",
        everyone(_stepped(case, times=0.5)),
    )
    yield "the new momentum is subtracted, not added.", everyone(_stepped(case, moved=-1))
    yield (
        "the mean gradient is added to the momentum: both are subtracted from the weights.",
        everyone(_stepped(case, kept=-KEPT)),
    )
    yield (
        "you gathered the old weights: update your shard before you gather it.",
        everyone(weights[0]),
    )
    yield (
        "the mean gradient is left out: only the momentum moved the weights.",
        everyone(_stepped(case, times=0)),
    )
    yield (
        "you divided by the number of ranks once more than the mean does.",
        everyone(_stepped(case, times=1 / n)),
    )
    yield (
        "every shard has the momentum of this rank. It is that of the rank's own shard alone: "
        "update this one, and gather the shards.",
        [_stepped(case, momentum=np.tile(one, n)) for one in momentum],
    )
    yield (
        "each shard was updated with its rank's own gradient alone: the ranks' gradients are not "
        "added. Reduce-scatter them.",
        everyone(
            np.concatenate(
                [np.split(_stepped(case, gradients=[own[rank]]), n)[rank] for rank in range(n)]
            )
        ),
    )
    yield (
        "you gathered the updates, or the new momentum, without subtracting them from the weights.",
        everyone(weights[0] - case.expected[0]),
    )
    yield (
        "the weights outside of the rank's own shard are the old ones: all-gather the shards.",
        [
            np.concatenate(
                [
                    new if rank == place else old
                    for place, (new, old) in enumerate(zip(shards, np.split(weights[0], n)))
                ]
            )
            for rank in range(n)
        ],
    )
    yield (
        "each rank returned its own updated shard. The next forward pass needs all weights on "
        "every rank: all-gather the shards.",
        shards,
    )


STEP = RankProgram(
    title="A step of ZeRO-1",
    prompt="All ranks have the same flat `weights`, and each rank its own `gradient`. One step of "
    "gradient descent with momentum and learning rate 1: the new momentum is half of the old one "
    "plus the mean gradient, and is subtracted from the weights. With ZeRO-1, rank r updates only "
    "shard r of the weights, so only it has the optimizer state of that shard: `momentum`. "
    "Return the new weights, whole, on every rank; send no more bytes than plain data parallelism. "
    "The length divides by the number of ranks.",
    starter="""def zero_step(weights, gradient, momentum):
    # weights: [N], the same on all ranks; gradient: [N], of this rank's part of the batch;
    # momentum: [N / n], of this rank's shard of the weights
    n, rank = dist.get_world_size(), dist.get_rank()
    momentum = momentum / 2 + gradient.chunk(n)[rank]
    return weights.chunk(n)[rank] - momentum""",
    concept="Which part of the mean gradient does a rank need for its own shard? Which part of the "
    "new weights does it need for the next forward pass?",
    principle="Reduce-scatter gives each rank the sum of one shard, all-gather gives all ranks all "
    "updated shards. Together they send as many bytes as one all-reduce.",
    shape="Four steps: a collective that fills a new tensor of a shard's shape; the update of "
    "momentum and of your own shard; a collective that fills `[N]`; the return.",
    success="The bytes are those of plain data parallelism, and a rank keeps 1/n of the optimizer "
    "states. With Adam in mixed precision those are 12 of 16 bytes per parameter.",
    make=_make_step,
    sends=lambda axes, case: [
        ("world", half, 1, case.expected[0].nbytes) for half in ("reduce_scatter", "all_gather")
    ],
    judges=(
        silent(
            "the trace shows no collective: each rank moved by its own gradient, and the replicas "
            "are no longer equal."
        ),
        Mistake(
            lambda a: "all_reduce" in a.names(),
            "you all-reduced the gradient, as plain data parallelism does. In ZeRO-1 a rank needs "
            "only the sum of its own shard: use reduce_scatter, update the shard, then all_gather.",
        ),
        Mistake(
            lambda a: (
                "all_gather" in a.names()
                and a.equals(lambda rank: np.split(a.case.expected[0], a.size)[rank])
            ),
            "you gathered the weights and then returned only your own shard of them: the next "
            "forward pass needs all of them on every rank.",
        ),
        Variants(_step_variants),
        Mistake(
            lambda a: "reduce_scatter" not in a.names() and a.all_right,
            "the numbers are right, but you gathered every rank's gradients and added them "
            "yourself: {a.sent:g} bytes sent per rank where {a.least:g} will do. Use "
            "reduce_scatter.",
        ),
        Mistake(
            lambda a: a.count("all_gather") > 1 and a.all_right,
            "the numbers are right, but you gathered {a.excess:.2g}x the bytes needed: every rank "
            "then has all momentum, or all gradients, as in plain data parallelism. Gather the "
            "updated shards of the weights alone.",
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


STATES = Formula(
    title="What a ZeRO stage shards",
    prompt="Adam in mixed precision keeps 2 bytes for each parameter, 2 for its gradient and 12 "
    "for the optimizer states (a float32 copy and two moments). Return the bytes of a GPU as "
    "(parameters, gradients, optimizer states), for `parameters` parameters on `dp` GPUs with ZeRO "
    "stage `zero` (0 to 3).",
    starter="""def zero_states(parameters, dp, zero):
    return 2 * parameters, 2 * parameters, 12 * parameters""",
    concept="Which of the three is the largest? A ZeRO stage starts with that one.",
    principle="Stage 1 shards optimizer states, stage 2 gradients too, stage 3 parameters too. A "
    "shard is 1/dp.",
    shape="Three quotients in the order of the task. Each divides its bytes by `dp` or by 1, "
    "which a comparison of `zero` with a number decides.",
    success="With 64 GPUs the 16 bytes of a parameter become 4.2, 2.2 and 0.25. Activations are "
    "not among them: no ZeRO stage shards those.",
    draw=_draw_stages,
    solution=states,
    mistakes=lambda parameters, dp, zero: {
        "without ZeRO every replica keeps everything; stage 1 begins to shard.": states(
            parameters, dp, min(zero + 1, 3)
        ),
        "stage 1 shards optimizer states, stage 2 gradients too, stage 3 parameters too.": states(
            parameters, dp, max(zero - 1, 0)
        ),
        "no stage shards all three but stage 3.": states(parameters, dp, 3),
        "the stages shard in this order: optimizer states, gradients, parameters.": tuple(
            n * parameters / (dp if zero >= stage else 1) for n, stage in zip((2, 2, 12), (1, 2, 3))
        ),
        **{
            f"stage 1 shards optimizer states, stage 2 gradients too, stage 3 parameters too; you "
            f"have {' then '.join(_NAMES[k] for k in order)}.": tuple(
                n * parameters / (dp if zero >= 1 + order.index(k) else 1)
                for k, n in enumerate((2, 2, 12))
            )
            for order in permutations(range(3))
            if order not in ((2, 1, 0), (2, 0, 1))
        },
        **{
            f"optimizer states are a float32 copy of the weights and two moments, 4 bytes each: "
            f"{why}.": (..., ..., size * parameters / (dp if zero else 1))
            for size, why in _OPTIMIZER.items()
        },
        **{
            f"optimizer states are a float32 copy of the weights and two moments, and a stage "
            f"shards all three: you have {what} whole.": (
                ...,
                ...,
                (whole + (12 - whole) / (dp if zero else 1)) * parameters,
            )
            for whole, what in ((4, "the copy, or one moment,"), (8, "two of them"))
        },
        **{
            f"{_NAMES[k]} are whole in stages before {3 - k} alone: from then on they are sharded, "
            "like what earlier stages shard.": tuple(
                n * parameters * (1 if i == k or zero < 3 - i else 1 / dp)
                for i, n in enumerate((2, 2, 12))
            )
            for k in (0, 1, 2)
        },
        "that is replicated: this stage keeps shards of 1/dp.": states(parameters, dp, 0),
    },
    parts=("parameters", "gradients", "optimizer states"),
)


# --- zero_sent ---
def sent(size: float, dp: int, zero: int) -> float:
    """Bytes that a rank sends in a step, of parameters of ``size`` bytes with gradients of the
    same; Rajbhandari et al. 2020 (arXiv 1910.02054), section 7."""
    return (3 if zero == 3 else 2) * (dp - 1) / dp * size


def _no_ring(size: float, dp: int, zero: int) -> Any:
    return sent(size, dp, zero) * dp / (dp - 1)


SENT = Formula(
    title="What a ZeRO stage sends",
    prompt="Parameters take `size` bytes, and so do their gradients. Return the bytes that each of "
    "`dp` ranks sends in one step, in ring collectives, with ZeRO stage `zero` (0 to 3). In stage "
    "3, parameters are gathered once for the forward and once for the backward pass.",
    starter="""def zero_sent(size, dp, zero):
    return 2 * size""",
    concept="Name the collectives of each stage first. What is an all-reduce made of?",
    principle="Reduce-scatter and all-gather send (dp-1)/dp of the tensor each. Stages 0 to 2 have "
    "one of each, stage 3 has a second all-gather.",
    shape="A product of three factors: a whole number that depends on the stage, a fraction of "
    "`dp`, and `size`.",
    success="ZeRO-1 and ZeRO-2 cost no additional bytes; ZeRO-3 sends 1.5 times as many, and "
    "its all-gathers must be finished before each layer computes.",
    draw=_draw_stages,
    solution=sent,
    mistakes=lambda size, dp, zero: {
        f"stage {zero} reduce-scatters gradients, and then a rank has updated its shard of the "
        "parameters alone: they are all-gathered, which sends as much again.": (
            (dp - 1) / dp * size if zero in (1, 2) else None
        ),
        "a ring sends (dp-1)/dp of the tensor in each half, not all of it.": _no_ring(
            size, dp, zero
        ),
        "an all-reduce is a reduce-scatter and an all-gather: two halves.": (dp - 1) / dp * size,
        "a ring sends (dp-1)/dp of the tensor in each half; and stage 3 has a third half, the "
        "all-gather before backward.": 2 * size if zero == 3 else None,
        "in stage 3 gradients are reduce-scattered and nothing more: they are not all-reduced.": (
            4 * (dp - 1) / dp * size if zero == 3 else None
        ),
        "stage 3 gathers the parameters twice, for forward and for backward.": (
            2 * (dp - 1) / dp * size if zero == 3 else None
        ),
        "before stage 3 no rank gathers parameters for its backward pass, and sharded gradients "
        "are not gathered: of their all-reduce the reduce-scatter is enough.": (
            3 * (dp - 1) / dp * size if zero < 3 else None
        ),
        "sharded gradients are reduced over all ranks all the same; only parameters are gathered "
        "once more, and only in stage 3.": (zero + 2) * (dp - 1) / dp * size if zero else None,
    },
)

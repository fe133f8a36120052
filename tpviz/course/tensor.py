"""The exercises of the notebook on tensor parallelism: the gradient of an input, an MLP under
sequence parallelism, and what a layer sends and keeps.

Shapes: T tokens, H hidden, F inner width of the MLP, n ranks.
"""

import numpy as np

from .checks import (
    GENERAL,
    Case,
    Mistake,
    RankProgram,
    part,
    parts,
    places,
    silent,
    wasteful,
    whole_numbers,
)
from .formula import Formula
from .variants import Terms, Variants


# --- tp_input_gradient ---
def _make_gradient(rng, axes):
    n = axes["world"]
    tokens, hidden, inner = (int(size) for size in rng.integers(2, 6, size=3))
    draw = lambda rows: whole_numbers(rng, rows, inner * n)
    grad_up, up, grad_gate, gate = draw(tokens), draw(hidden), draw(tokens), draw(hidden)
    cut = (None, "world")
    inputs = parts(axes, (grad_up, *cut), (up, *cut), (grad_gate, *cut), (gate, *cut))
    terms = [own[0] @ own[1].T + own[2] @ own[3].T for own in inputs]

    def program(steps):
        grads, weights = ((own[k:] for own in inputs) for k in (0, 1))
        names = ("dU W_upᵀ", "dG W_gateᵀ")
        products = [[one[k] @ other[k].T for one, other in zip(grads, weights)] for k in (0, 2)]
        first = steps.value(names[0], products[0])
        return steps.sum("dX", steps.add(names[1], first, products[1]), "world")

    return Case(
        inputs,
        [grad_up @ up.T + grad_gate @ gate.T] * n,
        flops=4 * tokens * hidden * inner,
        terms=Terms(terms),
    )


def _partial(attempt, rank):
    grad_up, up, grad_gate, gate = attempt.case.inputs[rank]
    return grad_up @ up.T + grad_gate @ gate.T


def _of_one_layer(attempt):
    """The output through which alone the gradient came, or None."""
    through = [
        sum(own[i] @ own[i + 1].T for own in attempt.case.inputs)  # pyright: ignore[reportAttributeAccessIssue]
        for i in (0, 2)
    ]
    names = zip(("U", "G"), through)
    return next((name for name, y in names if attempt.equals(lambda rank, y=y: y)), None)  # pyright: ignore[reportArgumentType]


def _gradients_reduced(attempt):
    grad_up, _, grad_gate, _ = map(sum, zip(*attempt.case.inputs))

    def early(rank):
        _, up, _, gate = attempt.case.inputs[rank]
        return grad_up @ up.T + grad_gate @ gate.T

    total = sum(map(early, range(attempt.size)))
    return attempt.equals(early) or attempt.equals(lambda rank: total)


def _gradient_variants(attempt):
    """Products of other pairs, or subtracted."""
    inputs, n = attempt.case.inputs, attempt.size
    through_up = sum(own[0] @ own[1].T for own in inputs)
    through_gate = sum(own[2] @ own[3].T for own in inputs)
    crossed = sum(own[0] @ own[3].T + own[2] @ own[1].T for own in inputs)
    yield "each gradient belongs to its own weight: dU to W_up, dG to W_gate", [crossed] * n
    yield (
        "the two gradients are subtracted: X feeds both, so they add",
        [through_up - through_gate] * n,
    )
    both = [(own[0] + own[2], own[1] + own[3]) for own in inputs]
    each = "each gradient belongs to its own weight: multiply first, then add"
    yield (
        f"dU and dG, and the two weights, are added before the product: {each}",
        [sum(grad @ weight.T for grad, weight in both)] * n,
    )
    for k, name in ((1, "W_up"), (3, "W_gate")):
        added = sum(grad @ own[k].T for (grad, _), own in zip(both, inputs))
        yield f"dU and dG are added before the product with {name}: {each}", [added] * n
    yield "the gradient through U counts twice", [2 * through_up + through_gate] * n
    yield "the gradient through G counts twice", [through_up + 2 * through_gate] * n
    up, gate = ([own[k] @ own[k + 1].T for own in inputs] for k in (0, 2))
    yield "only the term through U is added over the ranks", [through_up + one for one in gate]
    yield "only the term through G is added over the ranks", [one + through_gate for one in up]


GRADIENT = RankProgram(
    title="The gradient of the input of two column-parallel layers",
    prompt="X feeds two column-parallel layers, as in the MLP of Llama: U = X W_up and G = X "
    "W_gate. Each rank has its columns of both weights, and of the gradients of U and of G. Return "
    "the gradient of X, `[T, H]`, on every rank, with **one** collective.",
    starter="""def tp_input_gradient(grad_up, up, grad_gate, gate):
    # grad_up, grad_gate: [T, F / n]; up, gate: [H, F / n]; this rank's columns of each
    return grad_up @ up.T + grad_gate @ gate.T""",
    concept="Write dX = dU W_upᵀ + dG W_gateᵀ as a sum over the columns. Which columns has a rank?",
    principle="Each rank has a term of both sums. Sums can be added in any order: first those of "
    "a rank, then over the ranks.",
    shape="`[T, H]`: one line that adds two products, and one collective on the result.",
    success="This is the all-reduce that a column-parallel layer adds to backward. q, k and v "
    "have one input too, and share one all-reduce.",
    make=_make_gradient,
    sends=lambda axes, case: [("world", "all_reduce", 1, case.expected[0].nbytes)],
    judges=(
        Mistake(
            lambda a: not a.ledger and a.equals(lambda rank: _partial(a, rank)),
            "each rank returned a partial sum: it has some columns of the two weights, and dX adds "
            "over all columns. Backward of a column-parallel layer needs a collective.",
        ),
        Mistake(
            lambda a: a.matches(lambda want: want / a.size),
            "you averaged the partial sums. A matrix product adds its terms: do not divide.",
        ),
        Mistake(
            _of_one_layer,
            "this is the gradient through one of the two layers, of {it}. X feeds both, so their "
            "gradients add.",
        ),
        Mistake(
            _gradients_reduced,
            "you added the gradients of U or G over the ranks. Ranks have different columns of "
            "these, not terms of one sum: multiply first.",
        ),
        Variants(_gradient_variants),
        Mistake(
            lambda a: a.all_right and a.count("all_reduce") > 1,
            "the numbers are right, but that is one all-reduce for each layer, twice the "
            "bytes: add the two partial sums on the rank, then all-reduce once.",
        ),
        wasteful(
            lambda a: "all_gather" in a.names(),
            "the numbers are right, but you gathered: every rank then multiplies whole matrices. "
            "Multiply your own columns, and all-reduce the result.",
        ),
        *GENERAL,
    ),
)


# --- sp_mlp ---
def _make_sequence(rng, axes):
    n = axes["world"]
    tokens, hidden, inner = (int(size) for size in rng.integers(2, 6, size=3))
    x, w1 = whole_numbers(rng, tokens * n, hidden), whole_numbers(rng, hidden, inner * n)
    w2 = whole_numbers(rng, inner * n, hidden)
    inputs = parts(axes, (x, "world", None), (w1, None, "world"), (w2, "world", None))
    y = np.maximum(x @ w1, 0) @ w2
    expected = [part(y, axes, at, "world", None) for at in places(axes)]
    terms = Terms(
        [np.maximum(x @ own, 0) @ down for _, own, down in inputs],
        finish=lambda rank, total: np.split(total, n)[rank],
    )

    def program(steps):
        own, up, down = zip(*inputs)
        all_of_x = steps.gather("X", own, "world")
        h = steps.each("X W1", np.matmul, all_of_x, up)
        h = steps.value("H", steps.relu("H", h))
        return steps.scatter("Y", [one @ w for one, w in zip(h, down)], "world")

    return Case(inputs, expected, 4 * tokens * n * hidden * inner, terms, program)


def _own_of(whole, attempt, rank):
    return np.split(whole, attempt.size)[rank]


def _whole_inputs(attempt):
    x, w1, w2 = zip(*attempt.case.inputs)
    return np.concatenate(x), np.concatenate(w1, axis=1), np.concatenate(w2)


def _of_partial_sum(attempt):
    x = _whole_inputs(attempt)[0]

    def own(rank):
        _, w1, w2 = attempt.case.inputs[rank]
        return _own_of(np.maximum(x @ w1, 0) @ w2, attempt, rank)

    return attempt.equals(own)


def _of_mixed_tokens(attempt):
    """Whether the ranks' products of their own tokens were added."""
    total = sum(np.maximum(x @ w1, 0) @ w2 for x, w1, w2 in attempt.case.inputs)
    return attempt.equals(lambda rank: total)  # pyright: ignore[reportArgumentType]


def _without_relu(attempt):
    x, w1, w2 = _whole_inputs(attempt)
    return attempt.equals(lambda rank: _own_of(x @ w1 @ w2, attempt, rank))


def _returned_all_tokens(attempt):
    whole = attempt.size * len(attempt.case.expected[0])
    return all(getattr(got, "shape", (0,))[:1] == (whole,) for got in attempt.outputs)


SEQUENCE = RankProgram(
    title="An MLP under sequence parallelism",
    prompt="Y = relu(X W1) W2. The weights are sharded as in tensor parallelism, `W1[H, F_tp]` by "
    "columns and `W2[F_tp, H]` by rows, and X by tokens: `X[T_tp, H]`. Return this rank's tokens "
    "of Y, `Y[T_tp, H]`. Send no more bytes than the one all-reduce of tensor parallelism.",
    starter="""def sp_mlp(x, w1, w2):
    # x: [T / n, H], this rank's tokens; w1: [H, F / n], columns; w2: [F / n, H], rows
    return torch.relu(x @ w1) @ w2""",
    concept="A rank has some columns of W1. Of which tokens can only it compute these columns?",
    principle="Every rank needs all tokens before W1, and after W2 only its own tokens of the sum. "
    "An all-reduce is a reduce-scatter and an all-gather: which half belongs where?",
    shape="Four steps: a collective that fills `[T, H]` with the tokens of all ranks; the two "
    "products; a collective that fills `[T / n, H]`; the return.",
    success="Between two such parts a rank has only its own tokens: norms, dropout and the "
    "residual stream take 1/n of the memory.",
    make=_make_sequence,
    sends=lambda axes, case: [
        ("world", half, 1, axes["world"] * case.expected[0].nbytes)
        for half in ("all_gather", "reduce_scatter")
    ],
    judges=(
        silent(
            "the trace shows no collective: each rank multiplied its own tokens by its own columns "
            "and rows, one of the n terms of the sum."
        ),
        Mistake(
            lambda a: "reduce_scatter" in a.names() and a.names().isdisjoint(GATHERING),
            "you reduced, but never gathered X. Column by column, the rank computes for **all** "
            "tokens, since no other rank has its columns.",
        ),
        Mistake(
            _of_partial_sum,
            "each rank took its tokens of a partial sum. The ranks still have to add: which "
            "collective adds and leaves each rank only its own part?",
        ),
        Mistake(
            _of_mixed_tokens,
            "you added over the ranks what each computed for its **own** tokens: row i of the sum "
            "mixes tokens of all ranks. The terms of one token's sum come from all ranks' columns "
            "of W1, so every rank has to compute its terms for all tokens: what does it lack?",
        ),
        Mistake(
            lambda a: "reduce_scatter" in a.names() and _returned_all_tokens(a),
            "each rank had its own tokens of Y, and then you gathered all of them. The next norm "
            "needs only this rank's: leave the last collective to the next layer.",
        ),
        Mistake(
            _returned_all_tokens,
            "each rank returned all tokens. The next norm needs only this rank's, and keeping all "
            "of them is the memory that sequence parallelism saves.",
        ),
        wasteful(
            lambda a: "all_reduce" in a.names(),
            "the numbers are right, but an all-reduce brings every rank the sums of all tokens, of "
            "which it keeps 1/{a.size}: {a.sent:g} bytes sent, {a.least:g} will do.",
        ),
        Mistake(
            lambda a: a.all_right and "reduce_scatter" not in a.names(),
            "the numbers are right, but you gathered the weights or more: then every rank holds "
            "whole weights, which tensor parallelism avoids. Gather X, reduce-scatter Y.",
        ),
        Mistake(_without_relu, "relu is missing: Y = relu(X W1) W2."),
        Mistake(
            lambda a: a.matches(lambda want: want / a.size),
            "you averaged the partial sums. A matrix product adds its terms: do not divide.",
        ),
        *GENERAL,
    ),
)
GATHERING = {"all_gather", "all_to_all", "broadcast", "send"}


# --- tp_sent ---
def sent(payload: float, tp: int, sp: bool) -> tuple[float, float]:
    """Bytes that a rank sends for one transformer layer, (forward, backward), activations of
    ``payload`` bytes; Shoeybi et al. 2019 (arXiv 1909.08053), section 3; Korthikanti et al. 2022
    (arXiv 2205.05198), section 4.2.2."""
    half = (tp - 1) / tp * payload
    return 4 * half, (6 if sp else 4) * half


def _draw_sent(rng):
    for sp in (False, True, True, False):
        yield int(rng.integers(1, 500)) * 2**20, int(2 ** rng.integers(1, 5)), sp


def _sent_mistakes(payload, tp, sp):
    half, (forward, backward) = (tp - 1) / tp * payload, sent(payload, tp, sp)
    return {
        "a ring sends (tp-1)/tp of the tensor in each half of an all-reduce, not all of it.": (
            forward * tp / (tp - 1),
            backward * tp / (tp - 1),
        ),
        "backward gathers the inputs of the two column-parallel layers once more: under sequence "
        "parallelism a rank kept only its own tokens of them.": (forward, forward) if sp else None,
        "without sequence parallelism every rank keeps the whole input: nothing is gathered "
        "again.": None if sp else (4 * half, 6 * half),
        "the additional all-gathers are in backward.": (6 * half, 4 * half) if sp else None,
        "sequence parallelism halves each collective, but there are twice as many: forward sends "
        "what tensor parallelism sends.": (2 * half, 2 * half) if sp else None,
        "a layer has two parts, attention and MLP. Each has an all-reduce forward and one "
        "backward, and an all-reduce is two halves.": (forward / 2, backward / 2),
        "in backward the two column-parallel layers each gather their input once more: two "
        "all-gathers, not one.": (..., 5 * half) if sp else None,
    }


SENT = Formula(
    title="What a transformer layer sends",
    prompt="Attention and MLP are each a column-parallel and a row-parallel layer. The activations "
    "between layers take `payload` bytes, for all tokens. Return the bytes that each of `tp` ranks "
    "sends for one transformer layer, as (forward, backward), in ring collectives; with sequence "
    "parallelism if `sp`.",
    starter="""def tp_sent(payload, tp, sp):
    return payload, payload""",
    concept="List the collectives of one part first. Which come in pairs, and which are needed "
    "once more in backward?",
    principle="An all-reduce sends 2 (tp-1)/tp of the tensor, its halves (tp-1)/tp each. For the "
    "weight's gradient, backward of a column-parallel layer needs its whole input.",
    shape="Two products of a whole number, a fraction of `tp`, and `payload`. The second whole "
    "number depends on `sp`.",
    success="Ten halves instead of eight: sequence parallelism sends a quarter more in all, and "
    "saves memory. Megatron overlaps the additional all-gather with a GEMM of backward.",
    draw=_draw_sent,
    parts=("forward", "backward"),
    solution=sent,
    mistakes=_sent_mistakes,
)


# --- tp_activations ---
def activations(tokens: int, hidden: int, itemsize: int, tp: int) -> tuple[float, float]:
    """Bytes that a rank keeps of one transformer layer, (tensor parallelism, with sequence
    parallelism too), of what the prompt lists; compare Korthikanti et al. 2022 (arXiv 2205.05198),
    equations 2 and 4."""
    unit = tokens * hidden * itemsize
    return (4 + 12 / tp) * unit, 16 / tp * unit


def _draw_activations(rng):
    for _ in range(4):
        hidden = int(rng.integers(1, 20)) * 512
        yield (
            int(rng.integers(1, 64)) * 1024,
            hidden,
            int(rng.choice((2, 4))),
            2 ** int(rng.integers(1, 5)),
        )


def _activation_mistakes(tokens, hidden, itemsize, tp):
    unit, right = tokens * hidden * itemsize, activations(tokens, hidden, itemsize, tp)
    both = lambda first, second: (first * unit, second * unit)
    return {
        "tensor parallelism does not shard what the norms keep: every rank computes them for all "
        "tokens.": both(16 / tp, 16 / tp),
        "sequence parallelism shards what the norms keep by tokens.": both(
            4 + 12 / tp, 4 + 12 / tp
        ),
        "between its two layers, a rank of tensor parallelism has only its own columns: 1/tp of q, "
        "k, v, the output of attention, and the MLP.": both(16, 16 / tp),
        "under sequence parallelism the weights are still cut, so what is between them stays at "
        "1/tp.": both(4 + 12 / tp, 12 + 4 / tp),
        "the MLP is four times as wide as the hidden size.": both(4 + 6 / tp, 10 / tp),
        "two norms keep their input and their output: four tensors.": both(2 + 12 / tp, 14 / tp),
        "these are numbers of elements: one takes `itemsize` bytes.": tuple(
            size / itemsize for size in right
        ),
        "first tensor parallelism, then with sequence parallelism.": right[::-1],
        **{words: both(4 + inner / tp, (4 + inner) / tp) for inner, words in _COUNTED.items()},
        "sequence parallelism shards what the norms keep; between the cuts it stays at 1/tp.": (
            ...,
            (4 + 12 / tp) / tp * unit,
        ),
        **{
            f"{name} between a column cut and a row cut: a rank has 1/tp of {it}.": both(
                4 + units + (12 - units) / tp, 16 / tp
            )
            for units, (name, it) in _BETWEEN.items()
        },
        **{
            f"the norms keep four tensors, whole under tensor parallelism; you cut {units} of them "
            "by tp.": both(4 - units + (12 + units) / tp, 16 / tp)
            for units in (1, 2, 3)
        },
        **{
            f"the norms keep four tensors, the input and the output of both; you have {units}.": (
                both(units + 12 / tp, (units + 12) / tp)
            )
            for units in (1, 3)
        },
        **{
            f"sequence parallelism shards all four tensors of the norms, inputs and outputs, by "
            f"tokens; you have {units} of them whole.": (..., (units + (16 - units) / tp) * unit)
            for units in (1, 2, 3)
        },
        "what lies between a column cut and a row cut is sharded, what the norms keep is not: you "
        "have it the other way round.": both(12 + 4 / tp, 16 / tp),
    }


_BETWEEN = {
    1: ("the output of attention (or one of q, k and v) lies", "it"),
    2: ("two of q, k, v lie", "them"),
    3: ("q, k and v lie", "them"),
    4: ("one of the MLP's two tensors, or q, k, v and the output of attention lie", "them"),
    8: ("the MLP's two tensors lie", "them"),
}
"""{units: what is between the cuts, and is counted as whole}."""
_COUNTED = {
    8: "you have eight units between the cuts: q, k, v and the output of attention are four, and "
    "the MLP's inner activations eight, four before GELU and four after.",
    8.5: "the MLP keeps eight units, four times the hidden size before GELU and four after it.",
    9: "q, k and v are three tensors, not one.",
    10: "the MLP's two tensors are four times as wide as the hidden size each: eight units.",
    11: "q, k, v and the output of attention are four tensors, not three.",
    16: "before and after GELU are two tensors of the MLP's width, not three.",
    4: "the MLP's inner activations are kept too: four units before GELU and four after.",
}
"""{units between the cuts: what was counted wrong}; 12 are right."""


ACTIVATIONS = Formula(
    title="Activation memory of a transformer layer",
    prompt="For its backward pass, a transformer layer keeps the input and the output of both "
    "norms; q, k, v and the output of attention; and the MLP's inner activations, four times as "
    "wide as `hidden`, before and after GELU. Return the bytes that one of `tp` ranks keeps, for "
    "`tokens` tokens and numbers of `itemsize` bytes, as (tensor parallelism, tensor and sequence "
    "parallelism).",
    starter="""def tp_activations(tokens, hidden, itemsize, tp):
    return 16 * tokens * hidden * itemsize / tp, 0""",
    concept="Count in units of tokens x hidden. Which tensors lie between a column cut and a row "
    "cut?",
    principle="Between the two cuts a rank has 1/tp of the columns. The norms are outside: whole "
    "in tensor parallelism, 1/tp of the tokens in sequence parallelism.",
    shape="Each is a count of units over `tp`, the first with a second count that does not "
    "depend on `tp`, times the bytes of one unit.",
    success="With 8 ranks, tensor parallelism keeps 5.5 units and sequence parallelism 2; however "
    "many ranks, tensor parallelism alone never gets below 4.",
    draw=_draw_activations,
    parts=("bytes of tensor parallelism", "bytes with sequence parallelism"),
    solution=activations,
    mistakes=_activation_mistakes,
)

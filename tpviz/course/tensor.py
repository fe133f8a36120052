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
from .told import told
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
    return Case(
        inputs,
        [grad_up @ up.T + grad_gate @ gate.T] * n,
        flops=4 * tokens * hidden * inner,
        terms=Terms(terms),
    )


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
    yield GRADIENT.say("du to w_up dg to w_gate"), [crossed] * n
    yield GRADIENT.say("two gradients are subtracted"), [through_up - through_gate] * n
    both = [(own[0] + own[2], own[1] + own[3]) for own in inputs]
    each = GRADIENT.say("multiply first then add")
    yield (
        GRADIENT.say("du and dg and the two", each=each),
        [sum(grad @ weight.T for grad, weight in both)] * n,
    )
    for k, name in ((1, "W_up"), (3, "W_gate")):
        added = sum(grad @ own[k].T for (grad, _), own in zip(both, inputs))
        yield GRADIENT.say("du and dg are added before", name=name, each=each), [added] * n
    yield GRADIENT.say("gradient through u counts twice"), [2 * through_up + through_gate] * n
    yield GRADIENT.say("gradient through g counts twice"), [through_up + 2 * through_gate] * n
    up, gate = ([own[k] @ own[k + 1].T for own in inputs] for k in (0, 2))
    yield GRADIENT.say("only the term through u"), [through_up + one for one in gate]
    yield GRADIENT.say("only the term through g"), [one + through_gate for one in up]


GRADIENT = RankProgram(
    **told("tp_input_gradient"),
    make=_make_gradient,
    sends=lambda axes, case: [("world", "all_reduce", 1, case.expected[0].nbytes)],
    judges=(
        Mistake(
            "each rank returned a partial sum",
            lambda a: not a.ledger and a.equals(a.case.terms.of.__getitem__),
        ),
        Mistake("you averaged the partial sums", lambda a: a.matches(lambda want: want / a.size)),
        Mistake("this is the gradient through", _of_one_layer),
        Mistake("you added the gradients of u", _gradients_reduced),
        Variants(_gradient_variants),
        Mistake("that is one all-reduce", lambda a: a.all_right and a.count("all_reduce") > 1),
        wasteful("you gathered every rank then multiplies", lambda a: "all_gather" in a.names()),
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
    terms = attempt.case.terms
    return attempt.equals(lambda rank: terms.finish(rank, terms.of[rank]))


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
    **told("sp_mlp"),
    make=_make_sequence,
    judges=(
        silent,
        Mistake(
            "you reduced but never gathered x",
            lambda a: "reduce_scatter" in a.names() and a.names().isdisjoint(GATHERING),
        ),
        Mistake("each rank took its tokens", _of_partial_sum),
        Mistake("you added over the ranks what", _of_mixed_tokens),
        Mistake(
            "each rank had its own tokens",
            lambda a: "reduce_scatter" in a.names() and _returned_all_tokens(a),
        ),
        Mistake("each rank returned all tokens", _returned_all_tokens),
        wasteful("all-reduce brings every rank", lambda a: "all_reduce" in a.names()),
        Mistake(
            "you gathered the weights or more",
            lambda a: a.all_right and "reduce_scatter" not in a.names(),
        ),
        Mistake("relu is missing", _without_relu),
        Mistake("you averaged the partial sums", lambda a: a.matches(lambda want: want / a.size)),
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
        "ring sends tp-1 /tp": (forward * tp / (tp - 1), backward * tp / (tp - 1)),
        "backward gathers the inputs": (forward, forward) if sp else None,
        "without sequence parallelism every rank keeps": None if sp else (4 * half, 6 * half),
        "additional all-gathers are in backward": (6 * half, 4 * half) if sp else None,
        "sequence parallelism halves each collective": (2 * half, 2 * half) if sp else None,
        "layer has two parts attention": (forward / 2, backward / 2),
        "in backward the two column-parallel layers": (..., 5 * half) if sp else None,
    }


SENT = Formula(
    **told("tp_sent"),
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
        tokens, itemsize = int(rng.integers(1, 64)) * 1024, int(rng.choice((2, 4)))
        yield tokens, hidden, itemsize, 2 ** int(rng.integers(1, 5))


def _activation_mistakes(tokens, hidden, itemsize, tp):
    unit, right = tokens * hidden * itemsize, activations(tokens, hidden, itemsize, tp)
    both = lambda first, second: (first * unit, second * unit)
    return {
        "tensor parallelism does not shard what": both(16 / tp, 16 / tp),
        "keep by tokens": both(4 + 12 / tp, 4 + 12 / tp),
        "between its two layers a rank": both(16, 16 / tp),
        "under sequence parallelism the weights": both(4 + 12 / tp, 12 + 4 / tp),
        "mlp is four times": both(4 + 6 / tp, 10 / tp),
        "two norms keep their input": both(2 + 12 / tp, 14 / tp),
        "these are numbers of elements": tuple(size / itemsize for size in right),
        "first tensor parallelism then with sequence": right[::-1],
        **{words: both(4 + inner / tp, (4 + inner) / tp) for inner, words in _COUNTED.items()},
        "keep between the cuts it stays": (..., (4 + 12 / tp) / tp * unit),
        **{
            ACTIVATIONS.say("between a column cut", name=name, it=it): both(
                4 + units + (12 - units) / tp, 16 / tp
            )
            for units, (name, it) in _BETWEEN.items()
        },
        **{
            ACTIVATIONS.say("norms keep four tensors whole", units=units): both(
                4 - units + (12 + units) / tp, 16 / tp
            )
            for units in (1, 2, 3)
        },
        **{
            ACTIVATIONS.say("norms keep four tensors", units=units): (
                both(units + 12 / tp, (units + 12) / tp)
            )
            for units in (1, 3)
        },
        **{
            ACTIVATIONS.say("sequence parallelism shards all four tensors", units=units): (
                ...,
                (units + (16 - units) / tp) * unit,
            )
            for units in (1, 2, 3)
        },
        "what lies between a column cut": both(12 + 4 / tp, 16 / tp),
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
    8: "you have eight units between",
    8.5: "mlp keeps eight units four",
    9: "q, k and v are three tensors",
    10: "mlp's two tensors are four",
    11: "q k v and the output",
    16: "before and after gelu are two",
    4: "mlp's inner activations are kept",
}
"""{units between the cuts: what was counted wrong}; 12 are right."""


ACTIVATIONS = Formula(
    **told("tp_activations"),
    draw=_draw_activations,
    parts=("bytes of tensor parallelism", "bytes with sequence parallelism"),
    solution=activations,
    mistakes=_activation_mistakes,
)

"""The exercises of the notebook on pipelines: the bubble, activations in flight, a generator of
1F1B, and a pipeline of messages between ranks."""

from typing import Any

import numpy as np

from tpviz.core.schedules import schedule, timeline
from tpviz.core.schedules.formulas import in_flight

from .checks import Case, Mistake, RankProgram, right_numbers, right_shape, silent, whole_numbers
from .formula import Formula
from .merak_orders import as_lines, differs, order_errors, peaks, read, run_of
from .told import told


# --- pipe_bubble ---
def bubble(name: str, p: int, m: int) -> float:
    """The part of the step in which a rank idles, on the clock; interleaved has two stages a
    rank."""
    if name == "naive":
        return (p - 1) / p
    made = schedule(name, p, m, recompute=False)
    return 1 - m * 3 * (made.stages // p) / timeline(made).makespan


def _draw_bubble(rng):
    for name in (*rng.permutation(["gpipe", "1f1b", "interleaved_1f1b"]).tolist(), "naive"):
        p = int(rng.integers(7, 13))
        yield name, p, p * int(rng.integers(2, 6))


def _bubble_mistakes(name, p, m):
    ends = p - 1
    only = lambda kinds, value: value if name in kinds else None
    naive, two = ("naive",), ("interleaved_1f1b",)
    others = ("gpipe", "1f1b", *two)
    return {
        "time the step also": only(others, ends / m),
        "pipeline fills in p": only(others, p / (m + p)),
        "in the naive pipeline one rank": only(naive, ends / (m + p - 1)),
        "two stages on each rank": only(two, ends / (m + p - 1)),
        "2 p stages but a rank": only(two, (2 * p - 1) / (2 * m + 2 * p - 1)),
        "1f1b changes the order": only(("1f1b",), ends / (2 * m + p - 1)),
        "that is the part in which": 1 - bubble(name, p, m),
        "step has m slots": only(others[:2], 2 * ends / (m + 2 * ends)),
        "time and with half stages": only(two, ends / (2 * m)),
        "half stages halve the idle time": only(two, ends / (2 * (m + p - 1))),
        "two stages a rank are half": only(two, ends / (m / 2 + p - 1)),
        "while one rank works p": only(naive, ends / (m * p)),
        "each microbatch idles alike": only(naive, 1 - 1 / (m * p)),
    }


BUBBLE = Formula(
    **told("pipe_bubble"), draw=_draw_bubble, solution=bubble, mistakes=_bubble_mistakes
)


# --- pipe_in_flight ---
def held(name: str, p: int, m: int, s: int, size: float) -> float:
    """Peak bytes of activations on rank s."""
    return in_flight(name, p, m)[s] * size / (2 if name == "interleaved_1f1b" else 1)


def _draw_in_flight(rng):
    for name in rng.permutation(["gpipe", "1f1b", "1f1b", "interleaved_1f1b"]).tolist():
        p = int(rng.integers(4, 9))
        m = p * int(rng.integers(3, 6))
        yield name, p, m, int(rng.integers(0, p - 1)), int(rng.integers(1, 50)) * 10**6
    yield "1f1b", 8, int(rng.integers(2, 5)), 0, int(rng.integers(1, 50)) * 10**6


def _interleaved_mistakes(p, m, s, size):
    return {
        "with two stages on each rank": (p - s) * size,
        "you counted microbatches of a stage": (p + 2 * (p - 1 - s) + 1) * size,
        "one more the microbatch that goes": (p + 2 * (p - 1 - s)) * size / 2,
        "first group of p microbatches": (2 * (p - 1 - s) + 1) * size / 2,
        "all p microbatches of the first": (2 * (p - s) + 1) * size / 2,
        "that is 1f1b's number of half": (p - s) * size / 2,
    }


def _in_flight_mistakes(name, p, m, s, size):
    right = held(name, p, m, s, size)
    return {
        "size is of all layers": right / p,
        "gpipe runs backwards at the end": (p - s) * size if name == "gpipe" else None,
        "that is all microbatches": m * size if name != "gpipe" else None,
        "there are only microbatches": (p - s) * size if p - s > m else None,
        "ranks are counted from 0": (p - s - 1) * size if name == "1f1b" else None,
        "first rank holds most": (s + 1) * size if name == "1f1b" else None,
        "forwards before the first backward": (p - s + 1) * size if name == "1f1b" else None,
        "rank holds p - s": min(m, p) * size if name == "1f1b" and s else None,
        **{
            words: value if name == "interleaved_1f1b" else None
            for words, value in _interleaved_mistakes(p, m, s, size).items()
        },
    }


IN_FLIGHT = Formula(
    **told("pipe_in_flight"), draw=_draw_in_flight, solution=held, mistakes=_in_flight_mistakes
)


# --- pipe_1f1b ---
def _draw_1f1b(rng):
    few = int(rng.integers(3, 5)), int(rng.integers(4, 7))
    many = int(rng.integers(5, 9))
    return [few, (many, many + int(rng.integers(1, 9))), (int(rng.integers(4, 9)), 2)]


def _1f1b_verdict(question, got):
    """The error of the lines, or None; those of the fewest ranks also run on real ranks."""
    p, m = question.arguments.values()
    wrong = order_errors(got, p, m)
    if wrong is None and p < 5 and m > 2:
        wrong = differs(run_of(as_lines(got), m))
    return wrong and f"for {question}: {wrong}"


def _1f1b_measured(answers):
    lines = as_lines(answers[0])
    m = len(lines[0].split()) // 2
    line, run = timeline(read(lines, m)), run_of(lines, m)
    return ONE_F_ONE_B.say(
        "right on questions",
        count=len(answers),
        ranks=len(lines),
        m=m,
        line=line,
        peaks=peaks(line),
        run=run,
    )


ONE_F_ONE_B = Formula(
    **told("pipe_1f1b"), draw=_draw_1f1b, verdict=_1f1b_verdict, measured=_1f1b_measured
)


# --- pipe_by_hand ---
def _passes(inputs) -> tuple[list[Any], list[Any]]:
    """(inputs, gradients of the outputs), each [m, B, H], of every rank's layer."""
    weights, xs, grads = [weight for weight, _ in inputs], [inputs[0][1]], [inputs[-1][1]]
    for weight in weights[:-1]:
        xs.append(xs[-1] @ weight)
    for weight in weights[:0:-1]:
        grads.insert(0, grads[0] @ weight.T)
    return xs, grads


def _sum_of(x, grad):
    """The gradient of a weight, [H, H], from all microbatches."""
    return np.einsum("mbi,mbo->io", x, grad)


def _make_by_hand(rng, axes):
    n, m = axes["world"], int(rng.integers(2, 5))
    rows, width = int(rng.integers(2, 4)), int(rng.integers(3, 5))
    shape = m, rows, width
    data = [np.zeros(shape) for _ in range(n)]
    for end in (0, -1):
        data[end] = whole_numbers(rng, *shape, dtype=np.float64)
    inputs = [(whole_numbers(rng, width, width, dtype=np.float64), own) for own in data]
    return Case(inputs, list(map(_sum_of, *_passes(inputs))))


def _messages(axes, case):
    m, size = len(case.inputs[0][1]), case.inputs[0][1][0].nbytes
    neighbours = min(2, axes["world"] - 1)
    return [("world", kind, m * neighbours, size) for kind in ("send", "recv")]


def _to_neighbours(attempt):
    """Judge: who sent to whom."""
    rows = attempt.trace.select(kind="comm", name="send")
    pairs = {tuple(map(int, members.split(","))) for members in np.unique(rows["members"]).tolist()}
    far = sorted((a, b) for a, b in pairs if abs(a - b) > 1)
    if far:
        return BY_HAND.say("rank sent to rank", far=far)
    if not any(a > b for a, b in pairs):
        return BY_HAND.say("activations went forward but no gradient")


def _by_backward(attempt):
    """Judge: what was sent back, and what was summed."""
    if attempt.all_right:
        return None
    xs, grads = _passes(attempt.case.inputs)
    weights, last = [weight for weight, _ in attempt.case.inputs], attempt.size - 1

    def back(through):
        found = [grads[last]]
        for weight in weights[:0:-1]:
            found.insert(0, through(found[0], weight))
        return lambda rank: _sum_of(xs[rank], found[rank])

    if attempt.equals(lambda rank: _sum_of(xs[0], grads[rank])):
        return BY_HAND.say("every rank has the inputs")
    if attempt.equals(back(lambda grad, weight: grad)):
        return BY_HAND.say("you sent on the gradient")
    if attempt.equals(back(lambda grad, weight: grad @ weight)):
        return BY_HAND.say("gradient of the inputs")
    m = len(xs[0])
    if attempt.equals(lambda rank: attempt.case.expected[rank] / m):
        return BY_HAND.say("you divided", m=m)
    for words, one in (("last", slice(-1, None)), ("first", slice(0, 1))):
        if attempt.equals(lambda rank, one=one: _sum_of(xs[rank][one], grads[rank][one])):
            return BY_HAND.say("only the microbatch is left", words=words)
    if attempt.equals(lambda rank: _sum_of(xs[rank], grads[rank][::-1])):
        return BY_HAND.say("activations and gradients are of different")


def _guesses(x, grad, weight):
    """(words, a wrong gradient of a weight) of a rank that should have x and grad, [m, B, H]."""
    right, last = _sum_of(x, grad), len(x) - 1
    yield BY_HAND.say("is zero the zeros of data"), 0 * right
    yield BY_HAND.say("is transposed it is x t"), right.T
    outputs, before = _sum_of(x @ weight, grad), _sum_of(x, grad @ weight.T)
    yield BY_HAND.say("has the layer's outputs in place"), outputs
    yield BY_HAND.say("has the gradient of the inputs"), before
    for words, of_x, of_grad in (
        ("activations", x[[last] * len(x)], grad),
        ("gradients", x, grad[[last] * len(x)]),
    ):
        yield BY_HAND.say("has the of microbatch", words=words, last=last), _sum_of(of_x, of_grad)
    for by in (1, -1):
        yield (
            BY_HAND.say("has activations of microbatch i", shift=-by),
            _sum_of(np.roll(x, by, 0), grad),
        )
    for i in range(len(x)):
        one = _sum_of(x[i : i + 1], grad[i : i + 1])
        yield BY_HAND.say("lacks microbatch look at the ends", i=i), right - one
        yield BY_HAND.say("counts microbatch twice", i=i), right + one
        yield BY_HAND.say("has microbatch alone", i=i), one


def _on_a_rank(attempt):
    """Judge: which rank and microbatch differ, and what was probably done."""
    xs, grads = _passes(attempt.case.inputs)
    wrong = [rank for rank in range(attempt.size) if rank not in attempt.right]
    for rank in wrong:
        got, weight = attempt.outputs[rank], attempt.case.inputs[rank][0]
        for words, guess in _guesses(xs[rank], grads[rank], weight):
            if np.allclose(got, guess):
                ranks = f"rank{'s' * (len(wrong) > 1)} {', '.join(map(str, wrong))}"
                return BY_HAND.say(
                    "wrong on on rank the gradient", ranks=ranks, rank=rank, words=words
                )
    words = right_numbers(attempt)
    if not words or not attempt.right:
        return words
    if wrong[0] > attempt.right[-1]:
        why = BY_HAND.say("rank probably received other activations than", wrong=wrong) + " "
        return BY_HAND.say(
            "as all ranks before are right", words=words, why=why, before=wrong[0] - 1
        )
    if wrong[-1] < attempt.right[0]:
        why = BY_HAND.say("rank probably received another gradient than", last=wrong[-1]) + " "
        return BY_HAND.say(
            "as all ranks after are right", words=words, why=why, after=wrong[-1] + 1
        )
    return words


def _in_microbatches(attempt):
    """Judge: one message a microbatch each way."""
    mine, least = attempt.count("send"), attempt.needed.total(collective="send")[0]
    if attempt.all_right and mine != least:
        why = " " + BY_HAND.say("with one message for all microbatches")
        return BY_HAND.say(
            "busiest rank sent messages", mine=mine, least=least, why=why * (mine < least)
        )


BY_HAND = RankProgram(
    **told("pipe_by_hand"),
    make=_make_by_hand,
    sends=_messages,
    judges=(
        Mistake(
            "is a collective",
            lambda a: "`, `".join(sorted(a.names() - {"send", "recv", "barrier"})),
        ),
        silent,
        right_shape,
        _to_neighbours,
        _by_backward,
        _on_a_rank,
        _in_microbatches,
    ),
    worlds=({"world": 4}, {"world": 2}),
)

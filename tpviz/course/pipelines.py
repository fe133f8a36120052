"""The exercises of the notebook on pipelines: the bubble, activations in flight, a generator of
1F1B, and a pipeline of messages between ranks."""

from typing import Any

import numpy as np

from tpviz.core.schedules import schedule, timeline
from tpviz.core.schedules.formulas import in_flight

from .checks import Case, Mistake, RankProgram, right_numbers, right_shape, silent, whole_numbers
from .formula import Formula
from .merak_orders import as_lines, differs, order_errors, peaks, read, run_of


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


BUBBLE = Formula(
    title="The bubble of a schedule",
    prompt="`p` ranks, `m` microbatches (a multiple of p), stages of equal length, messages take "
    "no time. Return the part of the step (0 to 1) in which a rank idles, under `name`: "
    '"naive" (each microbatch goes forward and backward before the next one starts), "gpipe", '
    '"1f1b", or "interleaved_1f1b" with two stages on each rank.',
    starter="""def pipe_bubble(name, p, m):
    return (p - 1) / m""",
    concept="Count slots: in how many does a rank work, and how many has the whole step?",
    principle="GPipe and 1F1B: m slots of work, and p - 1 in which the pipeline fills and drains. "
    "Interleaved: with stages half as long there are 2 m slots of work, but filling and draining "
    "still take p - 1. Naive: one of p ranks works at a time.",
    shape="A comparison of `name` decides between two quotients of whole numbers; in one of them a "
    "factor in front of m depends on `name` too.",
    success="On the clock it is the same. With stages that are not equally long, a rank also "
    "waits for the slowest stage in each slot.",
    draw=_draw_bubble,
    solution=bubble,
    mistakes=lambda name, p, m: {
        "that is the bubble over the busy time. The step also has the bubble in it: m + p - 1 "
        "slots.": (p - 1) / m if name != "naive" else None,
        "the pipeline fills in p - 1 slots, not p.": p / (m + p) if name != "naive" else None,
        "in the naive pipeline one rank of p works at a time, however many microbatches there "
        "are.": (p - 1) / (m + p - 1) if name == "naive" else None,
        "two stages on each rank are each half as long, so the p - 1 slots in which the pipeline "
        "fills and drains are shorter.": (
            (p - 1) / (m + p - 1) if name == "interleaved_1f1b" else None
        ),
        "2 p stages, but a rank goes on with its second stage while the first is elsewhere: "
        "p - 1 short slots are idle, not 2 p - 1.": (
            (2 * p - 1) / (2 * m + 2 * p - 1) if name == "interleaved_1f1b" else None
        ),
        "1F1B changes the order of the same work: its bubble is GPipe's.": (
            (p - 1) / (2 * m + p - 1) if name == "1f1b" else None
        ),
        "that is the part in which a rank works.": 1 - bubble(name, p, m),
        "the step has m slots of work, and filling and draining take p - 1 slots together, not "
        "p - 1 each.": (2 * (p - 1) / (m + 2 * (p - 1)) if name in ("gpipe", "1f1b") else None),
        "that is the bubble over the busy time; and with half stages the step has 2 m + p - 1 "
        "short slots.": (p - 1) / (2 * m) if name == "interleaved_1f1b" else None,
        "half stages halve the idle time, but then the whole step is shorter too: p - 1 of "
        "2 m + p - 1 short slots.": (
            (p - 1) / (2 * (m + p - 1)) if name == "interleaved_1f1b" else None
        ),
        "two stages a rank are half as long each: the work is 2 m slots, and p - 1 are idle. You "
        "halved m.": ((p - 1) / (m / 2 + p - 1) if name == "interleaved_1f1b" else None),
        "while one rank works, p - 1 others wait, of p: the share does not grow with m.": (
            (p - 1) / (m * p) if name == "naive" else None
        ),
        "each microbatch idles alike: with more of them the share stays (p - 1) / p.": (
            1 - 1 / (m * p) if name == "naive" else None
        ),
    },
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
        "with two stages on each rank more microbatches start before the first backward arrives, "
        "each with half of the rank's layers.": (p - s) * size,
        "you counted microbatches of a stage; each stage has half of the rank's layers, and so "
        "half of `size`.": (p + 2 * (p - 1 - s) + 1) * size,
        "one more: the microbatch that goes forward just before the first backward.": (
            (p + 2 * (p - 1 - s)) * size / 2
        ),
        "the first group of p microbatches passes the first stage, before those counted here.": (
            (2 * (p - 1 - s) + 1) * size / 2
        ),
        "all p microbatches of the first group come first, then 2 (p - 1 - s) + 1.": (
            (2 * (p - s) + 1) * size / 2
        ),
        "that is 1F1B's number, of half of the layers: interleaving starts more.": (
            (p - s) * size / 2
        ),
    }


def _in_flight_mistakes(name, p, m, s, size):
    right = held(name, p, m, s, size)
    return {
        "`size` is of all layers of the rank, not of the whole model: do not divide by p.": (
            right / p
        ),
        f"GPipe runs backwards at the end, so it holds all {m} microbatches.": (
            (p - s) * size if name == "gpipe" else None
        ),
        f"that is all {m} microbatches, as in GPipe. Here a rank runs a backward as soon as it "
        "can.": m * size if name != "gpipe" else None,
        f"there are only {m} microbatches.": (p - s) * size if p - s > m else None,
        "ranks are counted from 0: the last one, p - 1, holds one microbatch.": (
            (p - s - 1) * size if name == "1f1b" else None
        ),
        "the first rank holds most: it waits the longest for a gradient.": (
            (s + 1) * size if name == "1f1b" else None
        ),
        "forwards before the first backward are p - s: the last rank runs one.": (
            (p - s + 1) * size if name == "1f1b" else None
        ),
        "a rank holds p - s microbatches under 1F1B, not p: later ranks wait less for their first "
        "gradient.": min(m, p) * size if name == "1f1b" and s else None,
        **{
            words: value if name == "interleaved_1f1b" else None
            for words, value in _interleaved_mistakes(p, m, s, size).items()
        },
    }


IN_FLIGHT = Formula(
    title="Activations of a rank",
    prompt="A rank holds a microbatch's activations from its forward to the end of its backward: "
    "`size` bytes for all layers of the rank. Return the peak bytes on rank `s` of `p` (from 0) "
    'with `m` microbatches under `name`: "gpipe", "1f1b", or "interleaved_1f1b" with two stages '
    "on each rank, each with half of its layers (m is then a multiple of p).",
    starter="""def pipe_in_flight(name, p, m, s, size):
    return m * size""",
    concept="Count the forwards that a rank runs before its first backward.",
    principle="1F1B: p - s, the last rank one; there cannot be more than m. Interleaved: all p "
    "microbatches of the first group pass the first stage, then 2 (p - 1 - s) + 1 pass before "
    "a gradient arrives, each through one of two stages.",
    shape="Three cases of `name`; each is a count of microbatches times `size`, or half of "
    "that. One of the counts is the smaller of two numbers.",
    success="On the first rank interleaving needs almost 1.5 times the memory: 1.5 p - 0.5 "
    "microbatches, not p.",
    draw=_draw_in_flight,
    solution=held,
    mistakes=_in_flight_mistakes,
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
    return (
        f"Right on {len(answers)} questions. The first, {len(lines)} ranks and {m} microbatches, "
        f"takes {line.makespan:g} and holds {peaks(line)} microbatches. Run on real ranks it "
        f"differs from one process by at most {run.max_error:.0e}."
    )


ONE_F_ONE_B = Formula(
    title="Generate 1F1B",
    prompt="Return the lines of a schedule for `p` ranks, one stage each, and `m` microbatches: "
    'for each rank its actions in order, such as "F0 B0 F1 B1". A forward (1) needs the activation '
    "of the previous rank, a backward (2) the gradient of the next; backwards run in the order 0, "
    "1, 2. It must be as fast as 1F1B, and no rank may hold more microbatches in flight. m may be "
    "smaller than p. Then your lines run on real ranks.",
    starter="""def pipe_1f1b(p, m):
    forwards = [f"F{i}" for i in range(m)]
    backwards = [f"B{i}" for i in range(m)]
    return [" ".join(forwards + backwards) for rank in range(p)]""",
    concept="How many forwards does each rank run before its first backward?",
    principle="Rank s runs min(m, p - s) forwards. Then one backward and one forward in turn, "
    "while forwards are left; then the remaining backwards.",
    shape="A loop over ranks, and in it one over microbatches that appends two words, or one when "
    "no forward is left; the lines are words joined by spaces.",
    success="This is PipeDream-flush, the 1F1B of Megatron-LM.",
    draw=_draw_1f1b,
    verdict=_1f1b_verdict,
    measured=_1f1b_measured,
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
        return (
            f"rank {far[0][0]} sent to rank {far[0][1]}: in a pipeline each rank sends only to its "
            "neighbours, rank - 1 and rank + 1."
        )
    if not any(a > b for a, b in pairs):
        return (
            "activations went forward, but no gradient came back. All ranks but the last wait for "
            "the gradient of their outputs from the next rank."
        )


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
        return (
            "every rank has the inputs of rank 0: you sent on what you received. The next rank "
            "needs your outputs, x @ weight."
        )
    if attempt.equals(back(lambda grad, weight: grad)):
        return (
            "you sent on the gradient of your outputs. The previous rank needs the gradient of "
            "your inputs: grad @ weight.T."
        )
    if attempt.equals(back(lambda grad, weight: grad @ weight)):
        return "the gradient of the inputs is grad @ weight.T; you left out the transposition."
    m = len(xs[0])
    if attempt.equals(lambda rank: attempt.case.expected[rank] / m):
        return f"you divided by {m}: asked for is the sum over the microbatches, not the mean."
    for words, one in (("last", slice(-1, None)), ("first", slice(0, 1))):
        if attempt.equals(lambda rank, one=one: _sum_of(xs[rank][one], grads[rank][one])):
            return (
                f"only the {words} microbatch is left: the gradient of a weight is the sum over "
                "the microbatches."
            )
    if attempt.equals(lambda rank: _sum_of(xs[rank], grads[rank][::-1])):
        return (
            "activations and gradients are of different microbatches: messages arrive in the order "
            "in which they were sent, so run backwards in the order of the forwards, or send and "
            "receive in the same reversed order."
        )


def _guesses(x, grad, weight):
    """(words, a wrong gradient of a weight) of a rank that should have x and grad, [m, B, H]."""
    right, last = _sum_of(x, grad), len(x) - 1
    yield "is zero: the zeros of `data` were used, in place of what had to be received", 0 * right
    yield "is transposed: it is x.T @ grad", right.T
    outputs, before = _sum_of(x @ weight, grad), _sum_of(x, grad @ weight.T)
    yield "has the layer's outputs in place of its inputs: it is x.T @ grad", outputs
    yield "has the gradient of the inputs in place of that of the outputs: it is x.T @ grad", before
    for words, of_x, of_grad in (
        ("activations", x[[last] * len(x)], grad),
        ("gradients", x, grad[[last] * len(x)]),
    ):
        yield (
            f"has the {words} of microbatch {last} for each microbatch: probably all were received "
            "into one tensor, and the next overwrote it. Keep a tensor for each",
            _sum_of(of_x, of_grad),
        )
    for by in (1, -1):
        yield (
            f"has activations of microbatch i with gradients of microbatch i {-by:+d}: count "
            "messages, all arrive in the order in which they were sent",
            _sum_of(np.roll(x, by, 0), grad),
        )
    for i in range(len(x)):
        one = _sum_of(x[i : i + 1], grad[i : i + 1])
        yield f"lacks microbatch {i}: look at the ends of your loops", right - one
        yield f"counts microbatch {i} twice: look at the ends of your loops", right + one
        yield f"has microbatch {i} alone: add up all of them", one


def _on_a_rank(attempt):
    """Judge: which rank and microbatch differ, and what was probably done."""
    xs, grads = _passes(attempt.case.inputs)
    wrong = [rank for rank in range(attempt.size) if rank not in attempt.right]
    for rank in wrong:
        got, weight = attempt.outputs[rank], attempt.case.inputs[rank][0]
        for words, guess in _guesses(xs[rank], grads[rank], weight):
            if np.allclose(got, guess):
                ranks = f"rank{'s' * (len(wrong) > 1)} {', '.join(map(str, wrong))}"
                return f"wrong on {ranks}. On rank {rank} the gradient {words}."
    words = right_numbers(attempt)
    if not words or not attempt.right:
        return words
    if wrong[0] > attempt.right[-1]:
        why = f"rank {wrong[0]} probably received other activations than x @ weight from rank "
        return f"{words} As all ranks before are right, {why}{wrong[0] - 1}."
    if wrong[-1] < attempt.right[0]:
        why = f"rank {wrong[-1]} probably received another gradient than grad @ weight.T from rank "
        return f"{words} As all ranks after are right, {why}{wrong[-1] + 1}."
    return words


def _in_microbatches(attempt):
    """Judge: one message a microbatch each way."""
    mine, least = attempt.count("send"), attempt.needed.total(collective="send")[0]
    if attempt.all_right and mine != least:
        why = (
            " With one message for all microbatches the next rank cannot start before this one is "
            "done."
        )
        return (
            f"the numbers are right, but the busiest rank sent {mine} messages; one for each "
            f"microbatch and neighbour are {least}.{why * (mine < least)}"
        )


BY_HAND = RankProgram(
    title="A pipeline by hand",
    prompt="Rank r has layer r of a model: `x @ weight`. `data[m, B, H]` has m microbatches: on "
    "rank 0 the model's inputs, on the last rank the gradients of the model's outputs, elsewhere "
    "zeros. Return on every rank the gradient `[H, H]` of its weight, summed over microbatches. "
    "Each microbatch is sent by itself, forward to the next rank, and its gradient back to the "
    "previous one, with `dist.send` and `dist.recv`, or `isend` and `irecv`, which return handles "
    "to `.wait()` for. The gradient of a layer's inputs is `grad @ weight.T`, of its weight `x.T @ "
    "grad`; autograd knows that too.",
    starter="""def pipe_by_hand(weight, data):
    # weight: [H, H]; data: [m, B, H], of use on the first and on the last rank
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    x = data if rank == 0 else torch.zeros_like(data)  # to be received, and sent on
    grad = data if rank == last else torch.zeros_like(data)
    return sum(x[i].T @ grad[i] for i in range(len(data)))""",
    concept="What does a rank receive before its forward, and before its backward? What does it "
    "have to keep in between?",
    principle="All forwards, then all backwards. Activations come from the previous rank and are "
    "kept, because the gradient of the weight needs them; gradients come from the next rank. What "
    "is sent back is the gradient of the inputs.",
    shape="Two loops over microbatches. Each has one receive and one send, both of which some end "
    "of the pipeline leaves out; the first fills a list, the second adds to the gradient.",
    success="That is GPipe. With `isend`, and a backward as soon as its gradient can arrive, it "
    "becomes 1F1B, whose activations in flight do not grow with m.",
    make=_make_by_hand,
    sends=_messages,
    judges=(
        Mistake(
            lambda a: "`, `".join(sorted(a.names() - {"send", "recv", "barrier"})),
            "`{it}` is a collective: a stage sends to its neighbours alone: use `send` and `recv`.",
        ),
        silent("the trace shows no message: every rank still has only its own layer and data."),
        right_shape,
        _to_neighbours,
        _by_backward,
        _on_a_rank,
        _in_microbatches,
    ),
    worlds=({"world": 4}, {"world": 2}),
)

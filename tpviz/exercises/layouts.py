"""The exercises of notebook 08: microbatches and bubbles, what fits, which axis crosses nodes,
regret and rank correlation of predictions, and a rule that picks among measured layouts."""

from functools import lru_cache
from math import floor
from statistics import mean, median
from typing import Any

import numpy as np

from ..cost import show_bytes, show_seconds
from ..validation.rows import published
from ..validation.scoreboard import regret, spearman
from ..verbs.ranking import kendall_tau
from .formula import Choice, Formula, Question, chosen, same

GIGA = 1e9


def _one_of(rng, *choices):
    return choices[int(rng.integers(len(choices)))]


# --- beat_bubble ---
def bubble(batch: int, dp: int, pp: int, micro_batch: int) -> tuple[float, float]:
    """(microbatches of a replica, share of its step that a 1F1B pipeline idles); Narayanan et al.
    2021 (arXiv 2104.04473), section 2.2, over the whole step."""
    microbatches = batch / dp / micro_batch
    return microbatches, (pp - 1) / (microbatches + pp - 1)


def _draw_bubble(rng):
    for pp, micro_batch in zip((2, 4, 8, 16), rng.permutation([1, 2, 4, 8]).tolist()):
        dp = _one_of(rng, 16, 32, 64)
        yield dp * micro_batch * int(rng.integers(2, 40)), dp, pp, micro_batch


BUBBLE = Formula(
    title="What does the micro batch size do to the bubble?",
    prompt="Commit a guess first: if the micro batch size doubles, does the bubble grow or shrink? "
    "A step trains on `batch` sequences, on `dp` replicas, each a pipeline of `pp` stages (1F1B, "
    "stages of equal length), `micro_batch` sequences at a time. Return (microbatches of a "
    "replica, bubble's share of the step).",
    starter="""def beat_bubble(batch, dp, pp, micro_batch):
    microbatches = batch / micro_batch
    return microbatches, (pp - 1) / microbatches""",
    concept="How many sequences does one replica see in a step? How long does the last stage wait "
    "before its first microbatch?",
    principle="The first microbatch passes pp - 1 stages before the last one starts, so a stage "
    "idles for pp - 1 of m + pp - 1 slots.",
    shape="Two numbers: a quotient of three arguments, and a fraction whose denominator counts "
    "all slots of a step.",
    success="A larger micro batch means fewer microbatches and a larger bubble; but its GEMMs are "
    "larger, and reach more of the peak. So the best size is found by trying, or by a model that "
    "knows both.",
    draw=_draw_bubble,
    solution=bubble,
    mistakes=lambda batch, dp, pp, micro_batch: {
        "the replicas share the batch: one replica has batch / dp sequences.": (
            batch / micro_batch,
            (pp - 1) / (batch / micro_batch + pp - 1),
        ),
        "the replicas share the batch; and the share is of the whole step, idle time included.": (
            batch / micro_batch,
            (pp - 1) / (batch / micro_batch),
        ),
        "that is the bubble over the busy time; its share of the step has m + pp - 1 below.": (
            batch / dp / micro_batch,
            (pp - 1) / (batch / dp / micro_batch),
        ),
        "the first microbatch passes pp - 1 stages before the last one, not pp.": (
            batch / dp / micro_batch,
            pp / (batch / dp / micro_batch + pp),
        ),
        "microbatches are counted, not their sequences.": (
            batch / dp,
            (pp - 1) / (batch / dp + pp - 1),
        ),
    },
)


# --- beat_fits ---
def fits(
    parameters: float, tp: int, pp: int, dp: int, zero: int, sequence: float, memory: float
) -> tuple[float, int]:
    """(bytes of a GPU's training states, the largest micro batch that fits), derived from
    Rajbhandari et al. 2020 (arXiv 1910.02054, section 3.1) with gradients in float32."""
    states = parameters / (tp * pp) * (2 + 4 + 12 / (dp if zero else 1))
    return states, max(0, floor((memory - states) / (pp * sequence)))


def _draw_fits(rng):
    for zero in rng.permutation([0, 1, 0, 1]).tolist():
        tp, pp, dp = _one_of(rng, 2, 4), _one_of(rng, 2, 4, 8), _one_of(rng, 4, 8, 16)
        memory = _one_of(rng, 40, 80, 141) * GIGA
        share = rng.uniform(0.3, 0.8)  # of the memory that the states take
        each = 2 + 4 + 12 / (dp if zero else 1)
        parameters = round(share * memory * tp * pp / each)
        left = memory - fits(parameters, tp, pp, dp, zero, 1.0, memory)[0]
        sequence = round(left / pp / (int(rng.integers(2, 8)) + rng.uniform(0.2, 0.8)))
        yield parameters, tp, pp, dp, zero, sequence, memory


def _fits_wrong(question, got):
    parameters, tp, pp, dp, zero, sequence, memory = question.arguments.values()
    (states, most), words = question.answer, f"for {question}: "
    if len(got) != 2:
        return None
    share, by = parameters / (tp * pp), dp if zero else 1
    for wrong, why in (
        (parameters * (6 + 12 / by), "tp and pp split the parameters: a GPU has 1/(tp*pp) of them"),
        (share * 18 / by, "ZeRO-1 shards the 12 bytes of the optimizer's state alone"),
        (share * 18, "ZeRO-1 shards the 12 bytes of the optimizer's state over dp"),
        (share * (6 + 12 / dp), "without ZeRO every replica has the whole optimizer state"),
        (
            share * (4 + 12 / by),
            "a parameter has 2 bytes, its gradient 4, the optimizer's state 12",
        ),
    ):
        if same(got[0], wrong) and not same(wrong, states):
            return words + why + "."
    if not same(got[0], states):
        return f"{words}the states take {show_bytes(states)} of a GPU, you have {got[0]:.6g} bytes."
    left = memory - states
    if pp > 1 and same(got[1], floor(left / sequence)):
        return f"{words}the states are right; the first stage of 1F1B holds pp={pp} microbatches."
    if same(got[1], left / (pp * sequence)):
        return f"{words}the states are right; a micro batch is a whole number of sequences."
    return (
        f"{words}the states are right and leave {show_bytes(left)}; a microbatch of {most} "
        f"sequences fits {pp} times, you say {got[1]:.6g}."
    )


FITS = Formula(
    title="Does it fit?",
    prompt="Mixed precision with Adam takes 2 bytes for a parameter, 4 for its gradient, and 12 "
    "for its optimizer state, which ZeRO-1 (`zero` = 1) shards over the `dp` replicas; `zero` = 0 "
    "shards nothing. The model's `parameters` are split over `tp` x `pp` GPUs. One sequence's "
    "activations take `sequence` bytes on a GPU; the first stage of a 1F1B pipeline holds `pp` "
    "microbatches at once. Return (bytes of a GPU's states, the largest micro batch that fits "
    "into `memory` bytes).",
    starter="""def beat_fits(parameters, tp, pp, dp, zero, sequence, memory):
    states = parameters * (2 + 4 + 12)
    return states, (memory - states) // sequence""",
    concept="What of the states does each axis split? How many microbatches wait for their "
    "backward pass?",
    principle="tp and pp split everything, dp only what ZeRO shards. What is left holds pp "
    "microbatches of activations.",
    shape="Two numbers: a GPU's share of the parameters times a sum of two terms (bytes that "
    "every replica keeps, bytes that may be sharded); then the bytes left, divided by "
    "the activations of all microbatches that a stage holds, rounded down.",
    success="So the layouts that fit are few, and the largest micro batch is not free to choose. "
    "In the published grid many configurations failed; the source does not tell lack of memory "
    "from crashes.",
    draw=_draw_fits,
    solution=fits,
    wrong=_fits_wrong,
)


# --- beat_between ---
def sent(layers: int, hidden: int, tokens: int, microbatches: int) -> dict[str, float]:
    """{axis: bytes that a GPU sends in a step}, where tp, pp and dp are 2 each; derived."""
    activation = 2 * tokens * hidden
    return {
        "tp": 4 * layers / 2 * microbatches * activation,
        "pp": microbatches * activation,
        "dp": 4 * 12 * layers * hidden**2 / 4,
    }


def between_nodes(
    layers: int, hidden: int, tokens: int, microbatches: int, inside: float, between: float
) -> dict[str, float]:
    """{axis between the nodes: seconds of all communication, one after another}."""
    sends = sent(layers, hidden, tokens, microbatches)
    return {
        slow: sum(size / (between if axis == slow else inside) for axis, size in sends.items())
        for slow in sends
    }


def _draw_between(rng):
    for more in rng.permutation([0.1, 0.3, 3, 8]).tolist():  # tokens of a step over 6 layers hidden
        layers, hidden = 2 * int(rng.integers(2, 9)), 256 * int(rng.integers(2, 9))
        microbatches = _one_of(rng, 2, 4, 8)
        tokens = max(1, round(6 * layers * hidden * more / microbatches))
        inside = int(rng.integers(150, 450)) * GIGA
        yield layers, hidden, tokens, microbatches, inside, inside / _one_of(rng, 8, 12, 16)


def _between_wrong(question, got):
    sends = sent(*list(question.arguments.values())[:4])
    told = ", ".join(f"{axis} {show_bytes(size)}" for axis, size in sends.items())
    return f"A GPU sends in a step: {told}."


BETWEEN = Choice(
    title="Which axis goes between the nodes?",
    prompt='Two nodes of four GPUs; "tp", "pp" and "dp" are 2 each, so one of them crosses the '
    "slow links between the nodes and two stay inside. Each GPU sends over `inside` bytes/s in "
    "its node, and `between` bytes/s between nodes; nothing overlaps, and latency is left out. "
    "The model has `layers` layers of 12 `hidden`^2 parameters, half of them in each stage; a "
    "replica trains `microbatches` microbatches of `tokens` tokens. Activations have 2 bytes a "
    "number, gradients 4. A layer has 4 all-reduces over tp in forward and backward together, of "
    "[tokens, hidden]; an all-reduce over 2 ranks sends its tensor once. Return the axis that "
    "should cross.",
    starter="""def beat_between(layers, hidden, tokens, microbatches, inside, between):
    return "tp\"""",
    concept="Which axis sends how many bytes? Only the axis that crosses has the slow link.",
    principle="tp sends in every layer, pp once a microbatch (forward its activations, or backward "
    "their gradients), dp the gradients of a quarter of the parameters, once a step.",
    shape="Three numbers of bytes a step, one for each axis, and the name of the axis that a "
    "comparison of them selects.",
    success="tp never crosses here: it sends in every layer. Whether dp or pp crosses depends on "
    "the batch: gradients do not grow with it, and overlap with backward, which this leaves out.",
    draw=_draw_between,
    solution=between_nodes,
    wrong=_between_wrong,
    kind="an axis",
    unit="of communication",
)


# --- beat_regret, beat_rank: tables of a few layouts ---
def _tables(rng):
    """Predictions that are too fast and rank well, but pick the second or third fastest layout."""
    for size in (6, 7, 8, 9):
        measured = np.round(np.cumsum(rng.uniform(0.1, 0.4, size)) + rng.uniform(0.5, 1.5), 3)
        noisy = rng.uniform(0.5, 0.8) * measured * rng.uniform(0.8, 1.25, size)
        ranks = noisy.argsort().argsort()
        for layout, rank in ((int(rng.integers(1, 3)), 0), (0, 1)):
            other = int(np.flatnonzero(ranks == rank)[0])
            ranks[[layout, other]] = ranks[[other, layout]]
        predicted = np.round(np.sort(noisy) + 1e-3 * np.arange(size), 3)[ranks]
        order = rng.permutation(size)
        yield predicted[order].tolist(), measured[order].tolist()


def regrets(predicted: list[float], measured: list[float]) -> tuple[float, float]:
    """(regret of the fastest predicted layout, the expected one of a random layout), shares."""
    return regret(predicted, measured), mean(measured) / min(measured) - 1


def _pick(predicted, measured):
    return measured[predicted.index(min(predicted))]


REGRET = Formula(
    title="Read a regret table",
    prompt="Several layouts of one model were `predicted` and `measured`: two lists of seconds, in "
    "the same order. The search picks the layout that is predicted fastest. Return (its regret, "
    "the expected regret of a layout chosen at random): how much slower than the fastest measured "
    "layout, as a share.",
    starter="""def beat_regret(predicted, measured):
    pick = min(predicted)
    return pick / min(measured) - 1, 0.0""",
    concept="A regret compares measured times only. What is the prediction used for?",
    principle="Find where `predicted` is least, and take `measured` there; divide by the least "
    "measured. A random layout takes the mean of all.",
    shape="Two quotients with the same denominator, each minus 1.",
    success="A model may be twice too fast everywhere and have no regret; it may be right on "
    "average and pick badly. Errors and regret answer different questions.",
    draw=_tables,
    solution=regrets,
    mistakes=lambda predicted, measured: {
        "you compare a predicted time with a measured one. The pick is judged by its own measured "
        "step.": (min(predicted) / min(measured) - 1, 0.0),
        "that is the ratio of the steps; regret is what it exceeds 1 by.": tuple(
            1 + r for r in regrets(predicted, measured)
        ),
        "the search does not know what was measured: it picks where `predicted` is least.": (
            0.0,
            regrets(predicted, measured)[1],
        ),
        "regret is relative to the fastest measured layout, not to the pick.": (
            1 - min(measured) / _pick(predicted, measured),
            1 - min(measured) / mean(measured),
        ),
    },
    wrong=lambda question, got: _regret_half(question, got),
)


def _regret_half(question, got):
    (mine, chance), words = question.answer, f"for {question}: "
    if len(got) == 2 and same(got[0], mine):
        return (
            f"{words}the pick's regret is right; a random layout's mean step is "
            f"{mean(question.arguments['measured']):.4g} s, so its regret is {chance:.4g}."
        )
    if len(got) == 2 and same(got[1], chance):
        step = _pick(*question.arguments.values())
        return f"{words}the random layout is right; the pick's measured step is {step:g} s."
    return None


RANK = Formula(
    title="Does the model rank well?",
    prompt="Spearman's rank correlation of `predicted` and `measured` steps (lists of seconds, no "
    "two equal): the correlation of their ranks, 1 for the same order, -1 for the reverse. Return "
    "it.",
    starter="""import numpy as np


def beat_rank(predicted, measured):
    return float(np.corrcoef(predicted, measured)[0, 1])""",
    concept="Replace each time by its place in the sorted list.",
    principle="It is the starter's correlation, of places in place of seconds.",
    shape="A helper that turns a list of times into a list of places, and the starter's last "
    "line on what it returns.",
    success="A constant factor changes no rank, so the correlation says nothing of errors; and "
    "most of it is about slow layouts that nobody would choose. Therefore we show regret too.",
    draw=_tables,
    solution=lambda predicted, measured: spearman(predicted, measured),
    mistakes=lambda predicted, measured: {
        "that is Pearson's correlation of the seconds: one very slow layout decides it. Take ranks "
        "first.": float(np.corrcoef(predicted, measured)[0, 1]),
        "that is Kendall's tau, of pairs in the same order; Spearman's is the correlation of "
        "ranks.": kendall_tau(predicted, measured),
        "the sign is wrong: equal orders have 1.": -spearman(predicted, measured),
    },
)


# --- beat_rule ---
GRID = "ultrascale_playbook_h100"
GROUPS = (("llama-1B", 128), ("llama-1B", 256), ("llama-3B", 32), ("llama-3B", 128))
Layout = tuple[int, int, int, int, int]


@lru_cache
def _measured(model: str, gpus: int) -> dict[Layout, float]:
    """{layout: its measured step} of rows that coefficients may be fitted on."""
    rows = published(model, gpus, source=GRID)
    return {
        (r.tp, r.pp, r.dp, r.micro_batch, r.zero or 0): r.step
        for r in sorted(rows, key=lambda r: -(r.step or 0))
        if r.step and r.micro_batch and r.part == "fit"
    }


def most_replicas(layouts: list[Layout], batch: int, node: int) -> Layout:
    """The layout with the most data parallelism, and of these the largest micro batch."""
    return max(layouts, key=lambda one: (one[2], one[3], one[4]))


def _draw_rule(rng):
    for number in rng.permutation(len(GROUPS)).tolist():
        model, gpus = GROUPS[number]
        every = list(_measured(model, gpus))
        some = [every[i] for i in sorted(rng.permutation(len(every))[: 3 * len(every) // 4])]
        steps = {one: _measured(model, gpus)[one] for one in some}
        some = [some[i] for i in rng.permutation(len(some))]
        words = f"{model} on {gpus} H100, {len(some)} layouts"
        asked = {"layouts": some, "batch": 256, "node": 8}
        yield Question(asked, min(steps, key=steps.__getitem__), words, steps)


def _rule_verdict(question, got):
    steps: dict[Any, float] = question.known
    picked = chosen(steps, got)
    if picked not in steps:
        return f"for {question}: your function returned {got!r}, which is none of the layouts."
    fastest = min(steps.values())
    mine, least = steps[picked] / fastest - 1, (median(steps.values()) / fastest - 1) / 2
    if mine <= least:
        return None
    tp, pp, dp, micro_batch, _ = picked
    batch, node = question.arguments["batch"], question.arguments["node"]
    microbatches = batch // (dp * micro_batch)
    why = "What does it send, and how large are its GEMMs?"
    if tp > node:
        why = f"tp={tp} is more than the {node} GPUs of a node: every layer waits for slow links."
    elif pp > 1 and pp > microbatches:
        why = f"{microbatches} microbatches cannot fill a pipeline of {pp} stages."
    elif pp > 1:
        why = f"Its pipeline of {pp} stages sends messages and idles."
    elif tp > 1:
        why = f"Every layer waits for all-reduces over tp={tp}."
    usual = most_replicas(list(steps), batch, node)
    return (
        f"for {question}: your rule picked (tp, pp, dp, micro batch, zero) = {picked}. It took "
        f"{show_seconds(steps[picked])}, {100 * mine:.0f} % more than the fastest: its regret. At "
        f"most {100 * least:.0f} % is asked for, half of the median layout's. {why} The baseline, "
        f"most data parallelism, picks {usual}, with a regret of "
        f"{100 * (steps[usual] / fastest - 1):.0f} %."
    )


RULE = Formula(
    title="Your own rule against the measured table",
    prompt="Write a rule that picks a layout without any prediction. `layouts` is a list of tuples "
    "(tp, pp, dp, micro_batch, zero) that all ran on the same GPUs, with `batch` sequences a step "
    "and nodes of `node` GPUs. Return one of them. It is asked on published groups of Llama 1B and "
    "3B on 32 to 256 GPUs; on each your pick's regret must be at most half of the median "
    "layout's.",
    starter="""def beat_rule(layouts, batch, node):
    return max(layouts, key=lambda layout: layout[0])  # the most tensor parallelism""",
    concept="Which axis sends the least for these small models: one that sends in every layer, at "
    "every stage boundary, or once a step?",
    principle="Models that fit one GPU need no tensor or pipeline parallelism; then gradients are "
    "all that is sent. A larger micro batch has larger GEMMs.",
    shape="The starter with another key: a tuple of two entries of a layout, the more "
    "important one first.",
    success="That is hard to beat for small models, and is the baseline beside our search. It has "
    "no answer for models that do not fit, for small batches, and for how long a step takes.",
    draw=_draw_rule,
    solution=most_replicas,
    verdict=_rule_verdict,
    measured=lambda answers: f"Your rule holds on {len(answers)} published groups.",
)

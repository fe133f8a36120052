"""The exercises of notebook 08 on layouts: microbatches and bubbles, what fits, which axis crosses
nodes, and a rule that picks among measured ones; those on predictions are in `regrets`."""

from functools import lru_cache
from math import floor
from statistics import median
from typing import Any

from tpviz.core.tables import show_bytes, show_seconds
from tpviz.evidence.published.rows import published

from .formula import ChoiceQuestion, Formula, Question, chosen

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
        "the pipeline fills and drains in pp - 1 slots together, not pp - 1 each.": (
            ...,
            2 * (pp - 1) / (batch / dp / micro_batch + 2 * (pp - 1)),
        ),
        "the idle slots of a stage are pp - 1, of m + pp - 1; not pp.": (
            ...,
            pp / (batch / dp / micro_batch + pp - 1),
        ),
    },
    parts=("number of microbatches", "bubble"),
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
    """Four of which the largest micro batch is 2 to 7, and two whose states alone do not fit."""
    for zero, room in rng.permutation([(0, 1), (1, 1), (0, 1), (1, 1), (0, 0), (1, 0)]).tolist():
        tp, dp = _one_of(rng, 2, 4), _one_of(rng, 4, 8, 16)
        pp = _one_of(rng, 8 // tp, 8)  # another size than tp: they are told apart
        memory = _one_of(rng, 40, 80, 141) * GIGA
        # of the memory that the states take
        share = rng.uniform(0.3, 0.8) if room else rng.uniform(1.2, 1.5)
        each = 2 + 4 + 12 / (dp if zero else 1)
        parameters = round(share * memory * tp * pp / each)
        left = abs(memory - fits(parameters, tp, pp, dp, zero, 1.0, memory)[0])
        sequence = round(left / pp / (int(rng.integers(2, 8)) + rng.uniform(0.2, 0.8)))
        yield parameters, tp, pp, dp, zero, sequence, memory


def _fits_mistakes(parameters, tp, pp, dp, zero, sequence, memory):
    states, most = fits(parameters, tp, pp, dp, zero, sequence, memory)
    share, by, left = parameters / (tp * pp), dp if zero else 1, memory - states

    def whole(size):
        return (..., max(0, floor(size)))

    return {
        "tp and pp split the parameters: a GPU has 1/(tp*pp) of them.": (
            parameters * (6 + 12 / by),
            ...,
        ),
        "pp splits the parameters too: a GPU has 1/(tp*pp) of them.": (
            share * pp * (6 + 12 / by),
            ...,
        ),
        "tp splits the parameters too: a GPU has 1/(tp*pp) of them.": (
            share * tp * (6 + 12 / by),
            ...,
        ),
        "ZeRO-1 shards the 12 bytes of the optimizer's state alone.": (share * 18 / by, ...),
        "ZeRO-1 shards the 12 bytes of the optimizer's state alone, not gradients.": (
            share * (2 + 16 / by),
            ...,
        ),
        "ZeRO-1 shards the 12 bytes of the optimizer's state over dp.": (share * 18, ...),
        "without ZeRO every replica has the whole optimizer state.": (share * (6 + 12 / dp), ...),
        "a parameter has 2 bytes, its gradient 4, the optimizer's state 12.": (
            share * (4 + 12 / by),
            ...,
        ),
        "a parameter has 2 bytes, its gradient 4, the optimizer's state 12; you counted 8 for the "
        "state.": (share * (6 + 8 / by), ...),
        "the states are right, and more than the memory: nothing fits, so the micro batch is 0, "
        "not negative.": (..., floor(left / (pp * sequence))) if left < 0 else None,
        "the states are right, and more than the memory: nothing fits, not one sequence.": (
            (..., 1) if left < 0 else None
        ),
        f"the states are right; the first stage of 1F1B holds pp={pp} microbatches.": (
            whole(left / sequence)
        ),
        "the states are right; a micro batch is a whole number of sequences.": (
            ...,
            max(0.0, left / (pp * sequence)),
        ),
        "the states are right; the micro batch is rounded down: the larger one does not fit.": (
            ...,
            max(0, most + 1),
        ),
        "the states are right, but take memory too: activations have what they leave.": whole(
            memory / (pp * sequence)
        ),
        "the states are right; `sequence` is bytes on one GPU already: tp does not divide it.": (
            whole(left * tp / (pp * sequence))
        ),
    }


FITS = Formula(
    title="Does it fit?",
    prompt="Mixed precision with Adam takes 2 bytes for a parameter, 4 for its gradient, and 12 "
    "for its optimizer state, which ZeRO-1 (`zero` = 1) shards over the `dp` replicas; `zero` = 0 "
    "shards nothing. The model's `parameters` are split over `tp` x `pp` GPUs. One sequence's "
    "activations take `sequence` bytes on a GPU; the first stage of a 1F1B pipeline holds `pp` "
    "microbatches at once. Return (bytes of a GPU's states, the largest micro batch that fits "
    "into `memory` bytes; 0 where the states alone do not fit).",
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
    parts=("states", "largest micro batch"),
    solution=fits,
    mistakes=_fits_mistakes,
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
    """Gradients and activations are near each other, where a factor of two decides, and far."""
    # tokens of a step over 6 layers hidden
    for more in rng.permutation([0.1, 0.3, 0.55, 0.7, 0.85, 1.18, 1.4, 1.8, 3, 5, 8]).tolist():
        layers, hidden = 2 * int(rng.integers(2, 9)), 256 * int(rng.integers(2, 9))
        # those that tell a forgotten count of microbatches from a factor of 2 or 4
        microbatches = {3: 2, 5: 8}.get(more) or _one_of(rng, 2, 4, 8)
        tokens = max(1, round(6 * layers * hidden * more / microbatches))
        inside = int(rng.integers(150, 450)) * GIGA
        yield layers, hidden, tokens, microbatches, inside, inside / _one_of(rng, 8, 12, 16)


_BETWEEN = {
    "You seem to have taken half of the bytes over dp (gradients have 4 bytes, and a ring of 2 "
    "ranks sends its tensor once), or twice those over pp (a GPU sends activations or their "
    "gradients, not both).": {"dp": 0.5},
    "You seem to have taken twice the bytes over dp (tp and pp leave a GPU a quarter of the "
    "parameters, and a ring of 2 ranks sends its tensor once), or half of those over pp (they "
    "have [tokens, hidden] numbers of 2 bytes on each rank of tp).": {"dp": 2},
    "You seem to have taken a quarter of the bytes over dp: its gradients have 4 bytes.": {
        "dp": 0.25
    },
    "You seem to have taken four times the bytes over dp: a GPU has a quarter of the parameters.": {
        "dp": 4
    },
}
"""{words: {axis: by how much its bytes are wrong}}."""


def _between_mistakes(layers, hidden, tokens, microbatches, inside, between):
    sends = sent(layers, hidden, tokens, microbatches)
    wrong = {
        words: sends | {axis: sends[axis] * by[axis] for axis in by}
        for words, by in _BETWEEN.items()
    }
    wrong[
        "You seem to have counted one microbatch over pp (the stages send in each), or gradients "
        "in each microbatch (they are sent once a step)."
    ] = sends | {"pp": sends["pp"] / microbatches}
    wrong["The axis that sends most is the one to keep inside."] = {
        axis: -size for axis, size in sends.items()
    }
    return wrong


def _between_wrong(question, got):
    sends = sent(*list(question.arguments.values())[:4])
    told = ", ".join(f"{axis} {show_bytes(size)}" for axis, size in sends.items())
    return f"A GPU sends in a step: {told}."


BETWEEN = ChoiceQuestion(
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
    mistakes=_between_mistakes,
    wrong=_between_wrong,
    kind="an axis",
    unit="of communication",
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

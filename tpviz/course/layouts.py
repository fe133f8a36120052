"""The exercises of notebook 08 on layouts: microbatches and bubbles, what fits, which axis crosses
nodes, and a rule that picks among measured ones; those on predictions are in `regrets`."""

from functools import lru_cache
from math import floor
from statistics import median
from typing import Any

from tpviz.core.tables import show_bytes, show_seconds
from tpviz.evidence.published.rows import published

from .formula import ChoiceQuestion, Formula, Question, chosen
from .told import told

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


def _bubble_mistakes(batch, dp, pp, micro_batch):
    of_all, of_one, first = batch / micro_batch, batch / dp / micro_batch, pp - 1
    return {
        "batch one replica has batch": (of_all, first / (of_all + pp - 1)),
        "batch and the share": (of_all, first / of_all),
        "that is the bubble over": (of_one, first / of_one),
        "first microbatch passes pp": (of_one, pp / (of_one + pp)),
        "microbatches are counted not their sequences": (batch / dp, first / (batch / dp + pp - 1)),
        "pipeline fills and drains": (..., 2 * first / (of_one + 2 * first)),
        "idle slots of a stage": (..., pp / (of_one + pp - 1)),
    }


BUBBLE = Formula(
    **told("beat_bubble"),
    draw=_draw_bubble,
    solution=bubble,
    mistakes=_bubble_mistakes,
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
        if zero and dp == 4 and 2 in (tp, pp):  # 2 (6 + 12/4) is 18: two mistakes would be one
            dp = 8
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
        "tp and pp split the parameters": (parameters * (6 + 12 / by), ...),
        "pp splits the parameters too": (share * pp * (6 + 12 / by), ...),
        "tp splits the parameters too": (share * tp * (6 + 12 / by), ...),
        "state alone": (share * 18 / by, ...),
        "alone not gradients": (share * (2 + 16 / by), ...),
        "state over dp": (share * 18, ...),
        "without zero every replica": (share * (6 + 12 / dp), ...),
        "state 12": (share * (4 + 12 / by), ...),
        "12 you counted 8": (share * (6 + 8 / by), ...),
        "fits so the micro batch": (..., floor(left / (pp * sequence))) if left < 0 else None,
        "fits not one sequence": (..., 1) if left < 0 else None,
        "first stage of 1f1b holds": whole(left / sequence),
        "micro batch is a whole": (..., max(0.0, left / (pp * sequence))),
        "micro batch is rounded down": (..., max(0, most + 1)),
        "take memory too": whole(memory / (pp * sequence)),
        "sequence is bytes on one gpu": whole(left * tp / (pp * sequence)),
    }


FITS = Formula(
    **told("beat_fits"),
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
    "you seem to have taken half": {"dp": 0.5},
    "you seem to have taken twice": {"dp": 2},
    "you seem to have taken": {"dp": 0.25},
    "you seem to have taken four": {"dp": 4},
}
"""{words: {axis: by how much its bytes are wrong}}."""


def _between_mistakes(layers, hidden, tokens, microbatches, inside, between):
    sends = sent(layers, hidden, tokens, microbatches)
    wrong = {
        words: sends | {axis: sends[axis] * by[axis] for axis in by}
        for words, by in _BETWEEN.items()
    }
    wrong[BETWEEN.say("you seem to have counted")] = sends | {"pp": sends["pp"] / microbatches}
    wrong[BETWEEN.say("axis that sends most")] = {axis: -size for axis, size in sends.items()}
    return wrong


def _between_wrong(question, got):
    sends = sent(*list(question.arguments.values())[:4])
    told = ", ".join(f"{axis} {show_bytes(size)}" for axis, size in sends.items())
    return f"A GPU sends in a step: {told}."


BETWEEN = ChoiceQuestion(
    **told("beat_between"),
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
        return RULE.say("your function returned which is none", question=question, got=got)
    fastest = min(steps.values())
    mine, least = steps[picked] / fastest - 1, (median(steps.values()) / fastest - 1) / 2
    if mine <= least:
        return None
    tp, pp, dp, micro_batch, _ = picked
    batch, node = question.arguments["batch"], question.arguments["node"]
    microbatches = batch // (dp * micro_batch)
    why = RULE.say("what does it send and how")
    if tp > node:
        why = RULE.say("tp is more than the gpus", tp=tp, node=node)
    elif pp > 1 and pp > microbatches:
        why = RULE.say("microbatches cannot fill a pipeline", microbatches=microbatches, pp=pp)
    elif pp > 1:
        why = RULE.say("its pipeline of stages sends messages", pp=pp)
    elif tp > 1:
        why = RULE.say("every layer waits for all-reduces over", tp=tp)
    usual = most_replicas(list(steps), batch, node)
    return RULE.say(
        "your rule picked tp pp dp",
        question=question,
        picked=picked,
        time=show_seconds(steps[picked]),
        mine=100 * mine,
        least=100 * least,
        why=why,
        usual=usual,
        slower=100 * (steps[usual] / fastest - 1),
    )


RULE = Formula(
    **told("beat_rule"),
    draw=_draw_rule,
    solution=most_replicas,
    verdict=_rule_verdict,
    measured=lambda answers: RULE.say("your rule holds on published groups", count=len(answers)),
)

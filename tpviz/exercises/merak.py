"""The exercises of notebook 05 on numbers: what a schedule holds, how long it takes, which layers
each stage recomputes, and what it then holds in memory."""

from collections.abc import Callable
from math import ceil, floor

from ..schedules import schedule, timeline
from ..schemes.merak.strategy import Merak
from ..workload import GPT
from .formula import Formula, same

SCP = "shifted_critical_path"


# --- merak_in_flight ---
def in_flight(name: str, p: int, m: int, s: int) -> int:
    """Microbatches that rank s holds at most, counted on the clock."""
    return timeline(schedule(name, p, m)).peak_in_flight[s]


def _draw_in_flight(rng):
    p, few = int(rng.integers(5, 9)), int(rng.integers(2, 4))
    m = p + int(rng.integers(1, 5))
    return [
        ("1f1b", p, m, int(rng.integers(0, p - 3))),
        ("1f1b", p, few, 0),
        ("1f1b", p, m, p - 2),
        (SCP, p, m, int(rng.integers(0, p - 3))),
        (SCP, p, m, p - 2),
        (SCP, p, m, p - 1),
        (SCP, 2, m, 0),
    ]


def _in_flight_wrong(question, got):
    name, p, _, s = question.arguments.values()
    words = f"for {question} it is {question.answer}, you returned {got}."
    if name == SCP and s == p - 2:
        return (
            f"{words} Look at rank p-2 of the shifted critical path: it does one more forward "
            "before its first backward."
        )
    if same(got, p - s - 1) or same(got, p - s + 1):
        return (
            f"{words} Ranks are counted from 0: the last one, p-1, goes backward after one forward."
        )


IN_FLIGHT = Formula(
    title="How many microbatches does a rank hold?",
    prompt="A microbatch is in flight on a rank from its forward to the end of its backward; its "
    "activations, or what they are recomputed from, are held for that time. Return the most "
    f'that rank `s` of `p` holds, of `m` microbatches, under `name`: "1f1b" or "{SCP}". '
    "Your number is held against the schedule on the clock.",
    starter="""def merak_in_flight(name, p, m, s):
    return m  # all of them?""",
    concept="Count the forwards that a rank does before its first backward; after that, one comes "
    "and one goes.",
    principle="In 1F1B the last rank holds one, and each rank before it one more. The shifted "
    "critical path has one more forward in front of one backward, on one rank.",
    answer="`min(m, p - s)`; under the shifted critical path rank p-2 holds 3, one more than that.",
    success="The first rank holds most, and it is for it that recomputation is needed: Merak lets "
    "later ranks keep more.",
    draw=_draw_in_flight,
    solution=in_flight,
    mistakes=lambda name, p, m, s: {
        f"all {m} are held by GPipe, which goes backward at the end. Here a rank goes backward as "
        "soon as it can.": m if m > p else None,
        f"there are only {m} microbatches.": p - s if p - s > m else None,
    },
    wrong=_in_flight_wrong,
)


# --- merak_bubble ---
THREE = ("1f1b", "early_recompute", "last_no_recompute")


def makespans(p: int, m: int, f: float, r: float, b: float) -> tuple[float, ...]:
    """Of `THREE`, on the clock."""
    return tuple(timeline(schedule(name, p, m), f, b, recompute=r).makespan for name in THREE)


def _draw_bubble(rng):
    for _ in range(4):
        p = int(rng.integers(2, 9))
        m = max(p, 4) + int(rng.integers(0, 9))
        r, f, b = (int(x) for x in sorted(rng.choice(range(1, 40), 3, replace=False)))
        yield p, m, f, r, b


def _bubble_wrong(question, got):
    p, m, f, r, b = question.arguments.values()
    each, right = f + r + b, question.answer
    if len(got) != len(right):
        return None
    number = next(i for i in range(3) if not same(got[i], right[i]))
    mine, want = got[number], right[number]
    words = f"for {question}: {THREE[number]} takes {want:g} on the clock, your {mine:g}"
    if same(mine, (m + p - 1) * (f + b)) or same(mine, m * (f + b) + (p - 1) * each):
        return f"{words}. Where is the recomputation of all m microbatches, in turn on a rank?"
    if number == 0 and same(mine, right[1]):
        return (
            f"{words} is that of early recomputation. In plain 1F1B a rank recomputes when the "
            "gradient is there, so each rank adds r to the way of the last one back."
        )
    if number == 1 and same(mine, m * (f + b) + (p - 1) * (f + b) + r):
        return f"{words}. Early recomputation hides in waits, and in the middle there are none."
    if number == 2 and same(mine, right[1] - r * m):
        return (
            f"{words}. The last rank is free of its m recomputations, but the one before is "
            "not, and now all wait for that one."
        )
    if number == 2 and same(mine, m * each + (p - 2) * (f + b)):
        return (
            f"{words}, which is {want - mine:g} short. Rank p-2 waits twice: for its first "
            "gradient, and for its last."
        )
    if number == 2 and same(mine, m * each + (p - 2) * (f + b) + b - r):
        return (
            f"{words}, which is {want - mine:g} short. Rank p-2 does its last two backwards in "
            "a row; the last rank's forward and backward of microbatch m-1 take longer than "
            "the first of them."
        )
    return f"{words}."


BUBBLE = Formula(
    title="How long does a schedule take?",
    prompt="`p` ranks and `m` >= max(p, 4) microbatches; forward `f`, recomputation `r` and "
    "backward `b` of one microbatch on one rank (r <= f <= b: some layers may be kept), "
    "messages for nothing. Return the makespans of three schedules: 1F1B where each "
    "backward first recomputes; with early recomputation (the last p-1-s backwards of rank "
    "s recompute while they wait); and where also the last rank does not recompute. Your "
    "formulas are held against the clock.",
    starter="""def merak_bubble(p, m, f, r, b):
    plain = (m + p - 1) * (f + b)
    return plain, plain, plain  # without recomputation""",
    concept="Find the rank that is busy all the time, and add what comes before its first action "
    "and after its last.",
    principle="1F1B: the last rank does m times f + r + b, and p-1 ranks lie before and behind it. "
    "Early: on the way back each of these takes b alone. Without recomputation on the last "
    "rank the busy one is p-2: p-2 ranks before and behind it, and it waits b - r before its "
    "first backward and f - r before its last.",
    answer="`(m + p - 1) * (f + r + b)`, `m * (f + r + b) + (p - 1) * (f + b)` and `m * (f + r + "
    "b) + (p - 2) * (f + b) + (b - r) + (f - r)`.",
    success="Merak's shifted critical path fills rank p-2's first wait with one more forward: with "
    "r = f and b = 2 f it takes m (f + r + b) + (p - 2)(f + b). The gain is the same for "
    "any m, so it is small where there are many microbatches.",
    draw=_draw_bubble,
    solution=makespans,
    wrong=_bubble_wrong,
)


# --- merak_keep ---
def dropped(name: str, p: int, layers: int, keep: float) -> tuple[int, ...]:
    """Layers that each stage recomputes, by the strategy itself."""
    s = Merak(pp=p, microbatches=p + 4, schedule=name, recompute="stage_aware", keep=keep)
    return tuple(s.num_recomputed(GPT(layers=p * layers, batch=p + 4)))


def by_rule(
    p: int,
    layers: int,
    keep: float,
    corrected: bool = True,
    part: Callable[[int], float] | None = None,
    counted: Callable[[float], int] = floor,
) -> tuple[int, ...]:
    """The same by hand, with mistakes; part(s): k of stage s. None: the rule's."""
    part = part or (lambda s: keep * (p - 1) / (p - 1 - s))
    k = [min(1.0, part(s)) for s in range(p - 1)] + [1.0]
    if corrected and p > 2:
        k[p - 2] = k[p - 3]
    return tuple(counted(layers * (1 - x) + (1e-9 if counted is floor else -1e-9)) for x in k)


def _draw_keep(rng):
    for name, p, layers in (("1f1b", 4, 12), (SCP, 4, 12), (SCP, 8, 10), (SCP, 2, 16)):
        keep = int(rng.integers(8, 20)) / 100
        while not _clear(p, layers, keep):
            keep = int(rng.integers(8, 20)) / 100
        yield name, p, layers, keep


def _clear(p, layers, keep):
    """Whether no stage is so near a whole number of layers that it hangs on rounding."""
    kept = (layers * keep * (p - 1) / (p - 1 - s) for s in range(p - 1))
    return all(abs(count - round(count)) > 0.01 for count in kept)


def _keep_mistakes(name, p, layers, keep):
    corrected = name == SCP
    other = by_rule(p, layers, keep, not corrected)
    return {
        f"stage {p - 2} is wrong. Under the shifted critical path it has as many microbatches in "
        f"flight as stage {p - 3}, so it can keep no larger part.": other if corrected else None,
        f"stage {p - 2} is wrong. It has one microbatch more in flight under the shifted critical "
        "path alone; this is 1F1B.": other,
        "every stage keeps the same part, though later ones have fewer "
        "microbatches in flight, and room for more.": (
            by_rule(p, layers, keep, False, lambda s: keep)
        ),
        "the microbatch that goes backward is all there on every stage. Those that "
        "share the room are the others: p - 1 - s of them, not p - s.": (
            by_rule(p, layers, keep, corrected, lambda s: keep * p / (p - s))
        ),
        **{
            f"you rounded {how}; the released code rounds down what it recomputes.": (
                by_rule(p, layers, keep, corrected, counted=counted)
            )
            for counted, how in ((ceil, "up"), (round, "to the nearest"))
        },
    }


def _keep_wrong(question, got):
    if any(x < 0 for x in got):
        return f"for {question}: a part k above 1 means all layers: then the stage recomputes none."
    if same(got[:-1], question.answer[:-1]):
        return (
            f"for {question}: the last stage goes backward right after its forward: it keeps "
            "everything."
        )


KEEP = Formula(
    title="Which layers does each stage recompute?",
    prompt="Stage-aware recomputation: stage 0 keeps the activations of a part `keep` of its "
    "layers, and recomputes the others. Later stages have fewer microbatches in flight. While one "
    "of n_s microbatches goes backward, the n_s - 1 others hold their part k_s: (n_s - 1) k_s is "
    "to be the same on all stages but the last, which keeps all (k = 1). No k is above 1. Under "
    "1F1B n_s = p - s; under the shifted critical path stage p-2 has as many in flight as p-3, and "
    "gets the same k (if there is a p-3). Return how many of its `layers` each of the `p` stages "
    f'recomputes, p numbers, rounded down; `name` is "1f1b" or "{SCP}".',
    starter="""def merak_keep(name, p, layers, keep):
    return [int(layers * (1 - keep)) for stage in range(p)]  # the same part everywhere?""",
    concept="Find n_s of each stage first. Which k makes (n_s - 1) k the same as on stage 0?",
    principle="k_s = keep (p - 1) / (p - 1 - s), at most 1. The last stage keeps everything; under "
    "the shifted critical path k of p-2 is that of p-3.",
    answer="`k = [min(1, keep * (p - 1) / (p - 1 - s)) for s in range(p - 1)] + [1]`, `if name != "
    '"1f1b" and p > 2: k[p - 2] = k[p - 3]`, `return [int(layers * (1 - x) + 1e-9) for x in k]`.',
    success="What the released code chooses by hand, k of stage 0, can be computed: as much as the "
    "memory of stage 0 allows.",
    draw=_draw_keep,
    solution=dropped,
    mistakes=_keep_mistakes,
    wrong=_keep_wrong,
)


# --- merak_memory ---
def peak(name: str, p: int, m: int, s: int, whole: float, inputs: float, keep: float) -> float:
    """Bytes at the peak, from what the clock says is held when."""
    line = timeline(schedule(name, p, m))
    checkpointed = keep * whole + (1 - keep) * inputs
    return max(
        full * (whole + (1 - keep) * inputs) + kept * checkpointed for _, full, kept in line.held(s)
    )


def _draw_memory(rng):
    for name, p, m, s in (("1f1b", 4, 8, 0), ("1f1b", 6, 4, 1), (SCP, 4, 8, 2), (SCP, 6, 12, 3)):
        whole, inputs = 100 * int(rng.integers(20, 90)), 10 * int(rng.integers(5, 30))
        yield name, p, m, s, whole, inputs, int(rng.integers(1, 8)) / 8


def _memory_mistakes(name, p, m, s, whole, inputs, keep):
    n, drop = in_flight(name, p, m, s), 1 - keep

    def by(n, backward=1.0, ends=drop, behind=0):
        """By the formula, with mistakes."""
        return whole * (backward + (n - 1) * keep) + ends * inputs * (n - behind)

    few = "" if name != SCP else ": count the forwards before the first backward"
    others = (n - 1, f"one too few{few}"), (p - s, f"but there are only {m}"), (m, "all of them")
    return {
        f"that is without recomputation: all {n} microbatches whole.": whole * n,
        f"you have {n} microbatches as they are kept. When one goes backward, what "
        "it recomputed is there too.": by(n, keep),
        "what is recomputed needs its input, which each microbatch holds.": by(n, ends=0.0),
        f"inputs are held of the recomputed part of the layers alone: {drop:g} of `inputs`.": by(
            n, ends=1.0
        ),
        "the microbatch that goes backward holds its inputs as well.": by(n, behind=1),
        **{
            f"you have {other} microbatches in flight, {why}; there are {n}.": by(other)
            for other, why in others
        },
    }


MEMORY = Formula(
    title="What does a stage hold at the peak?",
    prompt="`whole`: bytes of the activations of one microbatch on one stage. `inputs`: bytes of "
    "the inputs of its layers, which is all that a recomputed layer keeps. A part `keep` "
    "of the layers keeps everything, the others their input. Return the bytes of "
    "activations and inputs that rank `s` of `p` holds at the peak, with `m` microbatches, "
    f'under `name` ("1f1b" or "{SCP}"): while one microbatch goes backward, all of it '
    "is there (and its inputs still are). Not the last rank.",
    starter="""def merak_memory(name, p, m, s, whole, inputs, keep):
    return m * (keep * whole + (1 - keep) * inputs)  # as they are kept?""",
    concept="How many microbatches are in flight (`merak_in_flight`), and how many of them are "
    "whole?",
    principle="n of them; one is whole, n - 1 hold `keep` of it, and all n the inputs of what is "
    "recomputed.",
    answer="`n = min(m, p - s)`, one more on rank p-2 of the shifted critical path; `return whole "
    "* (1 + (n - 1) * keep) + inputs * n * (1 - keep)`.",
    success="Beside it are parameters, gradients and the optimizer's state: what is left of the "
    "device's memory decides how much stage 0 can keep.",
    draw=_draw_memory,
    solution=peak,
    mistakes=_memory_mistakes,
)

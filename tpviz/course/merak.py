"""The exercises of notebook 12 on numbers: microbatches in flight, makespans, the layers that each
stage recomputes, and its activation memory."""

from collections.abc import Callable
from math import ceil, floor

from tpviz.core.schedules import schedule, timeline
from tpviz.core.workload import GPT
from tpviz.schemes.merak.strategy import Merak

from .causes import same
from .formula import Formula

SCP = "shifted_critical_path"


# --- merak_in_flight ---
def in_flight(name: str, p: int, m: int, s: int) -> int:
    """Peak microbatches in flight on rank s, by simulation."""
    return timeline(schedule(name, p, m)).peak_in_flight[s]


def _draw_in_flight(rng):
    p, few = int(rng.integers(5, 9)), int(rng.integers(2, 4))
    m = p + int(rng.integers(1, 5))
    # here a count from the other end differs from one too few, from one too many, and from right
    clear = [s for s in range(p - 3) if abs(p - 1 - 2 * s) > 1]
    return [
        ("1f1b", p, m, int(rng.choice(clear))),
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
            f"{words} Look at rank p-2 of the shifted critical path: it runs one more forward "
            "before its first backward."
        )
    if name == SCP and same(got, p - s + 1):
        return (
            f"{words} The shifted critical path has one more in flight on rank p-2 alone: rank "
            f"{s} holds as many as in 1F1B, p - s."
        )
    if name == SCP and s == p - 1:
        return f"{words} The last rank runs each backward right after its forward: it holds one."
    if same(got, p - s - 1):
        return f"{words} Ranks are counted from 0: the last, p-1, starts backward after one."
    if same(got, p - s + 1):
        return f"{words} That is one more: the last rank, p-1, holds one, each before it one more."
    if same(got, s + 1):
        return (
            f"{words} You counted from the other end: rank 0 holds most, and the last holds one, "
            "since it runs a backward right after its first forward."
        )
    return None


IN_FLIGHT = Formula(
    title="How many microbatches does a rank hold?",
    prompt="A microbatch is in flight on a rank from its forward to the end of its backward; its "
    "activations, or its checkpoint, are held for that time. Return the peak number that rank `s` "
    f'of `p` holds, of `m` microbatches, under `name`: "1f1b" or "{SCP}". Your number is '
    "compared with the simulated schedule.",
    starter="""def merak_in_flight(name, p, m, s):
    return m  # all of them?""",
    concept="Count the forwards that a rank runs before its first backward; after that, forwards "
    "and backwards alternate.",
    principle="In 1F1B the last rank holds one, and each rank before it one more. The shifted "
    "critical path has one more forward before the first backward, on one rank.",
    shape="A minimum of two numbers; one rank has a number of its own under the second name.",
    success="The first rank holds most, so it needs recomputation; Merak lets later ranks keep "
    "more.",
    draw=_draw_in_flight,
    solution=in_flight,
    mistakes=lambda name, p, m, s: {
        f"GPipe holds all {m}, since it runs backwards at the end. Here a rank runs a backward as "
        "soon as it can.": m if m > p else None,
        f"there are only {m} microbatches.": p - s if p - s > m else None,
    },
    wrong=_in_flight_wrong,
)


# --- merak_bubble ---
THREE = ("1f1b", "early_recompute", "last_no_recompute")


def makespans(p: int, m: int, f: float, r: float, b: float) -> tuple[float, ...]:
    """Makespans of `THREE`, simulated."""
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
    if number == 1 and same(mine, right[0] - r) and p > 2:
        return (
            f"{words}. The last backward has to pass p - 1 = {p - 1} ranks, and each of them has "
            "recomputed while it waited: p - 1 recomputations less, not one."
        )
    if number == 1 and same(mine, right[0]):
        return (
            f"{words}, as without early recomputation. The last backwards recompute while their "
            "rank waits: the path back over p - 1 ranks has p - 1 recomputations less."
        )
    if number == 2 and same(mine, right[1]):
        return (
            f"{words}, as if the last rank recomputed. It does not, and rank p-2, which does, is "
            "the busy one now."
        )
    if number == 2 and same(mine, right[1] - r):
        return f"{words}. All m recomputations of the last rank are gone, not one."
    if same(mine, (m + p - 1) * (f + b)) or same(mine, m * (f + b) + (p - 1) * each):
        return f"{words}. It lacks the recomputation of all m microbatches on a rank."
    if number == 0 and same(mine, right[1]):
        return (
            f"{words} is that of early recomputation. In plain 1F1B a rank recomputes after the "
            "gradient arrives, so each rank adds r to the last backward's path."
        )
    if number == 1 and same(mine, m * (f + b) + (p - 1) * (f + b) + r):
        return f"{words}. Early recomputation is hidden in waits; the steady phase has none."
    if number == 2 and same(mine, right[1] - r * m):
        return (
            f"{words}. The last rank has no recomputations, but the one before has m, and now all "
            "wait for that one."
        )
    if number == 2 and same(mine, m * each + (p - 2) * (f + b)):
        return (
            f"{words}, which is {want - mine:g} short. Rank p-2 waits twice: for its first "
            "gradient, and for its last."
        )
    if number == 2 and same(mine, m * each + (p - 2) * (f + b) + b - r):
        return (
            f"{words}, which is {want - mine:g} short. Rank p-2 runs its last two backwards in a "
            "row; the last rank's forward and backward of microbatch m-1 take longer than the "
            "first of them."
        )
    return _off_by_times(question, words, mine - want)


def _off_by_times(question, words, more):
    """How many forwards, recomputations or backwards too many or too few explain the difference;
    None where several do."""
    p, m, *each = question.arguments.values()
    names = "forward", "recomputation", "backward"
    found = [
        (round(more / time), name)
        for name, time in zip(names, each)
        if same(more, round(more / time) * time) and 0 < abs(round(more / time)) <= m + p
    ]
    if len(found) != 1:
        return None
    [(count, name)] = found
    one = f"{abs(count)} {name}{'s' * (abs(count) > 1)}"
    return f"{words}: {one} too {'many' if count > 0 else 'few'} on the longest path."


BUBBLE = Formula(
    title="How long does a schedule take?",
    prompt="`p` ranks and `m` >= max(p, 4) microbatches; forward `f`, recomputation `r` and "
    "backward `b` of one microbatch on one rank (r <= f <= b: some layers may be kept), messages "
    "take no time. Return the makespans of three schedules: 1F1B where each backward first "
    "recomputes; with early recomputation (the last p-1-s backwards of rank s recompute while "
    "they wait); and where also the last rank does not recompute. Your formulas are compared with "
    "the simulation.",
    starter="""def merak_bubble(p, m, f, r, b):
    plain = (m + p - 1) * (f + b)
    return plain, plain, plain  # without recomputation""",
    concept="Find the rank that is always busy, and add the time before its first action and "
    "after its last.",
    principle="1F1B: the last rank runs m times f + r + b, after the forwards and before the "
    "backwards of p-1 ranks. Early: each of these last backwards takes only b. Without "
    "recomputation on the last rank the busy one is p-2: it waits for p-2 ranks before and after, "
    "and it waits b - r before its first backward and f - r before its last.",
    shape="Three sums. Each has a number of microbatches times the time of one; the last two "
    "have other terms for the beginning and end of the step.",
    success="Merak's shifted critical path fills rank p-2's first wait with one more forward: "
    "with r = f and b = 2 f it takes m (f + r + b) + (p - 2)(f + b). The gain is the same for any "
    "m, so it is small for many microbatches.",
    draw=_draw_bubble,
    parts=tuple(f"makespan of {name}" for name in THREE),
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
    for name, p, layers in (
        ("1f1b", 4, 12),
        (SCP, 4, 12),
        (SCP, 8, 10),
        (SCP, 2, 16),
        ("1f1b", 8, 10),
    ):
        least, most = (8, 20) if (name, p) != ("1f1b", 8) else (30, 60)  # k reaches 1 there
        keep = int(rng.integers(least, most)) / 100
        while not _clear(p, layers, keep):
            keep = int(rng.integers(least, most)) / 100
        yield name, p, layers, keep


def _clear(p, layers, keep):
    """Whether no stage is so near a whole number of layers that rounding decides."""
    parts = (keep * (p - 1) / (p - 1 - s) for s in range(p - 1))
    kept = (layers * part for part in parts if part < 1)
    return all(abs(count - round(count)) > 0.01 for count in kept)


def _keep_mistakes(name, p, layers, keep):
    corrected = name == SCP
    other = by_rule(p, layers, keep, not corrected)
    return {
        f"stage {p - 2} is wrong. Under the shifted critical path it has as many microbatches in "
        f"flight as stage {p - 3}, so it can keep no larger part.": other if corrected else None,
        f"stage {p - 2} is wrong. It has one more microbatch in flight only under the shifted "
        "critical path; this is 1F1B.": other,
        "every stage keeps the same fraction, though later ones have fewer microbatches in "
        "flight, and free memory.": (by_rule(p, layers, keep, False, lambda s: keep)),
        "the microbatch in backward is held in full on every stage. The others share the rest of "
        "the memory: p - 1 - s of them, not p - s.": (
            by_rule(p, layers, keep, corrected, lambda s: keep * p / (p - s))
        ),
        **{
            f"you rounded {how}; the released code rounds down what it recomputes.": (
                by_rule(p, layers, keep, corrected, counted=counted)
            )
            for counted, how in ((ceil, "up"), (round, "to the nearest"))
        },
        "asked for are the layers that a stage recomputes, not those that it keeps.": tuple(
            layers - count for count in by_rule(p, layers, keep, corrected)
        ),
        "the first stage has most microbatches in flight, and recomputes most: your list begins "
        "with the last one.": by_rule(p, layers, keep, corrected)[::-1],
        "the last stage recomputes nothing: k = 1.": (
            *by_rule(p, layers, keep, corrected)[:-1],
            floor(layers * (1 - keep)),
        ),
    }


def _keep_wrong(question, got):
    if any(x < 0 for x in got):
        return f"for {question}: k above 1 means all layers: then the stage recomputes none."
    if same(got[:-1], question.answer[:-1]):
        return (
            f"for {question}: the last stage runs backward right after its forward: it keeps "
            "everything."
        )


KEEP = Formula(
    title="Which layers does each stage recompute?",
    prompt="Stage-aware recomputation: stage 0 keeps the activations of a fraction `keep` of its "
    "layers, and recomputes the others. Later stages have fewer microbatches in flight. While one "
    "of n_s microbatches is in backward, the n_s - 1 others hold a fraction k_s: (n_s - 1) k_s "
    "must be the same on all stages but the last, which keeps all (k = 1). No k is above 1. Under "
    "1F1B n_s = p - s; under the shifted critical path stage p-2 has as many in flight as p-3, "
    "and gets the same k (if there is a p-3). Return how many of its `layers` each of the `p` "
    f'stages recomputes, p numbers, rounded down; `name` is "1f1b" or "{SCP}".',
    starter="""def merak_keep(name, p, layers, keep):
    return [int(layers * (1 - keep)) for stage in range(p)]  # the same fraction everywhere?""",
    concept="Find n_s of each stage first. Which k makes (n_s - 1) k the same as on stage 0?",
    principle="Stage 0 has (p - 1) keep, in place of (n_s - 1) k_s. Solve that for the k of "
    "another stage, at most 1. The last stage keeps everything; under the shifted "
    "critical path k of p-2 is that of p-3.",
    shape="A list of p fractions, the last 1 and perhaps one copied from its neighbour; from "
    "it p whole numbers (add 1e-9 before you round down: 3 may be 2.9999999).",
    success="The released code sets k of stage 0 by hand; it can be computed from the memory of "
    "stage 0.",
    draw=_draw_keep,
    solution=dropped,
    mistakes=_keep_mistakes,
    wrong=_keep_wrong,
)


# --- merak_memory ---
def peak(name: str, p: int, m: int, s: int, whole: float, inputs: float, keep: float) -> float:
    """Peak bytes, from the simulated schedule."""
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
    others = (
        (n - 1, f"one too few{few}"),
        (max(m, p - s), f"but there are only {m}" if p - s > m else "all of them"),
    )
    return {
        f"that is without recomputation: all {n} microbatches whole.": whole * n,
        f"you counted {n} microbatches as they are kept. The one in backward also holds its "
        "recomputed activations.": by(n, keep),
        "recomputed layers need their inputs, which each microbatch holds.": by(n, ends=0.0),
        f"inputs are held only of the recomputed fraction of the layers: {drop:g} of `inputs`.": by(
            n, ends=1.0
        ),
        "the microbatch in backward holds its inputs as well.": by(n, behind=1),
        **{
            f"you counted {other} microbatches in flight, {why}; there are {n}.": by(other)
            for other, why in others
        },
        "`keep` is what is kept; you have it the other way round.": (
            whole * (1 + (n - 1) * drop) + keep * inputs * n
        ),
    }


MEMORY = Formula(
    title="Peak activation memory of a stage",
    prompt="`whole`: bytes of the activations of one microbatch on one stage. `inputs`: bytes of "
    "the inputs of its layers, which is all that a recomputed layer keeps. A fraction `keep` of "
    "the layers keeps everything, the others their input. Return the bytes of activations and "
    'inputs that rank `s` of `p` holds at the peak, with `m` microbatches, under `name` ("1f1b" '
    f'or "{SCP}"): one microbatch is in backward and held in full (with its inputs). Not the '
    "last rank.",
    starter="""def merak_memory(name, p, m, s, whole, inputs, keep):
    return m * (keep * whole + (1 - keep) * inputs)  # as they are kept?""",
    concept="How many microbatches are in flight (`merak_in_flight`), and how many of them are "
    "held in full?",
    principle="n of them; one is held in full, n - 1 hold `keep` of it, and all n the inputs of "
    "the recomputed layers.",
    shape="The number in flight, as in `merak_in_flight`, and a sum of two products: one with "
    "`whole`, one with `inputs`.",
    success="Parameters, gradients and the optimizer's state need memory too; the rest of the "
    "device's memory decides how much stage 0 can keep.",
    draw=_draw_memory,
    solution=peak,
    mistakes=_memory_mistakes,
)

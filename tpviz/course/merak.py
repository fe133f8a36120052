"""The exercises of notebook 12 on numbers: microbatches in flight, makespans, the layers that each
stage recomputes, and its activation memory."""

from collections.abc import Callable
from functools import partial
from math import ceil, floor

from tpviz.core.schedules import schedule, timeline
from tpviz.core.workload import GPT
from tpviz.schemes.merak.strategy import Merak

from .causes import same
from .formula import Formula
from .told import told

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
    words = IN_FLIGHT.say("it is you returned", question=question, got=got)
    if name == SCP and s == p - 2:
        return IN_FLIGHT.say("look at rank p-2", words=words)
    if name == SCP and same(got, p - s + 1):
        return IN_FLIGHT.say("shifted critical path", words=words, s=s)
    if name == SCP and s == p - 1:
        return IN_FLIGHT.say("last rank runs each backward", words=words)
    if same(got, p - s - 1):
        return IN_FLIGHT.say("ranks are counted from 0", words=words)
    if same(got, p - s + 1):
        return IN_FLIGHT.say("that is one more", words=words)
    if same(got, s + 1):
        return IN_FLIGHT.say("you counted from the other end", words=words)
    return None


IN_FLIGHT = Formula(
    **told("merak_in_flight", SCP=SCP),
    draw=_draw_in_flight,
    solution=in_flight,
    mistakes=lambda name, p, m, s: {
        "gpipe holds all since it runs": m if m > p else None,
        "there are only microbatches": p - s if p - s > m else None,
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
    words = BUBBLE.say(
        "takes on the clock your", question=question, schedule=THREE[number], want=want, mine=mine
    )
    if number == 1 and same(mine, right[0] - r) and p > 2:
        return BUBBLE.say("last backward has to pass", words=words, others=p - 1)
    if number == 1 and same(mine, right[0]):
        return BUBBLE.say("as without early recomputation", words=words)
    if number == 2 and same(mine, right[1]):
        return BUBBLE.say("as if the last rank recomputed", words=words)
    if number == 2 and same(mine, right[1] - r):
        return BUBBLE.say("all m recomputations of the last", words=words)
    if same(mine, (m + p - 1) * (f + b)) or same(mine, m * (f + b) + (p - 1) * each):
        return BUBBLE.say("it lacks the recomputation of all", words=words)
    if number == 0 and same(mine, right[1]):
        return BUBBLE.say("is that of early recomputation", words=words)
    if number == 1 and same(mine, m * (f + b) + (p - 1) * (f + b) + r):
        return BUBBLE.say("early recomputation is hidden in waits", words=words)
    if number == 2 and same(mine, right[1] - r * m):
        return BUBBLE.say("last rank has no recomputations", words=words)
    if number == 2 and same(mine, m * each + (p - 2) * (f + b)):
        return BUBBLE.say("p-2 waits twice", words=words, short=want - mine)
    if number == 2 and same(mine, m * each + (p - 2) * (f + b) + b - r):
        return BUBBLE.say("p-2 runs its last two backwards", words=words, short=want - mine)
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
    return BUBBLE.say(
        "too on the longest path", words=words, one=one, much="many" if count > 0 else "few"
    )


BUBBLE = Formula(
    **told("merak_bubble"),
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
    rule = partial(by_rule, p, layers, keep, corrected)
    return {
        KEEP.say("under the shifted critical path", stage=p - 2, before=p - 3): (
            other if corrected else None
        ),
        KEEP.say("it has one more microbatch", stage=p - 2): other,
        "every stage keeps the same fraction": by_rule(p, layers, keep, False, lambda s: keep),
        "microbatch in backward is held": rule(lambda s: keep * p / (p - s)),
        **{
            KEEP.say("you rounded the released code rounds", how=how): rule(counted=counted)
            for counted, how in ((ceil, "up"), (round, "to the nearest"))
        },
        "asked for are the layers": tuple(layers - count for count in rule()),
        "first stage has most microbatches": rule()[::-1],
        "last stage recomputes nothing": (*rule()[:-1], floor(layers * (1 - keep))),
    }


def _keep_wrong(question, got):
    if any(x < 0 for x in got):
        return KEEP.say("k above 1 means all layers", question=question)
    if same(got[:-1], question.answer[:-1]):
        return KEEP.say("last stage runs backward right", question=question)


KEEP = Formula(
    **told("merak_keep", SCP=SCP),
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

    few = "" if name != SCP else MEMORY.say("count the forwards before the first")
    others = (
        (n - 1, f"one too few{few}"),
        (max(m, p - s), f"but there are only {m}" if p - s > m else "all of them"),
    )
    return {
        MEMORY.say("that is without recomputation", n=n): whole * n,
        MEMORY.say("you counted microbatches as they", n=n): by(n, keep),
        "recomputed layers need their inputs which": by(n, ends=0.0),
        MEMORY.say("inputs are held only", drop=drop): by(n, ends=1.0),
        "microbatch in backward holds its": by(n, behind=1),
        **{
            MEMORY.say("you counted microbatches in flight", other=other, why=why, n=n): by(other)
            for other, why in others
        },
        "keep is what is kept": whole * (1 + (n - 1) * drop) + keep * inputs * n,
    }


MEMORY = Formula(
    **told("merak_memory", SCP=SCP), draw=_draw_memory, solution=peak, mistakes=_memory_mistakes
)

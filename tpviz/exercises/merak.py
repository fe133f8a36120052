"""The exercises of notebook 05 on numbers: what a schedule holds, and how long it takes."""

from ..schedules import schedule, timeline
from .formula import Formula, Question, same

NOTEBOOK = "05_merak"
SCP = "shifted_critical_path"

# --- merak_in_flight ---


def in_flight(name: str, p: int, m: int, s: int) -> int:
    """Microbatches that rank s holds at most, counted on the clock."""
    return timeline(schedule(name, p, m)).peak_in_flight[s]


def _make_in_flight(rng):
    p, few = int(rng.integers(5, 9)), int(rng.integers(2, 4))
    m = p + int(rng.integers(1, 5))
    asked = [
        ("1f1b", p, m, int(rng.integers(0, p - 3))),
        ("1f1b", p, few, 0),
        ("1f1b", p, m, p - 2),
        (SCP, p, m, int(rng.integers(0, p - 3))),
        (SCP, p, m, p - 2),
        (SCP, p, m, p - 1),
        (SCP, 2, m, 0),
    ]
    return [
        Question(dict(zip(("name", "p", "m", "s"), sizes)), in_flight(*sizes)) for sizes in asked
    ]


def _in_flight_wrong(question, got):
    name, p, m, s = question.arguments.values()
    if same(got, m) and m > p:
        return (
            f"for {question}: all {m} are held by GPipe, which goes backward at the end. Here "
            "a rank goes backward as soon as it can."
        )
    if same(got, p - s) and p - s > m:
        return f"for {question}: there are only {m} microbatches."
    if name == SCP and s == p - 2:
        return (
            f"for {question} it is {question.answer}, you returned {got}. Look at rank p-2 of "
            "the shifted critical path: it does one more forward before its first backward."
        )
    if same(got, p - s - 1) or same(got, p - s + 1):
        return (
            f"for {question} it is {question.answer}, you returned {got}. Ranks are counted "
            "from 0: the last one, p-1, goes backward after one forward."
        )


IN_FLIGHT = Formula(
    name="merak_in_flight",
    title="How many microbatches does a rank hold?",
    notebook=NOTEBOOK,
    prompt="A microbatch is in flight on a rank from its forward to the end of its backward; its "
    "activations, or what they are recomputed from, are held for that time. Return the most "
    f'that rank `s` of `p` holds, of `m` microbatches, under `name`: "1f1b" or "{SCP}". '
    "Your number is held against the schedule on the clock.",
    starter="""def merak_in_flight(name, p, m, s):
    return m  # all of them?""",
    hints=(
        "Count the forwards that a rank does before its first backward; after that, one comes and "
        "one goes.",
        "In 1F1B the last rank holds one, and each rank before it one more. The shifted critical "
        "path has one more forward in front of one backward, on one rank.",
        "`min(m, p - s)`; under the shifted critical path rank p-2 holds 3, one more than that.",
    ),
    success="The first rank holds most, and it is for it that recomputation is needed: Merak lets "
    "later ranks keep more.",
    make=_make_in_flight,
    needs=None,
    checks=(_in_flight_wrong,),
)


# --- merak_bubble ---

THREE = ("1f1b", "early_recompute", "last_no_recompute")


def makespans(p: int, m: int, f: float, r: float, b: float) -> tuple[float, ...]:
    """Of `THREE`, on the clock."""
    return tuple(timeline(schedule(name, p, m), f, b, recompute=r).makespan for name in THREE)


def _make_bubble(rng):
    questions = []
    for _ in range(4):
        p = int(rng.integers(2, 9))
        m = max(p, 4) + int(rng.integers(0, 9))
        r, f, b = (int(x) for x in sorted(rng.choice(range(1, 40), 3, replace=False)))
        asked = dict(zip("pmfrb", (p, m, f, r, b)))
        questions.append(Question(asked, makespans(p, m, f, r, b)))
    return questions


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
    name="merak_bubble",
    title="How long does a schedule take?",
    notebook=NOTEBOOK,
    prompt="`p` ranks and `m` >= max(p, 4) microbatches; forward `f`, recomputation `r` and "
    "backward `b` of one microbatch on one rank (r <= f <= b: some layers may be kept), "
    "messages for nothing. Return the makespans of three schedules: 1F1B where each "
    "backward first recomputes; with early recomputation (the last p-1-s backwards of rank "
    "s recompute while they wait); and where also the last rank does not recompute. Your "
    "formulas are held against the clock.",
    starter="""def merak_bubble(p, m, f, r, b):
    plain = (m + p - 1) * (f + b)
    return plain, plain, plain  # without recomputation""",
    hints=(
        "Find the rank that is busy all the time, and add what comes before its first action and "
        "after its last.",
        "1F1B: the last rank does m times f + r + b, and p-1 ranks lie before and behind it. "
        "Early: on the way back each of these takes b alone. Without recomputation on the last "
        "rank the busy one is p-2: p-2 ranks before and behind it, and it waits b - r before its "
        "first backward and f - r before its last.",
        "`(m + p - 1) * (f + r + b)`, `m * (f + r + b) + (p - 1) * (f + b)` and `m * (f + r + b) + "
        "(p - 2) * (f + b) + (b - r) + (f - r)`.",
    ),
    success="Merak's shifted critical path fills rank p-2's first wait with one more forward: with "
    "r = f and b = 2 f it takes m (f + r + b) + (p - 2)(f + b). The gain is the same for "
    "any m, so it is small where there are many microbatches.",
    make=_make_bubble,
    needs=None,
    checks=(_bubble_wrong,),
)

"""The exercises of the notebook on overlap: exposed time of intervals, the number of buckets,
prefetched all-gathers, and results that are used before their collective has ended."""

from itertools import permutations
from itertools import product as product_of

import numpy as np

from tpviz.core.trace.analyses import intersect, length, merge

from .atp_layers import timeline
from .checks import GENERAL, Case, Mistake, RankProgram, parts, silent, whole_numbers
from .formula import ChoiceQuestion, Formula
from .told import told
from .variants import Variants

Spans = list[tuple[int, int]]
"""(start, end) pairs."""


# --- overlap_exposed ---
def _merged(spans):
    return merge(*zip(*spans))


def exposed(compute: Spans, communication: Spans) -> float:
    """Length of the union of ``communication`` outside of ``compute``, as HTA counts it."""
    busy, sent = _merged(compute), _merged(communication)
    return length(sent) - length(intersect(busy, sent))


def _lengths(spans):
    return float(sum(end - start for start, end in spans))


def _mistakes(compute, communication):
    busy, sent = _lengths(compute), _lengths(communication)
    lane, starts = length(_merged(communication)), [start for start, _ in communication]
    end, begin = max(end for _, end in communication), min(start for start, _ in compute)
    return {
        "that is all the time": lane,
        "you added up the collectives": sent,
        "difference of two sums assumes": sent - busy,
        "you subtracted all kernels from all": max(0.0, lane - busy),
        "that is the hidden time": length(intersect(_merged(compute), _merged(communication))),
        "you counted the exposed time": sum(exposed(compute, [one]) for one in communication),
        "that is only the tail after": float(end - max(stop for _, stop in compute)),
        "that is all the time without": float(end - begin - busy),
        "that is from the first start": float(end - min(starts)),
    }


def _draw_spans(rng):
    drawn = 0
    while drawn < 4:
        edges = np.cumsum(rng.integers(2, 9, size=6)).tolist()
        compute = list(zip(edges[::2], edges[1::2]))
        early = edges[1] - 1, edges[2] + 1  # across a gap
        late = edges[4] + 1, edges[5] + int(rng.integers(2, 9))  # beyond the last kernel
        second = late[1] - 1, late[1] + int(rng.integers(2, 6))  # on another link, with the former
        spans = compute, [(edges[0], edges[0] + 2), early, late, second]
        answers = [exposed(*spans), *_mistakes(*spans).values()]
        if len(set(answers)) == len(answers):  # each mistake is known by its number
            drawn += 1
            yield spans


EXPOSED = Formula(**told("overlap_exposed"), draw=_draw_spans, solution=exposed, mistakes=_mistakes)


# --- overlap_bucket ---
MOST = 1000


def _step_end(buckets, size, backward, latency, bandwidth):
    """When the last all-reduce ends: bucket i is full at i/buckets of backward, and all-reduces
    run one after another (derived)."""
    one, gap = latency + size / buckets / bandwidth, backward / buckets
    return max(backward + one, gap + buckets * one)


def _draw_sizes(rng):
    """Two with more compute than communication, two with less. The first is one with less, where
    many buckets are wrong also for who counts the last one alone in the others."""
    for share in (1.8, 0.4, 2.5, 0.6):
        backward = round(float(rng.uniform(0.02, 0.06)), 4)
        latency = round(backward / float(rng.uniform(150, 400)), 6)
        size = int(rng.integers(50, 200)) * 10**6
        yield size, backward, latency, round(size / (share * backward), -6)


def _bucket_wrong(question, got):
    size, backward, latency, bandwidth = question.arguments.values()
    longer = size / bandwidth > backward
    if got < question.answer and not longer:
        near = abs(got - (backward / latency) ** 0.5) <= 1
        other = f" {BUCKET.say('sqrt backward / latency is best')}" * near
        return BUCKET.say("backward is the longer lane here", other=other)
    if got < question.answer:
        return BUCKET.say("communication is the longer lane here")
    fewer = BUCKET.say("fewer buckets are faster")
    if size / bandwidth > backward:
        return BUCKET.say("communication is the longer lane here so every latency", fewer=fewer)
    all_of_them = got * latency + size / bandwidth
    if all_of_them > backward:
        times = {"all_ms": 1e3 * all_of_them, "backward_ms": 1e3 * backward}
        return BUCKET.say("last one is short", fewer=fewer, got=got, **times)
    return f"{fewer}."


BUCKET = ChoiceQuestion(
    **told("overlap_bucket", MOST=MOST),
    draw=_draw_sizes,
    solution=lambda *sizes: {k: _step_end(k, *sizes) for k in range(1, MOST + 1)},
    kind=f"a number of buckets, 1 to {MOST}",
    unit="until the last all-reduce has ended",
    missing=lambda question, got: BUCKET.say(
        "your function returned which is no", question=question, got=got, MOST=MOST
    ),
    wrong=_bucket_wrong,
)


# --- overlap_prefetch ---
LAYERS = 3


def _make_layers(rng, axes):
    n = axes["world"]
    hidden, rows = n * int(rng.integers(1, 3)), int(rng.integers(2, 6))
    x = whole_numbers(rng, n * rows, hidden)
    weights = [whole_numbers(rng, hidden, hidden) for _ in range(LAYERS)]
    inputs = parts(axes, (x, "world", None), *((w, "world", None) for w in weights))
    for weight in weights:
        x = x @ weight
    return Case(inputs, np.split(x, n), flops=LAYERS * 2 * rows * hidden**2)


def _weight_variants(attempt):
    """Products with other weights."""
    n = attempt.size
    x = np.concatenate([own[0] for own in attempt.case.inputs])
    shards = [[own[k] for own in attempt.case.inputs] for k in range(1, LAYERS + 1)]
    weights = [np.concatenate(parts) for parts in shards]

    def product(chosen):
        y = x
        for weight in chosen:
            y = y @ weight
        return np.split(y, n)

    for order in list(permutations(range(LAYERS)))[1:]:
        names = " ".join(f"W{k + 1}" for k in order)
        yield PREFETCH.say("x w1 w2 w3 is asked", names=names), product(weights[k] for k in order)
    for counts in product_of(range(LAYERS), repeat=LAYERS):
        names = " ".join(f"W{k + 1}" for k in counts)
        words = PREFETCH.say("gathered weight was used again", names=names)
        yield words, product(weights[k] for k in counts)
    yield "the weights are transposed", product(weight.T for weight in weights)
    reverse = (np.concatenate(parts[::-1]) for parts in shards)
    yield PREFETCH.say("rows of the weights"), product(reverse)


def _order(attempt):
    """Of rank 0: for each product how many all-gathers were started, and waited for, before it."""
    counts, found = {"issue": 0, "wait": 0}, []
    for what, _, _ in timeline(attempt.trace):
        if what == "kernel":
            found.append((counts["issue"], counts["wait"]))
        else:
            counts[what] += 1
    return found


def _started(attempt):
    return [started for started, _ in _order(attempt)]


def _waited(attempt):
    return [waited for _, waited in _order(attempt)]


PREFETCH = RankProgram(
    **told("overlap_prefetch", LAYERS=LAYERS),
    make=_make_layers,
    sends=lambda axes, case: [
        ("world", "all_gather", LAYERS, axes["world"] * case.inputs[0][1].nbytes)
    ],
    judges=(
        silent,
        Mistake("shows an all-reduce adds what different", lambda a: "all_reduce" in a.names()),
        Mistake(
            "shows that holds all weights", lambda a: a.all_right and a.count("all_gather") < LAYERS
        ),
        Variants(_weight_variants),
        *GENERAL,
        Mistake("trace does not show", lambda a: len(_order(a)) != LAYERS),
        Mistake(
            "too many all-gathers are started early",
            lambda a: any(n > i + 2 for i, n in enumerate(_started(a))),
        ),
        Mistake(
            "no all-gather is in flight during",
            lambda a: any(n < min(i + 2, LAYERS) for i, n in enumerate(_started(a))),
        ),
        Mistake("numbers are right", lambda a: any(n > i + 1 for i, n in enumerate(_waited(a)))),
    ),
)


# --- overlap_used_early ---
Program = list[tuple[str, str]]
"""(what, name of the tensor): what is "start", "wait" or "use"."""


def used_early(program: Program) -> int:
    """Index of the first use of a tensor whose collective was started and not waited for, or -1."""
    flying = set()
    for place, (what, name) in enumerate(program):
        if what == "start":
            flying.add(name)
        elif what == "wait":
            flying.discard(name)
        elif name in flying:
            return place
    return -1


def _draw_programs(rng):
    """One that never waits, two that wait too late, and one that waited in the step before; in
    this order, as who accepts one of them accepts the next; and a right one in between. Which
    tensor it is differs: the last one started, one before, the first."""
    faults = [("never", 3), ("late", int(rng.integers(1, 3))), ("late", 3), ("again", 0)]
    faults.insert(int(rng.integers(1, 5)), ("", 0))
    for fault, which in faults:
        names = [f"g{number}" for number in rng.permutation(9)[:4]]
        bad = names[which]
        program: Program = [("use", "x")]
        for step in range(2):
            program += [("start", name) for name in names]
            for name in names:
                wait, use = ("wait", name), ("use", name)
                wrong = name == bad and step == (fault == "again")
                if not wrong or not fault:
                    program += [wait, use]
                elif fault == "late":
                    program += [use, wait]
                else:
                    program.append(use)
            if fault == "never":
                program = [(what, name) for what, name in program if (what, name) != ("wait", bad)]
        yield (program,)


def _unseen(program):
    """Words for an answer of -1 to a program that has such a use."""
    answer = used_early(program)
    wait = "wait", program[answer][1]
    why = "the wait comes after it" if wait in program[answer:] else "nothing waits for it"
    if wait in program[:answer]:
        why = USED_EARLY.say("the wait before")
    return USED_EARLY.say("is used at while its collective", wait=wait, answer=answer, why=why)


def _place_mistakes(program):
    """What simpler memories of what is in flight return."""
    last, open_, started, waited = None, set(), set(), set()
    first = {"last": -1, "all": -1, "ever": -1}
    for place, (what, name) in enumerate(program):
        if what == "start":
            last = name
            open_.add(name)
            started.add(name)
        elif what == "wait":
            last = None if name == last else last
            open_.clear()
            waited.add(name)
        else:
            flying = name == last, name in open_, name in started - waited
            for key in (key for key, now in zip(first, flying) if now and first[key] < 0):
                first[key] = place
    return {
        "that is the first use": 0,
        "use is unsafe only after": next(
            i for i, (what, name) in enumerate(program) if what == "use" and name != "x"
        ),
        "several collectives are in flight": first["last"],
        "wait completes the collective": first["all"],
        "wait in the step before": first["ever"],
        _unseen(program): -1 if used_early(program) >= 0 else None,
    }


def _place_wrong(question, got) -> str:
    program, answer = question.arguments["program"], question.answer
    if answer < 0:
        return USED_EARLY.say("every use comes after the wait", question=question, got=got)
    return USED_EARLY.say(
        "first such use", question=question, answer=answer, name=program[answer][1], got=got
    )


USED_EARLY = Formula(
    **told("overlap_used_early"),
    draw=_draw_programs,
    solution=used_early,
    mistakes=_place_mistakes,
    wrong=_place_wrong,
)

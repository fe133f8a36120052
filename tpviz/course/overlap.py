"""The exercises of the notebook on overlap: exposed time of intervals, the number of buckets,
prefetched all-gathers, and results that are used before their collective has ended."""

from itertools import permutations
from itertools import product as product_of

import numpy as np

from tpviz.core.trace.analyses import intersect, length, merge

from .atp_layers import timeline
from .checks import GENERAL, Case, Mistake, RankProgram, parts, silent, whole_numbers
from .formula import ChoiceQuestion, Formula
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
    return {
        "that is all the time in which a collective runs. Where a kernel runs too, it is hidden.": (
            length(_merged(communication))
        ),
        "you added up the collectives. Two that run at the same time count once, and a kernel "
        "hides what runs beside it.": _lengths(communication),
        "the difference of two sums assumes that every kernel hides something, but a kernel hides "
        "only what runs at the same time.": _lengths(communication) - _lengths(compute),
        "you subtracted all kernels from all collectives; a kernel beside which none runs hides "
        "nothing.": max(0.0, length(_merged(communication)) - _lengths(compute)),
        "that is the hidden time: a kernel runs then.": (
            length(intersect(_merged(compute), _merged(communication)))
        ),
        "you counted the exposed time of each collective and added it up, but two of them run at "
        "the same time.": sum(exposed(compute, [one]) for one in communication),
        "that is only the tail, after the last kernel. A collective between two kernels is exposed "
        "too.": float(max(end for _, end in communication) - max(end for _, end in compute)),
        "that is all the time without a kernel, also where no collective runs.": float(
            max(end for _, end in communication)
            - min(start for start, _ in compute)
            - _lengths(compute)
        ),
        "that is from the first start to the last end.": float(
            max(end for _, end in communication) - min(start for start, _ in communication)
        ),
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


EXPOSED = Formula(
    title="Exposed communication",
    prompt="`compute` has the (start, end) of a rank's kernels, `communication` those of its "
    "collectives, in microseconds. Kernels do not overlap each other; collectives may, on "
    "different links. Return the **exposed** time: how long a collective runs, or several do, and "
    "no kernel.",
    starter="""def overlap_exposed(compute, communication):
    return sum(end - start for start, end in communication)""",
    concept="A microsecond is exposed or it is not: how many collectives run in it does not "
    "matter.",
    principle="Cut time at every start and end. Between two neighbouring cuts nothing changes, so "
    "each such part counts wholly or not at all.",
    shape="A sorted list of all starts and ends, then a sum over neighbouring pairs of it, with "
    "two questions about each pair: does any collective run there, does any kernel?",
    success="`trace.exposed_communication()` counts in the same way, on merged intervals.",
    draw=_draw_spans,
    solution=exposed,
    mistakes=_mistakes,
)


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
        other = (
            " sqrt(backward / latency) is best where communication is the longer lane."
            if abs(got - (backward / latency) ** 0.5) <= 1
            else ""
        )
        return (
            "More buckets are faster. Backward is the longer lane here: only the last bucket is "
            "exposed, so the smaller it is the better, until the latencies of all of them take as "
            f"long as what backward leaves.{other}"
        )
    if got < question.answer:
        return (
            "More buckets are faster. Communication is the longer lane here: it begins when the "
            "first bucket is full, so a smaller first bucket gains more than one more latency "
            "costs."
        )
    fewer = "Fewer buckets are faster: each all-reduce adds a latency, and they run in order"
    if size / bandwidth > backward:
        return f"{fewer}. Communication is the longer lane here, so every latency counts."
    all_of_them = got * latency + size / bandwidth
    if all_of_them > backward:
        return (
            f"{fewer}. The last one is short, but it waits for the others: {got} all-reduces take "
            f"{1e3 * all_of_them:.3g} ms, and backward only {1e3 * backward:.3g} ms."
        )
    return f"{fewer}."


BUCKET = ChoiceQuestion(
    title="How many buckets?",
    prompt="Backward takes `backward` s and yields gradients of `size` bytes at an even rate. They "
    "go into equal buckets. The all-reduce of a bucket of m bytes takes `latency` + m / "
    "`bandwidth` (s, bytes/s); it starts when the bucket is full and the all-reduce before it has "
    f"ended. Return the number of buckets (1 to {MOST}) with which the last all-reduce ends "
    "earliest. An answer within 1 % of the best time is right.",
    starter="""def overlap_bucket(size, backward, latency, bandwidth):
    return 1""",
    concept="Find the two cases first: which of the two lanes, compute or communication, is busy "
    "from its first event to its last?",
    principle="Let c be the time of one of k all-reduces. Where backward is longer, only the last "
    "bucket is exposed: T = backward + c. Where communication is longer, it runs without a gap "
    "once the first bucket is full: T = backward / k + k c. T is the larger of the two.",
    shape="A function of k with one `max` of two sums, then the k of the range at which it is "
    "smallest. Check it with k = 1, where both sums are backward + c.",
    success="No k gets below the longer of backward and all communication. PyTorch's DDP has 25 MB "
    "for a bucket's size, whatever the model and the link.",
    draw=_draw_sizes,
    solution=lambda *sizes: {k: _step_end(k, *sizes) for k in range(1, MOST + 1)},
    kind=f"a number of buckets, 1 to {MOST}",
    unit="until the last all-reduce has ended",
    missing=lambda question, got: (
        f"for {question} your function returned {got!r}, which is no whole number from 1 to {MOST}."
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
        yield f"you computed x {names}: x W1 W2 W3 is asked for", product(weights[k] for k in order)
    for counts in product_of(range(LAYERS), repeat=LAYERS):
        names = " ".join(f"W{k + 1}" for k in counts)
        words = f"you computed x {names}: a gathered weight was used again, or overwritten"
        yield words, product(weights[k] for k in counts)
    yield "the weights are transposed", product(weight.T for weight in weights)
    reverse = (np.concatenate(parts[::-1]) for parts in shards)
    yield (
        "the rows of the weights are in another order: those of rank 0 come first",
        product(reverse),
    )


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
    title="Prefetch the next layer's weight",
    prompt=f"Each rank keeps its rows of {LAYERS} weights, as in ZeRO-3, and computes x W1 W2 W3 "
    "on its own rows of the batch. Before a product its weight is all-gathered. The next weight's "
    "all-gather must run **during** this product: the trace has to show its start before the "
    "product, and its wait after it. No more than one is in flight or waits for its use, or memory "
    "would hold all weights.",
    starter="""def overlap_prefetch(x, first, second, third):
    # x: [T, h], of this rank; the others: [h/n, h], this rank's rows of a weight [h, h]
    for shard in (first, second, third):
        rows = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
        dist.all_gather(rows, shard)
        x = x @ torch.cat(rows)
    return x""",
    concept="Which weight can be gathered while layer i computes, and when do you need it?",
    principle="Wait for weight i, start the all-gather of weight i + 1, then compute with weight "
    "i. Only the first all-gather has nothing to hide behind.",
    shape="One all-gather with `async_op=True` before the loop. In the loop, in this order: wait "
    "for the one in flight, start the next if there is one, multiply. Keep rows and handle of "
    "the one in flight together.",
    success="FSDP does this with blocks of layers. It holds two blocks' parameters for a moment; "
    "only the first all-gather of a pass is exposed where products take longer.",
    make=_make_layers,
    sends=lambda axes, case: [
        ("world", "all_gather", LAYERS, axes["world"] * case.inputs[0][1].nbytes)
    ],
    judges=(
        silent(
            "the trace shows no collective: a rank has only some rows of each weight. All-gather "
            "them before the product."
        ),
        Mistake(
            lambda a: "all_reduce" in a.names(),
            "the trace shows {a}. An all-reduce adds what different ranks computed, but each "
            "rank has its own rows of the batch: gather weights instead.",
        ),
        Mistake(
            lambda a: a.all_right and a.count("all_gather") < LAYERS,
            "the numbers are right, but the trace shows {a}: that holds all weights at the same "
            "time. Gather one weight for each product.",
        ),
        Variants(_weight_variants),
        *GENERAL,
        Mistake(
            lambda a: len(_order(a)) != LAYERS,
            "the numbers are right, but the trace does not show one product for each weight. Write "
            "them as `x @ torch.cat(rows)`.",
        ),
        Mistake(
            lambda a: any(n > i + 2 for i, n in enumerate(_started(a))),
            "the numbers are right, but too many all-gathers are started early: memory would hold "
            "all weights. Start only the next one.",
        ),
        Mistake(
            lambda a: any(n < min(i + 2, LAYERS) for i, n in enumerate(_started(a))),
            "the numbers are right, but no all-gather is in flight during a product: start the "
            "next layer's with `async_op=True` before it.",
        ),
        Mistake(
            lambda a: any(n > i + 1 for i, n in enumerate(_waited(a))),
            "the numbers are right, and the next all-gather is started before the product, but "
            "also waited for before it. Wait when the next product needs the weight.",
        ),
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
        why = "the wait before it was for the collective of the step before"
    return f"{wait[1]} is used at {answer} while its collective is in flight; {why}."


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
        "that is the first use of all. Its tensor was waited for, or no collective writes it.": 0,
        "a use is unsafe only after a start without a wait between them.": next(
            i for i, (what, name) in enumerate(program) if what == "use" and name != "x"
        ),
        "several collectives are in flight at once: you seem to know of the last one started "
        "alone. Keep a set of names.": first["last"],
        "a wait completes the collective of its own name; after yours nothing is in flight any "
        "more.": first["all"],
        "a wait in the step before was for the collective of that step: a start makes the tensor "
        "unsafe again.": first["ever"],
        _unseen(program): -1 if used_early(program) >= 0 else None,
    }


def _place_wrong(question, got) -> str:
    program, answer = question.arguments["program"], question.answer
    if answer < 0:
        return f"for {question}: every use comes after the wait, so the answer is -1, not {got:g}."
    return (
        f"for {question}: the first such use is at {answer}, of {program[answer][1]}, not {got:g}."
    )


USED_EARLY = Formula(
    title="Used before it has arrived",
    prompt='`program` is what a rank does in two steps, as a list of (what, name): "start" starts '
    'an asynchronous collective that writes the tensor of this name, "wait" waits for the one that '
    'was started last on it, "use" reads it. Return the index of the first use of a tensor whose '
    "collective is in flight, or -1 if there is none.",
    starter="""def overlap_used_early(program):
    return -1""",
    concept="A tensor is unsafe from one event on, and safe again from another. Which are they?",
    principle="Keep the set of tensors in flight: a start adds, a wait removes. A wait in the step "
    "before says nothing about this step's collective.",
    shape="One loop over `enumerate(program)` with a set that is empty at first, and three cases: "
    "one adds to it, one removes from it, one looks into it.",
    success="Such a program often gives right numbers, when the collective happens to end in time. "
    "On a busy machine it does not: look for the missing wait, not for wrong numbers.",
    draw=_draw_programs,
    solution=used_early,
    mistakes=_place_mistakes,
    wrong=_place_wrong,
)

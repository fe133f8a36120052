"""Answers to notebook 12 on numbers and orders: right ones, and wrong ones with their hints."""

from functools import partial
from math import ceil

SCP = "shifted_critical_path"

# --- merak_schedule ---

ONE_F_ONE_B = [
    "s0: F0 F1 F2 B0 F3 B1 B2 B3",
    "s1: F0 F1 B0 F2 B1 F3 B2 B3",
    "s2: F0 B0 F1 B1 F2 B2 F3 B3",
]


def _written(*lines):
    return lambda: list(lines)


def order():
    return ONE_F_ONE_B


def order_in_two_parts():
    """Backward in two parts, a text, and no labels: what else may be written."""
    return """
        F0 F1 F2 B0 F3 B1 B2 B3
        F0 F1 B0 F2 B1 F3 B2 B3
        F0 I0 W0 F1 I1 W1 F2 I2 W2 F3 I3 W3"""


order_gpipe = _written(*["F0 F1 F2 F3 B0 B1 B2 B3"] * 3)
order_one_by_one = _written(*["F0 B0 F1 B1 F2 B2 F3 B3"] * 3)
order_deadlock = _written("F0 B0 F1 F2 B1 F3 B2 B3", *ONE_F_ONE_B[1:])
order_forgets = _written("F0 F1 F2 B0 F3 B1 B2", *ONE_F_ONE_B[1:])
order_reversed = _written(*["F0 F1 F2 F3 B3 B2 B1 B0"] * 3)
order_recomputes = _written(*ONE_F_ONE_B[:2], "F0 RB0 F1 RB1 F2 RB2 F3 RB3")
order_typo = _written("F0 F1 F2 G0 F3 B1 B2 B3", *ONE_F_ONE_B[1:])
order_of_two = _written(*ONE_F_ONE_B[:2])
order_of_five = _written(*(line + " F4 B4" for line in ONE_F_ONE_B))


def order_as_lists():
    return [line.split() for line in ONE_F_ONE_B]


# --- merak_early ---


def early(lines, microbatches):
    p = len(lines)
    found = [list(range(microbatches - (p - 1 - s), microbatches)) for s in range(p)]
    found[p - 2] = [0, 1]
    if p > 2:
        found[p - 3] = [0, *found[p - 3]]
    return found


def early_at_the_end(lines, microbatches):
    """As before Merak: in the cool-down alone."""
    p = len(lines)
    return [range(microbatches - (p - 1 - s), microbatches) for s in range(p)]


def early_always(lines, microbatches):
    return [range(microbatches)] * (len(lines) - 1) + [[]]


def early_once_too_often(lines, microbatches):
    found = early(lines, microbatches)
    found[0] = sorted({1, *found[0]})
    return found


def early_on_the_last(lines, microbatches):
    return [*early(lines, microbatches)[:-1], [0]]


def early_from_one(lines, microbatches):
    return [[i + 1 for i in part] for part in early(lines, microbatches)]


def early_as_sets(lines, microbatches):
    return [set(part) for part in early(lines, microbatches)]


def early_of_nothing(lines, microbatches):
    return [part.sort() for part in early(lines, microbatches)]


def early_flat(lines, microbatches):
    return [0, 1]


# --- merak_in_flight ---


def in_flight(name, p, m, s, more=1):
    return min(m, p - s) + more * (name == SCP and s == p - 2)


in_flight_of_1f1b = partial(in_flight, more=0)


def in_flight_all(name, p, m, s):
    return m


def in_flight_more_than_there_are(name, p, m, s):
    return p - s


def in_flight_one_less(name, p, m, s):
    return min(m, p - s - 1)


def in_flight_of_both(name, p, m, s):
    return p - s, p - s


# --- merak_bubble ---


def bubble(p, m, f, r, b, waits=lambda f, r, b: b - r + f - r):
    each, plain = f + r + b, f + b
    return (
        (m + p - 1) * each,
        m * each + (p - 1) * plain,
        m * each + (p - 2) * plain + waits(f, r, b),
    )


bubble_without_waits = partial(bubble, waits=lambda f, r, b: 0)
bubble_first_wait = partial(bubble, waits=lambda f, r, b: b - r)


def _but(number, change):
    def answer(p, m, f, r, b):
        found = list(bubble(p, m, f, r, b))
        found[number] = change(p, m, f, r, b)
        return found

    return answer


bubble_plain = _but(0, lambda p, m, f, r, b: (m + p - 1) * (f + b))
bubble_all_early = _but(0, lambda p, m, f, r, b: m * (f + r + b) + (p - 1) * (f + b))
bubble_hidden = _but(1, lambda p, m, f, r, b: (m + p - 1) * (f + b) + r)
bubble_free_last = _but(2, lambda p, m, f, r, b: (m + p - 1) * (f + b))
bubble_too_good = _but(2, lambda p, m, f, r, b: (m + p - 1) * (f + b) - 1)


def bubble_of_two(p, m, f, r, b):
    return bubble(p, m, f, r, b)[:2]


# --- merak_keep ---


def keep(name, p, layers, keep, corrected=None, part=None, rounded=int, last=1.0):
    part = part or (lambda s: min(1, keep * (p - 1) / (p - 1 - s)))
    k = [part(s) for s in range(p - 1)] + [last]
    if (name == SCP if corrected is None else corrected) and p > 2:
        k[p - 2] = k[p - 3]
    return [rounded(layers * (1 - x) + 1e-9) for x in k]


keep_uncorrected = partial(keep, corrected=False)
keep_always_corrected = partial(keep, corrected=True)
keep_rounded_up = partial(keep, rounded=lambda x: ceil(x - 2e-9))
keep_not_on_the_last = partial(keep, last=0.5)


def keep_uniform(name, p, layers, keep):
    return [int(layers * (1 - keep))] * (p - 1) + [0]


def keep_all_in_flight(name, p, layers, keep):
    return _keep(name, p, layers, keep, part=lambda s: min(1, keep * p / (p - s)))


def keep_negative(name, p, layers, keep):
    return [int(layers * (1 - 3 * (s + 1) * keep)) for s in range(p)]


_keep = keep


# --- merak_memory ---


def memory(name, p, m, s, whole, inputs, keep, n=None, of_inputs=None, one=1.0):
    n = n or min(m, p - s) + (name == SCP and s == p - 2)
    return whole * (one + (n - 1) * keep) + (
        n * inputs * (1 - keep) if of_inputs is None else of_inputs(n, inputs)
    )


def memory_as_kept(name, p, m, s, whole, inputs, keep):
    return memory(name, p, m, s, whole, inputs, keep, one=keep)


def memory_whole(name, p, m, s, whole, inputs, keep):
    return whole * min(m, p - s)


def memory_of_all(name, p, m, s, whole, inputs, keep):
    return memory(name, p, m, s, whole, inputs, keep, n=m)


def memory_of_1f1b(name, p, m, s, whole, inputs, keep):
    return memory("1f1b", p, m, s, whole, inputs, keep)


def memory_of_more(name, p, m, s, whole, inputs, keep):
    return memory(name, p, p, s, whole, inputs, keep)


def memory_one_backward(name, p, m, s, whole, inputs, keep):
    return memory(
        name, p, m, s, whole, inputs, keep, of_inputs=lambda n, c: (n - 1) * c * (1 - keep)
    )


memory_without_inputs = partial(memory, of_inputs=lambda n, c: 0)
memory_all_inputs = partial(memory, of_inputs=lambda n, c: n * c)

RIGHT = {
    "merak_schedule": [order, order_in_two_parts],
    "merak_early": [early, early_as_sets],
    "merak_in_flight": [in_flight],
    "merak_bubble": [bubble],
    "merak_keep": [keep],
    "merak_memory": [memory],
}

WRONG = {
    "merak_schedule": [
        (order_gpipe, "takes 18 like 1F1B, but rank 0 holds 4 microbatches .* 1F1B holds 3"),
        (
            order_one_by_one,
            "it can run, and takes 36; 1F1B takes 18. The longest gap: rank 0 is "
            "idle for 6 before ",
        ),
        (order_deadlock, "cannot run: deadlock: rank 0 at B0 waits for the gradient of microbatch"),
        (order_forgets, "cannot run: stage 0 has no backward of microbatch 3: add B3"),
        (order_reversed, "stage 0 runs backward in the order 3, 2, 1, 0: gradients are added"),
        (order_recomputes, "keeps its activations, so there is nothing to recompute: use B0 for R"),
        (order_typo, "line 1: 'G0' is no action: use F0"),
        (order_of_two, "you wrote 2 lines for 3 ranks"),
        (order_of_five, "F4 has no microbatch: there are 0 to 3"),
        (order_as_lists, "not a list of 3 lines of text"),
    ],
    "merak_early": [
        (
            early_at_the_end,
            "it takes 32, and 30 is possible. On the critical path rank 2 is "
            "idle for 1, and then begins RB0, which recomputes",
        ),
        (early_always, "it is optimal, but R0 on rank 0 is early without a gain"),
        (early_once_too_often, "R1 on rank 0 is early without a gain: with RB it takes no longer"),
        (early_on_the_last, "the last rank runs backward right after its forward"),
        (early_from_one, "there is no microbatch 6, only 0 to 5"),
        (early_of_nothing, r"returned \(NoneType, NoneType, .*\), not a list of 4 lists"),
        (early_flat, r"returned \(0, 1\), not a list of 4 lists"),
    ],
    "merak_in_flight": [
        (in_flight_all, "GPipe holds all \\d+, since it runs backwards at the end"),
        (in_flight_of_1f1b, "it is 3, you returned 2. Look at rank p-2"),
        (in_flight_more_than_there_are, r"s=0: there are only \d microbatches"),
        (in_flight_one_less, "Ranks are counted from 0: the last, p-1"),
        (in_flight_of_both, "your function returned tuple, not a number"),
    ],
    "merak_bubble": [
        (bubble_plain, "1f1b takes .* It lacks the recomputation of all m microbatches"),
        (bubble_all_early, "1f1b takes .* is that of early recomputation"),
        (bubble_hidden, "early_recompute takes .* is hidden in waits; the steady phase has"),
        (bubble_free_last, "last_no_recompute takes .* It lacks the recomputation of all m"),
        (bubble_without_waits, r"which is \d+ short. Rank p-2 waits twice"),
        (bubble_first_wait, r"which is \d+ short. Rank p-2 runs its last two backwards in a row"),
        (bubble_too_good, r"the makespan of last_no_recompute should be \d+, not \d+\.$"),
        (bubble_of_two, r"the answer is \(\d+, \d+, \d+\); you returned \(\d+, \d+\)"),
    ],
    "merak_keep": [
        (keep_uncorrected, "stage 2 is wrong. Under the shifted critical path it has as many"),
        (keep_always_corrected, "name='1f1b'.* stage 2 is wrong. It has one more microbatch"),
        (keep_uniform, "every stage keeps the same fraction, though later ones"),
        (keep_all_in_flight, "The others share the rest of the memory: p - 1 - s of them, not p -"),
        (keep_rounded_up, "you rounded up; the released code rounds down"),
        (keep_negative, "k above 1 means all layers"),
        (keep_not_on_the_last, "the last stage runs backward right after its forward: it keeps"),
    ],
    "merak_memory": [
        (memory_as_kept, "you counted 4 microbatches as they are kept. The one in backward"),
        (memory_whole, "that is without recomputation: all 4 microbatches whole"),
        (memory_of_all, "you counted 8 microbatches in flight, all of them; there are 4"),
        (memory_of_1f1b, "you counted 2 microbatches .* count the forwards before the first"),
        (memory_of_more, "you counted 5 microbatches in flight, but there are only 4; there are 4"),
        (memory_one_backward, "the microbatch in backward holds its inputs as well"),
        (memory_without_inputs, "recomputed layers need their inputs"),
        (memory_all_inputs, "inputs are held only of the recomputed fraction of the layers: 0"),
    ],
}

"""AxoNN on every grid of 1, 2, 4 and 8 ranks against one process: the product the tests sample.

Grids (x, y, z, data) by their factors; the other knobs are both orders, keep, recompute,
accumulation 1 and 4, and overlaps none, each alone, all. Every grid meets a set of combinations in
which each pair of values of two knobs occurs; ``all`` runs every combination, eight times as many,
where only what a message carries is taken in turn.
By `tv.verify` in float64, two AdamW steps each, tied and untied in turn. Exits with 1 at the first
that is not equal.
"""

import sys
from dataclasses import replace
from itertools import combinations, product

from harness import sweep

import tpviz as tv

WORKLOAD = tv.GPT(layers=2, hidden=16, heads=8, seq=8, batch=32, vocab=32)
GRIDS = [
    (x, y, z, n // (x * y * z))
    for n in (1, 2, 4, 8)
    for x, y, z in product((1, 2, 4, 8), repeat=3)
    if n % (x * y * z) == 0
]
KNOBS = {
    "order": ("xyz", "yxz"),
    "keep": (True, False),
    "recompute": (False, True),
    "accumulation": (1, 4),
    "overlap": ((), ("oar",), ("ors",), ("oag",), ("oar", "ors", "oag")),
    "gather": ("weight", "block"),
}


def pairwise(knobs, possible=lambda choice: True):
    """Few choices of all knobs in which every possible pair of values of two of them occurs: of all
    choices always the one with most pairs that are new."""
    every = [dict(zip(knobs, values)) for values in product(*knobs.values())]
    every = [choice for choice in every if possible(choice)]
    found, seen = [], set()
    while True:
        best = max(every, key=lambda choice: len(pairs(choice) - seen))
        if not pairs(best) - seen:
            return found
        found.append(best)
        seen |= pairs(best)


def pairs(choice):
    """The pairs of values in a choice."""
    return set(combinations(choice.items(), 2))


def cases(every):
    """(strategy, workload) in turn."""
    choices = pairwise(KNOBS)
    if every:
        *others, gathers = KNOBS.values()
        choices = [
            dict(zip(KNOBS, (*v, gathers[number // 2 % 2])))
            for number, v in enumerate(product(*others))
        ]
    for number, (grid, knobs) in enumerate(product(GRIDS, choices)):
        axes = dict(zip(("x", "y", "z", "data"), grid))
        yield tv.AxoNN(**axes, **knobs), replace(WORKLOAD, tied=bool(number % 2))


if __name__ == "__main__":
    sweep(cases("all" in sys.argv[1:]), steps=2)

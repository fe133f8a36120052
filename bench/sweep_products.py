"""Products of factors, drawn at random, against one process: two AdamW steps in float64, every
rank's ledger that of the formula, and of the program that was captured.

    python bench/sweep_products.py [DRAWS [SEED]]

Exits with 1 at the first that is not equal.
"""

import random
import sys
from collections.abc import Iterator
from pathlib import Path

from harness import sweep

import tpviz as tv

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "schemes"))
from products import draw

DRAWS, SEED = 300, 1000


def cases(draws: int, seed: int, **kinds: bool) -> Iterator[tuple[tv.Strategy, tv.GPT]]:
    """(product, workload) in turn; its capture has the formula's ledger on every rank. kinds : of
    `products.draw`, context or experts."""
    for number in range(draws):
        strategy, w = draw(random.Random(seed + number), **kinds)
        program = tv.capture(strategy, w)
        for rank in range(strategy.world_size):
            if program.ledger(rank) != strategy.ledger_of(w, rank):
                sys.exit(f"{strategy.short}, {w}: rank {rank} is captured with another ledger")
        yield strategy, w


if __name__ == "__main__":
    sweep(cases(*[*map(int, sys.argv[1:]), *(DRAWS, SEED)[len(sys.argv) - 1 :]]), 2)

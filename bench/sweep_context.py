"""Products with sequences over ranks, drawn at random, as `sweep_products` does the others: every
kind of ring, with Ulysses inside it too.

python bench/sweep_context.py [DRAWS [SEED]]
"""

import sys

from harness import sweep
from sweep_products import cases

DRAWS, SEED = 150, 1000

if __name__ == "__main__":
    sweep(cases(*[*map(int, sys.argv[1:]), *(DRAWS, SEED)[len(sys.argv) - 1 :]], context=True), 2)

"""Products with a mixture of experts, drawn at random, as `sweep_products` does the others: routers
that choose and given routings, with and without capacity, shared experts and balance losses.

python bench/sweep_experts.py [DRAWS [SEED]]
"""

import sys

from harness import sweep
from sweep_products import cases

DRAWS, SEED = 150, 1000

if __name__ == "__main__":
    sweep(cases(*[*map(int, sys.argv[1:]), *(DRAWS, SEED)[len(sys.argv) - 1 :]], experts=True), 2)

"""T3 in every mode, with every gather and several tiles, on 1 to 8 ranks against one process.

Also with data parallelism around it: what the tests sample. By `tv.verify` in float64, two AdamW
steps each. Exits with 1 at the first that is not equal.
"""

from dataclasses import replace
from itertools import product

from harness import sweep

import tpviz as tv

EVEN = tv.GPT(layers=2, hidden=16, heads=8, seq=8, batch=8, vocab=32)
ODD = tv.GPT(layers=1, hidden=24, heads=8, seq=24, batch=3, vocab=40, mlp_ratio=3)
TILES = {"tile": (0, 1, (2, 5), (64, 64)), "chunk": (0,), "sequential": (0,)}


def cases():
    """(strategy, workload) in turn."""
    for tp, gather, workload, tied in product(
        (1, 2, 4, 8), ("after", "consumer"), (EVEN, ODD), (True, False)
    ):
        for mode, tiles in TILES.items():
            for tile in tiles:
                strategy = tv.T3(tp=tp, mode=mode, tile=tile, gather=gather)
                yield strategy, replace(workload, tied=tied)
                if tp < 8 and workload is EVEN and tied:
                    for zero in range(4):
                        yield strategy * tv.DataParallel(dp=2, zero=zero, bucket_mb=0.02), workload


if __name__ == "__main__":
    sweep(cases(), steps=2)

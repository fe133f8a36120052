"""Every ATP of 1, 2, 4 and 8 ranks against one process: the product that the tests sample.

Meshes x orders x A1, A3 x sequence parallelism x 1 to 8 chunks, and (2, 2) x dp 2, by `tv.verify`
in float64, three AdamW steps each. About ten minutes. Exits with 1 at the first that is not equal.
"""

from dataclasses import replace
from itertools import product

from harness import sweep

import tpviz as tv

WORKLOAD = tv.GPT(layers=2, hidden=16, heads=8, seq=8, batch=8, vocab=32)
MESHES = [(d1, n // d1) for n in (1, 2, 4, 8) for d1 in (1, 2, 4, 8) if n % d1 == 0]


def cases():
    for mesh, order, attention, sp, chunks in product(
        MESHES, ("column", "row"), ("A3", "A1"), (False, True), range(1, 9)
    ):
        w = replace(WORKLOAD, batch=8 if 8 % chunks == 0 else chunks)
        yield tv.ATP(mesh=mesh, order=order, attention=attention, sp=sp, chunks=chunks), w
    for order, attention, sp, chunks, zero in product(
        ("column", "row"), ("A3", "A1"), (False, True), (1, 2, 3, 4), range(4)
    ):
        inner = tv.ATP(mesh=(2, 2), order=order, attention=attention, sp=sp, chunks=chunks)
        data = tv.DataParallel(dp=2, zero=zero, bucket_mb=0.01)
        yield inner * data, replace(WORKLOAD, batch=2 * (12 if chunks == 3 else 4))


if __name__ == "__main__":
    sweep(cases(), steps=3)

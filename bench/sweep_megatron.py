"""Megatron's tensor parallelism and data parallelism of every size of 1 to 8 ranks, and their
products, against one process: what the tests sample.

Sequence parallelism or chunks, every ZeRO stage in several buckets, tied and untied. By `tv.verify`
in float64, two AdamW steps each. Exits with 1 at the first that is not equal.
"""

from dataclasses import replace
from itertools import product
from typing import Any

from harness import sweep

import tpviz as tv

WORKLOAD = tv.GPT(layers=2, hidden=16, heads=8, seq=8, batch=8, vocab=32)
SIZES = (1, 2, 4, 8)
TENSOR: tuple[dict[str, Any], ...] = ({}, {"sp": True}, {"chunks": 2}, {"chunks": 4})


def cases():
    """(strategy, workload) in turn."""
    for tp, dp, options, tied in product(SIZES, SIZES, TENSOR, (True, False)):
        if tp * dp <= 8:
            w = replace(WORKLOAD, batch=4 * dp, tied=tied)
            for zero in range(4):
                data = tv.DataParallel(dp=dp, zero=zero, bucket_mb=0.02)
                yield tv.Megatron(tp=tp, **options) * data, w
            yield tv.Megatron(tp=tp, **options), replace(w, batch=4)


if __name__ == "__main__":
    sweep(cases(), steps=2)

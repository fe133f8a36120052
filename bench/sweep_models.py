"""Llama's block, and each of its differences from GPT-2's alone, on every factorisation of 2, 4 and
8 ranks against one process: every scheme's own search space, and ZeRO around the tensor-parallel
ones; Llama's block also with each kind of accumulation and recomputation.

By `tv.verify` in float64, two AdamW steps each. Exits with 1 at the first that is not equal.
"""

from dataclasses import replace
from itertools import product

from harness import sweep

import tpviz as tv
from tpviz.schemes.advice import fits

BASE = tv.GPT(layers=4, hidden=32, heads=16, seq=8, batch=16, vocab=32)
KINDS = {
    "ffn": 40,
    "kv_heads": 8,
    "gated": True,
    "norm": "rms",
    "rotary": True,
    "bias": False,
    "tied": False,
}
WORKLOADS = [
    replace(BASE, **KINDS),
    replace(BASE, kv_heads=1, gated=True),  # most of it is refused
    *(replace(BASE, **{name: value}) for name, value in KINDS.items()),
]


AGAIN = [
    {"accumulation": 4},
    {"accumulation": 2, "recompute": "full"},
    {"recompute": "selective"},
]


def cases():
    """(strategy, workload) in turn."""
    for number, (strategy, w) in enumerate(_plain()):
        yield strategy, w
        again = AGAIN[number % len(AGAIN)]
        if w is WORKLOADS[0] and again.keys() <= vars(strategy).keys():
            if fits(strategy := replace(strategy, **again), w):
                yield strategy, w


def _plain():
    for w, world, scheme in product(WORKLOADS, (2, 4, 8), tv.strategies().values()):
        for strategy in scheme.space(w, world):
            if fits(strategy, w):
                yield strategy, w
    for w, zero, tp in product(WORKLOADS, range(4), (2, 4)):
        for inner in (tv.Megatron(tp=tp, sp=True), tv.ATP(mesh=(tp // 2, 2), attention="A1")):
            strategy = inner * tv.DataParallel(dp=2, zero=zero, bucket_mb=0.01)
            if fits(strategy, w):
                yield strategy, w


if __name__ == "__main__":
    sweep(cases(), steps=2)

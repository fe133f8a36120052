"""Random strategies on random models against one process, over all schemes.

    python bench/sweep_random.py [DRAWS [SEED]]

A draw is a model of random sizes (GPT-2's or Llama's block), a scheme, a strategy of its search
space on 2, 4 or 8 ranks, new values for up to two of its knobs, in half of the draws of schemes
that combine with it DataParallel around it. Two AdamW steps in float64. Exits with 1 at the first
that is not equal.
"""

import random
import sys
from collections import Counter
from dataclasses import fields, replace

from harness import sweep

import tpviz as tv
from tpviz.schemes.advice import fits

DRAWS, SEED = 175, 0
STEPS = 2
LLAMA = {"gated": True, "norm": "rms", "rotary": True, "bias": False, "tied": False}


def workload(rnd):
    """A small model; heads divide by 8, so that most strategies fit."""
    heads = rnd.choice((4, 8))
    sizes = {
        "layers": rnd.choice((2, 4)),
        "heads": heads,
        "hidden": heads * rnd.choice((4, 6, 8)),
        "seq": rnd.choice((8, 12, 16)),
        "batch": rnd.choice((8, 16)),
        "vocab": rnd.choice((32, 64)),
    }
    return tv.GPT(**sizes, **(LLAMA if rnd.random() < 0.3 else {}))


def options(f, rnd):
    """What a knob may be turned to; knobs of other kinds stay as they are."""
    choices, low, high = (f.metadata.get(key) for key in ("choices", "low", "high"))
    if choices is not None:
        many = isinstance(f.default, tuple)
        return tuple(c for c in choices if rnd.random() < 0.5) if many else rnd.choice(choices)
    if isinstance(f.default, bool):
        return rnd.random() < 0.5
    if isinstance(f.default, int) and low is not None:
        return rnd.randint(int(low), int(min(high or 4, 4)))
    return f.default


def turned(strategy, w, rnd):
    """The strategy with up to two knobs turned, as far as it still fits."""
    for f in rnd.sample(fields(strategy), k=min(2, len(fields(strategy)))):
        try:
            other = replace(strategy, **{f.name: options(f, rnd)})
        except ValueError:  # knobs that exclude each other
            continue
        if other.world_size <= 8 and fits(other, w):
            strategy = other
    return strategy


def wrapped(strategy, w, rnd):
    """With DataParallel around it, where both combine."""
    try:
        both = strategy * tv.DataParallel(dp=2, zero=rnd.randrange(4), bucket_mb=0.01)
    except ValueError:
        return strategy
    return both if both.world_size <= 8 and fits(both, w) else strategy


def cases(draws, rnd):
    """(strategy, workload) in turn."""
    drawn = Counter()
    while drawn.total() < draws:
        w, scheme = workload(rnd), rnd.choice(list(tv.strategies().values()))
        space = [s for s in scheme.space(w, rnd.choice((2, 4, 8))) if fits(s, w)]
        if not space:
            continue
        strategy = turned(rnd.choice(space), w, rnd)
        if rnd.random() < 0.5:
            strategy = wrapped(strategy, w, rnd)
        drawn[scheme.__name__] += 1
        yield strategy, w
    print(", ".join(f"{name} {count}" for name, count in sorted(drawn.items())))


if __name__ == "__main__":
    draws, seed = (int(word) for word in (sys.argv[1:] + [DRAWS, SEED][len(sys.argv) - 1 :]))
    sweep(cases(draws, random.Random(seed)), STEPS)

"""AxoNN's grid on eight ranks, three and more axes at once: models that are not ours against one
process. Their pairs are named by rules, so that eight ranks need not import what export needs."""

import random

import foreign
from test_parallel_axonn import check, grids
from test_parallel_easy import Small

import tpviz as tv


def test_mlps_on_three_and_more_axes():
    strategies = [tv.AxoNN(*grid) for grid in ((2, 2, 2, 1), (2, 1, 2, 2))]
    strategies += [tv.AxoNN(1, 2, 2, 2, overlap=(), keep=False)]
    rules = [
        tv.Pair(first=["gate", "value"], second="back"),
        tv.Pair(first="wide", second="narrow"),
    ]
    check(5, foreign.Gated, foreign.vectors(8, batch=8), strategies, ranks=8, rules=rules)


def test_attention_by_a_rule_of_the_user():
    rule = tv.Pair(
        first="inward", second="outward", kind="attention", heads="count", fused="blocks"
    )
    check(
        2,
        foreign.Attention,
        foreign.vectors(foreign.WIDTH, batch=8),
        [tv.AxoNN(2, 2, 2, 1), tv.AxoNN(4, 1, 1, 2)],
        ranks=8,
        steps=1,
        rules=rule,
    )


def test_a_sample_of_eight():
    shapes = [g for g in grids(8) if g[0] > 1 and sum(size > 1 for size in g) > 1]
    chosen = random.Random(3).sample(shapes, 4)
    check(
        3,
        Small,
        foreign.vectors(8, batch=8),
        [tv.AxoNN(*grid) for grid in chosen],
        ranks=8,
        steps=1,
        easy=True,
    )

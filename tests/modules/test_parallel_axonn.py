"""Models that tpviz did not write, on AxoNN's grid: everything in float64 against one process, each
share of the batch on other ranks. Grids and knobs are sampled; small models meet several, Hugging
Face's one each. bench/sweep_foreign.py has them all."""

import random

import foreign
import pytest

import tpviz as tv
from tpviz.core.checks import divisors

SOME = ((2, 1, 2, 1), True), ((1, 2, 1, 2), True), ((1, 2, 2, 1), False)


def grids(ranks):
    """All (x, y, z, data) of so many ranks."""
    return [
        (x, y, z, ranks // (x * y * z))
        for x in divisors(ranks)
        for y in divisors(ranks)
        for z in divisors(ranks)
        if ranks % (x * y * z) == 0
    ]


def every_grid(make, inputs, strategies, options):
    """[(strategy, error, where, how many split layers)] of one rank."""
    found = []
    for strategy in strategies:
        v = tv.verify_parallel(make, strategy, inputs, **options)
        found.append((repr(v), v.max_error, v.ok, sum(len(p.layers) for p in v.report.pairs)))
    return found


def check(layers, make, inputs, strategies, ranks=4, steps=2, **options):
    """Two steps: weights are gathered ahead in the order of the first."""
    job = every_grid, make, inputs, strategies, {"steps": steps, **options}
    for found in tv.launch(*job, world_size=ranks, progress=False, timeout=150):
        assert all(ok for _, _, ok, *_ in found), found
        assert {count for *_, count in found} == {layers}


FIRST, SECOND, THIRD = [tv.AxoNN(*grid, keep=keep) for grid, keep in SOME]


def sampled(ranks, count, seed):
    """Grids with knobs that send the same things in other ways."""
    dice = random.Random(seed)
    ways = [
        ((), True),
        (("ors",), False),
        (("oag",), True),
        (("oar", "ors", "oag"), True),
        (("oar", "oag"), False),
    ]
    return [
        tv.AxoNN(*grid, overlap=overlap, keep=keep, order=dice.choice(["xyz", "yxz"]))
        for grid, (overlap, keep) in zip(dice.sample(grids(ranks), count), ways, strict=True)
    ]


def test_mlps_found_in_the_graph():
    check(5, foreign.Gated, foreign.vectors(8), sampled(4, 5, seed=0))


def test_transformer_encoder():
    check(4, foreign.encoder, foreign.vectors(foreign.WIDTH), [FIRST, SECOND, THIRD])


@pytest.mark.parametrize(
    "name, layers, strategy", [("gpt2", 8, THIRD), ("opt", 12, FIRST), ("bert", 12, SECOND)]
)
def test_hugging_face(name, layers, strategy):
    inputs = foreign.masked() if name == "bert" else foreign.tokens()
    check(layers, getattr(foreign, name), inputs, [strategy])


def test_llama_with_grouped_heads():
    check(14, lambda: foreign.llama(kv=2), foreign.tokens(), [THIRD])


def test_a_grid_inside_a_larger_mesh():
    """Two copies side by side: gathers ahead have a group of their own there too."""

    def side_by_side():
        strategy = tv.AxoNN(1, 1, 2, 1, keep=False)
        mesh = tv.Mesh({"copies": 2, **strategy.axes}).device_mesh()
        return tv.verify_parallel(foreign.Gated, strategy, foreign.vectors(8), mesh=mesh)

    assert all(tv.launch(side_by_side, world_size=4, progress=False))


def test_verification_outside_of_ranks():
    found = tv.verify_parallel(foreign.Gated, tv.AxoNN(1, 2, 1, 2), foreign.vectors(8), steps=1)
    assert found, found
    with pytest.raises(ValueError, match=r"batch=6 does not split evenly over data \* z=4: use"):
        tv.verify_parallel(foreign.Gated, tv.AxoNN(1, 1, 2, 2), foreign.vectors(8, batch=6))

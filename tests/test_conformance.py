"""What every scheme must pass, also one that is added tomorrow: points of its own search space.

Its program, captured on fake ranks, has the formula's ledger on every rank, and takes in simulation
as long as `predict` says, on ideal devices and links and on others; on real ranks it equals one
process.
"""

import random
from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.advice import fits

W = tv.GPT(layers=2, hidden=32, heads=4, seq=8, batch=8, vocab=64)
BOX = tv.clusters.nvlink_pairs(pairs=2).scale_model(hidden=64)
SLOW = replace(
    BOX,
    device=replace(
        BOX.device,
        gemm_efficiency=0.8,
        memory_efficiency=0.7,
        unhidden=0.4,
        startup=2e-6,
        launch=5e-6,
        pointwise="eager",
    ),
    levels=tuple(replace(level, curve=((1e2, 0.2), (1e5, 0.9))) for level in BOX.levels),
)
POINTS, VERIFIED = 5, 4  # of each scheme


def points(name, count):
    """Strategies of a scheme's space that fit, on 1, 2 and 4 ranks: all, or so many at random."""
    scheme = tv.strategies()[name]
    found = [s for world in (1, 2, 4) for s in scheme.space(W, world) if fits(s, W)]
    assert found, f"{name}.space has nothing that fits {W}"
    rnd = random.Random(name)
    return found if len(found) <= count else rnd.sample(found, count)


@pytest.mark.parametrize("name", tv.strategies())
def test_ledger_and_time_are_those_of_the_program(name):
    for strategy in points(name, POINTS):
        program = tv.capture(strategy, W)
        for rank in range(strategy.world_size):
            assert program.ledger(rank) == strategy.ledger_of(W, rank), strategy
        ideal, *_ = times = [tv.predict(strategy, W, box).step_time for box in (BOX, SLOW)]
        for box, predicted in zip((BOX, SLOW), times):
            simulated = tv.simulate(strategy, W, box, capture=program, contention=False).step_time
            assert predicted == pytest.approx(simulated, rel=1e-9), (strategy, box)
        assert times[1] > 1.1 * ideal, strategy


@pytest.mark.parametrize("name", tv.strategies())
def test_equals_one_process(name):
    for strategy in points(name, VERIFIED):
        assert tv.verify(strategy, W, steps=2).ok, strategy

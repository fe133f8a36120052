"""What every scheme must pass, also one that is added tomorrow: points of its own search space.

Its program, captured on fake ranks, has the formula's ledger on every rank, and takes in simulation
as long as `predict` says, on ideal devices and links and on others; on real ranks it equals one
process.
"""

import random
from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.schemes.advice import fits
from tpviz.schemes.knobs import RECOMPUTE

W = tv.GPT(layers=2, hidden=32, heads=4, seq=8, batch=8, vocab=64)
LIKE_LLAMA = {"kv_heads": 2, "ffn": 40, "gated": True, "norm": "rms", "rotary": True}
LLAMA = replace(W, tied=False, bias=False, **LIKE_LLAMA)
MIXTURE = {"experts": 4, "moe_ffn": 24, "routing": tv.Routing(skew=1.0)}


def workload(name, w):
    """With experts, where the scheme is about them."""
    return replace(w, **MIXTURE) if name == "Experts" else w


CASES = [(name, workload(name, w)) for w in (W, LLAMA) for name in tv.strategies()]
NAMES = [f"{name}-{'Llama' if w.gated else 'GPT-2'}" for name, w in CASES]
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
        check=2e-6,
        pointwise="eager",
        attention="softmax",
    ),
    levels=tuple(
        replace(level, curve=((1e2, 0.2), (1e5, 0.9)), message=1e-4) for level in BOX.levels
    ),
)
POINTS, VERIFIED, STAGED = 5, 4, 2  # of each scheme


def points(name, w, count):
    """Strategies of a scheme's space that fit, on 1, 2 and 4 ranks: all, or so many at random; of
    other models than GPT-2 half as many."""
    scheme, count = tv.strategies()[name], count // 2 if w.gated else count
    found = [s for world in (1, 2, 4) for s in scheme.space(w, world) if fits(s, w)]
    assert found, f"{name}.space has nothing that fits {w}"
    rnd = random.Random(name)
    found = found if len(found) <= count else rnd.sample(found, count)
    return found + [s for s in (with_microbatches(s, rnd) for s in found[:2]) if fits(s, w)]


def with_microbatches(strategy, rnd):
    """The same with those of its knobs that its space leaves alone, at random."""
    knobs = {"accumulation": 2, "recompute": rnd.choice(RECOMPUTE)}
    return replace(
        strategy, **{k: v for k, v in knobs.items() if k in strategy.__dataclass_fields__}
    )


@pytest.mark.parametrize("name, w", CASES, ids=NAMES)
def test_ledger_and_time_are_those_of_the_program(name, w):
    for strategy in points(name, w, POINTS):
        program = tv.capture(strategy, w)
        for rank in range(strategy.world_size):
            assert program.ledger(rank) == strategy.ledger_of(w, rank), strategy
        times = [tv.predict(strategy, w, box).step_time for box in (BOX, SLOW)]
        for box, predicted in zip((BOX, SLOW), times):
            simulated = tv.simulate(strategy, w, box, capture=program, contention=False).step_time
            assert predicted == pytest.approx(simulated, rel=1e-9), (strategy, box)
        assert times[1] > 1.1 * times[0], strategy


@pytest.mark.parametrize("name, w", CASES, ids=NAMES)
def test_equals_one_process(name, w):
    for strategy in points(name, w, VERIFIED):
        assert tv.verify(strategy, w, steps=2).ok, strategy


@pytest.mark.parametrize("name", tv.strategies())
def test_equals_one_process_where_gloo_moves_what_is_on_a_shared_gpu(monkeypatch, name):
    """Here on the CPU, all tensors staged through host copies as CUDA's are."""
    monkeypatch.setenv("TPVIZ_STAGE", "1")
    w = workload(name, W)
    for strategy in points(name, w, POINTS)[:STAGED]:
        assert tv.verify(strategy, w, steps=2).ok, strategy

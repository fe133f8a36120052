"""Shared experts while rows travel: equal to one process, with bytes, kernels and times of the
program by formula, and never slower than one after the other."""

from dataclasses import replace

import pytest
from tiny import EXACT, assert_equal, captured, named, peaks

import tpviz as tv
from tpviz.core.step import Issue, Kernel, Wait

HOT = tv.GPT(
    hidden=32,
    heads=4,
    seq=16,
    batch=16,
    vocab=64,
    experts=8,
    shared_experts=2,
    routing=tv.Routing(skew=1.0),
)
CHOSEN = replace(HOT, routing=None, gated=True, norm="rms", bias=False, moe_ffn=24, tied=False)
DROPPING = replace(CHOSEN, capacity=0.75, aux_loss=0.3, router="sigmoid")
BOX = tv.clusters.nvlink_pairs(pairs=4).scale_model(hidden=64)
UNHIDDEN = replace(BOX, device=replace(BOX.device, unhidden=0.4, startup=2e-6, pointwise="eager"))
TP, SP = tv.Megatron(tp=2), tv.Megatron(tp=2, sp=True)
TWO = tv.Experts(ep=2, overlap="shared")
CASES = [
    (replace(TWO, accumulation=2, recompute="full"), CHOSEN),
    (TWO, DROPPING),
    (SP * TWO, CHOSEN),
    (TP * replace(TWO, etp=2), HOT),
    (SP * replace(TWO, etp=2), DROPPING),
    (TWO * tv.DataParallel(dp=2, zero=2), HOT),
]


@pytest.mark.parametrize("strategy, w", CASES, ids=named)
def test_equals_one_process(strategy, w):
    assert_equal(strategy, w, among=CASES)


@pytest.mark.parametrize("strategy, w", CASES, ids=named)
def test_bytes_and_time_are_those_of_the_program(strategy, w):
    program = captured(strategy, w)
    for rank in range(strategy.world_size):
        assert program.ledger(rank) == strategy.ledger_of(w, rank)
    for box in (BOX, UNHIDDEN):
        simulated = tv.simulate(strategy, w, box, capture=program, contention=False).step_time
        assert tv.predict(strategy, w, box).step_time == pytest.approx(simulated, rel=1e-9)


def test_both_layers_are_under_the_rows_both_ways():
    """Of one block: what is in flight while shared experts compute, and that they are all of it."""
    pieces, under = TWO.pieces(TWO.local(HOT)), []
    for name in ("mlp", "down_back", "up_back"):
        operations = pieces[name]
        for at in (i for i, o in enumerate(operations) if isinstance(o, Issue)):
            stop = next(i for i, o in enumerate(operations) if i > at and isinstance(o, Wait))
            under.append((operations[at].move.collective, stop - at - 1))
            assert all(isinstance(o, Kernel) for o in operations[at + 1 : stop])
    assert under == [("all_to_all_v", n) for n in (1, 1, 2, 2)]


@pytest.mark.parametrize("w", [HOT, CHOSEN, DROPPING], ids=["hot", "chosen", "dropping"])
def test_takes_less_time_and_sends_as_much(w):
    w, slow = replace(w, hidden=256), tv.clusters.nvlink_pairs(pairs=2)
    plain, over = (tv.Experts(ep=4, overlap=overlap) for overlap in ("none", "shared"))
    assert plain.ledger(w) == over.ledger(w)
    hidden = [tv.predict(s, w, slow).step_time for s in (plain, over)]
    assert hidden[1] < hidden[0]


def test_memory_is_what_is_tracked():
    w = replace(HOT, hidden=64, seq=32, layers=3, routing=tv.Routing())
    found, tracked = TWO.memory(w), peaks(TWO, w)
    assert {k: found[k] for k in EXACT} == {k: tracked[k] for k in EXACT}
    assert found["activations"] == pytest.approx(tracked["activations"], rel=0.12)


def test_nothing_to_compute_meanwhile_is_refused():
    w = replace(HOT, shared_experts=0)
    with pytest.raises(ValueError, match=r"shared_experts=0 has nothing to compute .* use overlap"):
        TWO.check(w)
    replace(TWO, overlap="none").check(w)
    TWO.check(replace(w, shared_experts=1))

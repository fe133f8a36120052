"""Shared experts, or the other half of a microbatch, while rows travel, and tokens gathered by all
ranks of experts: equal to one process, with bytes, times and memory of the program by formula."""

from dataclasses import replace

import pytest
from tiny import EXACT, assert_as_captured, assert_equal, named, peaks

import tpviz as tv
from tpviz.core.step import Issue, Kernel, Wait
from tpviz.schemes.experts.paper import gathered_bytes, gathering_sends_less, row_bytes
from tpviz.schemes.gpt.step import BLOCK

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
ALL = tv.Experts(ep=2, dispatch="all_gather")
HALF = tv.Experts(ep=2, overlap="halves")
CASES = [
    (replace(TWO, accumulation=2, recompute="full"), CHOSEN),
    (TWO, DROPPING),
    (SP * TWO, CHOSEN),
    (TP * replace(TWO, etp=2), HOT),
    (SP * replace(TWO, etp=2), DROPPING),
    (replace(ALL, ep=4), HOT),
    (replace(ALL, accumulation=2, recompute="full", overlap="shared"), CHOSEN),
    (SP * replace(ALL, etp=2), DROPPING),
    (TP * ALL, replace(HOT, top_k=3)),
    (ALL, replace(DROPPING, shared_experts=0)),
    (ALL * tv.Context(cp=2), HOT),
    (HALF * tv.Pipeline(pp=2, microbatches=2, recompute="full"), CHOSEN),
    (SP * replace(HALF, dispatch="all_gather"), HOT),
    (replace(HALF, accumulation=2, recompute="full"), DROPPING),
    (HALF * tv.DataParallel(dp=2, zero=3), CHOSEN),
    (TP * replace(HALF, etp=2), replace(CHOSEN, aux_loss=0.3, layers=4, first_dense=1)),
    (TWO * tv.DataParallel(dp=2, zero=2), HOT),
]


@pytest.mark.parametrize("strategy, w", CASES[::2], ids=named)
def test_equals_one_process(strategy, w):
    """Half of the kinds; those of test_experts.py that are drawn have all."""
    assert_equal(strategy, w, among=CASES[::2])


@pytest.mark.parametrize("strategy, w", CASES, ids=named)
def test_bytes_and_time_are_those_of_the_program(strategy, w):
    assert_as_captured(strategy, w, BOX, UNHIDDEN)


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


def test_one_halfs_rows_are_under_the_others_attention_and_experts():
    """Of one block, FLOPs while rows are in flight: six of eight all-to-alls have some."""
    w = replace(HOT, shared_experts=0)
    whole, half = (s.pieces(s.local(w)) for s in (replace(HALF, overlap="none"), HALF))
    kernels = lambda pieces: sorted(
        o.flops for name in BLOCK for o in pieces[name] if isinstance(o, Kernel)
    )
    twice = [n / 2 for n in kernels(whole) for _ in range(2)]
    assert sorted(kernels(half)) == sorted(twice)
    flying, under = 0, []
    for o in [*half["mlp"], *half["down_back"], *half["up_back"]]:
        if isinstance(o, Issue):
            flying += 1
            under.append(0)
        elif isinstance(o, Wait):
            flying = o.in_flight
        elif isinstance(o, Kernel) and flying:
            under[-1] += o.flops
    assert len(under) == 8 and sum(n > 0 for n in under) >= 6


@pytest.mark.parametrize("w", [HOT, CHOSEN, DROPPING], ids=["hot", "chosen", "dropping"])
def test_takes_less_time_and_sends_as_much(w):
    w, slow = replace(w, hidden=256), tv.clusters.nvlink_pairs(pairs=2)
    plain, over = (tv.Experts(ep=4, overlap=overlap) for overlap in ("none", "shared"))
    assert plain.ledger(w) == over.ledger(w)
    hidden = [tv.predict(s, w, slow).step_time for s in (plain, over)]
    assert hidden[1] < hidden[0]


def test_gathering_sends_less_to_fewer_ranks_than_experts_of_a_token():
    """The bytes that each rank sends, forward and backward, exactly; weights and choices aside."""
    for top_k in (1, 2, 4, 8):
        w = replace(HOT, hidden=1024, routing=tv.Routing(), top_k=top_k, shared_experts=0)
        for ep in (2, 4, 8):
            ways = [tv.Experts(ep=ep, dispatch=way) for way in ("all_to_all", "all_gather")]
            rows = [_sent(way.ledger(w), w.layers) for way in ways]
            local = ways[0].local(w)
            assert rows[0] == pytest.approx(2 * row_bytes(local, ep), rel=0.01)
            assert rows[1] == pytest.approx(2 * gathered_bytes(local, ep), rel=0.03)
            assert (ep < top_k) == gathering_sends_less(local, ep)
            assert ep == top_k or (rows[1] < rows[0]) == (ep < top_k)


def _sent(ledger, layers):
    kinds = "all_to_all_v", "all_gather", "reduce_scatter"
    return sum(r.wire_bytes for r in ledger.rows if r.collective in kinds) / layers


def test_the_times_say_so_too():
    w = replace(HOT, hidden=512, routing=tv.Routing(), top_k=8, shared_experts=0)
    box = tv.clusters.nvlink_pairs(pairs=2)
    for top_k, less in ((8, True), (1, False)):
        w = replace(w, top_k=top_k)
        ways = [tv.Experts(ep=4, dispatch=way) for way in ("all_to_all", "all_gather")]
        times = [tv.predict(way, w, box).step_time for way in ways]
        assert (times[1] < times[0]) == less


@pytest.mark.parametrize("strategy", [TWO, ALL, HALF], ids=named)
def test_memory_is_what_is_tracked(strategy):
    w = replace(HOT, hidden=64, seq=32, layers=3, routing=tv.Routing())
    cases = (TWO, w), (ALL, w), (HALF, w)
    found, tracked = strategy.memory(w), peaks(strategy, w, cases)
    assert {k: found[k] for k in EXACT} == {k: tracked[k] for k in EXACT}
    assert found["activations"] == pytest.approx(tracked["activations"], rel=0.12)


def test_nothing_to_compute_meanwhile_is_refused():
    w = replace(HOT, shared_experts=0)
    with pytest.raises(ValueError, match=r"batch=6 does not split evenly over 2\*ep\*accum"):
        HALF.check(replace(w, batch=6))
    with pytest.raises(ValueError, match="with overlap='halves' is not possible: use"):
        replace(HALF, recompute="selective").check(w)
    with pytest.raises(ValueError, match="with overlap='halves' is not possible: use 'full'"):
        (HALF * tv.Pipeline(pp=2, microbatches=2, recompute="selective")).check(w)
    with pytest.raises(ValueError, match=r"shared_experts=0 has nothing to compute .* use overlap"):
        TWO.check(w)
    replace(TWO, overlap="none").check(w)
    TWO.check(replace(w, shared_experts=1))

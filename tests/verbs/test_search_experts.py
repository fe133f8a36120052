"""Mixtures of experts: a search spreads them by itself, inside and outside of a node, and says why
a plan is not the first; bounds never exclude what is faster."""

from contextlib import suppress
from dataclasses import replace

import pytest
from bounded import BOX, bounded

import tpviz as tv
from tpviz.schemes.apart import apart, uncut
from tpviz.schemes.experts.strategy import ACROSS
from tpviz.verbs.room import as_pipeline, least_needs, need
from tpviz.verbs.space import LONG, cells, kinds, space, usual

W = tv.GPT(
    layers=4, hidden=32, heads=4, seq=16, batch=8, vocab=64, tied=False, experts=4, moe_ffn=48
)
MIXTRAL = tv.models.mixtral("8x7B", batch=256, seq=4096)


def h100s(count):
    return tv.clusters.as_run_by(tv.clusters.dgx("H100-SXM-80GB", count))


def spread(strategy):
    return strategy.axes.get("ep", 1) > 1


def test_experts_are_tried_where_there_are_some():
    assert tv.Experts not in kinds(None)
    for w, known in ((MIXTRAL, True), (tv.models.llama3("8B", batch=32), False)):
        assert any(spread(cell.strategy) for cell in usual(w, h100s(16), 16)) == known
        assert any(spread(cell.strategy) for cell in cells(w, 16)) == known
    names = {type(cell.strategy.factors[0]).__name__ for cell in cells(MIXTRAL, 8)}
    assert not names & {"ATP", "AxoNN", "T3"} and {"Experts", "Merak", "Megatron"} <= names
    long = replace(MIXTRAL, seq=LONG)
    both = [c.strategy for c in usual(long, h100s(32), 32) if spread(c.strategy)]
    assert any(s.axes.get("cp", 1) > 1 for s in both)
    assert all(s.axes["ep"] in (2, 4, 8) for s in both)


def test_the_space_has_every_way_to_spread_them():
    layouts = {cell.strategy for cell in cells(MIXTRAL, 16, tv.Experts)}
    inside = tv.Megatron(tp=2, sp=True) * tv.Experts(ep=4) * tv.DataParallel(dp=2, zero=1)
    both = replace(inside.inner, etp=2)
    assert {inside, inside.with_order(ACROSS), replace(inside, inner=both)} <= layouts
    deep = tv.Experts(ep=4) * tv.Pipeline(pp=2, microbatches=8) * tv.DataParallel(dp=2, zero=1)
    made = {s for s in layouts if s.axes == deep.axes and s.microbatches == 8}
    assert deep in made and deep.with_order(ACROSS) in made
    knobs = {tuple(choice) for c in cells(MIXTRAL, 16, tv.Experts) for choice in c.choices}
    assert {("data", "schedule", "chunks", "recompute")} <= knobs
    waits = [tv.predict(s, MIXTRAL, h100s(16)) for s in (inside, inside.with_order(ACROSS))]
    assert 0 < 2 * waits[0].exposed["ep"] < waits[1].exposed["ep"]


@pytest.mark.parametrize("routing", [None, tv.Routing(1.0)], ids=["even", "skewed"])
def test_bounds_are_never_above_the_prediction(routing):
    every = lambda number, choices: choices[number % 5 :: 5]
    seen, near = bounded(replace(W, routing=routing), BOX, tv.Experts, every, share=0.4)
    assert seen > 100 and near > 0.7 * seen, (seen, near)


@pytest.mark.parametrize("zero", [None, 0, 1, 2, 3])
def test_bounds_where_each_expert_is_on_one_rank(zero):
    """Its class of parameters sends nothing; without data parallelism there is no axis for it."""
    plan = tv.Experts(ep=2) * tv.Pipeline(pp=2, microbatches=4)
    plan = plan if zero is None else plan * tv.DataParallel(dp=1, zero=zero)
    step = tv.predict(plan, W, BOX).step_time * (1 + 1e-9)
    for choice, closely in (({"recompute": "none"}, False), ({"schedule": "1f1b"}, True)):
        assert 0.4 * step < plan.bounds(W, BOX)(choice, closely) <= step


def test_memory_that_is_found_faster_is_never_above_the_whole():
    w, cluster, seen = replace(W, dtype="bfloat16"), h100s(8), 0
    for number, strategy in enumerate(space(w, 8, tv.Experts)):
        if number % 23 == 0:
            with suppress(ValueError):
                strategy.check(w)
                whole = need(strategy, w, cluster).total
                assert max(least_needs(strategy, w, cluster)) <= whole, strategy.short
                seen += 1
    assert seen > 60, seen


def test_frameworks_share_states_of_experts_over_fewer_ranks():
    """By hand, of Mixtral on 16: weights, gradients, and under ZeRO-1 Adam's three over all ranks
    of ep and dp for what is no expert, over those of dp for experts."""
    plan = tv.Experts(ep=4) * tv.Pipeline(pp=1, microbatches=16) * tv.DataParallel(dp=4, zero=1)
    plain, w = uncut(plan, MIXTRAL)
    assert plain.dp == 16 and w.cut.ep == 4 and apart(plan, tv.Experts)[1] == tv.Experts(ep=4)
    s, _, shards = as_pipeline(plan, MIXTRAL)
    assert (s.dp, shards) == (16, 16)
    found = need(plan, MIXTRAL, h100s(16))
    own = MIXTRAL.layers * 8 * 3 * 4096 * 14336 // 4
    dense = MIXTRAL.num_parameters - 4 * own
    assert found["parameters"] == 2 * (own + dense) and found["gradients"] == 4 * (own + dense)
    assert found["optimizer"] == 12 * (own / 4 + dense / 16)


def test_the_best_plan_fits_and_equals_one_process():
    """Of four ranks with room for a part of all; on real ranks, in float64."""
    states = 16 * W.num_parameters
    tight = replace(BOX, device=replace(BOX.device, memory=0.7 * states))
    given = [tv.Megatron, tv.DataParallel, tv.Experts]
    found = tv.search(W, tight, given, simulate=False)
    assert all(row.prediction.fits for row in found.rows)
    ours = next(row.strategy for row in found.rows if spread(row.strategy))
    assert tv.verify(ours, W, steps=1).ok
    none = replace(BOX, device=replace(BOX.device, memory=0.05 * states))
    with pytest.raises(ValueError, match=r"strategies fits 4 ranks.*want of memory"):
        tv.search(W, none, given, simulate=False)


def test_why_not():
    """Of a plan over ep: its place, its bound, its memory, or sizes that clash."""
    found = tv.search(W, BOX, [tv.Merak, tv.Experts], simulate=False)
    other = next(row.strategy for row in found.rows[1:] if spread(row.strategy))
    assert "because it spends" in found.why_not(other)
    assert "does not split evenly over ep=3" in found.why_not(tv.Experts(ep=3))
    slow = tv.Experts(ep=2) * tv.DataParallel(dp=2, zero=1, accumulation=2, recompute="full")
    assert "was excluded by the lower bound of its time" in found.why_not(slow)
    small = replace(BOX, device=replace(BOX.device, memory=0.9 * slow.memory(W).total))
    assert "for want of memory" in tv.search(W, small, tv.Experts, simulate=False).why_not(slow)

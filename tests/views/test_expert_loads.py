"""Loads of ranks with experts from traces: of simulations, of runs, and of recorded programs."""

from dataclasses import replace

import numpy as np
import pytest

import tpviz as tv
from tpviz.schemes.gpt.program import batch_of
from tpviz.verbs.run import program_here

W = tv.GPT(hidden=16, seq=16, batch=8, layers=2, experts=8, routing=tv.Routing(1.0))
TP, PP = tv.Megatron(tp=2), tv.Pipeline(pp=2, microbatches=2, recompute="full")
PLANS = {
    "alone": (tv.Experts(ep=4), 1),
    "accumulation": (tv.Experts(ep=2, accumulation=2, recompute="full"), 1),
    "etp 2": (TP * tv.Experts(ep=2, etp=2), 2),
    "replicas": (tv.Experts(ep=2) * tv.DataParallel(dp=2), 1),
    "pipeline": (tv.Experts(ep=2) * PP, 1),
    "halves in turn": (tv.Experts(ep=2, overlap="halves"), 1),
    "halves of two": (tv.Experts(ep=2, overlap="halves", accumulation=2), 1),
}


@pytest.mark.parametrize("name", PLANS)
def test_loads_of_a_simulation_are_those_of_the_routing(name):
    strategy, etp = PLANS[name]
    size = strategy.world_size
    loads = tv.expert_loads(tv.simulate(strategy, W, tv.clusters.nvswitch(size)), W, etp)
    assert loads.rows.shape == (len(loads.steps), 2, size) and loads.badge == "simulated"
    ep = strategy.axes["ep"]
    counts = W.batch * W.routing.counts(8, 2, 16).reshape(ep, -1).sum(1)
    index = [tv.Mesh(strategy.axes).coords(rank)["ep"] for rank in range(size)]
    for at in range(ep):
        assert (loads.rows[..., np.equal(index, at)].sum(-1) == counts[at] * etp).all()
    assert index[loads.busiest[0]] == counts.argmax()
    assert loads.times.max() == pytest.approx(counts.max() / counts.mean())
    of_experts = W.batch * W.routing.counts(8, 2, 16).reshape(ep, -1)
    for rank in range(size):  # ranks of one index share its experts' rows
        same = np.equal(index, index[rank])
        found = loads.experts[0][:, same].sum(1)
        assert (found == of_experts[index[rank]] * etp).all()
    hot = counts.argmax() * 8 // ep + of_experts[counts.argmax()].argmax()
    share = of_experts.ravel()[hot] / (W.batch * W.seq)
    assert loads.hot[0] == (hot, pytest.approx(share))
    assert f"expert {hot}, which {100 * share:.0f} % of" in loads.describe()


def test_loads_of_a_router_that_chooses():
    """Of a run on real ranks: in every layer and step all choices, and each rank its own part."""
    w = replace(W, routing=None)
    trace = tv.run(tv.Experts(ep=2), w)
    loads = tv.expert_loads(trace, w)
    assert (loads.steps, loads.badge) == (tuple(trace.steps), trace.badge)
    assert (loads.rows.sum(-1) == w.batch * w.seq * w.top_k).all()
    assert (loads.rows[:, 0] != loads.rows[:, 1]).any()
    assert (loads.experts.sum(-1) == loads.rows).all()


@pytest.mark.parametrize("around", [TP, tv.Context(cp=2)], ids=["etp 1", "sequences"])
def test_loads_of_ranks_that_have_parts_of_sequences(around):
    """Each rank chooses for its own tokens; together they are all."""
    strategy = around * tv.Experts(ep=2)
    loads = tv.expert_loads(tv.run(strategy, W, steps=1), W)
    counts = W.batch * W.routing.counts(8, 2, 16).reshape(2, -1).sum(1)
    index = [tv.Mesh(strategy.axes).coords(rank)["ep"] for rank in range(4)]
    for at in range(2):
        assert (loads.rows[..., np.equal(index, at)].sum(-1) == counts[at]).all()


def recorded():
    """A rank of a program that nobody told `tpviz.record` of."""
    program, _ = program_here(tv.Experts(ep=2), W)
    with tv.record() as recorder:
        program.step(batch_of(W, 0))
    return recorder.trace


def test_loads_of_a_recorded_program():
    traces = tv.launch(recorded, world_size=2)
    loads = tv.expert_loads(tv.Trace.merge(traces), W)
    counts = W.batch * W.routing.counts(8, 2, 16).reshape(2, -1).sum(1)
    assert loads.rows.tolist() == [[counts.tolist()] * 2]
    with pytest.raises(ValueError, match="1 ranks of 2: merge"):
        tv.expert_loads(traces[0], W)


def test_what_cannot_be_told_is_said():
    trace = tv.simulate(tv.Experts(ep=2), W, tv.clusters.nvswitch(2))
    c = trace.whole()
    bare = c.where(c["kind"] != "compute")
    assert "cannot tell which expert" in tv.expert_loads(bare, W).describe()
    assert not tv.expert_loads(bare, W).hot
    with pytest.raises(ValueError, match=r"capacity=1\.0 sends buffers of one size"):
        tv.expert_loads(trace, replace(W, capacity=1.0))
    with pytest.raises(ValueError, match="has other rows than the trace"):
        tv.expert_loads(trace, replace(W, hidden=28))
    c = trace.whole()
    last = np.flatnonzero((c["name"] == "all_to_all_v") & (c["phase"] == "forward"))[-1]
    cut = c.where(np.arange(len(c["name"])) != last)
    with pytest.raises(ValueError, match="not in pairs"):
        tv.expert_loads(cut, W)
    with pytest.raises(ValueError, match=r"0 all-to-alls of rows.*dispatch='all_to_all'"):
        tv.expert_loads(tv.simulate(tv.DataParallel(dp=2), tv.GPT(), tv.clusters.nvswitch(2)), W)


def large():
    w = replace(W, batch=64, seq=512, experts=16, routing=tv.Routing(0.7, seed=2))
    return tv.expert_loads(tv.simulate(tv.Experts(ep=16), w, tv.clusters.nvswitch(16)), w)


def test_many_ranks_are_in_the_table_and_the_busiest_in_the_picture():
    loads = large()
    assert len(loads.to_table()) == 1 + 16 * len(loads.steps)
    svg = loads.to_svg()
    assert "the 8 busiest of 16" in svg and f"rank {loads.busiest[0]}: " in svg
    assert loads.describe() in svg and "as a table" in loads._repr_html_()


@pytest.mark.browser
def test_texts_are_legible(tab):
    from test_legible import PROBLEMS, SMALLEST

    for loads in (large(), tv.expert_loads(tv.run(tv.Experts(ep=2), W), W)):
        for theme in ("light", "dark"):
            tab.set_content(loads.to_svg(theme=theme))
            assert "\n".join(tab.evaluate(PROBLEMS, [SMALLEST])) == ""

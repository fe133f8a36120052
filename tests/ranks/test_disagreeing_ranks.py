"""Real ranks that disagree about a collective: told by a trace, or at once where torch is asked."""

import calls
import cloudpickle
import pytest
import torch
import torch.distributed as dist

import tpviz as tv

cloudpickle.register_pickle_by_value(calls)


def recorded(work):
    """In a rank: the trace of this."""
    with tv.record() as recorder, recorder.step():
        work()
    return recorder.trace


def broadcast():
    dist.broadcast(torch.ones(100 if dist.get_rank() == 0 else 200), 0)


def test_sizes_that_disagree_are_in_the_badge():
    traces = tv.launch(recorded, broadcast, world_size=2)
    with pytest.warns(UserWarning, match="ranks disagree about broadcast"):
        trace = tv.Trace.merge(traces)
    number = int(trace.select(kind="comm")["seq"][0])
    words = f"broadcast #{number}: 400 bytes on rank 0, 800 on rank 1 (axis world, ranks 0,1)"
    assert trace.badge == f"this machine, gloo; ranks disagree: {words}"
    assert sorted(trace["bytes"][trace["kind"] == "comm"].tolist()) == [400, 800]


@pytest.mark.parametrize("debug", ["OFF", "DETAIL"])
def test_legal_differences_pass(debug, monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", debug)
    trace = tv.Trace.merge(tv.launch(recorded, calls.legal, world_size=calls.SIZE))
    assert trace.badge == "this machine, gloo" and "disagree" not in trace.meta
    assert "comm/world (group 2)" in trace.lanes


@pytest.mark.parametrize("what", calls.CLASHES)
def test_debug_detail_refuses_at_once(what, monkeypatch):
    work, words = calls.CLASHES[what]

    def twice():
        dist.all_reduce(torch.ones(3))
        work(dist.get_rank())
        dist.barrier()

    tv.launch(dist.get_rank, world_size=2)  # ranks that were there before it was asked for
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    with pytest.raises(tv.RankError, match="raised RuntimeError: ranks disagree") as caught:
        tv.launch(twice, world_size=2, timeout=20)
    before, after = words.split("{}")
    assert before in str(caught.value) and after in str(caught.value)


def counted():
    """In a rank: how often a call's terms are made where they are compared and recorded."""
    from tpviz.ranks import backend

    made, real = [], backend.terms
    backend.terms = lambda *args: made.append(args) or real(*args)
    try:
        trace = recorded(lambda: dist.all_reduce(torch.ones(3)))
    finally:
        backend.terms = real
    return backend.comparing, len(made), len(trace.select(kind="comm"))


def test_terms_are_made_once(monkeypatch):
    monkeypatch.setenv("TORCH_DISTRIBUTED_DEBUG", "DETAIL")
    for comparing, made, calls_seen in tv.launch(counted, world_size=2):
        assert comparing and made == calls_seen > 0

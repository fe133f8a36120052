"""Fake tensors made by recipe are those that torch makes."""

import pytest
import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

import tpviz as tv
from tpviz.evidence import peers
from tpviz.ranks import recipes
from tpviz.ranks.fake import fake_tensors

W = tv.GPT(layers=2, hidden=32, heads=4, seq=8, batch=8, vocab=64)
PROGRAMS = [
    tv.Megatron(tp=2, sp=True, recompute="full"),
    tv.AxoNN(x=1, y=2, z=2, keep=False),
    tv.Merak(pp=2, tp=1, dp=1, microbatches=4),
    peers.DTensorTP(tp=2),
    peers.FSDP2(dp=2),
]


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """The recipes learnt in a test: none at first."""
    known = {}
    monkeypatch.setattr(recipes, "_recipes", known)
    return known


def told(strategy):
    """{rank: rows, and bytes at each moment of the step} of a captured program."""
    found = {}
    for rank, trace in tv.capture(strategy, W, detail="all").traces.items():
        begun = trace.select(kind="step")["start"][0]
        memory = zip(*trace.meta["memory"][rank].values())
        rows = {name: trace[name].tolist() for name in trace.columns}
        found[rank] = rows, [row for row in memory if row[0] > begun]
    return found


@pytest.mark.parametrize("strategy", PROGRAMS, ids=repr)
def test_programs_are_captured_as_by_torch(strategy, known, monkeypatch):
    learning = told(strategy)
    count = len(known)
    by_recipe = told(strategy)
    assert count == len(known) > 50
    monkeypatch.setattr(recipes.QuickFakes, "__torch_dispatch__", FakeTensorMode.__torch_dispatch__)
    assert learning == by_recipe == told(strategy)


def twice(call):
    """What a call gives, first from torch, then by recipe."""
    with fake_tensors():
        return call(), call()


def test_a_new_tensor(known):
    plain, made = twice(lambda: torch.ones(3, 2, dtype=torch.float64).t().add(1))
    assert len(known) > 2 and all(known.values())
    for t in plain, made:
        assert (t.shape, t.stride(), t.dtype) == ((2, 3), (1, 2), torch.float64)
        assert t.device == torch.device("cpu") and t.untyped_storage().nbytes() == 48
    assert vars(plain) == {**vars(made), "fake_mode": plain.fake_mode}
    assert torch._C._dispatch_keys(plain) == torch._C._dispatch_keys(made)


@pytest.mark.parametrize("view", [torch.t, torch.detach, lambda t: t[1:, 0], lambda t: t.split(2)])
def test_a_view_is_on_its_source(view):
    def call():
        source = torch.ones(4, 2)
        return source, view(source)

    for source, views in twice(call):
        for t in views if isinstance(views, tuple) else [views]:
            assert t.untyped_storage() is source.untyped_storage()


def test_results_in_place_are_the_argument():
    def call():
        t = torch.ones(2)
        return t, t.add_(1)

    assert all(a is b for a, b in twice(call))


def test_what_changes_a_tensors_own_shape_does_so_each_time():
    plain, made = twice(lambda: torch.ones(2, 3).t_().resize_(5))
    assert plain.shape == made.shape == (5,)


def test_a_view_of_a_freed_tensor_leaves_it_freed():
    def call():
        t = torch.ones(4, 2)
        t.untyped_storage().resize_(0)
        t.view(8)
        return t

    assert [t.untyped_storage().nbytes() for t in twice(call)] == [0, 0]


def test_the_default_dtype_is_looked_at(monkeypatch):
    with fake_tensors():
        assert torch.ones(2).dtype == torch.float32
        torch.set_default_dtype(torch.float64)
        try:
            assert torch.ones(2).dtype == torch.float64
        finally:
            torch.set_default_dtype(torch.float32)


def test_numbers_that_are_known_stay_so():
    assert [t.item() for t in twice(lambda: torch.tensor(3) + 1)] == [4, 4]
    with fake_tensors(), pytest.raises(DataDependentOutputException):
        torch.ones(1).item()


def test_kinds_of_numbers_are_told_apart():
    with fake_tensors():
        t = torch.ones(2, dtype=torch.int64)
        assert [(t * n).dtype for n in (1, 1.0)] * 2 == [torch.int64, torch.float32] * 2

"""What one forward shows of a model before and after it is split: layers whose weight is read
elsewhere, results in float32, and what no verdict covers."""

import sys

import cloudpickle
import pytest
import torch
from torch import nn

import tpviz as tv

cloudpickle.register_pickle_by_value(sys.modules[__name__])
X = torch.linspace(-1, 1, 64).sin().view(8, 8)


class Reader(nn.Module):
    """Reads the weight of ``dt`` itself, as Jamba's mixer does; asks ``up`` for its dtype alone."""

    def __init__(self, square):
        super().__init__()
        inner = 16 if square else 8
        self.up, self.dt, self.down = nn.Linear(8, 16), nn.Linear(16, inner), nn.Linear(inner, 4)

    def forward(self, x):
        x = x.to(self.up.weight.dtype).to(self.up.weight)
        return self.down((self.up(x).tanh() @ self.dt.weight.t() + self.dt.bias).tanh())


GRIDS = [tv.AxoNN(x=1, y=1, z=2), tv.AxoNN(x=2, y=1, z=1), tv.AxoNN(x=1, y=1, z=1, data=2)]
READ = "its weight is read elsewhere, by Reader"


def squares(y):
    return y.square().mean()


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: grid.short)
def test_in_easy_mode_a_layer_that_is_read_elsewhere_stays_whole(grid):
    for square in (False, True):
        make = lambda square=square: Reader(square)
        found = tv.verify_parallel(make, grid, X, 1, easy=True, loss=squares)
        assert found, found
        assert {path: why for path, (*_, why) in found.report.left.items()} == {"dt": READ}
        assert len(found.report.pairs) == 2


@pytest.mark.parametrize("strategy", [tv.Megatron(tp=2), tv.ATP(mesh=(2, 1))])
def test_no_pair_is_made_of_a_layer_that_is_read_elsewhere(strategy):
    with pytest.raises(ValueError, match=f"dt: {READ}"):
        tv.parallelize(Reader(True), strategy, X)
    rule = tv.Pair(first="up", second="dt")
    with pytest.raises(ValueError, match=f"dt: {READ}"):
        tv.parallelize(Reader(True), strategy, X, rules=rule)


def blind(strategy, how):
    """What the first forward says where no example showed it."""
    model = tv.parallelize(Reader(True), strategy, **how)
    with pytest.raises(ValueError) as caught:
        model(X)
    return str(caught.value)


def test_without_an_example_the_first_forward_says_it():
    rule = {"rules": tv.Pair(first="up", second="dt")}
    for strategy, how in ((GRIDS[1], {"easy": True}), (tv.Megatron(tp=2), rule)):
        for said in tv.launch(blind, strategy, how, world_size=2, progress=False):
            assert f"dt: {READ}" in said and "give parallelize example_inputs" in said


def plain():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


def nearly_one(y):
    """In float32; what changes its parameters by a unit there may not change this."""
    return (1 + y / 1000).float().mean()


def test_a_loss_in_float32_is_judged_as_one():
    pipe = tv.Merak(pp=2, microbatches=4)
    found = tv.verify_parallel(plain, pipe, X, 3, loss=nearly_one)
    assert found and found.reduced == {"the loss": "float32"}
    assert "the loss computes in float32: equal within float32 rounding" in repr(found)


class Watched(nn.Module):
    """Gives a number of another kind too, and has more than parameters."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 8)
        self.spare, self.drop = nn.Parameter(torch.ones(8)), nn.Dropout(0.1)
        self.register_buffer("table", torch.ones(8))

    def forward(self, x):
        y = self.drop(self.second(self.first(x).relu())) * self.table
        return y, y.argmax(-1)


def first_of(output):
    return squares(output[0])


def test_what_is_not_compared_is_said():
    found = tv.verify_parallel(Watched, tv.Megatron(tp=2), X, 1)
    assert found and found.not_compared == ("outputs of torch.int64", "Dropout in training mode")
    assert found.errors["buffer table"] == 0.0
    pipe = tv.verify_parallel(Watched, tv.Merak(pp=2, microbatches=4), X, 1, loss=first_of)
    assert pipe and pipe.not_compared == ("buffer table", "Dropout in training mode")
    assert "not compared" in repr(pipe) and "buffer table" in pipe._repr_html_()


class Spoiled(Watched):
    """On a rank it has a gradient that one process has not, and changes a buffer."""

    def forward(self, x):
        y, best = super().forward(x)
        if isinstance(self.first, nn.Linear) or not torch.is_grad_enabled():
            return y, best
        self.table = self.table + 1e-6
        return y + (self.spare - self.spare.detach()), best


def test_a_gradient_that_one_process_has_not_and_another_buffer_are_flagged():
    found = tv.verify_parallel(Spoiled, tv.Megatron(tp=2), X, 1)
    assert not found and found.errors["gradient spare"] == float("inf")
    assert found.errors["buffer table"] > 1e-7


class Aside(nn.Module):
    """Gives what the loss does not use, as Hugging Face's encoders their pooled output."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.side = nn.Linear(8, 16), nn.Linear(16, 8), nn.Linear(8, 8)

    def forward(self, x):
        return self.second(self.first(x).relu()), self.side(x)


def test_a_layer_that_the_loss_does_not_use_sends_nothing_back():
    found = tv.verify_parallel(Aside, GRIDS[1], X, 1, easy=True, loss=first_of)
    assert found and len(found.report.pairs) == 3 and found.ledger_ok

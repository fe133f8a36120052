"""Gradients on AxoNN's grid are complete after backward, whatever the backward was."""

import foreign
import pytest
import torch
from together import each
from torch import nn
from torch.utils.checkpoint import checkpoint

import tpviz as tv


class Model(nn.Module):
    """A pair, a norm, a parameter for some rows only, one for none; ``remake``: use_reentrant."""

    def __init__(self, remake=None):
        super().__init__()
        self.pairs = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(2)
        )
        self.norm, self.remake = nn.LayerNorm(8), remake
        self.some, self.none = (nn.Parameter(torch.ones(8)) for _ in range(2))

    def forward(self, x, some=False):
        for pair in self.pairs:
            again = self.remake is not None and torch.is_grad_enabled()
            x = x + (checkpoint(pair, x, use_reentrant=self.remake) if again else pair(x))
        return self.norm(x * self.some if some else x)


def on_ranks(fn, *args, **options):
    return tv.launch(fn, *args, world_size=4, progress=False, **options)


def both(strategy, remake=None, dtype=torch.float64):
    """(model in one process, the same split)."""
    torch.manual_seed(0)
    whole, model = Model().to(dtype), Model(remake).to(dtype)
    model.load_state_dict(whole.state_dict())
    return whole, tv.parallelize(model, strategy)


def off(split, whole):
    """Largest difference of gradients; infinite where only one of the two has one."""
    found = split.full_gradients()
    expected = {name: p.grad for name, p in whole.named_parameters() if p.grad is not None}
    if found.keys() != expected.keys():
        return float("inf")
    return max(float((found[name] - grad).abs().max()) for name, grad in expected.items())


BATCH = foreign.vectors(8, batch=8)


def loss(y):
    return (y * BATCH[: len(y)].cos()).square().mean()


def remade(strategy, remake):
    """(errors of two steps, gathers not foreseen, gathers to compute again, sums at the end) with
    blocks computed again in backward."""
    around, remake = remake == "around", None if remake == "around" else remake
    whole, split = both(strategy, remake)
    if remake:  # then all gradients come within backwards within the backward
        whole.norm.requires_grad_(False), split.module.norm.requires_grad_(False)
    own, errors = split.rows(BATCH), []
    for _ in range(2):
        for module, x in ((whole, BATCH), (split, own)):
            module.zero_grad()
            with tv.record() as recorder, recorder.step():
                own_x = x.clone().requires_grad_()
                y = checkpoint(module, own_x, use_reentrant=False) if around else module(own_x)
                (y * x.cos()).square().mean().backward()
        errors.append(off(split, whole))
    ledger = recorder.trace.ledger()
    return (
        max(errors),
        split.grid.depth.misses,
        ledger.total(phase="recompute", axis="z_ahead")[0],
        ledger.total(phase="sync")[0],
    )


REMADE = [
    (tv.AxoNN(1, 2, 2, 1, keep=keep), remake)
    for keep in (True, False)
    for remake in (None, False, True, "around")
]


@pytest.fixture(scope="module")
def again():
    return each(remade, REMADE)


@pytest.mark.parametrize("case", REMADE, ids=lambda c: f"keep={c[0].keep}-{c[1]}")
def test_recomputation_of_the_users(case, again):
    gathers = 0 if case[1] is None else 4
    for error, *counts in again[case]:
        assert error < 1e-14 and counts == [0, gathers, 1], (error, counts)


def accumulated(strategy):
    """([error after two microbatches, after a backward that failed midway], sums between)."""
    whole, split = both(strategy)
    (loss(whole(BATCH[:4])) + loss(whole(BATCH[4:]))).backward()
    with tv.record() as recorder:
        for number, half in enumerate(BATCH.chunk(2)):
            part = split.rows(half)
            y = split(part) * split.rows(BATCH[:4]).cos()
            if number == 0:
                with split.no_sync():
                    y.square().mean().backward()
                between = sum(row[3][0] == "sync" for row in recorder.comms)
            else:
                y.square().mean().backward()
    errors = [off(split, whole)]
    split.zero_grad()
    failing = split.module.pairs[0].register_forward_hook(
        lambda module, args, y: y.register_hook(lambda grad: 1 / 0) and None
    )
    try:
        split(split.rows(BATCH)).square().sum().backward()
    except ZeroDivisionError:
        split.zero_grad()
    failing.remove()
    whole.zero_grad()
    loss(whole(BATCH)).backward()
    (split(split.rows(BATCH)) * split.rows(BATCH).cos()).square().mean().backward()
    return [*errors, off(split, whole)], between


def swapped():
    """Error of a forward after one without a backward, and weights changed behind every counter."""
    whole, split = both(tv.AxoNN(x=1, y=1, z=2, data=2))
    own = split.rows(BATCH)
    with split.no_sync():
        loss(split(own)).backward()
    loss(split(own)).backward()  # the order goes on after the first microbatch
    split(own)
    for model in (whole, split.module):
        for parameter in model.parameters():
            parameter.data.mul_(0.5)
    return float((split(own) - split.rows(whole(BATCH))).abs().max())


def test_weights_changed_after_a_forward_for_nothing():
    assert max(on_ranks(swapped)) < 1e-12


def test_accumulation_and_a_backward_that_failed():
    cases = [(tv.AxoNN(1, 1, 2, 2),), (tv.AxoNN(2, 1, 2, 1, overlap=()),)]
    for case, found in each(accumulated, cases).items():
        for errors, between in found:
            assert max(errors) < 1e-14 and between == 0, (case, errors, between)


def updated():
    """Whether a forward after an update uses the new weights, though the old ones had been sent for
    by the order of a step with two microbatches; error of a backward from within the model."""
    whole, split = both(tv.AxoNN(1, 1, 2, 1))
    own = split.rows(BATCH)
    with split.no_sync():
        split(own).sum().backward()
    split(own).sum().backward()
    split(own)
    sent = split.grid.depth.ahead is not None
    with torch.no_grad():
        for p in [*split.parameters(), *whole.parameters()]:
            p.mul_(2)
    good = sent and torch.allclose(split(own), whole(own), atol=1e-12)
    for module, x in ((whole, BATCH), (split.module, own)):
        module.zero_grad()
        (module.pairs[0](x) * x.cos()).square().mean().backward()
    return good, off(split, whole)


def test_an_update_between_and_a_backward_from_within():
    found = tv.launch(updated, world_size=2, progress=False)
    assert all(good and error < 1e-14 for good, error in found), found


def twice(strategy, easy):
    """What a gradient penalty says, whose second derivatives would miss what ranks send."""
    torch.manual_seed(0)
    split = tv.parallelize(Model().double(), strategy, easy=easy)
    x = split.rows(BATCH).clone().requires_grad_()
    (grad,) = torch.autograd.grad(split(x).square().sum(), x, create_graph=True)
    try:
        grad.square().sum().backward()
    except RuntimeError as error:
        return str(error)


def test_second_derivatives_are_refused():
    cases = [
        (tv.AxoNN(2, 1, 1, 1), False),
        (tv.AxoNN(1, 2, 1, 1), False),
        (tv.AxoNN(2, 1, 1, 1), True),
        (tv.AxoNN(1, 2, 1, 1), True),
        (tv.AxoNN(1, 1, 2, 1, keep=False), False),
        (tv.ATP(mesh=(1, 2)), False),
    ]
    for case, said in each(twice, cases, world_size=2).items():
        assert all(text and "once_differentiable" in text for text in said), case


def partly(strategy):
    """Error where only the first share's rows use a parameter, and none uses another."""
    whole, split = both(strategy)
    first, rest = BATCH.chunk(2)
    y = torch.cat([whole(first, some=True), whole(rest)])
    loss(y).backward()
    own = split.rows(BATCH)
    (split(own, some=split.share == 0) * own.cos()).square().mean().backward()
    return off(split, whole), split.module.none.grad is None


def test_a_parameter_that_some_ranks_use():
    cases = [(tv.AxoNN(1, 1, 1, 2),), (tv.AxoNN(1, 1, 2, 1),)]
    for found in each(partly, cases, world_size=2).values():
        assert all(error < 1e-14 and none for error, none in found), found


def clipped(strategy, easy):
    """(norm, one process's, error after clipping): every number of the model counts once."""
    torch.manual_seed(0)
    whole, model = Model().double(), Model().double()
    model.load_state_dict(whole.state_dict())
    split = tv.parallelize(model, strategy, easy=easy)
    loss(whole(BATCH)).backward()
    own = split.rows(BATCH)
    (split(own) * own.cos()).square().mean().backward()
    norms = split.clip_grad_norm_(1e-3), nn.utils.clip_grad_norm_(whole.parameters(), 1e-3)
    return *map(float, norms), off(split, whole)


CLIPPED = [
    *(
        (strategy, easy)
        for strategy in (tv.AxoNN(2, 2, 1, 1), tv.AxoNN(1, 2, 2, 1), tv.AxoNN(2, 1, 1, 2))
        for easy in (False, True)
    ),
    (tv.ATP(mesh=(2, 2)), False),
]


@pytest.fixture(scope="module")
def norms():
    return each(clipped, CLIPPED)


@pytest.mark.parametrize("case", CLIPPED, ids=lambda c: f"{c[0].short}-easy={c[1]}")
def test_clipping(case, norms):
    for norm, expected, error in norms[case]:
        assert norm == pytest.approx(expected, rel=1e-12) and error < 1e-15, (norm, expected, error)

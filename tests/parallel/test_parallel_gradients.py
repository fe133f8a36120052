"""Gradients on AxoNN's grid are complete after backward, whatever the backward was; ledgers."""

import foreign
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tpviz as tv


class Model(nn.Module):
    """A pair, a norm, a parameter for some rows only, one for none; ``remake``: use_reentrant."""

    def __init__(self, remake=None):
        super().__init__()
        self.pairs = nn.ModuleList(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))
                                   for _ in range(2))
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
    return (y * BATCH[:len(y)].cos()).square().mean()


def remade(strategy, remake):
    """(errors of three steps, gathers not foreseen) with blocks computed again in backward."""
    whole, split = both(strategy, remake)
    own, errors = split.rows(BATCH), []
    for _ in range(3):
        for module, x in ((whole, BATCH), (split, own)):
            module.zero_grad()
            (module(x.clone().requires_grad_()) * x.cos()).square().mean().backward()
        errors.append(off(split, whole))
    return max(errors), split.grid.depth.misses


@pytest.mark.parametrize("keep", [True, False])
def test_recomputation_of_the_users(keep):
    for remake in (None, False, True):
        for error, misses in on_ranks(remade, tv.AxoNN(1, 2, 2, 1, keep=keep), remake):
            assert error < 1e-14 and misses == 0, (remake, error, misses)


def accumulated(strategy):
    """(error after two microbatches, sums of gradients on the way, error after a failed backward,
    error without no_sync in it)."""
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
    y = split(split.rows(BATCH))
    y.register_hook(lambda grad: 1 / 0)
    try:
        y.sum().backward()
    except ZeroDivisionError:
        split.zero_grad()
    whole.zero_grad()
    loss(whole(BATCH)).backward()
    (split(split.rows(BATCH)) * split.rows(BATCH).cos()).square().mean().backward()
    return [*errors, off(split, whole)], between


@pytest.mark.parametrize("strategy", [tv.AxoNN(1, 1, 2, 2), tv.AxoNN(2, 1, 2, 1, overlap=())],
                         ids=lambda s: s.short)
def test_accumulation_and_a_backward_that_failed(strategy):
    for errors, between in on_ranks(accumulated, strategy):
        assert max(errors) < 1e-14 and between == 0, (errors, between)


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
    for strategy in (tv.AxoNN(1, 1, 1, 2), tv.AxoNN(1, 1, 2, 1)):
        found = tv.launch(partly, strategy, world_size=2, progress=False)
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


@pytest.mark.parametrize("easy", [False, True])
@pytest.mark.parametrize("strategy", [tv.AxoNN(2, 2, 1, 1), tv.AxoNN(1, 2, 2, 1),
                                      tv.AxoNN(2, 1, 1, 2)], ids=lambda s: s.short)
def test_clipping(strategy, easy):
    for norm, expected, error in on_ranks(clipped, strategy, easy):
        assert norm == pytest.approx(expected, rel=1e-12) and error < 1e-15, (norm, expected, error)


def test_clipping_without_a_grid():
    for norm, expected, error in on_ranks(clipped, tv.ATP(mesh=(2, 2)), False):
        assert norm == pytest.approx(expected, rel=1e-12) and error < 1e-15


# -- what is sent ----------------------------------------------------------------------------------
def sent(strategy, make, rules=None):
    torch.manual_seed(0)
    model = tv.parallelize(make(), strategy, rules=rules)
    x = model.rows(torch.ones(4, foreign.TOKENS, 16)).clone().requires_grad_()
    for _ in range(2):
        with tv.record() as recorder, recorder.step():
            model(x).sum().backward()
    return recorder.trace.ledger(), model.report.ledger(x.shape[0] * foreign.TOKENS)


def mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.LayerNorm(16))


def test_ledger_by_hand():
    """x = 1, y = 2, z = 2: rows of 2 sequences, blocks of 16 * 32 / 2."""
    tokens, block, whole, item = 2 * foreign.TOKENS, 16 * 32 // 2, 32 + 16 // 2 + 2 * 16, 4
    expected = tv.Ledger.of([
        ("z_ahead", "all_gather", "forward", 2, block * item, 2),
        ("z_ahead", "all_gather", "backward", 2, block * item, 2),
        ("z", "reduce_scatter", "backward", 2, block * item, 2),
        ("z", "all_reduce", "sync", 1, (whole + 4) * item, 2),
        ("y", "all_reduce", "forward", 1, tokens * 32 * item, 2),
        ("y", "all_gather", "forward", 1, tokens * 16 * item, 2),
        ("y", "all_reduce", "backward", 1, tokens * 32 * item, 2),
        ("y", "all_gather", "backward", 1, tokens * 16 * item, 2)])
    for measured, formula in on_ranks(sent, tv.AxoNN(1, 2, 2, 1, keep=False), mlp):
        assert measured == formula == expected, measured.diff(expected)


@pytest.mark.parametrize("strategy", [
    tv.AxoNN(2, 2, 1, 1), tv.AxoNN(2, 1, 1, 2), tv.AxoNN(1, 1, 2, 2, overlap=("ors",)),
    tv.AxoNN(2, 1, 2, 1, keep=False, overlap=())], ids=lambda s: s.short)
def test_ledger_is_the_reports(strategy):
    rule = tv.Pair(first="inward", second="outward", kind="attention", heads="count",
                   fused="blocks")
    for make, rules in ((mlp, None), (foreign.Attention, rule)):
        for measured, formula in on_ranks(sent, strategy, make, rules):
            assert len(formula) and measured == formula, measured.diff(formula)


# -- small matters ---------------------------------------------------------------------------------
def small_matters():
    whole, split = both(tv.AxoNN(1, 1, 2, 2, keep=False), dtype=torch.float32)
    x, own = BATCH.float(), split.rows(BATCH.float())
    good = [split.shares == 4, torch.equal(own, x.chunk(4)[split.share])]
    asked = len(split.grid.depth.asked)
    with torch.no_grad():
        good += [torch.allclose(split(x), whole(x), atol=1e-6), asked == len(
            split.grid.depth.asked)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, expected = split(own), whole(own)
    y.float().sum().backward()
    good += [torch.allclose(y.float(), expected.float(), atol=0.1)]
    full = split.full_state_dict()
    good += [all(torch.equal(full[name], value) for name, value in whole.state_dict().items())]
    model = Model()
    model.pairs[0][0].weight.requires_grad_(False)
    frozen = tv.parallelize(model, tv.AxoNN(1, 1, 2, 2))
    frozen(own).sum().backward()
    good += [model.pairs[0][0].weight.grad is None, model.pairs[0][2].weight.grad is not None]
    return good


def test_small_matters():
    for good in on_ranks(small_matters):
        assert all(good), good


def differing(strategy, which):
    import torch.distributed as dist
    torch.manual_seed(dist.get_rank() in which)
    try:
        return tv.parallelize(mlp(), strategy)
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("strategy", [tv.AxoNN(1, 1, 2, 2), tv.AxoNN(1, 1, 1, 4), tv.ATP()],
                         ids=lambda s: s.short)
def test_ranks_with_other_numbers_are_named(strategy):
    for said in on_ranks(differing, strategy, [2]):
        assert said.startswith("the ranks start from different numbers: 0.weight differs (4 of 6 "
                               "do): ranks 0, 1, 3 have one value, rank 2 has another; seed every")


# -- outside of any world --------------------------------------------------------------------------
def test_plan():
    report = tv.parallelize(mlp(), tv.AxoNN(x=2, y=2, z=4, data=2)).report
    assert [row[4:7] for row in report.to_table()[1:]] == [
        ["32 x 16", "16 x 8 in 4 pieces", "out x, in y, block z"],
        ["16 x 32", "8 x 16 in 4 pieces", "out y, in x, block z"]]
    assert report.held == 2 * 16 * 8 // 4 + 16 + 8
    assert (report.totals.whole, report.totals.pieces) == ((16 + 8 + 32, 4), (64, 2))
    assert report.notes[-2].startswith("the batch is cut into 8 shares")
    with pytest.raises(ValueError, match="0: block=12 does not split evenly over z=8: use z=6 or"):
        tv.parallelize(nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 2)),
                       tv.AxoNN(x=2, y=1, z=8))


@pytest.mark.parametrize("strategy, message", [
    (tv.AxoNN(recompute=True), "recompute=True is not possible here: recompute with the model's"),
    (tv.AxoNN(accumulation=2), r"accumulation=2 .* all but the last within model.no_sync\(\)"),
    (tv.AxoNN(tune=True), "products of a model that is not ours are not timed; use tune=False"),
    (tv.AxoNN(clip=1.0), r"clip=1.0 .* call model.clip_grad_norm_\(most\) after backward"),
])
def test_knobs_that_cannot_be(strategy, message):
    for easy in (False, True):
        with pytest.raises(ValueError, match=message):
            tv.parallelize(mlp(), strategy, easy=easy)


def test_without_a_grid_there_is_one_share():
    split = tv.parallelize(mlp(), tv.ATP())
    with split.no_sync():
        assert split.rows(BATCH) is BATCH and (split.share, split.shares) == (0, 1)

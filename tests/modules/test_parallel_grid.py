"""A user's module on AxoNN's grid: ledgers, plans, errors and small matters."""

import foreign
import pytest
import torch
from test_parallel_gradients import BATCH, Model, both, on_ranks
from together import each
from torch import nn

import tpviz as tv


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
    expected = tv.Ledger.of(
        [
            ("z_ahead", "all_gather", "forward", 2, block * item, 2),
            ("z_ahead", "all_gather", "backward", 2, block * item, 2),
            ("z", "reduce_scatter", "backward", 2, block * item, 2),
            ("z", "all_reduce", "sync", 1, (whole + 4) * item, 2),
            ("y", "all_reduce", "forward", 1, tokens * 32 * item, 2),
            ("y", "all_gather", "forward", 1, tokens * 16 * item, 2),
            ("y", "all_reduce", "backward", 1, tokens * 32 * item, 2),
            ("y", "all_gather", "backward", 1, tokens * 16 * item, 2),
        ]
    )
    for measured, formula in on_ranks(sent, tv.AxoNN(1, 2, 2, 1, keep=False), mlp):
        assert measured == formula == expected, measured.diff(expected)


RULE = tv.Pair(first="inward", second="outward", kind="attention", heads="count", fused="blocks")
SENT = [
    (strategy, make, rules)
    for strategy in (
        tv.AxoNN(2, 2, 1, 1),
        tv.AxoNN(2, 1, 1, 2),
        tv.AxoNN(1, 1, 2, 2, keep=False, overlap=("ors",)),
        tv.AxoNN(2, 1, 2, 1, keep=False, overlap=()),
    )
    for make, rules in ((mlp, None), (foreign.Attention, RULE))
]


@pytest.fixture(scope="module")
def ledgers():
    return each(sent, SENT)


@pytest.mark.parametrize("case", SENT, ids=lambda case: f"{case[0].short}-{case[1].__name__}")
def test_ledger_is_the_reports(case, ledgers):
    for measured, formula in ledgers[case]:
        assert len(formula) and measured == formula, measured.diff(formula)


# -- small matters ---------------------------------------------------------------------------------
def small_matters():
    whole, split = both(tv.AxoNN(1, 1, 2, 2, keep=False), dtype=torch.float32)
    x, own = BATCH.float(), split.rows(BATCH.float())
    good = [split.shares == 4, torch.equal(own, x.chunk(4)[split.share])]
    asked = len(split.grid.depth.asked)
    with torch.no_grad():
        good += [
            torch.allclose(split(x), whole(x), atol=1e-6),
            asked == len(split.grid.depth.asked),
        ]
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


def test_ranks_with_other_numbers_are_named():
    cases = [(s, (2,)) for s in (tv.AxoNN(1, 1, 2, 2), tv.AxoNN(1, 1, 1, 4), tv.ATP())]
    for case, said in each(differing, cases).items():
        for text in said:
            assert text.startswith(
                "the ranks start from different numbers: 0.weight differs (4 of 6 "
                "do): ranks 0, 1, 3 have one value, rank 2 has another; seed every"
            ), case


def other_rows(example=None):
    model, _ = both(tv.AxoNN(2, 1, 1, 2))
    split = tv.parallelize(model, tv.AxoNN(2, 1, 1, 2), example)
    import torch.distributed as dist

    try:
        split(BATCH.chunk(4)[dist.get_rank()])
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("example", [None, BATCH], ids=["", "example"])
def test_ranks_of_a_plane_with_other_rows_are_told(example):
    for said in on_ranks(other_rows, example):
        assert said.startswith("the ranks of a plane (same index on data and z) were given differe")
        assert "model.shares=2 and rank=model.share" in said


# -- outside of any world --------------------------------------------------------------------------
def test_plan():
    report = tv.parallelize(mlp(), tv.AxoNN(x=2, y=2, z=4, data=2)).report
    assert [row[4:7] for row in report.to_table()[1:]] == [
        ["32 x 16", "16 x 8 in 4 shards", "out x, in y, block z"],
        ["16 x 32", "8 x 16 in 4 shards", "out y, in x, block z"],
    ]
    assert report.held == 2 * 16 * 8 // 4 + 16 + 8
    assert (report.totals.whole, report.totals.pieces) == ((16 + 8 + 32, 4), (64, 2))
    assert report.notes[-2].startswith("the batch is cut into 8 shares")
    with pytest.raises(ValueError, match="0: block=12 does not split evenly over z=8: use z=6 or"):
        tv.parallelize(
            nn.Sequential(nn.Linear(2, 12), nn.ReLU(), nn.Linear(12, 2)), tv.AxoNN(x=2, y=1, z=8)
        )


@pytest.mark.parametrize(
    "strategy, message",
    [
        (
            tv.AxoNN(recompute=True),
            "recompute='full' is not possible here: recompute with the model's",
        ),
        (tv.AxoNN(accumulation=2), r"accumulation=2 .* all but the last within model.no_sync\(\)"),
        (tv.AxoNN(tune=True), "products of a model that is not ours are not timed; use tune=False"),
        (tv.AxoNN(clip=1.0), r"clip=1.0 .* call model.clip_grad_norm_\(most\) after backward"),
    ],
)
def test_knobs_that_cannot_be(strategy, message):
    for easy in (False, True):
        with pytest.raises(ValueError, match=message):
            tv.parallelize(mlp(), strategy, easy=easy)


def test_sparse_gradients_cannot_be():
    model = nn.Sequential(nn.Embedding(4, 16, sparse=True), mlp())
    with pytest.raises(ValueError, match="0 has sparse gradients, which AxoNN's means over shares"):
        tv.parallelize(model, tv.AxoNN())
    assert tv.parallelize(model, tv.ATP()).report


def test_without_a_grid_there_is_one_share():
    split = tv.parallelize(mlp(), tv.ATP())
    with split.no_sync():
        assert split.rows(BATCH) is BATCH and (split.share, split.shares) == (0, 1)

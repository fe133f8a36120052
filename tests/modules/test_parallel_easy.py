"""AxoNN's easy mode: every linear layer by itself, every rank with rows of its own."""

import foreign
import pytest
import torch
from test_parallel_axonn import check, grids
from together import each
from torch import nn

import tpviz as tv


class Small(nn.Module):
    """Linear layers that are no pairs, a norm between, one used twice, one that stays whole."""

    def __init__(self):
        super().__init__()
        self.up, self.norm = nn.Linear(8, 16), nn.LayerNorm(16)
        self.same, self.down = nn.Linear(16, 16, bias=False), nn.Linear(16, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x):
        x = self.norm(self.up(x)).softmax(-1)
        return self.last(self.down(self.same(self.same(x)) + x))


@pytest.mark.parametrize("equal_rows", [False, True])
def test_grids_of_four(equal_rows):
    """All of them, and with the promise every fourth."""
    ways = [dict(keep=False, overlap=()), {}]
    strategies = [tv.AxoNN(*grid, **ways[k % 2]) for k, grid in enumerate(grids(4))]
    strategies = strategies[::4] if equal_rows else strategies
    layers = {strategy.short: 3 if strategy.x > 1 else 4 for strategy in strategies}
    for count in (3, 4):
        chosen = [s for s in strategies if layers[s.short] == count]
        check(count, Small, foreign.vectors(8), chosen, easy=True, equal_rows=equal_rows)


@pytest.mark.parametrize("name, layers", [("gpt2", 8), ("llama", 15)])
def test_hugging_face(name, layers):
    check(
        layers, getattr(foreign, name), foreign.tokens(), [tv.AxoNN(2, 2, 1, 1)], steps=1, easy=True
    )


def unequal(strategy, counts):
    """Largest difference of outputs, gradients and, after three steps, parameters from one
    process's with the mean of the shares' means as loss; rank r has ``counts[r]`` rows."""
    torch.manual_seed(0)
    whole, model = Small().double(), Small().double()
    model.load_state_dict(whole.state_dict())
    split = tv.parallelize(model, strategy, easy=True)
    shares = foreign.vectors(8, batch=sum(counts)).split(counts)
    optimizers = [torch.optim.AdamW(m.parameters(), lr=1e-3) for m in (whole, split)]
    errors = []
    for _ in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        expected = [whole(rows) for rows in shares]
        torch.stack([y.square().mean() for y in expected]).mean().backward()
        y = split(shares[split.share])
        y.square().mean().backward()
        errors.append((y - expected[split.share]).abs().max())
        found = split.full_gradients()
        errors += [(found[name] - p.grad).abs().max() for name, p in whole.named_parameters()]
        for optimizer in optimizers:
            optimizer.step()
    found = split.full_state_dict()
    errors += [(found[name] - p).abs().max() for name, p in whole.named_parameters()]
    return float(torch.stack(errors).max())


def test_unequal_batches():
    cases = [(tv.AxoNN(*g), (3, 1, 4, 2)) for g in ((2, 2, 1, 1), (1, 2, 2, 1), (2, 1, 1, 2))]
    for case, found in each(unequal, cases).items():
        assert max(found) < 1e-12, (case, found)


def few_rows(strategy, counts):
    """Largest difference of gradients of a sum over rows, where some ranks or all have none."""
    torch.manual_seed(0)
    whole, model = Small().double(), Small().double()
    model.load_state_dict(whole.state_dict())
    split = tv.parallelize(model, strategy, easy=True)
    shares = torch.ones(sum(counts), 8, dtype=torch.float64).cumsum(0).split(counts)
    (sum(whole(rows).square().sum() for rows in shares) / len(counts)).backward()
    split(shares[split.share]).square().sum().backward()
    found = split.full_gradients()
    return max(float((found[name] - p.grad).abs().max()) for name, p in whole.named_parameters())


def test_no_rows():
    cases = [(tv.AxoNN(2, 2, 1, 1), counts) for counts in ((3, 0, 0, 1), (0, 0, 0, 0))]
    for case, found in each(few_rows, cases).items():
        assert max(found) < 1e-12, (case, found)


def sent(strategy, equal_rows):
    torch.manual_seed(0)
    model = tv.parallelize(Pair(), strategy, easy=True, equal_rows=equal_rows)
    x = torch.ones(3, 8, requires_grad=True)
    for _ in range(2):
        with tv.record() as recorder, recorder.step():
            model(x).sum().backward()
    return recorder.trace.ledger(), model.report.ledger(3)


class Pair(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 8, bias=False))


def test_ledger_by_hand():
    b, item = 3, 4
    whole = 16 + 32  # a bias and the norm
    expected = tv.Ledger.of(
        [
            *(
                ("y", name, phase, 2, b * (8 + 16) // 2 * item, 2)
                for name, phase in [("all_to_all", "forward"), ("all_to_all", "backward")]
            ),
            *(
                ("y", name, phase, 2, b * (16 + 8) * item, 2)
                for name, phase in [("reduce_scatter", "forward"), ("all_gather", "backward")]
            ),
            *(
                ("x", name, phase, 2, b * (16 + 8) // 2 * item, 2)
                for name, phase in [("all_to_all", "forward"), ("all_to_all", "backward")]
            ),
            *(
                ("x", name, phase, 2, b * (8 + 16) * item, 2)
                for name, phase in [
                    ("all_gather", "forward"),
                    ("all_gather", "backward"),
                    ("reduce_scatter", "backward"),
                ]
            ),
            ("x", "all_reduce", "forward", 2, 8, 2),
            ("y", "all_reduce", "forward", 2, 8, 2),
            ("x", "all_reduce", "sync", 1, (whole + 3) * item, 2),
            ("y", "all_reduce", "sync", 1, (whole + 3) * item, 2),
        ]
    )
    for measured, formula in tv.launch(
        sent, tv.AxoNN(2, 2, 1, 1), False, world_size=4, progress=False
    ):
        assert measured == formula == expected, measured.diff(expected)


GRIDS = [(tv.AxoNN(*grid, keep=grid[2] % 2 == 1), True) for grid in grids(4)]


@pytest.fixture(scope="module")
def ledgers():
    return each(sent, GRIDS)


@pytest.mark.parametrize("case", GRIDS, ids=lambda case: case[0].short)
def test_ledger_is_the_reports(case, ledgers):
    for measured, formula in ledgers[case]:
        assert len(formula) and measured == formula, measured.diff(formula)


# -- outside of any world --------------------------------------------------------------------------
def test_plan():
    model = nn.Sequential(nn.Linear(8, 16), nn.Softmax(-1), nn.Linear(16, 6), nn.Linear(6, 6))
    model.add_module("tied", nn.Linear(6, 6))
    model.tied.weight = model[3].weight
    report = tv.parallelize(model, tv.AxoNN(x=4, y=2, z=2, data=1), easy=True).report
    assert [row[1:7] for row in report.to_table()[1:]] == [
        ["0", "linear", "easy mode", "16 x 8", "4 x 4 in 2 shards", "out x, in y, block z"]
    ]
    assert report.held == 4 * 4 // 2 + 16 and report.totals.shares == 16
    why = {path: reason for path, (*_, reason) in report.left.items()}
    assert why["2"].startswith("out_features=6 does not split evenly over x=4: use")
    assert why["3"] == "its weight is tied to tied.weight"
    assert "1 linear layers; of" in report.describe()


@pytest.mark.parametrize(
    "strategy, options, message",
    [
        (tv.ATP(), {"easy": True}, "easy=True is a mode of AxoNN: use AxoNN"),
        (tv.AxoNN(), {"equal_rows": True}, "use it with easy=True"),
        (tv.AxoNN(), {"easy": True, "rules": {"first": "0", "second": "2"}}, "use one of the two"),
        (
            tv.AxoNN(x=1, y=3),
            {"easy": True},
            "nothing in Pair can be put on the grid: 0: in_features=",
        ),
    ],
)
def test_easy_mode_that_cannot_be(strategy, options, message):
    with pytest.raises(ValueError, match=message):
        tv.parallelize(Pair(), strategy, **options)

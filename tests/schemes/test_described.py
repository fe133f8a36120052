"""Every strategy says in 40 words what it does."""

import doctest

import pytest

import tpviz as tv
import tpviz.schemes.strategy

ALONE = [
    tv.Megatron(tp=2),
    tv.DataParallel(dp=2),
    tv.ATP(mesh=(2, 2)),
    tv.AxoNN(x=2, z=2, data=2),
    tv.Merak(pp=2, tp=2, dp=2, microbatches=4),
    tv.T3(tp=2),
    tv.Custom({"dp": 2}, lambda workload, mesh: None),
]


@pytest.mark.parametrize("strategy", ALONE, ids=lambda strategy: type(strategy).__name__)
def test_in_40_words(strategy):
    said = strategy.describe()
    assert said.startswith(f"{strategy.caption}: ") and said.endswith(".") and "`" not in said
    assert 10 <= len(said.split()) <= 40


def test_a_product_describes_each_of_its_strategies():
    said = (tv.Megatron(tp=2) * tv.DataParallel(dp=2)).describe()
    for strategy in (tv.Megatron(tp=2), tv.DataParallel(dp=2)):
        assert strategy.describe().partition(": ")[2] in said


def test_the_example_is_true():
    done = doctest.testmod(tpviz.schemes.strategy)
    assert done.attempted and not done.failed


def test_a_strategy_says_little():
    """What every factor must say; words, products and what `search` asks are its bases'."""
    own = vars(tpviz.schemes.strategy.Strategy).items()
    assert sum(callable(v) or isinstance(v, property) for k, v in own if k[0] != "_") <= 15

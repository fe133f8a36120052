"""Faults: factors that cannot be are refused where they are given, not deep in a run."""

from math import inf, nan

import pytest

from tpviz import Faults


@pytest.mark.parametrize(
    "factor, message",
    [
        *((factor, "=.* must be a number above 0") for factor in (nan, -inf, 0, -1.5, "2", None)),
        (True, "=True must be a number above 0"),
        (inf, " must be finite"),
        (10**400, " is too large: the most is 1.79769e.308"),
    ],
)
@pytest.mark.parametrize("what", ["stragglers", "slow_links"])
def test_factors_are_finite_numbers_above_0(what, factor, message):
    with pytest.raises(ValueError, match=rf"{what}\[0\]{message}"):
        Faults(**{what: {0: factor}})


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"stragglers": {-1: 2.0}}, "rank in stragglers=-1 is too small"),
        ({"slow_links": {"0": 2.0}}, "rank in slow_links must be a whole number, not '0'"),
        ({"slow_links": 3}, "slow_links=3 must be {rank: factor}"),
        ({"jitter": nan}, "jitter must be a number from 0 to 100, not nan"),
        ({"jitter": inf}, "jitter=inf is not between 0 and 100"),
        ({"seed": 1.5}, "seed must be a whole number"),
    ],
)
def test_what_else_cannot_be(changes, message):
    with pytest.raises(ValueError, match=message):
        Faults(**changes)


def test_factors_reach_kernels_and_links():
    faults = Faults(stragglers={3: 1.5}, slow_links={1: 4, 2: 2})
    assert [faults.kernel_factor(rank) for rank in (0, 3)] == [1.0, 1.5]
    assert [faults.link_factor(g) for g in ((0, 3), (0, 2), (1, 2))] == [1.0, 2, 4]

"""Contention on real ranks: structure, not speed; medians and words by hand."""

import numpy as np
import pytest

from tpviz.evidence import atp
from tpviz.evidence.atp.contended import Contention

MADE = Contention(
    np.ones((2, 4)),
    np.array([[1.0, 2, 3, 4], [1, 2, 3, 4]]),
    1.0,
    64,
    "float32",
    4096,
    3,
    "2 cores, 2 ranks",
    "this machine, gloo",
)


def test_numbers_by_hand():
    assert MADE.ratio == MADE.kappa == 2.5 and MADE.spread == (1.75, 3.25)
    faster = Contention(MADE.under, MADE.alone, *list(vars(MADE).values())[2:])
    assert faster.ratio == pytest.approx((1 / 2 + 1 / 3) / 2) and faster.kappa == 1.0


def test_it_says_where_everything_is_from():
    words = MADE.describe()
    assert "takes 2.50 times as long" in words and "(this machine, gloo)" in words
    assert "1.5 to 2.1 (analysis of the authors' traces, A100 80GB PCIe)" in words
    assert "not the paper's" in words and "emulated clusters kappa is 1 by construction" in words
    assert "Only" not in words
    table = MADE.to_table()
    assert table[1][1] == "2.50" and table[1][-1] == "measured, this machine, gloo"
    assert table[2][2] == "1.5 to 2.1" and "authors' traces" in table[2][-1]
    assert "kappa=2.50" in repr(MADE) and "2.50" in MADE._repr_html_()


def test_a_collective_that_ends_early_is_said():
    short = Contention(MADE.alone, MADE.under, 0.4, *list(vars(MADE).values())[3:])
    assert "Only 40 % of the GEMMs ended before their all-reduces did" in short.describe()


def test_measured_on_real_ranks():
    found = atp.contention(2, size=96, payload=2**16, repeats=3, progress=False, device="cpu")
    assert found.alone.shape == found.under.shape == (2, 3)
    assert (found.alone > 0).all() and (found.under > 0).all()
    assert found.kappa >= 1 and found.spread[0] <= found.ratio <= found.spread[1]
    assert found.payload == 2**16 and found.collectives >= 1 and 0 <= found.in_flight <= 1
    assert found.badge == "this machine, gloo" and found.machine.endswith("cores, 2 ranks")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"world_size": 1}, "world_size=1 is too small: the least that works is 2"),
        ({"dtype": "int8"}, "dtype='int8' is not possible"),
        ({"repeats": 0}, "repeats=0 is too small"),
        ({"size": 0}, "size=0 is too small"),
        ({"payload": 1}, "payload=1 is too small"),
    ],
)
def test_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        atp.contention(**arguments)

"""Sums and gathers inside of groups of ranks and across: equal, exact bytes, and when they pay."""

from dataclasses import replace

import pytest
from tiny import EXACT, TINY, UNTIED, assert_as_captured, assert_equal, named, peaks
from together import together

import tpviz as tv
from tpviz.schemes.ownership import ownership

MIXTURE = replace(TINY, experts=4, moe_ffn=24, routing=tv.Routing(skew=1.0))


def data(dp, zero, **knobs):
    return tv.DataParallel(**{"dp": dp, "zero": zero, "within": 2, "bucket_mb": 0.02} | knobs)


CASES = [
    *((data(4, zero), (TINY, UNTIED)[zero % 2]) for zero in range(4)),
    (data(4, 2, accumulation=2), TINY),
    (data(4, 3, accumulation=2, reshard_after_forward=False), UNTIED),
    ((tv.Megatron(tp=2, sp=True) * data(4, 1)).with_order("across-tp-within"), TINY),
    (tv.Context(cp=2) * data(4, 3), TINY),
    (tv.Experts(ep=2) * data(4, 3), MIXTURE),
    (data(8, 3, within=4), TINY),
]
FEW = [(data(4, 0, gradients="int8"), TINY), (data(4, 3, gradients="int4", accumulation=2), TINY)]


@pytest.mark.parametrize("strategy, w", CASES, ids=named)
def test_equals_one_process(strategy, w):
    assert_equal(strategy, w, among=CASES)


@pytest.mark.parametrize("strategy, w", CASES + FEW, ids=named)
def test_program_is_that_of_the_formulas(strategy, w):
    assert_as_captured(strategy, w)


def test_in_few_bits_errors_are_within_what_scales_allow():
    for found in together(lambda case: tv.gradient_error(*case), FEW).values():
        assert found.within and 0.2 < max(found.share.values()), found


def test_bytes_by_hand():
    """Across groups a rank sends what one of n ranks has to; inside, all."""
    w = tv.GPT(layers=2, hidden=64, heads=4, seq=32, batch=16, vocab=256)
    size, n, m = w.num_parameters * 4, 4, 2
    at = [tv.DataParallel(dp=8, zero=zero, within=n, bucket_mb=100).ledger(w) for zero in range(4)]
    half = size / n * (m - 1) / m
    assert at[0].total(axis="across") == (1, size / n, 2 * half)
    assert at[0].total(axis="within") == (2, 2 * size, 2 * size * 3 / 4)
    assert at[1] == at[2] and at[1].total(axis="across") == (2, 2 * size / n, 2 * half)
    blocks = 2 * (12 * 64 * 64 + 13 * 64) * 4
    assert at[3].total(axis="across")[1] == (2 * size + blocks) / n
    assert {row.axis for row in at[3]} == {"across", "within"}


def test_who_keeps_what():
    """Rank 1, in the first group of two the second, has the third quarter of four."""
    for row in ownership(data(4, 3), UNTIED):
        ranges = row["flat"]["ranges"]
        assert row["flat"]["axis"] == "across*within" and len(ranges) == 4
        assert ranges[0][1] == ranges[2][0] and ranges[2][1] == ranges[1][0]
    cut = ownership(tv.Megatron(tp=2) * data(4, 3), TINY)
    assert all(row["flat"]["axis"] == "across*within" for row in cut)


def test_memory_is_tracked_to_the_byte():
    cases = CASES[:4]
    for strategy, w in cases:
        found, formula = peaks(strategy, w, cases, tries=1), strategy.memory(w)
        assert {k: found[k] for k in EXACT} == {k: formula[k] for k in EXACT}, strategy


def test_it_pays_where_machines_have_few_nics():
    w = tv.GPT(layers=4, hidden=2048, heads=16, seq=1024, batch=16, vocab=32000)
    for zero in (0, 3):
        times = {}
        for nics in (1, 8):
            box = tv.clusters.nvswitch_nodes(2, 8, nics=nics)
            flat, levels = (
                tv.predict(tv.DataParallel(16, zero=zero, within=n, bucket_mb=25.0), w, box)
                for n in (0, 8)
            )
            times[nics] = levels.step_time / flat.step_time
        assert times[1] < 0.8 and times[8] > 1, times


def test_a_group_of_all_is_one_level():
    assert tv.DataParallel(dp=4, within=4) == tv.DataParallel(dp=4)
    assert data(4, 3).caption == "DataParallel across 2 within 2"
    placed = (tv.Megatron(tp=2) * data(4, 3)).with_order("within-tp-across")
    assert list(placed.axes) == ["across", "tp", "within"]


@pytest.mark.parametrize(
    "made, message",
    [
        (lambda: tv.DataParallel(dp=8, within=3), "dp=8 does not split evenly over within=3"),
        (lambda: tv.DataParallel(dp=8, within=1), r"use within=0, or one of within=\[2, 4\]"),
        (
            lambda: tv.DataParallel(dp=8, zero=3, shard=4, within=2),
            "within=2 with shard=4, which has groups of its own: use within=0, or shard=0",
        ),
        (
            lambda: tv.DataParallel(dp=8, zero=3, reshard_after_forward=4, within=2),
            "within=2 with reshard_after_forward=4",
        ),
        (lambda: tv.Pipeline(pp=2) * tv.DataParallel(dp=4, within=2), "use within=0, or shard="),
    ],
)
def test_what_is_not_possible(made, message):
    with pytest.raises(ValueError, match=message):
        made()

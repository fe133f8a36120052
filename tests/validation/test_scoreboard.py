"""The scoreboard's statistics by hand, and the page that is drawn from them."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

import tpviz as tv
from tpviz.validation import scoreboard as score
from tpviz.validation.adapter import cluster_of, ideal
from tpviz.validation.page import digests, markdown, of_part, sources_table, summary

ROOT = Path(__file__).parents[2]
PAGE, README = (ROOT / "docs/validation.md").read_text(), (ROOT / "README.md").read_text()
LARGE = "ultrascale_playbook_h100"
ROW = tv.published(source="megatron_sc21")[0]


(CHECKED,) = tv.validate([ROW]).rows
(POINT,) = score.points([CHECKED])


def point(predicted=POINT.predicted, **fields):
    """SC21's first row, with other fields."""
    row = replace(ROW, **fields)
    return score.Point(row, POINT.plan, predicted, row.step)


def test_points_have_both():
    assert POINT == (CHECKED.row, CHECKED.plan, CHECKED.step, ROW.step)
    failed, memory = (tv.published(kind=kind)[0] for kind in ("failed", "memory"))
    checked = tv.validate([failed, memory, replace(ROW, cp=2), ROW]).rows
    assert [p.row for p in score.points(checked)] == [ROW]
    (run,) = tv.validate([r for r in tv.published("llama-1B", 8) if r.peak][:1]).rows
    assert [p[2:] for p in score.peaks([run, CHECKED])] == [(run.memory.total, run.row.peak)]


def test_errors_by_hand():
    e = score.errors([point(r * ROW.step) for r in (0.5, 0.9, 1.2)])
    assert e.rows == 3 and e.ratio == pytest.approx(0.9)
    assert e.median == pytest.approx(0.2) and e.p90 == pytest.approx(0.5 - 0.2 * 0.3)


@pytest.mark.parametrize(
    "a, b, expected",
    [
        ([1, 2, 3, 4], [10, 20, 30, 40], 1.0),
        ([1, 2, 3, 4], [4, 3, 2, 1], -1.0),
        ([1, 2, 3], [1, 3, 2], 1 - 6 * 2 / (3 * 8)),  # 1 - 6 sum d^2 / (n (n^2 - 1))
        ([1, 1, 2], [1, 2, 3], 3**0.5 / 2),  # ranks 1.5, 1.5, 3
        ([5, 5, 5], [1, 2, 3], 0.0),
    ],
)
def test_rank_correlation(a, b, expected):
    assert score.spearman(a, b) == pytest.approx(expected)
    assert score.spearman(b, a) == pytest.approx(expected)


def test_regret_is_of_the_pick():
    assert score.regret([3, 1, 2], [10.0, 12.0, 8.0]) == pytest.approx(0.5)
    assert score.regret([1, 1, 2], [10.0, 12.0, 8.0]) == pytest.approx(11 / 8 - 1)
    assert score.regret([2, 1], [4.0, 3.0]) == 0


def test_area_under_the_roc_counts_pairs():
    bad, good = [3.0, 2.0, 5.0], [1.0, 2.0, 4.0, 0.5]
    pairs = [(b > g) + (b == g) / 2 for b, g in product(bad, good)]
    assert score.area(bad, good) == pytest.approx(sum(pairs) / 12)
    assert score.area([2], [1]) == 1 and score.area([1], [2]) == 0


def test_rankings_are_within_a_model_and_as_many_gpus():
    points = [point(s, model=m, step=6 - s) for m in "ab" for s in (1.0, 2.0, 3.0, 4.0, 5.0)]
    other = [point(model="d", global_batch=n) for n in range(1, 9)]  # no layouts of one workload
    found = score.rankings([*points, point(model="c"), *other])
    assert [(r.model, r.rows, round(r.correlation, 9), r.regret) for r in found] == [
        ("a", 5, -1.0, 4.0), ("b", 5, -1.0, 4.0),
    ]  # fmt: skip


def test_share_of_peak_by_hand():
    """SC21: 138 TFLOP/s of 312 count the recomputed forward pass, a quarter of all; the step is
    rounded, and the source's formula leaves out a little."""
    share = score.mfu(POINT)
    assert share == pytest.approx(138 / 312 * 3 / 4, rel=0.01)
    assert score.shares_of_peak([POINT, POINT]) == {"Megatron-LM": pytest.approx(share)}
    (baseline,) = score.at_share([POINT], {"Megatron-LM": share / 2})
    assert baseline.ratio == pytest.approx(2)
    assert score.at_share([POINT], {"FSDP": 0.5}) == []


def test_own_estimates_are_read_from_the_notes():
    assert sum("own prediction" in r.notes for r in tv.published(source="simumax")) > 10
    noted = point(notes="x; own prediction -1.69%; y")
    (own,) = score.own_estimates([noted, POINT])
    assert own.ratio == pytest.approx(0.9831)


def test_the_ideal_cluster_is_at_its_nominal_rates():
    cluster = ideal("A100-SXM-80GB", 16, "")
    plain = tv.clusters.dgx("A100-SXM-80GB", 16)
    assert cluster.levels == plain.levels and cluster.device.time(312e12, 0, "bfloat16") == 1.0


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"predicted": 20.0}, "too slow"),
        ({"step": 1000.0}, "a disturbed run?"),
        ({"tp": 16}, "tensor parallelism across nodes"),
        ({"global_batch": 1 << 24}, "kernel launches"),
        ({}, "the pipeline's messages"),
        ({"pp": 1}, "memory-bound"),
        ({"pp": 1, "global_batch": 64, "micro_batch": 1}, "gradients between nodes"),
    ],
)
def test_guesses(fields, words):
    assert words in score.guess(point(**{"predicted": 8.0, **fields}))


def test_the_page_is_of_this_data_split_and_coefficients():
    assert f"Made of: {digests()}." in PAGE, "run `make validate`"


def test_the_coefficients_hash_sees_every_cluster(monkeypatch):
    before = score.coefficients_digest()
    other = tv.clusters.dgx("A100-SXM-80GB", 16, nics=7)
    calls = lambda *key: other if key[1] == 384 else cluster_of(*key)
    monkeypatch.setattr(score, "cluster_of", calls)
    assert score.coefficients_digest() != before


def test_the_page_is_of_this_code():
    """The lines of every source but the grid, which takes most of the time, and a part of that."""
    rows = tv.validate([r for r in tv.published() if r.source != LARGE]).rows
    for part in ("test", "fit"):
        for line in markdown(sources_table(of_part(rows, part))).splitlines()[2:]:
            assert line in PAGE, "run `make validate`"


def test_the_readme_says_what_the_page_says():
    block = README.partition("<!-- validation -->\n")[2].partition("\n<!--")[0]
    assert block and f"**Rows to test on.** {block}\n" in PAGE, "run `make validate`"
    rows = tv.validate([r for r in tv.published() if r.source != LARGE]).rows
    for words in summary(rows).removesuffix(".").split("; "):
        assert words in block


def test_only_rows_to_test_on_count_in_the_summary():
    rows = [replace(CHECKED, row=replace(ROW, part=part)) for part in ("test", "fit")]
    assert summary(rows).startswith("Megatron-LM (1 runs): median absolute error ")

"""The scoreboard's statistics by hand, and the page that is drawn from them."""

from dataclasses import replace
from itertools import product
from pathlib import Path
from statistics import median

import pytest

import tpviz as tv
from tpviz.evidence.published import bands
from tpviz.evidence.published import scoreboard as score
from tpviz.evidence.published.adapter import cluster_of, ideal
from tpviz.evidence.published.page import digests, markdown, of_part, sources_table, summary

ROOT = Path(__file__).parents[2]
PAGE, README = (ROOT / "docs/validation.md").read_text(), (ROOT / "README.md").read_text()
LARGE = "ultrascale_playbook_h100"
ROW = tv.published(source="megatron_sc21")[0]


(CHECKED,) = tv.validate([ROW]).rows
(POINT,) = score.points([CHECKED])


def point(predicted=POINT.predicted, **fields):
    """SC21's first row, with other fields."""
    row = replace(ROW, **fields)
    return score.ScorePoint(row, POINT.plan, predicted, row.step)


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
    here, anywhere = ("Megatron-LM", POINT.plan.cluster.device.name), ("Megatron-LM", score.ANY)
    found = score.shares_of_peak([POINT, POINT])
    assert found == {here: pytest.approx(share), anywhere: pytest.approx(share)}
    (baseline,) = score.at_share([POINT], {here: share / 2, anywhere: share / 4})
    assert baseline.ratio == pytest.approx(2)
    (baseline,) = score.at_share([POINT], {("Megatron-LM", "H100"): share, anywhere: share / 4})
    assert baseline.ratio == pytest.approx(4)
    assert score.at_share([POINT], {("FSDP", score.ANY): 0.5}) == []


def test_rank_correlation_within_a_micro_batch():
    """Layouts of the larger micro batch are ranked backwards: over both it does not show."""
    small = [point(s, micro_batch=1, step=10 * s) for s in (11.0, 12.0, 13.0, 14.0, 15.0)]
    large = [point(s, micro_batch=2, step=10 - s) for s in (1.0, 2.0, 3.0, 4.0, 5.0, 6.0)]
    (found,) = score.rankings([*small, *large])
    assert found.correlation > 0.4 and found.within == pytest.approx((5 - 6) / 11)
    (few,) = score.rankings([*small[:3], *large[:2]])
    assert few.within is None


def test_bands_hold_the_share_of_runs_that_they_should():
    points = [point(s, model="ab"[s > 5], step=10.0) for s in range(1, 11)]
    wide = bands.Band("f", "g", 10, 0.1, 0.2, (0.9, 1.0, 1.05, 2.0, 4.0))
    inner, outer = 6 / 10, 8 / 10  # 5 to 10 seconds, and 3 to 10
    assert bands.inside(points, lambda p: wide) == (10, inner, outer)
    assert bands.inside(points, lambda p: None) == (0, 0, 0)
    around = bands.of_others(points)
    assert around(points[0]).rows == 5 and around(points[0]) == around(points[4])
    others = [p.measured / p.predicted for p in points[5:]]
    assert around(points[0]).quantiles[2] == pytest.approx(median(others), abs=1e-4)
    assert bands.of_others(points[:7])(points[0]) is None  # two others


def test_nine_of_ten_runs_lie_in_the_band_of_the_others():
    """The usual quantiles of 39 runs hold 34 of 40 alike, each by the others."""
    points = [point(s, model=str(s), step=1.0) for s in range(1, 41)]
    assert bands.inside(points, bands.of_others(points)) == (40, 20 / 40, 36 / 40)


def test_the_band_of_other_sources_has_none_of_its_own():
    sources = "megatron_sc21_table1", "megatron_2020_weak"
    points = [point(s, source=name, step=1.0) for name in sources for s in range(1, 7)]
    around = bands.of_others(points, sources=True)
    assert around(points[0])[1:3] == (score.ANY, 6)
    assert bands.of_others(points[:6], sources=True)(points[0]) is None


def test_the_page_has_a_90th_percentile_beside_every_median():
    summary = PAGE.partition("**Rows to test on.** ")[2].partition("\n")[0]
    assert summary.count("median") == 2 * summary.count("90th percentile") > 0
    baselines = PAGE.partition("## Baselines")[2].partition("##")[0]
    assert "all but the Ultra-Scale grid" in baselines and "90th percentile" in baselines
    for framework, gpu in (("FSDP", "H100-SXM-80GB"), ("Megatron-LM", "B200-SXM-180GB")):
        assert f"{framework} on {gpu} " in baselines
    assert "| within the band |" in PAGE and "| predicted to fit |" in PAGE


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


@pytest.fixture(scope="module")
def rows():
    """Of every source but the grid, which takes most of the time."""
    return tv.validate([r for r in tv.published() if r.source != LARGE]).rows


def test_the_page_is_of_this_code(rows):
    """The lines of these sources."""
    for part in ("test", "fit"):
        for line in markdown(sources_table(of_part(rows, part))).splitlines()[2:]:
            assert line in PAGE, "run `make validate`"


def test_the_readme_says_what_the_page_says(rows):
    block = README.partition("<!-- validation -->\n")[2].partition("\n<!--")[0]
    assert block and f"**Rows to test on.** {block}\n" in PAGE, "run `make validate`"
    for words in summary(rows).removesuffix(".").split(". "):
        assert words in block


def test_only_rows_to_test_on_count_in_the_summary():
    rows = [replace(CHECKED, row=replace(ROW, part=part)) for part in ("test", "fit")]
    name = "Megatron-LM before FlashAttention (1 of megatron_sc21_table1)"
    assert summary(rows).startswith(f"{name}: absolute error median ")

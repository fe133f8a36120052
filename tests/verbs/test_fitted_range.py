"""Predictions outside of the range that a cluster's numbers were fitted in say so."""

import pytest

import tpviz as tv
from tpviz.cluster.profiles import as_run_by, coefficients, framework_of, frameworks
from tpviz.core.mesh import Mesh
from tpviz.evidence.published import fit
from tpviz.verbs.fitted_range import joined, outside, traits
from tpviz.views.plans.pictures import model_html

IDEAL = tv.clusters.dgx("H100-SXM-80GB", 64)
GRID = as_run_by(IDEAL, "nanotron", "Ultra-Scale")
W = tv.GPT(16, 2048, 32, 4096, 64, 131072, dtype="bfloat16", rotary=True)
INSIDE = tv.Merak(pp=2, tp=8, dp=4, microbatches=8, schedule="1f1b")


def test_the_ranges_are_those_of_the_rows_fitted_on():
    runs = fit.runs()
    assert fit.ranges(runs) == coefficients()["ranges"], "run `make fit`"
    assert {"nanotron", "FSDP", "Megatron-LM"} <= set(coefficients()["ranges"]) <= set(frameworks())
    for row, plan in runs[::40]:
        assert outside(plan.strategy, plan.workload, plan.cluster) == [], row


def test_ranges_by_hand():
    """2 of a rank's sequences, 8 ranks a matrix, 2 stages, 4 replicas."""
    found = traits(INSIDE, W, GRID)
    assert list(found.values()) == ["H100-SXM-80GB", 64, 2 * 4096, 2048, 8, 2, 4]
    assert traits(INSIDE, W, GRID.scale_model(hidden=8))["hidden"] == 8 * 2048
    both = joined([found, {**found, "hidden": 512, "GPU": "A100"}])
    assert both["hidden"] == [512, 2048] and both["GPU"] == ["A100", "H100-SXM-80GB"]


def test_a_prediction_inside_of_it_has_a_plain_badge():
    p = tv.predict(INSIDE, W, GRID)
    assert framework_of(GRID) == "nanotron" and p.badge == "predicted"
    assert "outside" not in p.describe()


@pytest.mark.parametrize(
    "strategy, workload, cluster, words",
    [
        (INSIDE, {"hidden": 8192}, GRID, "hidden 8,192, fitted on 2,048 to 3,072"),
        (INSIDE, {"seq": 1024}, GRID, "tokens of a rank's microbatch 2,048, fitted on 4,096 to"),
        (tv.Megatron(tp=64), {"heads": 64}, GRID, "tensor parallelism 64, fitted on 1 to 32"),
        (
            INSIDE,
            {},
            as_run_by(tv.clusters.dgx("A100-SXM-80GB", 64), "nanotron"),
            "GPU A100-SXM-80GB, fitted on H100-SXM-80GB",
        ),
        (tv.Megatron(tp=4), {"batch": 1}, GRID, "ranks 4, fitted on 8 to 512"),
    ],
)
def test_a_prediction_outside_says_which_quantity(strategy, workload, cluster, words):
    w = tv.GPT(**{name: getattr(W, name) for name in W.__dataclass_fields__} | workload)
    p = tv.predict(strategy, w, cluster)
    assert p.badge.startswith("predicted, outside of the fitted range (") and words in p.badge
    assert words in p.describe()
    picture, warning, _ = model_html(p, Mesh(strategy.axes))
    assert "predicted, out of range<" in picture
    assert words[:9].lower() in warning.lower()


def test_described_clusters_have_no_range():
    huge = tv.GPT(layers=2, hidden=65536, heads=64, seq=64, batch=64, vocab=256, dtype="bfloat16")
    for cluster in (IDEAL, tv.clusters.nvlink_pairs()):
        assert tv.predict(tv.Megatron(tp=8), huge, cluster).badge == "predicted"
    assert framework_of(IDEAL) == ""


def test_numbers_without_a_row_say_so(monkeypatch):
    known = coefficients()
    monkeypatch.setitem(known, "ranges", {})
    assert outside(INSIDE, W, GRID) == ["no row of nanotron was fitted on"]

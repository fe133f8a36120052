"""Plans, models and clusters as code, and back: what is written makes the same."""

import pytest

import tpviz as tv
from tpviz.verbs import written

TOGETHER = tv.ATP(mesh=(2, 1)) * tv.Context(cp=2) * tv.Pipeline(pp=2, microbatches=4)
WRITTEN = [
    tv.Megatron(tp=2),
    tv.Megatron(tp=1) * tv.DataParallel(dp=2, zero=3),
    (TOGETHER * tv.DataParallel(dp=2)).with_order("d1-d2-cp-dp-pp"),
    tv.AxoNN(x=2, overlap=("oar",)),
    tv.Merak(pp=2, tp=1, dp=2, microbatches=8, layout=(1, 1)),
    tv.Merak(pp=2, microbatches=2, schedule="F0 F1 B0 B1\nF0 B0 F1 B1"),
    tv.Experts(ep=2, dispatch="all_gather") * tv.Megatron(tp=2),
    tv.DiLoCo(workers=2, sync_every=3) * tv.DataParallel(dp=2),
    tv.GPT(layers=3, experts=4, routing=tv.Routing(1.5), documents=(16, 16)),
    tv.models.deepseek_v3(),
    tv.clusters.nvlink_pairs(pairs=3).scale_model(hidden=4, slow_motion=100),
    tv.clusters.as_run_by(tv.clusters.dgx("H100-SXM-80GB", 16)),
    *(preset() for preset in tv.clusters.presets().values()),
    tv.Mesh({"dp": 2, "tp": 2}),
    [(1,), (2, 3.5), float("inf"), None, True, {"a": "b'c"}],
]


@pytest.mark.parametrize("thing", WRITTEN, ids=lambda thing: type(thing).__name__)
def test_code_makes_the_same(thing):
    assert eval(written.code(thing), {"tv": tv}) == thing


@pytest.mark.parametrize("thing", WRITTEN[:8], ids=lambda thing: type(thing).__name__)
def test_a_strategy_is_read_as_it_is_written(thing):
    if "own" not in thing.short:
        assert written.strategy(thing.short) == thing


def test_what_has_no_code_is_refused():
    for odd in (object(), tv.Trace, {1: {2}}, tv.Custom({"dp": 2}, lambda workload, mesh: None)):
        with pytest.raises(ValueError, match="has no code of its own"):
            written.code(odd)


def test_a_cell_leaves_out_what_is_usual():
    assert written.cell("BlocksView", tv.BlocksView, strategy=None, rank=1) == (
        "import tpviz as tv\n\nview = tv.BlocksView(rank=1)"
    )

"""The planner: presets and knobs, what formulas say of them, the search beside them, and the plan
in small."""

import subprocess
import sys
from dataclasses import replace

import pytest
from emulated_runs import emulated

import tpviz as tv
from tpviz.cluster.clock.cost import Memory
from tpviz.core.tables import show_bytes
from tpviz.evidence.published import bands
from tpviz.schemes.experts.strategy import ACROSS
from tpviz.verbs.room import need
from tpviz.views.figures.svg import seconds
from tpviz.views.plans.presets import cluster_for, preset
from tpviz.views.widgets import Explore, Planner
from tpviz.views.widgets.in_small import in_small, shrunk
from tpviz.views.widgets.planner import first_plan

SMALL = tv.GPT(layers=8, hidden=1024, heads=16, seq=512, batch=64, vocab=1024, dtype="bfloat16")


@pytest.fixture
def view():
    return tv.explore("llama2-70B", gpus=512, runner=emulated)


@pytest.fixture
def small_view():
    return tv.explore(SMALL, gpus=16, gpu="A100-SXM-80GB", framework="ideal")


def test_explore_opens_the_planner_for_names_and_hardware():
    assert isinstance(tv.explore("mpt 7B"), Planner)
    assert isinstance(tv.explore(SMALL, gpus=8), Planner)
    assert isinstance(tv.explore(tv.GPT()), Explore)
    with pytest.raises(ValueError, match=r"give a cluster and a tv.GPT, or those names"):
        tv.explore("mpt 7B", tv.clusters.nvswitch())
    with pytest.raises(ValueError, match=r"workload='llama9 70B' is none of .* 'llama2 70B'"):
        tv.explore("llama9 70B")
    with pytest.raises(ValueError, match=r"gpus=12 cut a node, which has 8 .*gpus=8 or 16"):
        tv.explore(SMALL, gpus=12)
    with pytest.raises(ValueError, match=r"framework='DeepSpeed' is not possible: .*'FSDP'"):
        tv.explore(SMALL, framework="DeepSpeed")
    with pytest.raises(TypeError, match="explore has no argument 'gpuss'; did you mean"):
        tv.explore("mpt 7B", gpus=8, gpuss=9)


SEARCHED_LONG = "grok1 314B", "llama4 109B", "llama4 400B", "deepseek_v2 236B", "kimi_k2 1T"
"""Seconds each, on paths that other models' plans go as well."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] * (name in SEARCHED_LONG))
        for name in tv.models.names()
    ],
)
def test_every_model_can_be_planned_with(name):
    w = preset(name)
    cluster = cluster_for("H100-SXM-80GB", 512, "Megatron-LM")
    plan = first_plan(w, cluster, 512)
    assert plan.world_size == 512 and tv.predict(plan, w, cluster).step_time > 0
    assert w.vocab % 64 == 0 and w.batch * w.seq == 2**22


def test_a_good_plan_opens_and_what_does_not_fit_says_so_first():
    """Llama-3-70B on 64 GPUs: two plans by hand take 66.0 and 59.0 s; it opened at 96 s."""
    view = tv.explore("llama3 70B", gpus=64)
    assert view.prediction.fits and view.prediction.step_time < 60
    assert not view.facts.value.partition(">")[2].startswith("Does not fit")
    view.take(tv.Merak(pp=1, tp=1, dp=64, microbatches=8, schedule="1f1b", recompute="none"))
    needed, told = view.prediction.memory().total, view.describe()
    assert needed > 400e9 and f"{show_bytes(needed)} of 82.5 GB" in told
    assert told.startswith("Planner: It does not fit: A rank needs")
    assert view.facts.value.partition(">")[2].startswith("Does not fit: A rank needs")
    view.take(tv.DataParallel(dp=64, zero=3, recompute="full"))
    assert "people run it with FSDP" in view.picture.value and "FSDP" in view.describe()


def test_first_look_says_what_a_plan_costs(view):
    p = view.prediction
    assert p.strategy.world_size == 512 and view.error == ""
    assert p.cluster == tv.clusters.as_run_by(tv.clusters.dgx("H100-SXM-80GB", 512))
    for words in (
        f"{seconds(p.step_time)} a step",
        f"{1024 * 4096 / p.step_time:,.0f} tokens/s",
        f"{100 * p.mfu:.1f} % of peak (MFU)",
        "memory of a rank",
        "exposed",
        "From the scoreboard",
    ):
        assert words in view.picture.value, words
    assert f"{100 * p.mfu:.1f} % of peak (MFU)" in view.describe()
    assert "exposed" in view.axes.value and "llama2 70B" in view.facts.value


def test_mfu_is_model_flops_over_the_peak():
    """By hand: 3 x 2 FLOPs a parameter of the matrices and token, and attention's."""
    w, c = preset("llama2 7B"), tv.clusters.dgx("H100-SXM-80GB", 8)
    p = tv.predict(tv.DataParallel(dp=8, zero=3), w, c)
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008) + 32000 * 4096
    flops = 6 * matrices * w.batch * w.seq + 32 * 12 * w.seq * 4096 * w.batch * w.seq
    assert p.mfu == pytest.approx(flops / (8 * 989.4e12 * p.step_time))
    assert p.tokens_per_second == pytest.approx(w.batch * w.seq / p.step_time)


def test_mixed_precision_by_hand():
    held = Memory(parameters=20.0, gradients=20.0, optimizer=10.0, activations=7.0)  # ZeRO over 4
    assert held.mixed(2) == {
        "parameters": 20.0, "gradients": 40.0, "optimizer": 30.0, "activations": 7.0,
    }  # fmt: skip
    assert Memory(parameters=4.0, gradients=4.0, optimizer=8.0).mixed(4).total == 2 + 4 + 12


def test_replicas_take_the_gpus_that_are_left(view):
    view._inner.controls["tp"].value = 4
    assert (view.strategy.tp, view.strategy.world_size) == (4, 512)
    view.gpus.value = 1024
    assert (view.strategy.tp, view.strategy.world_size) == (4, 1024)
    assert view.prediction.cluster.size == 1024
    view.menu.value = "Megatron"
    assert view.strategy.world_size == 1024 and view.strategy.inner
    view._outer.controls["dp"].value = 2
    assert "GPUs are idle" in view.picture.value


def test_a_move_is_a_prediction_alone(view, monkeypatch):
    """Nothing is searched and nothing runs (bench/bench_views.py has the time)."""
    monkeypatch.setattr("tpviz.views.widgets.plans.search", lambda *a, **k: 1 / 0)
    view._runner = lambda *a, **k: 1 / 0
    moves = [("tp", 4), ("pp", 4), ("microbatches", 16), ("tp", 8), ("pp", 8)]
    for name, value in moves:
        before = view.prediction
        view._inner.controls[name].value = value
        assert view.prediction is not before and view.error == ""


def test_hardware_changes_the_prediction_and_the_band(view):
    before = view.prediction
    view.framework.value = "ideal"
    assert view.prediction.step_time < before.step_time and view.band.framework == "ideal"
    view.gpu.value = "A100-SXM-40GB"
    assert view.prediction.cluster.device.memory == 40e9
    view.gpu.value = "V100-SXM3-32GB"
    view.gpus.value = 48
    assert view.error == "" and view.prediction.cluster.levels[0].units == 16
    view.gpu.value = "H100-SXM-80GB"
    view.gpus.value = 2
    assert view.error == "" and view.strategy.world_size <= 2


def test_memory_is_of_the_states_chosen(small_view):
    p = small_view.prediction
    for name, how in small_view.states.options:
        small_view.states.value = how
        found = need(p.strategy, p.workload, p.cluster, how)
        assert small_view.prediction.memory() == found, name
        assert show_bytes(found.total) in small_view.describe()
    assert found["optimizer"] < p.memory()["optimizer"]
    assert "gradients in 16 bits and AdamW's moments in 16 bits" in small_view.describe()


LONG = tv.models.llama3("8B", batch=32, seq=1 << 17)


def displayed(box):
    return box.layout.display != "none"


def test_long_sequences_have_knobs_of_context_parallelism():
    """Shown from 8,192 tokens on; how they are cut only where they are."""
    view = tv.explore(LONG, gpus=64)
    degree, kind, ulysses = view._cuts[tv.Context].children
    assert view.strategy.axes["cp"] > 1 and view.prediction.fits and view.error == ""
    assert all(map(displayed, (view._cuts[tv.Context], degree, kind, ulysses)))
    words = f"Context cp {view.strategy.axes['cp']} (zigzag)"
    assert words in view.facts.value and words in view.describe()
    view._cuts[tv.Context].controls["kind"].value = "all_gather"
    assert "(all_gather)" in view.facts.value and "cp" in view.axes.value
    view._cuts[tv.Context].controls["cp"].value = 1
    assert type(view.strategy) is tv.Merak and view.strategy.world_size == 64
    assert displayed(view._cuts[tv.Context]) and not displayed(kind)
    short = tv.explore("llama2 7B", gpus=64)
    assert not displayed(short._cuts[tv.Context]) and type(short.strategy) is tv.Merak
    short._sizes.controls["seq"].value = 4 * short.workload.seq
    assert short.error == "" and displayed(short._cuts[tv.Context])


@pytest.mark.parametrize(
    "plan",
    [
        tv.Megatron(tp=2, sp=True)
        * tv.Context(cp=8)
        * tv.Pipeline(pp=2, microbatches=8, schedule="interleaved_1f1b", chunks=4)
        * tv.DataParallel(dp=2, zero=2),
        tv.Megatron(tp=2, sp=True)
        * tv.Context(cp=8, kind="all_gather")
        * tv.DataParallel(dp=4, zero=3, accumulation=8, recompute="full"),
        tv.Context(cp=32) * tv.DataParallel(dp=2, zero=3, accumulation=16),
        tv.Megatron(tp=2, recompute="full") * tv.DataParallel(dp=32, zero=1),
    ],
    ids=lambda plan: plan.short,
)
def test_plans_that_cut_sequences_set_the_knobs_and_run_in_small(plan):
    view = tv.explore(LONG, gpus=64)
    view.take(plan)
    assert view.strategy == plan and view.error == ""
    small = view.scale_model()
    few = {axis: n for axis, n in small.strategy.axes.items() if n > 1}
    assert len(few) == min(3, sum(n > 1 for n in plan.axes.values()))  # 8 ranks have three axes
    assert few.keys() <= plan.axes.keys() and ("cp" in few) == ("cp" in plan.axes)
    assert small.cluster.size == small.strategy.world_size <= 8
    assert tv.predict(small.strategy, small.workload, small.cluster).step_time > 0


MIXTURE = tv.models.qwen3("30B-A3B", batch=512)


def test_mixtures_have_knobs_of_experts():
    """Only where there are some; how they are cut only where they are."""
    view = tv.explore(MIXTURE, gpus=64)
    box = view._cuts[tv.Experts]
    assert view.error == "" and view.prediction.fits and displayed(box)
    box.controls["ep"].value = 8
    assert view.strategy.axes["ep"] == 8 and view.strategy.world_size == 64
    assert "Experts ep 8" in view.facts.value and "ep" in view.axes.value
    view._inner.controls["tp"].value = 2
    shown = lambda: [name for name, line in zip(box.controls, box.children) if displayed(line)]
    assert shown() == ["ep", "etp", "dispatch"]  # no shared experts, whose time could hide rows
    assert not displayed(view._cuts[tv.Context])  # sequences of 4,096 tokens
    assert [n for _, n in box.controls["ep"].options] == [1, 2, 4, 8, 16, 32, 64]
    view._inner.controls["tp"].value = 1
    assert shown() == ["ep", "dispatch"]
    box.controls["ep"].value = 1
    assert shown() == ["ep"]
    view.model.value = "llama2 7B"
    assert tv.Experts not in view._cuts and view.error == ""
    view.model.value = "mixtral 8x7B"
    assert tv.Experts in view._cuts and view.prediction.workload.experts == 8


@pytest.mark.parametrize(
    "plan",
    [
        tv.Merak(pp=2, tp=2, dp=2, microbatches=32, schedule="1f1b", recompute="none", sp=True)
        * tv.Experts(ep=8),
        tv.Megatron(tp=2, sp=True) * tv.Experts(ep=4, etp=2) * tv.DataParallel(dp=8, zero=1),
        tv.Experts(ep=64) * tv.DataParallel(dp=1, zero=1, accumulation=8),
        (
            tv.Megatron(tp=2, sp=True)
            * tv.Experts(ep=8)
            * tv.Pipeline(pp=2, microbatches=32)
            * tv.DataParallel(dp=2, zero=1)
        ).with_order(ACROSS),
        (tv.Experts(ep=8) * tv.DataParallel(dp=8, zero=1)).with_order(ACROSS),
    ],
    ids=lambda plan: plan.short,
)
def test_plans_that_spread_experts_set_the_knobs_and_run_in_small(plan):
    view = tv.explore(MIXTURE, gpus=64)
    view.take(plan)
    assert view.strategy == plan and view.error == ""
    small = view.scale_model()
    assert small.strategy.axes["ep"] > 1 and small.workload.experts == 16
    assert small.strategy.world_size == small.cluster.size <= 8
    assert tv.predict(small.strategy, small.workload, small.cluster).step_time > 0


# -- bands -----------------------------------------------------------------------------------------
def test_bands_are_quantiles_of_test_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(bands, "FILE", tmp_path / "bands.json")
    (checked,) = tv.validate([tv.published(source="megatron_sc21")[0]]).rows
    from tpviz.evidence.published.scoreboard import points

    (one,) = points([checked])
    ratios = (0.5, 0.8, 1.0, 1.25, 2.0)
    many = [one._replace(predicted=r * one.measured) for r in ratios]
    bands.stored.cache_clear()
    try:
        bands.write(many, many[:4], "hashes")
        found = bands.band("Megatron-LM before FlashAttention", "A100-SXM-80GB")
        assert found.rows == 5 and found.gpu == "A100-SXM-80GB"
        assert found.quantiles == (0.5, 0.65, 1.0, 1.625, 2.0)  # of one more run
        assert found.around(2.0)[2] == 2.0 and found.median == pytest.approx(0.25)
        other = bands.band("Megatron-LM before FlashAttention", "B200-SXM-180GB")
        assert other.gpu == bands.ANY and other.rows == 5
        assert bands.band("FSDP", "A100-SXM-80GB") is None
        assert bands.band(bands.IDEAL, "A100-SXM-80GB") is None  # too few
    finally:
        bands.stored.cache_clear()


def test_the_bands_that_ship_are_of_this_data_split_and_coefficients():
    from tpviz.evidence.published.page import digests

    assert bands.stored()["made of"] == digests(), "run `make validate`"


def test_without_published_runs_the_error_is_unknown(small_view, monkeypatch):
    monkeypatch.setattr("tpviz.views.widgets.planner.band", lambda *names: None)
    small_view.framework.value = "FSDP"
    assert "Its error is not known" in small_view.picture.value


# -- the search ------------------------------------------------------------------------------------
def test_the_best_plans_come_as_a_list_that_sets_the_knobs():
    tiny, seen = replace(SMALL, layers=2, heads=8, batch=8), []  # searched in half the time
    small_view = tv.explore(tiny, gpus=8, gpu="A100-SXM-80GB", framework="ideal")
    small_view.plans.list.observe(lambda change: seen.append(len(change["new"])), "options")
    small_view.search()
    assert small_view.plans.wait(60) and small_view.error == ""
    found = tv.search(tiny, small_view.cluster, simulate=False, seconds=None)
    assert all(row.prediction.fits for row in found.rows)
    rows = small_view.plans.rows
    assert rows[0].strategy == found.best and len(rows) == 8 == seen[-1]
    assert "strategies ranked" in small_view.plans.status.value
    assert found.best.short in small_view.plans.list.options[0]
    assert {row.strategy for row in rows} <= {plan for plan, _ in small_view.map.plans}
    assert f">fastest shown that fits: {rows[0].predicted * 1e6:.0f}" in small_view.map.to_svg()
    small_view.plans.list.index = 0
    assert small_view.strategy == rows[0].strategy and small_view.error == ""
    assert small_view.prediction.step_time == pytest.approx(rows[0].predicted)
    assert small_view.to_table()[1][3] == rows[0].strategy.short
    assert "The first plans of" in small_view.to_svg()
    small_view.gpus.value = 16
    assert small_view.plans.rows == [] and "search again" in small_view.plans.status.value


def test_plans_stream_and_the_search_can_be_stopped(small_view, monkeypatch):
    from threading import Event

    from tpviz.verbs.ranking import Search

    found = tv.search(SMALL, small_view.cluster, tv.Megatron, simulate=False)
    shown, ended = Event(), Event()

    def endless(workload, cluster, *, progress, **options):
        progress(3, 9, "by formula")
        progress.found(Search(workload, cluster, found.rows[:3], (), {}))
        shown.set()
        while not ended.wait(0.01):
            pass

    monkeypatch.setattr("tpviz.views.widgets.plans.search", endless)
    small_view.search()
    try:
        assert shown.wait(10)
        assert small_view.plans.rows and (small_view.plans.bar.value, 9) == (3, 9)
        assert small_view.plans.search_button.disabled
        assert small_view.plans.stop()
        assert small_view.plans.wait(10)
    finally:
        ended.set()
    assert "best found until then" in small_view.plans.status.value and small_view.plans.rows
    assert not small_view.plans.search_button.disabled


def test_an_error_of_the_search_is_shown(small_view, monkeypatch):
    def fails(*args, **options):
        raise ValueError("none of 9 strategies fits")

    monkeypatch.setattr("tpviz.views.widgets.plans.search", fails)
    small_view.search()
    small_view.plans.wait(10)
    assert "none of 9 strategies fits" in small_view.plans.status.value


# -- in small --------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "strategy, axes",
    [
        (
            tv.Merak(pp=4, tp=8, dp=16, microbatches=64, schedule="1f1b"),
            {"pp": 2, "dp": 2, "tp": 2},
        ),
        (tv.Megatron(tp=8) * tv.DataParallel(dp=64, zero=1), {"dp": 4, "tp": 2}),
        (tv.DataParallel(dp=512, zero=3), {"dp": 8}),
        (tv.AxoNN(x=4, y=2, z=8, data=8), {"data": 2, "z": 2, "y": 1, "x": 2}),
        (tv.ATP(mesh=(2, 4)) * tv.DataParallel(dp=64), {"dp": 2, "d1": 2, "d2": 2}),
        (tv.Merak(pp=8, tp=1, dp=64, microbatches=16), {"pp": 2, "dp": 4, "tp": 1}),
    ],
    ids=lambda x: getattr(x, "short", ""),
)
def test_in_small_the_axes_are_those_of_the_plan(strategy, axes):
    w = preset("llama2 70B")
    cluster = cluster_for("H100-SXM-80GB", 512, "Megatron-LM")
    small = in_small(strategy, w, cluster, 8)
    assert small.strategy.axes == axes and type(small.strategy) is type(strategy)
    small.strategy.check(small.workload)
    assert small.cluster.size == small.strategy.world_size <= 8
    assert small.cluster.hidden_scale == w.hidden / small.workload.hidden
    assert (small.workload.dtype, small.cluster.float32_for) == ("float32", "bfloat16")
    assert "stand for 512 GPUs" in small.words and "Scale model" in small.words
    assert tv.predict(small.strategy, small.workload, small.cluster).step_time > 0


def test_in_small_axes_stay_inside_a_node_or_across():
    w = preset("llama2 70B")
    cluster = cluster_for("H100-SXM-80GB", 512, "Megatron-LM")
    plan = tv.Megatron(tp=8) * tv.DataParallel(dp=64)
    small = in_small(plan, w, cluster, 8)
    assert [(one.name, one.units) for one in small.cluster.levels] == [
        ("NVSwitch", 2),
        ("network", 4),
    ]
    assert small.cluster.levels[1].nics == 2  # 8 of a node of 8 GPUs: one for each
    mesh = tv.Mesh(small.strategy.axes)
    inside, across = (small.cluster.axis_link(mesh, axis).bandwidth for axis in ("tp", "dp"))
    real = tv.Mesh(plan.axes)
    links = [cluster.axis_link(real, axis).bandwidth for axis in ("tp", "dp")]
    assert inside / across == pytest.approx(links[0] / links[1])


def test_shrunk_leaves_out_the_smallest_where_there_are_too_many():
    assert shrunk({"a": 2, "b": 4, "c": 8, "d": 16}, 8) == {"a": 1, "b": 2, "c": 2, "d": 2}
    assert shrunk({"a": 2, "b": 3}, 8) == {"a": 2, "b": 2}
    assert shrunk({"a": 64, "b": 8}, 8) == {"a": 4, "b": 2}
    assert shrunk({"a": 64}, 2) == {"a": 2}


def test_the_button_runs_the_plan_in_small_and_says_so(view):
    view.run_small()
    assert view.small.wait(30) and view.error == "" and view.small.error == ""
    label, shown = view.small_box.children
    assert shown is view.small and "8 ranks here stand for 512 GPUs" in label.value
    assert view.small.strategy.axes == {"pp": 2, "dp": 2, "tp": 2}
    assert view.small.outcome is not None


def test_a_plan_in_small_runs_on_real_ranks():
    view = tv.explore("llama3 8B", gpus=16)
    view.run_small()
    assert view.small.wait(120) and view.small.error == ""
    assert view.small.outcome.measured.ledger() == view.small.strategy.ledger(
        view.small._fitting.workload
    )


# -- the view elsewhere ----------------------------------------------------------------------------
def test_as_a_page_with_sliders(small_view, tmp_path):
    path = small_view.to_html(tmp_path / "plan.html", {"tp": [1, 2], "gpus": [16, 32]})
    assert path.stat().st_size < 2_000_000 and "Planner" not in path.read_text()[:200]
    with pytest.raises(ValueError, match="sweep='cat': give values of a knob of this view"):
        small_view.to_html(path, {"cat": [1]})
    two = small_view._state_at({**small_view._swept(), "tp": 2, "gpus": 32})["scene"]["svg"]
    strategy = replace(small_view.strategy, tp=2)
    step = tv.predict(strategy, SMALL, cluster_for("A100-SXM-80GB", 32, "ideal")).step_time
    assert f"{seconds(step)} a step" in two


def test_a_twin_for_saved_notebooks(small_view):
    assert "<svg" in small_view.to_svg(theme="light") and "MFU" in small_view._still()
    assert repr(small_view).startswith("<Planner 16 A100-SXM-80GB: GPT of 8 layers")


def test_sizes_that_clash_are_said(small_view, monkeypatch):
    monkeypatch.setattr(
        "tpviz.views.widgets.planner.predict",
        lambda *a, **k: (_ for _ in ()).throw(ValueError("no <room>")),
    )
    small_view.gpus.value = 32
    assert small_view.error == "no <room>" and "bad sizes" in small_view.describe()


def test_planning_imports_no_torch():
    code = (
        "import sys, tpviz as tv; view = tv.explore('mpt 7B', gpus=64); view.gpus.value = 128;"
        "assert not view.error, view.error; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr

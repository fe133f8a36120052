"""From a published row to a strategy, a workload and a cluster; predictions beside measurements."""

from dataclasses import replace

import pytest

import tpviz as tv
from tpviz.cluster.profiles import fitted
from tpviz.evidence.published.adapter import NotModelled, cluster_of, ideal, memory, plan_of, run_of
from tpviz.evidence.published.validate import checked_rows
from tpviz.verbs.peak import peak

SC21 = tv.published(source="megatron_sc21")[0]
ONE = next(r for r in tv.published(model="gpt2-1B") if r.gpu.startswith("A100"))
MPT = next(r for r in tv.published(source="mosaic") if r.recompute == "full" and r.n_gpus == 16)
LLAMA = next(r for r in tv.published(source="simumax") if (r.tp, r.pp, r.cp) == (2, 1, 1))
GRID = next(r for r in tv.published(model="llama-3B", gpus=64) if r.zero and r.pp == 2)


def test_megatron_is_merak_with_its_schedule():
    plan = plan_of(SC21)
    assert plan.strategy == tv.Merak(
        pp=2, tp=8, dp=32, microbatches=12, schedule="1f1b", recompute="full"
    )
    assert plan.workload == tv.GPT(48, 8192, 64, 2048, 1536, 51200, dtype="bfloat16", ffn=32768)
    assert [(level.units, level.group) for level in plan_of(SC21, ideal).cluster.levels] == [
        (8, 300e9), (64, 8 * 25e9),
    ]  # fmt: skip
    device = plan.cluster.device
    assert (device.flops["bfloat16"], device.attention) == (312e12, "softmax")
    assert plan.assumed == ()


def test_virtual_stages_interleave():
    plan = plan_of(next(r for r in tv.published(source="sc21") if r.vpp == 3))
    s = plan.strategy
    assert (s.schedule, s.chunks, s.microbatches) == ("interleaved_1f1b", 3, 28)  # 1792 / 32 / 2
    assert plan_of(replace(SC21, pp=1, vpp=2, n_gpus=256)).strategy.schedule == "1f1b"


def test_nanotron_balances_its_stages():
    """As its documentation lists the blocks of Llama 3 8B on 8 ranks, and by hand: of 16 blocks and
    a head of 4 on 8 ranks, 2.5 each, the head is alone."""
    row = replace(GRID, layers=32, hidden=4096, heads=32, ffn=14336, vocab=128256, tp=1)
    row = replace(row, pp=8, dp=1, n_gpus=8, global_batch=8, micro_batch=1)
    plan = plan_of(row)
    assert plan.strategy.layout == tv.Merak(layout=(5, 4, 4, 5, 4, 4, 4, 2)).layout
    row = replace(row, layers=16, hidden=2048, ffn=8192, vocab=131072)
    plan = plan_of(row)
    assert plan.strategy.layout == tv.Merak(layout=(3, 3, 2, 3, 2, 3, 0, 0)).layout
    assert "the head on the last stage, behind stages that have nothing" in plan.assumed
    assert plan_of(replace(row, pp=1, n_gpus=1)).strategy.layout == "even"
    assert plan_of(replace(row, source="nemo")).strategy.layout == "even"


def test_bigscience_counts_both_ends_where_only_that_divides():
    rows = {r.layers: r for r in tv.published(source="bigscience") if r.pp == 12}
    layouts = {layers: plan_of(row).strategy.layout for layers, row in rows.items()}
    assert layouts[106] == "Et*8|(t*9|)*10,t*8L" and layouts[82] == "Et*6|(t*7|)*10,t*6L"
    assert layouts[84] == "even"


def test_fsdp_shards_every_weight():
    s = plan_of(MPT).strategy
    assert s.axes == {"data": 1, "z": 16, "y": 1, "x": 1}
    assert (s.gather, s.keep, s.recompute) == ("block", False, "full")
    assert s.accumulation * 16 * MPT.micro_batch == MPT.global_batch
    assert plan_of(replace(MPT, zero=2)).strategy.keep


def test_fsdp_is_predicted_as_zero_3():
    """Without accumulation and recomputation data parallelism has the same step, near enough."""
    row = replace(MPT, recompute="none", global_batch=16 * MPT.micro_batch)
    plan = plan_of(row)
    other = tv.predict(tv.DataParallel(dp=16, zero=3), plan.workload, plan.cluster)
    assert tv.validate([row]).rows[0].predicted == pytest.approx(other.step_time, rel=0.01)


@pytest.mark.parametrize("zero", [2, 3])
def test_fsdp_pads_its_shards(zero):
    """96 divides no block of MPT-7B: as `DataParallel`, which pads, and says so."""
    row = next(r for r in tv.published("mpt-7b", source="mosaic") if r.recompute == "full")
    even, padded = (
        replace(row, n_gpus=n, dp=n, zero=zero, global_batch=2 * n * row.micro_batch)
        for n in (128, 96)
    )
    first, second = tv.validate([even, padded]).rows
    assert isinstance(first.plan.strategy, tv.AxoNN)
    assert isinstance(second.plan.strategy, tv.DataParallel) and second.plan.strategy.dp == 96
    assert any("padded to a multiple of 96" in words for words in second.plan.assumed)
    assert second.step == pytest.approx(first.step, rel=0.15 if zero == 2 else 0.01)
    assert second.memory.total == pytest.approx(first.memory.total, rel=0.05)


def test_selective_recomputation_of_fsdp():
    """torchtitan's keeps every second product's output and attention's: between all and none."""
    row = next(r for r in tv.published(source="torchtitan") if r.dtype == "bf16")
    none, some, full = tv.validate(
        [replace(row, recompute=r) for r in ("none", "selective", "full")]
    ).rows
    assert none.step < some.step < full.step
    assert none.memory["activations"] > some.memory["activations"] > full.memory["activations"]
    h, q, up, tokens = 4096, 6144, 2 * 14336, row.micro_batch * 8192
    kept = 2 * h + (q + h + up + h) / 2  # the input, attention's output, half of the products
    dropped = 4 * h + q + h + up + up / 2 - kept + 8 / 2  # and the norms' two statistics
    less = none.memory["activations"] - some.memory["activations"]
    assert less == pytest.approx(32 * tokens * 2 * dropped)


def test_zero_that_is_not_stated_is_the_frameworks():
    row = next(r for r in tv.published(source="dgxc") if r.dtype == "bf16" and r.zero is None)
    plan = plan_of(row)
    assert plan.strategy.zero == 1
    assert "ZeRO-1, as Megatron-LM trains, for none is stated" in plan.assumed
    old = replace(row, source="megatron_sc21_table1", vocab=51200)
    assert plan_of(old).strategy.zero == 0 and plan_of(replace(row, zero=0)).strategy.zero == 0
    fsdp = replace(row, source="mosaic", tp=1, dp=row.n_gpus, model="mpt-15b")
    assert "ZeRO-3, as FSDP trains, for none is stated" in plan_of(fsdp).assumed


def test_models_are_of_their_family():
    w = plan_of(LLAMA).workload
    assert (w.gated, w.norm, w.rotary, w.bias, w.tied) == (True, "rms", True, False, False)
    assert (w.kv_heads, w.ffn, w.vocab) == (8, 28672, 128256)
    assert plan_of(GRID).workload.tied and plan_of(MPT).workload.bias
    odd = plan_of(replace(SC21, model="new", notes="gated MLP"))
    assert odd.workload.gated and "a model as GPT-2's but for the sizes stated" in odd.assumed


def test_numbers_of_parameters_are_those_of_the_sources():
    """39.1e9 in SC21's table 1; MPT's notes say them; 3.57e9 is the grid's name of its 3B model."""
    assert plan_of(SC21).workload.num_parameters == pytest.approx(39.1e9, rel=0.005)
    stated = int(MPT.notes.partition("params=")[2].partition(";")[0])
    assert plan_of(MPT).workload.num_parameters == stated
    assert plan_of(GRID).workload.num_parameters == pytest.approx(3.57e9, rel=0.002)


def test_what_is_said_in_other_words():
    assert plan_of(LLAMA).assumed == ("no recomputation, as none is stated",)
    assert "sequence parallelism" in plan_of(replace(SC21, sp=None)).assumed[0]
    assert "selective" in plan_of(replace(SC21, recompute="selective")).assumed[0]


def test_zero_1_and_sequence_parallelism_are_the_strategy_s():
    plan = plan_of(replace(SC21, zero=1, sp=1))
    assert plan.strategy == replace(plan_of(SC21).strategy, zero=1, sp=True)
    assert plan.assumed == ()


def test_other_nics_of_a_source():
    (row, *_) = tv.published(source="bigscience")[5:]
    network = plan_of(row, ideal).cluster.levels[1]
    assert (network.nics, network.p2p, network.group) == (4, 12.5e9, 50e9)


@pytest.mark.parametrize(
    "source, pointwise, attention",
    [
        ("mosaic_mpt_fsdp", "eager", "flash"),
        ("ultrascale_playbook_h100", "eager", "flash"),
        ("nemo_bridge_llama", "fused", "flash"),
        ("bigscience_a100_384", "fused", "softmax"),
        ("nobody knows", "fused", "flash"),
    ],
)
def test_clusters_are_as_the_framework_reaches_them(source, pointwise, attention):
    real, plain = cluster_of("H100-SXM-80GB", 16, source), ideal("H100-SXM-80GB", 16, source)
    assert (real.device.pointwise, real.device.attention) == (pointwise, attention)
    assert real.device.time(1e12, 1e9, "bfloat16") > plain.device.time(1e12, 1e9, "bfloat16")
    assert all(a.p2p < b.p2p for a, b in zip(real.levels, plain.levels))


@pytest.mark.parametrize("zero, factor", [(0, 2.0), (1, 2.5)])
def test_gradients_of_nanotron_take_as_long_as_in_float32(zero, factor):
    """All-reduced in 32 bits, where 16 are predicted; with ZeRO-1 gathered besides."""
    row = next(
        row
        for row in tv.published(source="ultrascale_playbook_h100")
        if (row.part, row.pp, row.tp > 1, row.dp > 1, row.zero) == ("fit", 1, True, True, zero)
    )
    plan, mesh = plan_of(row), {"pp": row.pp, "dp": row.dp, "tp": row.tp}
    plain = cluster_of(row.gpu, row.n_gpus, row.source)
    for axis, times in (("dp", factor), ("tp", 1)):
        ratio = plain.bandwidth(mesh, axis) / plan.cluster.bandwidth(mesh, axis)
        assert ratio == pytest.approx(times)


@pytest.mark.parametrize("changed, slow", [({}, 0), ({"tp": 32}, 1), ({"n_gpus": 512}, 1)])
def test_messages_of_the_grids_first_series_are_slow(changed, slow):
    row = next(r for r in tv.published(source="ultrascale_playbook_h100") if r.part == "fit")
    base = {"pp": 2, "tp": 8, "n_gpus": 128, "micro_batch": 1} | changed
    row = replace(row, **base, dp=base["n_gpus"] // base["pp"] // base["tp"])
    cluster, apart = plan_of(row).cluster, row.n_gpus // 2
    message, ring = (cluster.link((0, apart), row.n_gpus, shift).latency for shift in (apart, None))
    assert message - ring == slow * fitted()["aws_message"] and ring == fitted()["aws_latency"]


def test_sequence_parallel_norms_are_split():
    row = replace(SC21, sp=1)
    plan = plan_of(row)
    assert plan.strategy.held(plan.workload).stream == 1 / 8
    assert plan_of(SC21).strategy.held(plan.workload).stream == 1.0
    assert tv.validate([row]).rows[0].predicted < tv.validate([SC21]).rows[0].predicted


def test_context_parallelism_is_its_own_factor():
    """A ring of balanced chunks inside Megatron-LM's replicas: a step takes about half of what it
    does on half the GPUs."""
    row = replace(SC21, tp=4, cp=2, recompute="none")
    plan, whole = plan_of(row), plan_of(replace(row, cp=1, n_gpus=256))
    assert plan.strategy == whole.strategy * tv.Context(cp=2, kind="zigzag")
    assert plan.strategy.axes == {"pp": 2, "dp": 32, "cp": 2, "tp": 4}
    assert plan.workload == whole.workload
    assert "context parallelism of kind 'zigzag', as Megatron-LM has it" in plan.assumed
    seconds = [tv.predict(p.strategy, p.workload, p.cluster).step_time for p in (plan, whole)]
    assert 0.45 < seconds[0] / seconds[1] < 0.6


@pytest.mark.parametrize("tp", [1, 2])
def test_fsdp_gathers_keys_and_shards_over_both(tp):
    row = replace(MPT, tp=tp, cp=2, dp=8 // tp, global_batch=2 * MPT.micro_batch * 8 // tp)
    plan = plan_of(row)
    s, inside = plan.strategy, plan.strategy.inner
    assert (s.zero, s.accumulation, s.dp, inside.recompute) == (3, 2, 8 // tp, "full")
    assert (inside.cp, inside.kind, inside.axes.get("tp", 1)) == (2, "all_gather", tp)
    assert s.replicas.ranks == 16 // tp
    assert f"shards padded to a multiple of {16 // tp}" in plan.assumed
    assert plan_of(replace(row, zero=None)).strategy.zero == 3  # of one replica of parts too
    assert plan_of(replace(row, dp=1, n_gpus=2 * tp, zero=None)).strategy.zero == 3


@pytest.mark.parametrize(
    "row, message",
    [
        (replace(SC21, cp=3, n_gpus=1536), "seq=2048 does not split evenly over 2.cp=6"),
        (replace(SC21, ep=8), "how many experts, and how many of a token, is not stated"),
        (replace(SC21, model="mixtral-8x7b"), "how many experts"),
        (replace(SC21, model="deepseekv3"), "latent attention behind dense first blocks"),
        (replace(SC21, experts=64, ep=64), "ep=64 lies over more than the dp=32 replicas"),
        (replace(SC21, experts=6, ep=4), "experts=6 does not split evenly over ep=4"),
        (replace(SC21, experts=8, ep=2, etp=4), "etp=4 ranks cannot share an expert where tp=8"),
        (replace(SC21, experts=8, shared_ffn=5), "shared_ffn=5 is no multiple of an expert's"),
        (replace(MPT, experts=8, zero=3), "ZeRO-3 with experts is not modelled"),
        (replace(SC21, dtype="fp8"), "dtype 'fp8' is not modelled"),
        (replace(SC21, micro_batch=None), "micro_batch is not stated"),
        (replace(SC21, vocab=None), "vocab is not stated"),
        (replace(SC21, n_gpus=500), r"tp\*pp\*dp\*cp = 512 is not n_gpus=500"),
        (replace(SC21, micro_batch=5), "global_batch=1536 is no multiple of dp.micro_batch=160"),
        (replace(SC21, gpu="T4"), "gpu='T4' is not possible: use 'V100-SXM3-32GB', .* or 'B200"),
        (replace(SC21, heads=60), "hidden=8192 does not split evenly over heads=60"),
        (replace(SC21, layers=1), "layers=1 are fewer than the 2 stages"),
        (replace(SC21, global_batch=32, micro_batch=1, dp=1, tp=3, n_gpus=6), "tp=3"),
        (replace(MPT, pp=2, n_gpus=32), "ZeRO-3 inside a pipeline"),
        (replace(SC21, tp=4, dp=3, n_gpus=24, global_batch=24, micro_batch=1, pp=2), None),
        (replace(SC21, tp=4, dp=3, n_gpus=12, global_batch=24, micro_batch=1, pp=1), "cut a node"),
    ],
)
def test_what_is_not_modelled_says_why(row, message):
    if message is None:
        assert plan_of(row).cluster.size == 24
        return
    with pytest.raises(NotModelled, match=message):
        plan_of(row)
    (checked,) = tv.validate([row]).rows
    assert checked.predicted is None and checked.reason and checked.ratio is None


def test_one_gpu_by_hand():
    """On one ideal GPU a step is its GEMMs, forward once more for what is recomputed, and the
    optimizer's memory traffic."""
    (checked,) = checked_rows([ONE], ideal).rows
    w = plan_of(ONE).workload
    tokens, h = 16 * 1024, 1920
    block, product = tokens * 24 * h * h, tokens * 2 * 1024 * h  # FLOPs forward: of attention 2
    head = 3 * tokens * 2 * h * 51200
    assert w.step_flops == 24 * 3 * (block + 2 * product) + head
    flops = 24 * (4 * block + (2 + 2 + 5) * product // 2) + head
    least = flops / 312e12
    assert least < checked.predicted < 1.2 * least
    assert checked.measured == 1.076 and checked.ratio == checked.predicted / 1.076


def test_memory_in_mixed_precision_by_hand():
    """2 bytes a parameter, 4 of its gradient, and 12 that ZeRO-1 shares over dp=4."""
    plan = plan_of(LLAMA)
    h, f, v, layers, tp = 8192, 28672, 128256, 12, 2
    attention = h * (h + 2 * 8 * 128) + h * h
    number = (layers * (attention + 3 * h * f) + 2 * v * h) // tp + (2 * layers + 1) * h
    found = memory(plan, LLAMA)
    assert found["parameters"] == pytest.approx(2 * number, rel=1e-6)
    assert found["gradients"] == 2 * found["parameters"]
    assert found["optimizer"] == pytest.approx(12 / 4 * number, rel=1e-6)
    assert found == peak(plan.strategy, plan.workload, 0, run_of(LLAMA, plan))


def test_memory_rows_are_of_their_pipeline_stage():
    rows = [
        r for r in tv.published("llama3_405b", kind="memory") if (r.pp, r.global_batch) == (2, 16)
    ]
    first, last = tv.validate(rows).rows
    assert first.gpu.endswith("rank 0") and last.gpu.endswith("rank 7")
    assert first.measured == rows[0].peak and first.predicted == first.memory.total
    assert first.predicted < last.predicted and first.measured < last.measured  # by the head
    for row in (first, last):  # exact bytes, one node, a model that we have
        assert row.ratio == pytest.approx(1, abs=0.01)


def test_names_of_ci_cases_say_what_the_columns_do_not():
    rows = {r.model: r for r in tv.published("gpt/gpt3_mcore_te_tp1_pp4", kind="memory")}
    gated, untied = (
        next(r for name, r in rows.items() if name.endswith(end))
        for end in ("dist_swiglu_1node", "untie_embeddings_and_outputs")
    )
    gated, untied = (
        plan_of(replace(r, model=r.model.replace("frozen", ""))) for r in (gated, untied)
    )
    assert gated.workload.gated and gated.workload.tied and not untied.workload.tied
    assert gated.workload.vocab == 50304  # 50257 up to a multiple of 128
    uneven, counted = (
        plan_of(next(r for name, r in rows.items() if name.endswith(end)))
        for end in ("vp1_uneven_pipeline", "account_for_embedding_loss_in_pipeline_split")
    )
    assert uneven.strategy.layout_of(uneven.workload) == "Ett|(t*4|)*2,ttL"
    assert counted.strategy.schedule == "interleaved_1f1b" and counted.strategy.stages == 8
    assert counted.strategy.layout_of(counted.workload) == "E|(t|)*6,L"
    assert not (uneven.workload.tied or counted.workload.tied)  # as their recipes say


def test_failed_rows_are_predicted_too():
    failed = tv.published("llama-1B", 8, kind="failed")[:3]
    for checked in tv.validate(failed).rows:
        assert checked.kind == "failed" and checked.measured is None and checked.predicted > 0
        assert checked.fits == (checked.memory.total <= 80e9)


def test_a_mixed_table_of_ones_own(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text(
        "source,model,layers,hidden,heads,seq,vocab,global_batch,micro_batch,dtype,gpu,n_gpus,tp,"
        "pp,measured,unit,notes\n"
        "mine,gpt,4,1024,16,1024,51200,8,1,bf16,H100,8,2,2,50,ms/step,\n"
        "mine,gpt,4,1024,16,1024,51200,8,1,bf16,H100,eight,2,2,50,ms/step,\n"
        "mine,gpt,4,1024,16,1024,51200,8,1,bf16,GTX,8,2,2,50,ms/step,\n"
    )
    good, nonsense, unknown = (checked := tv.validate(path)).rows
    assert (good.source, good.model, good.n_gpus, good.measured) == ("mine", "gpt", 8, 0.05)
    assert (
        good.predicted
        == tv.predict(good.plan.strategy, good.plan.workload, good.plan.cluster).step_time
    )
    assert nonsense.reason == "n_gpus='eight' is no number of 0 or more"
    assert unknown.reason.startswith("gpu='GTX' is not possible")
    assert checked.reasons.keys() == {nonsense.reason, unknown.reason}
    assert "3 rows, 1 of them predicted and measured." in checked.describe()
    assert [row[5] for row in checked.to_table()[1:]][1:] == ["", ""]


def test_it_shows_itself():
    checked = tv.validate(tv.published(model="gpt2-2B"))
    assert "measured by others" in checked.to_svg() and "gpt2-2B" in checked._repr_html_()
    assert len(checked.figure().data) == 8  # four frameworks, two panels
    assert "median of predicted over measured" in repr(checked)
    assert "<svg" in tv.validate([replace(SC21, cp=2)]).to_svg()  # none is predicted


def test_experts_are_some_of_the_replicas():
    """Megatron-LM's ep is a part of dp; the ranks of cp stay inside of those of ep."""
    row = replace(SC21, experts=8, top_k=2, moe_ffn=4096, shared_ffn=8192, ep=8, cp=2, dp=16)
    plan = plan_of(row)
    w, s = plan.workload, plan.strategy
    assert (w.experts, w.top_k, w.mlp_width, w.shared_experts) == (8, 2, 4096, 2)
    assert s.axes == {"pp": 2, "dp": 2, "ep": 8, "cp": 2, "tp": 8}
    assert list(s.axes) == ["pp", "dp", "ep", "cp", "tp"] and s.inside.inner.etp == 8
    assert "experts cut over tp as other matrices, Megatron-LM's default" in plan.assumed
    assert "as many tokens for each expert" in plan.assumed
    whole = plan_of(replace(row, etp=1, cp=1, dp=32))
    assert whole.strategy.inside.etp == 1
    assert any("beside those of tp" in words for words in whole.assumed)
    alone = plan_of(replace(row, ep=1, cp=1, dp=32))
    assert isinstance(alone.strategy, tv.Merak) and alone.workload.experts == 8
    half = memory(replace(whole), row).total, memory(alone, row).total
    assert half[0] < half[1]


def test_published_runs_with_experts():
    """Those to fit on; nothing is fitted on any."""
    rows = [r for r in tv.published(source="grok1") if r.part == "fit" and r.dtype == "bf16"]
    checked = [r for r in tv.validate(rows).rows if r.ratio]
    assert len(checked) == 4 and checked[0].ratio == pytest.approx(1, abs=0.1)
    assert all(0.9 < r.ratio < 1.45 for r in checked)
    (case, *_) = [r for r in tv.published("4experts", kind="memory") if r.part == "fit"]
    (found,) = tv.validate([case]).rows
    assert found.plan.workload.experts == 4 and found.ratio == pytest.approx(1, abs=0.06)
    assert "Experts(ep=2, etp=2)" in found.plan.strategy.short

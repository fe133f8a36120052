"""Peaks of memory of other frameworks' runs: by hand, and beside the rows that may be fitted on."""

from dataclasses import replace
from statistics import median

import pytest

import tpviz as tv
from tpviz.evidence.published import scoreboard as score
from tpviz.evidence.published.adapter import (
    CI,
    NotModelled,
    ci_cases,
    memory,
    options_of,
    plan_of,
    run_of,
)
from tpviz.verbs.peak import MiB, TrainingRun, peak

FIT = [row for row in tv.published(kind="memory") if row.part == "fit"]
CHECKED = tv.validate(FIT).rows
W = tv.GPT(layers=6, hidden=64, heads=4, seq=32, batch=8, vocab=256, dtype="bfloat16", tied=False)
T, H, F, V = 2 * 32, 64, 256, 256
BLOCK = 2 * T * (4 * H + 4 * H + 2 * F) + 16 * T + 4 * T * 4
"""Two norms with their statistics, q, k, v and output, the MLP, log-sum-exp of 4 heads."""
ONE = tv.Merak(pp=1, microbatches=4, schedule="1f1b", recompute="none")


def errors(source):
    return [abs(r.ratio - 1) for r in CHECKED if r.source == source and r.ratio]


def test_exact_peaks_of_ci_are_within_5_percent():
    off = errors(CI)
    assert len(off) >= 80 and median(off) < 0.01
    assert sum(e < 0.05 for e in off) >= 0.98 * len(off) and max(off) < 0.07


def test_peaks_of_simumax_are_within_1_percent():
    off = errors("simumax_b200_real")
    assert len(off) == 14 and max(off) < 0.01


def test_what_is_not_modelled_is_named():
    """Of the rows of CI: BERT, its own FSDP, experts of unknown number, and runs of which the
    number of GPUs is not stated."""
    reasons = {r.reason for r in CHECKED if not r.predicted}
    assert reasons == {
        "BERT: not modelled",
        "Megatron-LM's own FSDP: not modelled",
        "how many experts, and how many of a token, is not stated",
        "n_gpus is not stated",
    }


def test_one_stage_by_hand():
    """The last norm, and the logits in 32 and 16 bits while the loss is taken."""
    found = peak(ONE, W, 0, TrainingRun())
    assert found["parameters"] == 2 * W.num_parameters
    assert found["gradients"] == 4 * W.num_parameters
    assert found["optimizer"] == 12 * W.num_parameters
    end = 4 * T * H + 8 * T + 6 * T * V
    assert found["activations"] == 6 * BLOCK + end + 2 * T * 28
    tied = replace(W, tied=True)
    assert peak(ONE, tied, 0, TrainingRun())["parameters"] == 2 * tied.num_parameters


@pytest.mark.parametrize(
    "run, more",
    [
        (TrainingRun(attention="unfused"), 6 * (2 * 4 * T * 32 - 4 * T * 4)),
        (
            TrainingRun(attention="unfused", dropout=True),
            6 * (5 * 4 * T * 32 - 4 * T * 4 + 2 * T * H) + T * H,
        ),
        (TrainingRun(attention="recomputed"), -6 * 4 * T * 4),
        (TrainingRun(again=H), 6 * 2 * T * H),
        (TrainingRun(logits=10), 4 * T * V),
        (TrainingRun(fused_grads=True), 2 * (4 * H * H + 2 * H * F)),
        (TrainingRun(mask=True), 2 * T * 32),
        (TrainingRun(workspace=MiB), MiB),
    ],
)
def test_what_a_framework_keeps_besides(run, more):
    """On one rank, whose peak is in the loss."""
    found, plain = (peak(ONE, W, 0, how) for how in (run, TrainingRun()))
    assert found["activations"] - plain["activations"] == more
    assert {**found, "activations": 0} == {**plain, "activations": 0}


def test_states_are_shared():
    found = peak(ONE, W, 0, TrainingRun(summed=2, shards=4))
    assert found["gradients"] == 2 * W.num_parameters
    assert found["optimizer"] == 3 * W.num_parameters


def test_sequence_parallelism_splits_what_is_between_matrices():
    """Two norms' inputs and outputs; the head's input is gathered."""
    s = replace(ONE, tp=2)
    whole, split, gathered = (
        peak(s, W, 0, TrainingRun(split=split, gathered=gathered))["activations"]
        for split, gathered in ((False, False), (True, False), (True, True))
    )
    stream = 2 * T * H
    statistics = 6 * 16 * T // 2
    assert whole - split == 6 * 4 * stream // 2 + statistics + 2 * stream // 2 - stream
    assert gathered - split == 6 * 2 * stream // 2


def test_stages_in_flight():
    """1F1B: the first of 3 stages holds 3 microbatches; interleaved the last rank of 3 with 2
    chunks holds a chunk of 4 (Megatron-LM's num_warmup_microbatches, and the one after them)."""
    plain = replace(ONE, pp=3)
    first, last = (peak(plain, W, place, TrainingRun())["activations"] for place in (0, 2))
    backward = 2 * T * H + 2 * T * F
    assert first == 3 * 2 * BLOCK + backward + 2 * T * 28
    end = 4 * T * H + 8 * T + 6 * T * V
    assert last == 2 * BLOCK + end + 2 * T * 28
    both = tv.Merak(pp=3, microbatches=6, schedule="interleaved_1f1b", chunks=2, recompute="none")
    w = replace(W, batch=12)
    assert peak(both, w, 2, TrainingRun())["activations"] == 4 * BLOCK + end + 2 * T * 28


def test_a_stage_without_blocks():
    """The embedding alone: its gradient, and that of its output."""
    s = replace(ONE, pp=3, layout=(0, 3, 3))
    assert peak(s, W, 0, TrainingRun())["activations"] == 2 * V * H + 2 * T * H + 2 * T * 28


def test_recomputation_keeps_inputs():
    """And all of one block: the one in backward."""
    s = replace(ONE, pp=3, recompute="full")
    found = peak(s, W, 0, TrainingRun())["activations"]
    kept, backward = 2 * 2 * T * H, 2 * T * H + 2 * T * F
    assert found == 3 * kept + (BLOCK - 2 * T * H) + backward + 2 * T * 28
    at_once = peak(s, W, 0, TrainingRun(at_once=True))["activations"]
    assert at_once == found + BLOCK - 2 * T * H  # both blocks of the stage


def test_options_of_cases_are_those_of_the_repository():
    known = ci_cases()
    assert {row.model for row in FIT if row.model.startswith("gpt/")} <= set(known)
    rows = {(r.model.removeprefix("gpt/gpt3_mcore_te_"), r.gpu): r for r in FIT}
    of = lambda name, gpu: run_of(row := rows[name, gpu], plan_of(row))
    unfused = of("tp1_pp4_swiglu", "dev_dgx_a100")
    flash = of("tp1_pp4_vp1_resume_torch_decoupled_lr", "dev_dgx_a100")
    old = of("tp1_pp4_vp1_resume_torch_decoupled_lr", "lts_dgxa100_dracooci")
    assert [r.attention for r in (unfused, flash, old)] == ["unfused", "flash", "unfused"]
    assert (flash.again, flash.dropout, flash.fused_grads, flash.mask) == (512, True, False, True)
    two = of("tp2_pp1_multi_dist_optimizer_instances", "dev_dgx_a100")
    assert two.shards == 2  # of 4 replicas
    assert options_of("gpt/new_swiglu_untie") == {"swiglu", "untie-embeddings-and-output-weights"}
    sizes = {r.gpu: run_of(r, plan_of(r)).workspace for r in FIT if r.model.endswith("_pp4_vp1")}
    assert sizes["dev_dgx_a100"] == 68 * MiB and sizes["dev_dgx_gb200"] == 96 * MiB


def test_gated_mlps_of_ci_have_megatrons_width():
    row = next(r for r in FIT if r.model.endswith("tp1_pp4_swiglu"))
    assert plan_of(row).workload.ffn == 1344  # 4 h 2 / 3 down to a multiple of 64
    padded = plan_of(next(r for r in FIT if r.model.endswith("7b_tp4_pp1_memory_speed")))
    assert padded.workload.vocab == 131584  # 131073 up to a multiple of 128 tp


def test_frameworks_keep_what_they_keep():
    grid = next(r for r in tv.published(source="ultrascale") if (r.tp, r.pp) == (4, 1) and r.zero)
    run = run_of(grid, plan_of(grid))
    assert (run.again, run.fused_mlp, run.logits, run.gathered) == (
        2 * grid.hidden,
        False,
        10,
        True,
    )
    assert run.shards == grid.dp and run.summed == 6
    first = tv.published(source="megatron_sc21")[0]
    old = run_of(first, plan_of(first))
    assert (old.attention, old.dropout) == ("unfused", True)
    selective = replace(first, recompute="selective")
    assert run_of(selective, plan_of(selective)).attention == "recomputed"
    simumax = next(r for r in FIT if r.source.startswith("simumax"))
    how = run_of(simumax, plan_of(simumax))
    assert how.fused_loss and how.fused_grads


def test_pipelines_that_nanotron_cannot_build_are_refused():
    """16 blocks of one unit and a head of four: of 8 stages the last but one has the head, the last
    the loss; of 16 the loss ends on stage 14."""
    row = next(r for r in tv.published("llama-1B", 8) if r.pp == 8)
    assert plan_of(row).strategy.axes["pp"] == 8
    with pytest.raises(NotModelled, match="loss on stage 14 and looks for it on stage 15"):
        plan_of(replace(row, pp=16, n_gpus=16 * row.tp * row.dp))


def test_failures_need_more_memory_than_runs():
    """Over a part of the grid's rows that may be fitted on."""
    failed, ran = (
        [r for r in tv.published(source="ultrascale", kind=kind) if r.part == "fit"][::3]
        for kind in ("failed", "measured")
    )
    bad, good = (score.needs(tv.validate(rows).rows) for rows in (failed, ran))
    assert len(bad) > 20 and len(good) > 100 and score.area(bad, good) > 0.9


def test_peaks_of_the_grid():
    """One pipeline stage: GiB, as nanotron logs; the rank that needs most."""
    rows = [
        r for r in tv.published(source="ultrascale") if r.part == "fit" and r.pp == 1 and r.peak
    ]
    off = [abs(p.ratio - 1) for p in score.peaks(tv.validate(rows[::2]).rows)]
    assert median(off) < 0.07


def test_without_a_place_the_largest_rank_counts():
    row = next(r for r in tv.published(source="ultrascale") if r.pp == 4 and r.tp == 1)
    plan = plan_of(row)
    assert isinstance(plan.strategy, tv.Merak)
    assert memory(plan, row).total == max(
        peak(plan.strategy, plan.workload, place, run_of(row, plan)).total for place in range(4)
    )


def test_context_parallelism_is_a_shorter_sequence():
    """The optimizer's shares are cp times as many."""
    row = next(r for r in FIT if r.cp == 8)
    (checked,) = tv.validate([row]).rows
    assert (
        checked.plan
        and checked.plan.strategy.axes["cp"] == 8
        and checked.plan.workload.seq == row.seq
        and run_of(row, plan_of(row)).shards == 8 * row.dp
    )
    assert checked.step is None and checked.ratio == pytest.approx(1, abs=0.01)

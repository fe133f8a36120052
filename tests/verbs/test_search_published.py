"""The best plan of a search is by formula no slower than the plan that people ran, and fits."""

import pytest

import tpviz as tv


def published(tp, **knobs):
    return tv.Merak(tp=tp, sp=tp > 1, zero=1, recompute="none", **knobs)


def spread(ep, etp, tp, cp=1, **knobs):
    plan = published(tp, **knobs) * tv.Experts(ep=ep, etp=etp)
    return plan * tv.Context(cp=cp) if cp > 1 else plan


DEEP = {"schedule": "interleaved_1f1b"}
RUNS = {  # NVIDIA's runs on H100s, of dense models without their context parallelism
    "llama3 8B on 8": (
        tv.models.llama3("8B", batch=128),
        published(2, pp=1, dp=4, microbatches=32, schedule="1f1b"),
    ),
    "llama3 70B on 64": (
        tv.models.llama3("70B", batch=128),
        published(4, pp=4, dp=4, microbatches=32, chunks=5, **DEEP),
    ),
    "gpt3 175B on 128": (
        tv.models.gpt3("175B", batch=256, vocab=51200),
        published(4, pp=8, dp=4, microbatches=64, chunks=12, **DEEP),
    ),
    "nemotron4 340B on 256": (
        tv.models.nemotron4("340B", batch=64),
        published(8, pp=8, dp=4, microbatches=16, chunks=12, **DEEP),
    ),
    # mixtures of experts: Megatron-Bridge's, Megatron-LM's CI, and DGX Cloud's
    "gpt-oss 120B on 64": (
        tv.models.gpt_oss("120B", batch=1280),
        spread(8, 1, 1, pp=4, dp=2, microbatches=80, schedule="1f1b"),
    ),
    "qwen3 30B-A3B on 16": (
        tv.models.qwen3("30B-A3B", batch=1024),
        spread(8, 1, 1, pp=2, dp=1, microbatches=128, chunks=12, **DEEP),
    ),
    "mixtral 8x7B on 64": (
        tv.models.mixtral("8x7B", batch=256),
        spread(8, 1, 1, pp=4, dp=2, microbatches=16, chunks=8, **DEEP),
    ),
    "grok1 314B on 512": (
        tv.models.grok1("314B", batch=1024, vocab=128256),
        spread(8, 4, 4, 2, pp=8, dp=1, microbatches=128, chunks=8, **DEEP),
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_no_published_plan_is_faster(name):
    workload, plan = RUNS[name]
    cluster = tv.clusters.as_run_by(
        tv.clusters.dgx("H100-SXM-80GB", plan.world_size), "Megatron-LM"
    )
    found = tv.search(workload, cluster, simulate=False)
    assert found.rows[0].predicted <= tv.predict(plan, workload, cluster).step_time
    assert found.rows[0].prediction.fits
    words = found.why_not(plan)
    assert words.startswith(plan.short) or "no time to look" in words
    causes = ("is the first", "because it spends", "of memory", "formula")
    assert any(cause in words for cause in causes)

"""ZeRO inside pipelines and sequence parallelism inside stages: they equal one process in float64,
send what the formula says to the byte, take what simulation says, and hold what is tracked."""

from dataclasses import replace

import pytest
from test_merak_memory import ratios
from tiny import TINY, assert_equal

import tpviz as tv

DEEP = replace(TINY, layers=4)
UNTIED = replace(DEEP, tied=False)
LLAMA = replace(DEEP, ffn=160, kv_heads=2, gated=True, norm="rms", rotary=True, bias=False)
W = tv.GPT(layers=8, hidden=64, heads=4, seq=64, batch=16, vocab=256)


def merak(place, **knobs):
    pp, tp, dp = place
    return tv.Merak(pp=pp, tp=tp, dp=dp, **{"microbatches": max(4, 2 * pp), **knobs})


def fitting(strategy, w=DEEP):
    """A workload with two rows a microbatch, and blocks for all stages."""
    batch = 2 * strategy.dp * strategy.microbatches
    return replace(w, batch=batch, layers=max(w.layers, strategy.stages))


ORDERS = [
    {"schedule": "1f1b", "recompute": "none"},
    {"schedule": "shifted_critical_path", "recompute": "stage_aware"},
    {"schedule": "interleaved_1f1b", "recompute": "full"},
]
V = {"schedule": "zb_v", "recompute": "none"}
# Each stage with each order once; bench/sweep_merak.py has them all.
CASES = [
    *(((2, 1, 2), DEEP, {"zero": zero, **order}) for zero, order in zip((1, 2, 3), ORDERS)),
    ((2, 1, 2), DEEP, {"zero": 1, **V}),
    ((2, 2, 2), UNTIED, {"zero": 1, "subpipeline": 3, **ORDERS[0]}),
    ((2, 2, 1), UNTIED, {"sp": True, **ORDERS[1]}),
    ((2, 2, 1), DEEP, {"sp": True, **V}),
    ((2, 2, 2), DEEP, {"sp": True, "zero": 2, **ORDERS[2]}),
    ((2, 2, 2), LLAMA, {"sp": True, "zero": 3, **ORDERS[0]}),
    ((2, 2, 2), UNTIED, {"zero": 3, "subpipeline": 1, **ORDERS[0]}),
]


@pytest.mark.parametrize("place, w, knobs", CASES, ids=str)
def test_equals_one_process(place, w, knobs):
    strategy = merak(place, **knobs)
    assert_equal(strategy, fitting(strategy, w))


@pytest.mark.parametrize("place, w, knobs", CASES, ids=str)
def test_ledgers_and_times_are_those_of_the_simulation(place, w, knobs):
    """Where dp and tp send at once, `predict` counts links that they share as free."""
    strategy, cluster = merak(place, **knobs), tv.clusters.nvlink_pairs()
    w = replace(fitting(strategy, w), hidden=1024, seq=256, ffn=None)
    capture = tv.capture(strategy, w)
    for rank in range(strategy.world_size):
        assert capture.ledger(rank) == strategy.ledger_of(w, rank)
    simulated = tv.simulate(strategy, w, cluster, capture=capture, contention=False)
    assert tv.predict(strategy, w, cluster).step_time == pytest.approx(simulated.step_time, 1e-9)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_bytes_over_replicas(zero):
    """On two replicas a rank sends half of what it scatters or gathers: stage 2 reduces each of 4
    microbatches, stage 3 gathers for forward and, but for the embedding, for backward."""
    s = tv.Merak(pp=2, dp=2, microbatches=4, schedule="1f1b", recompute="none", zero=zero)
    _, whole, _ = replace(s, zero=0).ledger(DEEP).total(axis="dp")
    embedding = (DEEP.vocab + DEEP.seq) * DEEP.hidden * DEEP.itemsize
    passes = {0: 2 * whole, 1: 2 * whole, 2: 5 * whole, 3: 12 * whole - 4 * embedding}[zero]
    assert s.ledger(DEEP).total(axis="dp")[2] == passes / 2


@pytest.mark.parametrize(
    "knobs",
    [
        {"dp": 2, "zero": 1, "schedule": "interleaved_1f1b", "recompute": "stage_aware"},
        {"dp": 2, "zero": 2, "schedule": "1f1b", "recompute": "none"},
        {"dp": 2, "zero": 3, "schedule": "1f1b"},
        {"tp": 2, "sp": True, "schedule": "1f1b", "recompute": "stage_aware"},
        {"tp": 2, "sp": True, "schedule": "zb_h1", "recompute": "none"},
        {"tp": 2, "dp": 2, "sp": True, "zero": 3, "schedule": "1f1b", "recompute": "none"},
    ],
    ids=str,
)
def test_memory_equals_what_is_tracked(knobs):
    """States to the byte, activations within 12 %."""
    assert ratios(tv.Merak(**knobs), W) == pytest.approx(dict.fromkeys(range(2), 1.0), abs=0.12)


def test_sequence_parallel_messages_are_shards():
    plain = tv.Merak(pp=2, tp=2, microbatches=4)
    split = replace(plain, sp=True)
    counts = [s.ledger(DEEP).total(axis="pp") for s in (plain, split)]
    assert counts[0] == (counts[1][0], 2 * counts[1][1], 2 * counts[1][2])


@pytest.mark.parametrize(
    "knobs, message",
    [
        (
            {"tp": 2, "sp": True, "subpipeline": 2},
            "sp=True and subpipeline=2 are not possible together: use subpipeline=0, or sp=False",
        ),
        (
            {"dp": 2, "zero": 2, "schedule": "zb_h1"},
            "zero=2 and schedule='zb_h1' are not possible together: use schedule='1f1b', or zero=1",
        ),
        (
            {"dp": 2, "tp": 2, "zero": 3, "subpipeline": 3},
            "zero=3 and subpipeline=3 are not possible together: use subpipeline=1, or zero=1",
        ),
        ({"tp": 8, "sp": True}, "seq=12 does not split evenly over tp=8: use tp=4, or seq=8 or 16"),
        ({"zero": 4}, "zero=4 is not possible: use 0, 1, 2 or 3"),
    ],
)
def test_bad_input(knobs, message):
    with pytest.raises(ValueError, match=message):
        tv.Merak(**knobs).check(replace(DEEP, seq=12, batch=16))


def test_not_for_a_module_of_ones_own():
    import torch

    model, x = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4))), torch.zeros(8, 4)
    for knobs in ({"zero": 1, "dp": 2}, {"sp": True, "tp": 2}):
        with pytest.raises(ValueError, match="for a module of one's own: use zero=0 and sp=False"):
            tv.parallelize(model, tv.Merak(pp=2, **knobs), x)


def test_without_anything_to_split_nothing_changes():
    """One replica has nothing to share out, and one rank no sequence to split."""
    plain = tv.Merak(pp=2, microbatches=4, schedule="zb_h1")
    same = replace(plain, zero=3, sp=True)
    assert same.ledger(DEEP) == plain.ledger(DEEP)
    assert same.memory(DEEP) == plain.memory(DEEP)


def test_who_keeps_what_of_a_parameter():
    """At stage 3 replicas share a stage's parameters, and both ends a copy of the tied one."""
    from tpviz.schemes.ownership import ownership
    from tpviz.views.figures.mesh import mesh_scene, share

    strategy = tv.Merak(pp=2, dp=2, zero=3, schedule="1f1b")
    scene = mesh_scene(tv.Mesh(strategy.axes), ownership(strategy, DEEP))
    owned = {p["name"]: [share(p, rank) for rank in range(4)] for p in scene["parameters"]}
    assert sum(owned["embed.token.weight"]) == pytest.approx(2)
    assert sum(owned["blocks.0.mlp.up.weight"]) == pytest.approx(1)
    assert owned["blocks.0.mlp.up.weight"][2:] == [0, 0] == owned["norm.bias"][:2]

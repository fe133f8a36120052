"""Activations that wait on the host: the same numbers, exact bytes, and time by the host's link."""

import gc
from dataclasses import replace

import numpy as np
import pytest

import tpviz as tv
from tpviz.core.copies import COPY, FROM_HOST, HOST, TO_HOST
from tpviz.core.trace import Event, Trace
from tpviz.schemes.grid.memory import block_kept, dropped_bytes
from tpviz.views.figures import timeline

W = tv.GPT(layers=4, batch=8)
MIXTURE = replace(W, experts=4)
CLUSTER = tv.clusters.nvswitch(4)
PRODUCTS = [
    tv.Megatron(tp=2, offload=2),
    tv.Megatron(tp=2, sp=True, offload=3, recompute="selective"),
    tv.Megatron(tp=2, chunks=2, offload=1, accumulation=2),
    tv.ATP(mesh=(2, 2), offload=3, recompute="selective"),
    tv.ATP(mesh=(2, 2), norm="L2", chunks=2, chunking="pipelined", offload=2),
    tv.T3(tp=2, gather="consumer", offload=2),
    tv.Context(cp=2, kind="ring", offload=2),
    tv.Megatron(tp=2, sp=True) * tv.Context(cp=2, offload=3),
    tv.DataParallel(dp=2, zero=1, accumulation=2, offload=3),
    tv.Megatron(tp=2, recompute="full", offload=2) * tv.DataParallel(dp=2, zero=3),
]


def with_link(rate):
    return replace(CLUSTER, device=replace(CLUSTER.device, host=rate))


@pytest.mark.parametrize("strategy", PRODUCTS, ids=repr)
def test_numbers_and_bytes_are_those_without(strategy):
    found = tv.verify(strategy, W)
    assert found.ok, found
    assert found.max_error < 1e-10


@pytest.mark.parametrize("strategy", PRODUCTS, ids=repr)
def test_a_prediction_is_the_simulation_of_the_captured_program(strategy):
    program = tv.capture(strategy, W)
    assert program.ledger() == strategy.ledger(W)
    for rate in (1e9, 63e9):
        trace, predicted = (
            verb(strategy, W, with_link(rate)) for verb in (tv.simulate, tv.predict)
        )
        seconds = trace["end"].max() - trace["start"].min()
        assert seconds == pytest.approx(predicted.step_time, rel=3e-3)


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_the_ledger_has_what_blocks_keep(recompute):
    strategy = tv.Megatron(tp=2, offload=3, recompute=recompute, accumulation=2)
    at, w = strategy.layout, strategy.local(W)
    each = block_kept(at, w) - dropped_bytes(at, w, recompute)
    for way, phase in zip(HOST, ("forward", "backward")):
        assert strategy.ledger(W).total(axis=way, collective=COPY, phase=phase) == (6, 6 * each, 0)


@pytest.mark.parametrize("strategy", PRODUCTS, ids=repr)
def test_the_device_holds_two_blocks(strategy):
    """By formula and tracked, as much less as the blocks that are not on the device have."""
    whole = replace(strategy, offload=0)
    if strategy.offload == 0:  # it is the inner factor's
        whole = replace(strategy, inner=replace(strategy.inner, offload=0))
    seen, more = (tv.capture(s, W).trace(0).memory(0).peaks for s in (strategy, whole))
    formula, without = strategy.memory(W), whole.memory(W)
    assert formula["activations"] == pytest.approx(seen["activations"], rel=0.12)
    assert {**formula, "activations": 0} == {**without, "activations": 0}
    less = without["activations"] - formula["activations"]
    assert less == pytest.approx(more["activations"] - seen["activations"], rel=0.05, abs=3000)


def test_a_copy_is_hidden_where_it_fits_beneath_the_next_block():
    strategy = tv.Megatron(tp=2, offload=2)
    fast, slow = (tv.predict(strategy, W, with_link(rate)) for rate in (1e12, 1e9))
    assert sum(fast.exposed.get(way, 0.0) for way in HOST) == 0.0
    assert all(fast.hidden[way] > 0 for way in HOST)
    assert fast.step_time == pytest.approx(
        tv.predict(tv.Megatron(tp=2), W, CLUSTER).step_time, rel=1e-9
    )
    size = strategy.ledger(W).total(axis=TO_HOST)[1]
    for way in HOST:  # all of it is there, seen or not
        assert slow.exposed[way] + slow.hidden[way] == pytest.approx(size / 1e9)
        assert slow.exposed[way] > slow.hidden[way]


def _twice(strategy, workload):
    """(lanes, kinds of waited-for rows, storages left) of a rank's two recorded steps."""
    from tpviz.schemes.gpt.offload import StorageAway
    from tpviz.schemes.gpt.program import batch_of

    program = strategy.build(workload, tv.Mesh(strategy.axes).device_mesh("cpu"))
    with tv.record() as recorder:
        for step in range(2):
            with recorder.step():
                program.step(batch_of(workload, step))
                program.optimizer_step()
    gc.collect()
    left = sum(isinstance(o, StorageAway) for o in gc.get_objects())
    return recorder.trace, left


def test_a_run_has_lanes_for_its_copies_and_keeps_nothing():
    strategy = tv.Megatron(tp=2, offload=2)
    trace, left = tv.launch(_twice, strategy, W, world_size=2)[0]
    assert left == 0
    copies = trace.select(kind="copy")
    assert set(copies["lane"].tolist()) == {f"copy/{way}" for way in HOST}
    assert trace.ledger() == strategy.ledger(W)
    assert (copies["end"] >= copies["start"]).all() and len(copies) == 8
    assert set(trace["id"][trace["kind"] == "copy"].tolist()) <= set(trace["waits_for"].tolist())
    away, back = (copies.select(lane=f"copy/{way}", step=1) for way in HOST)
    assert away["layer"].tolist() == ["blocks.0", "blocks.1"]
    assert back["layer"].tolist() == ["blocks.2", "blocks.1"]  # where they are asked for
    assert back["start"].min() > away["end"].max()
    lanes = timeline.timeline_scene(trace)["lanes"]
    assert {f"copy/{way}" for way in HOST} <= {lane["lane"] for lane in lanes}


@pytest.mark.filterwarnings("ignore:.*not faithful")
def test_an_emulated_run_takes_the_time_of_the_host_s_link():
    strategy, slow = tv.Megatron(tp=2, offload=2), with_link(1e10).scale_model(slow_motion=4000)
    run = tv.run(strategy, W, slow, steps=1, progress=False)
    copies, simulated = run.select(kind="copy", rank=0), tv.simulate(strategy, W, slow)
    least = copies["bytes"] / slow.device.host_rate
    assert len(copies) == 4 and (copies["end"] - copies["start"] >= 0.999 * least).all()
    ends = [trace.select(kind="step", rank=0)["end"][-1] for trace in (run, simulated)]
    begins = [trace.select(kind="step", rank=0)["start"][0] for trace in (run, simulated)]
    real, model = (end - begin for end, begin in zip(ends, begins))
    assert real >= 0.99 * model


def test_copies_of_other_programs_are_in_no_ledger():
    events = [Event(kind="copy", lane="copy", bytes=8, end=1.0)]
    assert len(Trace.from_events(events).ledger()) == 0
    named = [Event(kind="copy", lane="copy/to-host", name=COPY, axis=TO_HOST, members="0", bytes=8)]
    assert Trace.from_events(named).ledger().total(axis=TO_HOST) == (1, 8, 0)


def test_memory_in_16_bits_knows_what_is_away():
    w, cluster = tv.models.llama3("8B", batch=8), tv.clusters.as_run_by(tv.clusters.dgx(gpus=8))
    more, less = (tv.predict(tv.Megatron(tp=8, offload=n), w, cluster).memory() for n in (4, 28))
    assert less["activations"] < more["activations"]
    assert np.isclose(less["parameters"], more["parameters"])


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tv.predict(tv.Megatron(tp=2, offload=4), W, CLUSTER), "use offload=3 or less"),
        (lambda: tv.DataParallel(dp=2, offload=9).ledger(W), "offload=9 of 4 blocks"),
        (lambda: tv.Experts(ep=2, offload=1).check(MIXTURE), "use recompute='full', or offload=0"),
        (lambda: tv.Megatron(tp=2, offload=-1), "offload=-1 is too small"),
        (
            lambda: tv.Megatron(tp=2, offload=1) * tv.Pipeline(pp=2, microbatches=2),
            "use offload=0, or Pipeline(recompute=)",
        ),
        (lambda: tv.AxoNN(x=2, z=1) * tv.Context(cp=2, offload=1), "has no knob 'offload'"),
        (
            lambda: tv.DataParallel(dp=2, offload=1, inner=tv.Megatron(tp=2, offload=2)),
            "offload=1 around offload=2",
        ),
        (
            lambda: tv.predict(tv.Megatron(tp=2, offload=1), W, tv.clusters.torus()),
            "does not say how fast it reaches its host",
        ),
        (lambda: tv.Mesh({TO_HOST: 2}), "must be a plain word"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError) as error:
        make()
    assert message in str(error.value)


def test_the_last_block_that_copies_is_brought_back_first():
    """The gradients of a block are complete in the same order, whatever is copied."""
    from tpviz.schemes.strategy import gradient_ready_order

    plain = tv.DataParallel(dp=2, zero=0)
    assert gradient_ready_order(replace(plain, offload=3), W) == gradient_ready_order(plain, W)
    ways = [
        o.move.axis
        for part in tv.Megatron(tp=2, offload=2).step(W)
        for o in part.operations
        if getattr(getattr(o, "move", None), "axis", "") in HOST
    ]
    assert ways == [TO_HOST, TO_HOST, FROM_HOST, FROM_HOST]


def test_blocks_with_experts_leave_where_they_are_recomputed():
    strategy = tv.Megatron(tp=2) * tv.Experts(ep=2, recompute="full", offload=2)
    assert tv.verify(strategy, MIXTURE).ok
    assert tv.capture(strategy, MIXTURE).ledger() == strategy.ledger(MIXTURE)


@pytest.mark.parametrize("kind", ["zigzag", "all_gather", "ulysses"])
@pytest.mark.parametrize("recompute", ["none", "selective"])
def test_bytes_are_exact_for_other_kinds_of_attention(kind, recompute):
    llama = replace(W, gated=True, norm="rms", rotary=True, kv_heads=2, bias=False)
    packed = replace(W, documents=(10, 12, 10))
    latent = replace(W, kv_lora=12, rope_dim=4, rotary=True, head_dim=6)
    for w in (llama, packed, latent):
        strategy = tv.Context(cp=2, kind=kind, recompute=recompute, offload=1)
        assert tv.capture(strategy, w).ledger() == strategy.ledger(w)
    strategy = tv.Megatron(tp=2, sp=True, recompute=recompute, offload=1)
    for w in (llama, packed, latent):
        assert tv.capture(strategy, w).ledger() == strategy.ledger(w)

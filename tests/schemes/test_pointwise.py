"""Memory-bound kernels: their table against what PyTorch calls, and how they are spread."""

from dataclasses import dataclass, replace
from functools import partial
from math import inf

import pytest

import tpviz as tv
from tpviz.ranks.compute import KERNELS
from tpviz.schemes.gpt.pointwise import Held, collectives, gemms_of, passes
from tpviz.schemes.gpt.step import kernels
from tpviz.schemes.strategy import Strategy

BOX = tv.clusters.dgx("H100-SXM-80GB", 16)
SHARE = {"attention_efficiency": 0.4}
NAMES = {name.partition(".")[0] for name in KERNELS} | {"_unsafe_view"}  # which moves nothing


def box(**losses):
    return replace(BOX, device=replace(BOX.device, **losses))


def total(kind, held, **more):
    return sum(count * size for count, size in passes(box(pointwise=kind, **more).device, held))


@pytest.mark.parametrize("kw", [{}, {"dtype": "bfloat16"}, {"bias": False}, {"tied": False}])
def test_eager_is_what_pytorch_calls(kw):
    w = tv.GPT(layers=4, hidden=256, heads=8, seq=64, batch=8, vocab=1024, **kw)
    strategy = tv.DataParallel(dp=1)
    trace = tv.capture(strategy, w, detail="all").trace(0).select(kind="compute")
    called = [e for e in trace if e.name not in NAMES and e.bytes and e.phase != "optimizer"]
    assert total("eager", strategy.held(w)) == pytest.approx(sum(e.bytes for e in called), rel=0.06)


def test_fused_by_hand():
    """GPT-2's block: two norms, two sums, GELU; then the last norm, the loss, the two tables."""
    w = tv.GPT(layers=3, hidden=64, heads=4, seq=16, batch=2, vocab=128)
    x, z = 2 * 16 * 64 * 4, 2 * 16 * 128 * 4
    block = 2 * (2 + 3) * x + 2 * (3 + 3) * x + (2 + 3) * 4 * x
    ends = (2 + 2 + 3) * x + (2 + 3) * x + 3 * z
    held = tv.DataParallel(dp=1).held(w)
    assert total("fused", held) == 3 * block + ends
    scores = 2 * 16 * 16 * 4 * 4
    added = total("fused", held, attention="softmax") - total("fused", held)
    assert added == 3 * (2 + 3 + 2 + 4) * scores
    llama = replace(w, gated=True, rotary=True, norm="rms", bias=False, kv_heads=2)
    gated = block - (2 + 3) * 4 * x + (3 + 5) * 4 * x + (2 + 2) * (x + x / 2)
    assert total("fused", tv.DataParallel(dp=1).held(llama)) == 3 * gated + ends - 3 * x


def test_shares_of_ranks():
    w = tv.GPT(layers=4, hidden=64, heads=4, seq=16, batch=8, vocab=128)
    whole, half = Held(w, 1, 1.0, 1.0, w.kinds()), Held(w, 2, 0.5, 0.5, w.kinds())
    assert total("fused", half) == total("fused", whole) / 2
    assert tv.Megatron(tp=2, sp=True).held(w) == half
    assert tv.Megatron(tp=2).held(w) == half._replace(stream=1.0)
    assert tv.ATP(mesh=(2, 2)).held(w) == Held(w, 4, 0.5, 0.5, w.kinds())
    inside = tv.Megatron(tp=2) * tv.DataParallel(dp=2)
    assert inside.held(w) == tv.Megatron(tp=2).held(w.with_batch(4))
    pipeline = tv.Merak(pp=2, tp=2, dp=1, microbatches=4, schedule="1f1b")
    first, last = (pipeline.held(w, rank) for rank in (0, 3))
    assert [n for _, n in first.blocks] == [2]
    assert (first.ends, first.shards) == ((True, False), 1)
    assert last == first._replace(ends=(False, True))


@pytest.mark.parametrize("kind", ["eager", "fused"])
def test_all_are_counted_whatever_is_recomputed(kind):
    """What a step takes longer is its memory-bound kernels' time; recomputed ones come again."""
    w = tv.GPT(layers=4, hidden=256, heads=8, seq=64, batch=8, vocab=1024)
    plain = tv.Merak(pp=1, microbatches=1, schedule="1f1b", recompute="none")
    seconds = total(kind, plain.held(w)) / BOX.device.memory_bandwidth
    for strategy, times in ((plain, (1, 1)), (replace(plain, recompute="full"), (1.2, 1.4))):
        free, real = (tv.predict(strategy, w, box(pointwise=k)).step_time for k in ("free", kind))
        assert times[0] * seconds * 0.999 <= real - free <= times[1] * seconds * 1.001


def test_a_host_that_is_slow_bounds_the_step():
    w, launch = tv.GPT(layers=4, hidden=32, heads=4, seq=16, batch=2, vocab=64), 1e-3
    strategy = tv.DataParallel(dp=1)
    others = sum(count for count, _ in passes(box(pointwise="eager").device, strategy.held(w)))
    slow = box(pointwise="eager", launch=launch)
    kernels = 4 * 14 + 3
    step = tv.predict(strategy, w, slow).step_time
    assert step == pytest.approx(launch * (others + kernels), rel=0.01)
    large = replace(w, hidden=4096, seq=2048, batch=8)
    two = [tv.predict(strategy, large, c).step_time for c in (slow, box(pointwise="eager"))]
    assert two[0] == two[1]  # the device is behind, the host is not seen


@pytest.mark.parametrize("pp, low, high", [(1, -1e-6, 0.1), (2, 0.5, 1.5)])
def test_a_host_launches_on_while_its_device_waits(pp, low, high):
    """Without a pipeline: links that are slow, yet faster than the host, cost the step nothing."""
    w = tv.GPT(layers=4, hidden=256, heads=8, seq=64, batch=4, vocab=1024)
    strategy = tv.Merak(pp=pp, tp=2, microbatches=2, schedule="1f1b", recompute="none")
    fast = box(pointwise="eager", launch=2e-3)
    slow = replace(fast, levels=tuple(level.slower(3000, 1) for level in fast.levels))
    ideal = [tv.predict(strategy, w, replace(c, device=BOX.device)) for c in (fast, slow)]
    real = [tv.predict(strategy, w, c) for c in (fast, slow)]
    sent, longer = (two.step_time - one.step_time for one, two in (ideal, real))
    assert 0.02 * real[0].step_time < sent < 0.5 * real[0].step_time
    assert low * sent <= longer <= high * sent


def test_checks_of_collectives_hold_up_the_host_of_a_pipeline():
    """As many as the scheme's own ledger has; the loss has three where ours has one message."""
    w = tv.GPT(layers=4, hidden=32, heads=4, seq=16, batch=2, vocab=64)
    for sp in (False, True):
        strategy = tv.Megatron(tp=2, sp=sp)
        count = sum(row.count for row in strategy.ledger(w)) - sp  # gradients of norms, once a step
        assert collectives(strategy.held(w)) == count + 2
    plain, checked = (box(pointwise="eager", launch=1e-3, check=c) for c in (0.0, 2e-3))
    pipeline = tv.Merak(pp=2, tp=2, microbatches=2, schedule="1f1b")
    held = pipeline.held(w)
    flops = sum(count * flops for count, flops, _ in gemms_of(held))
    more = [pipeline.device(w, c).spread * flops for c in (plain, checked)]
    assert more[1] - more[0] == pytest.approx(2e-3 * 2 * collectives(held))
    alone = replace(pipeline, pp=1)
    assert alone.device(w, plain) == replace(alone.device(w, checked), check=0.0)


@pytest.mark.parametrize("kind", ["free", "fused"])
@pytest.mark.parametrize("way, more", [({"attention": "softmax"}, 1), (SHARE, 1.5)])
def test_attention_that_takes_longer_than_its_half_as_a_gemm(kind, way, more):
    """Unfused it computes the masked half too; fused kernels may be slower than GEMMs. Here no
    bytes and no links take any time."""
    w = tv.GPT(layers=4, hidden=256, heads=8, seq=64, batch=8, vocab=1024)
    links = tuple(replace(v, p2p=inf, group=inf, latency=0.0, nics=None) for v in BOX.levels)
    fused = replace(box(pointwise=kind, memory_bandwidth=1e30), levels=links)
    slow = replace(fused, device=replace(fused.device, **way))
    for tp in (1, 2):
        half = w.layers * sum(core.flops for core in kernels(w).core) / tp
        for ask in (tv.predict, tv.simulate, partial(tv.simulate, detail="all")):
            one, two = (ask(tv.Megatron(tp=tp), w, c).step_time for c in (fused, slow))
            expected = more * half / BOX.device.flops["float32"]
            assert two - one == pytest.approx(expected, rel=1e-6)


def test_a_scheme_that_does_not_say_is_refused():
    @dataclass(frozen=True)
    class Unsaid(Strategy):
        axes = {"tp": 1}

    with pytest.raises(
        ValueError, match=r'Unsaid does not say .* use a device with pointwise="free"'
    ):
        Unsaid().device(tv.GPT(), box(pointwise="fused"))
    with pytest.raises(ValueError, match='attention="flash"'):
        Unsaid().device(tv.GPT(), box(attention="softmax"))
    assert Unsaid().device(tv.GPT(), BOX) is BOX.device


def test_every_operator_is_not_counted_twice():
    """With detail="all" memory-bound kernels are in the program, and none are spread."""
    w, strategy = tv.GPT(), tv.Megatron(tp=2)
    times = [
        tv.simulate(strategy, w, box(pointwise=kind), detail="all").step_time
        for kind in ("free", "eager")
    ]
    assert times[0] == times[1]


def test_an_emulated_run_has_them_too():
    """On one rank, so that a crowded machine has nothing to be late with but kernels."""
    w = tv.GPT(layers=2, hidden=64, heads=4, seq=32, batch=8, vocab=128)
    slow = tv.Device({"float32": 2e9}, 16e9, 8e8, "slow", pointwise="eager")
    pair = replace(tv.clusters.nvlink_pairs(pairs=1), device=slow).scale_model(slow_motion=16)
    free = replace(pair, device=replace(pair.device, pointwise="free"))
    strategy = tv.DataParallel(dp=1)
    expected = tv.simulate(strategy, w, pair).step_time
    assert expected > 1.1 * tv.simulate(strategy, w, free).step_time
    run = tv.run(strategy, w, pair, steps=2)
    assert 0.99 * expected <= run.step_time <= 1.1 * expected

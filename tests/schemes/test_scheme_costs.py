"""Cost formulas: by hand, and equal to the simulation of the strategy's own program on any
cluster, where the parts of a prediction and of a comparison add up to one exposed communication."""

from dataclasses import replace
from functools import cache
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tpviz as tv
from tpviz.cluster import Cluster, Device, Level
from tpviz.cluster.clock.cost import by_axis, parts
from tpviz.cluster.collectives import ALGORITHMS
from tpviz.schemes.advice import fits
from tpviz.schemes.gpt.kernels import attention
from tpviz.schemes.gpt.program import batch_of, reference_program
from tpviz.schemes.gpt.step import kernels
from tpviz.schemes.pipeline.step import stage_parts
from tpviz.schemes.strategy import step_of
from tpviz.verbs.compare import Comparison

SMALL = tv.GPT(layers=1, hidden=8, heads=2, seq=4, batch=2, vocab=16)
# 1 FLOP a us; an all-reduce of an activation (256 bytes) over two: 2 hops of 1 ms, 1 ms of bytes;
# the update of 572 parameters, 28 bytes each: 1 ms.
PAIR = Cluster(
    "pair", Device({"float32": 1e6}, 1e9, 16.016e6), (Level("link", 2, 256e3, 256e3, 1e-3),)
)
MS = 1e-3


def total(strategy, workload, cluster):
    segments = strategy.cost(workload, cluster)
    return segments, sum(s.seconds for s in segments)


def test_megatron_by_hand():
    """T = 8 tokens on 2 ranks: qkv 2*8*8*12 = 1536 FLOPs, attention 256, out 512, up and down 2048,
    head 1024; the loss gathers 128 bytes in 1 hop: 1.25 ms."""
    segments, seconds = total(tv.Megatron(tp=2), SMALL, PAIR)
    forward = 1.536 + 0.256 + 0.512 + 2.048 + 2.048 + 1.024
    backward = 2 * (forward - 0.256) + 2.5 * 0.256
    sums = 3 * 3 + 1.25 + (3 - 1.024) + (3 - 2.048) + (3 - 1.536)  # backward each hides under dW
    assert seconds == pytest.approx((forward + backward + 1 + sums) * MS)
    assert parts(segments)["compute"] == pytest.approx((forward + backward + 1) * MS)
    assert by_axis(segments, "exposed") == {"tp": pytest.approx(sums * MS)}
    assert by_axis(segments, "hidden") == {"tp": pytest.approx((1.024 + 2.048 + 1.536) * MS)}
    latency = 3 * 2 + 1 + sum((3 - w) * 2 / 3 for w in (1.024, 2.048, 1.536))
    assert parts(segments)["latency wait"] == pytest.approx(latency * MS)


def test_sequence_parallel_by_hand():
    """Halves of 1.5 ms instead of sums of 3; the sums of what is replicated: 96 numbers, 384 bytes,
    2 hops and 1.5 ms."""
    _, seconds = total(tv.Megatron(tp=2, sp=True), SMALL, PAIR)
    forward = 1.536 + 0.256 + 0.512 + 2.048 + 2.048 + 1.024 + 3 * (1.5 + 1.5) + 1.25
    column = sum(max(1.5, g) + max(1.5, g) for g in (1.024, 2.048, 1.536))
    row = sum(1.5 + 2 * g for g in (2.048, 0.512))
    assert seconds == pytest.approx((forward + column + row + 0.64 + 1.5 + 3.5 + 1) * MS)


def test_chunks_by_hand():
    """Out: 2 GEMMs of 0.256, 2 sums of 2.5 ms: 0.256 + 5. Down: 2 of 1.024: 1.024 + 5."""
    _, plain = total(tv.Megatron(tp=2), SMALL, PAIR)
    _, seconds = total(tv.Megatron(tp=2, chunks=2), SMALL, PAIR)
    before = (0.512 + 3) + (2.048 + 3)
    assert seconds - plain == pytest.approx((0.256 + 5 + 1.024 + 5 - before) * MS)


def numel_of(workload):
    return sum(a * (b[0] if b else 1) for a, *b in workload.parameter_shapes().values())


def test_data_parallel_by_hand():
    """One bucket: backward, then the sum. Half the batch: half the FLOPs of one process."""
    numel, one = numel_of(SMALL), total(tv.Megatron(tp=1), replace(SMALL, batch=1), PAIR)[1]
    summed = 2 * MS + numel * 4 / 256e3
    _, seconds = total(tv.DataParallel(dp=2, bucket_mb=25.0), SMALL, PAIR)
    assert seconds == pytest.approx(one + summed)
    _, zero_1 = total(tv.DataParallel(dp=2, zero=1, bucket_mb=25.0), SMALL, PAIR)
    assert zero_1 == pytest.approx(one + summed - numel / 2 * 28 / 16.016e6)  # half the update


def test_stage_3_without_compute_is_one_queue():
    """Three layers, kernels that take no time: every gather and scatter, one after another."""
    w = replace(SMALL, layers=3)
    fast = replace(PAIR, device=Device({"float32": 1e30}, 1e9, 1e30))
    strategy = tv.DataParallel(dp=2, zero=3)
    _, seconds = total(strategy, w, fast)
    moves = 2 * 4 + 3  # each bucket gathered and scattered, blocks gathered twice
    block, root = (12 * 64 + 13 * 8) * 4, (16 * 8 + 4 * 8 + 2 * 8) * 4
    assert seconds == pytest.approx(moves * MS + (3 * 3 * block + 2 * root) / 2 / 256e3)


def test_stage_3_under_much_compute_shows_only_its_ends():
    """Nothing covers the first two gathers, nor the sums of the last block and of the root."""
    w = replace(SMALL, layers=3)
    slow = replace(PAIR, device=Device({"float32": 1e3}, 1e9, 1e30))
    segments, _ = total(tv.DataParallel(dp=2, zero=3), w, slow)
    block, root = (12 * 64 + 13 * 8) * 4, (16 * 8 + 4 * 8 + 2 * 8) * 4
    shown = 4 * MS + (2 * block + 2 * root) / 2 / 256e3
    assert by_axis(segments, "exposed")["dp"] == pytest.approx(shown)
    hidden = 7 * MS + 7 * block / 2 / 256e3
    assert by_axis(segments, "hidden")["dp"] == pytest.approx(hidden)


TINY = tv.GPT(layers=3, hidden=16, heads=8, seq=8, batch=8, vocab=32)
STRATEGIES = [
    tv.Megatron(tp=1),
    tv.Megatron(tp=4),
    tv.Megatron(tp=4, sp=True),
    tv.Megatron(tp=2, chunks=4),
    *[tv.DataParallel(dp=4, zero=zero, bucket_mb=0.01) for zero in range(4)],
    *[
        tv.DataParallel(dp=2, zero=zero, bucket_mb=0.01) * tv.Megatron(tp=2, **options)
        for zero, options in enumerate(({"sp": True}, {"chunks": 2}) * 2)
    ],
    *[
        tv.ATP(mesh=mesh, order=order, **options)
        for mesh, order, options in (
            ((2, 2), "column", {}),
            ((2, 2), "row", {"sp": True, "chunks": 2}),
            ((4, 1), "column", {"chunks": 4, "chunking": "pipelined"}),
            ((4, 1), "row", {"norm": "L2"}),
            ((2, 2), "column", {"chunks": 8, "chunking": "pipelined", "attention": "A1"}),
            ((1, 4), "column", {"chunks": 16, "chunking": "tokens"}),
        )
    ],
    tv.DataParallel(dp=2, bucket_mb=0.01) * tv.ATP(mesh=(2, 1), order="row"),
    tv.DataParallel(dp=2, zero=3) * tv.ATP(mesh=(1, 2), norm="L2"),
    tv.DataParallel(dp=2, zero=2, bucket_mb=0.01)
    * tv.ATP(mesh=(2, 2), chunks=4, chunking="pipelined"),
]


@cache
def captured(strategy, workload):
    return tv.capture(strategy, workload)


def about(middle, decades=1.0):
    """Rates around one at which kernels and collectives of `TINY` take about as long."""
    return st.floats(-decades, decades).map(lambda x: middle * 10**x)


clusters = st.builds(
    lambda flops, memory, inner, outer, latency, hop, rings, algorithm: Cluster(
        "any",
        Device({"float32": flops}, 1e9, memory),
        (Level("in", 2, inner, 2 * inner, latency), Level("out", 4, outer, 1.5 * outer, hop)),
        rings=rings,
        algorithm=algorithm,
    ),
    about(1e6),
    about(1e6, 3),
    about(1e5),
    about(1e5),
    st.floats(0, 1e-2),
    st.floats(0, 1e-2),
    st.sampled_from(["multi", "single"]),
    st.sampled_from([*ALGORITHMS, "auto"]),
)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: s.short)
@settings(max_examples=4, deadline=None)
@given(cluster=clusters, tied=st.booleans())
def test_equals_the_simulation_on_any_cluster(strategy, cluster, tied):
    w = replace(TINY, tied=tied)
    trace = tv.simulate(strategy, w, cluster, capture=captured(strategy, w), contention=False)
    segments, seconds = total(strategy, w, cluster)
    assert seconds == pytest.approx(trace.step_time, rel=1e-9)
    kernels = trace.select(rank=0, kind="compute")
    compute = float((kernels["end"] - kernels["start"]).sum())
    assert parts(segments)["compute"] == pytest.approx(compute, rel=1e-6)
    exposed = sum(by_axis(segments, "exposed").values())
    assert exposed == pytest.approx(trace.exposed_communication(), rel=1e-6, abs=1e-9 * seconds)
    made = Comparison.of(tv.predict(strategy, w, cluster), trace, capture=captured(strategy, w))
    for found in (parts(segments), made.residual.parts):  # of one step: the same exposed time
        assert sum(found.values()) == pytest.approx(seconds, rel=1e-9)
        waits = found["bandwidth wait"] + found["latency wait"]
        assert waits == pytest.approx(exposed, rel=1e-6, abs=1e-6 * seconds)


@pytest.mark.parametrize(
    "strategy",
    [tv.Megatron(tp=2), tv.Megatron(tp=4, chunks=2) * tv.DataParallel(dp=2, zero=1)],
    ids=lambda s: s.short,
)
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_kernels_are_those_of_the_program(strategy, dtype):
    """Every kernel's FLOPs and bytes, and so their seconds, whatever bounds them."""
    w = replace(TINY, dtype=dtype, batch=8, mlp_ratio=3)
    trace = tv.capture(strategy, w).trace(0).select(kind="compute")
    for flops, memory in ((1e9, 1e30), (1e30, 1e9), (1e9, 1e8)):
        device = Device({dtype: flops}, 1e9, memory)
        cluster = Cluster("any", device, (Level("link", 8, 1e9, 1e9),))
        seconds = sum(device.time(e.flops, e.bytes, dtype) for e in trace)
        assert parts(strategy.cost(w, cluster))["compute"] == pytest.approx(seconds, rel=1e-12)


def test_forward_is_as_the_flop_counter_says_but_for_half_of_attention():
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    w, k = replace(TINY, mlp_ratio=3), kernels(replace(TINY, mlp_ratio=3))
    program, plain = reference_program(w), sdpa_kernel(SDPBackend.MATH)  # as matrix products
    with FlopCounterMode(display=False) as counter, torch.no_grad(), plain:
        program.forward(batch_of(w, 0))
    forward = w.layers * sum(layer[0].flops for layer in k[:-1]) + k.head[0].flops
    half = w.layers * w.batch * w.seq**2 * w.hidden * 2
    assert counter.get_total_flops() - forward == half == w.layers * k.core[0].flops


def test_blocks_of_a_square_add_up_to_causal_attention():
    """n triangles on the diagonal, and n (n - 1) / 2 whole squares below."""
    whole = attention(2, 4, 24, 8, 4)
    for n in (2, 3, 4):
        triangle, square = (attention(2, 4, 24 // n, 8, 4, causal=c) for c in (True, False))
        for all_of_it, t, s in zip(whole, triangle, square):
            assert n * t.flops + n * (n - 1) // 2 * s.flops == all_of_it.flops


def test_an_axis_counts_its_neighbours_traffic():
    """dp across one NIC: alone a group has it to itself, with tp inside two groups share it."""
    nic = Cluster("nic", PAIR.device, (Level("in", 2, 1e12, 1e12), Level("out", 2, 1e3, 1e3)))
    w = tv.GPT(heads=4, batch=4)
    inner = tv.Megatron(tp=2)
    seconds = by_axis((inner * tv.DataParallel(dp=2, bucket_mb=25.0)).cost(w, nic), "exposed")["dp"]
    held = sum(s.numel for s in tv.DataParallel(dp=2, bucket_mb=25.0, inner=inner).buckets(w)) * 4
    assert seconds == pytest.approx(held / (1e3 / 2), rel=1e-6)  # 2 ranks: 2 (n-1)/n = 1


def _many_layers():
    """(strategy, workload) of 12 layers, ZeRO around what has no data parallelism of its own."""
    w = tv.GPT(layers=12, hidden=16, heads=4, seq=8, batch=16, vocab=16)
    for name, scheme in tv.strategies().items():
        inner = [s for s in scheme.space(w, 4) if fits(s, w)][::7]
        yield from ((s, w) for s in inner)
        if not scheme.shares_batch and name not in ("DataParallel", "Pipeline"):
            for zero, s in enumerate(inner[:4]):
                yield s * tv.DataParallel(dp=2, zero=zero, bucket_mb=0.001), w


@pytest.mark.parametrize("bandwidth", [1e5, 1e8])  # collectives hide kernels, or the reverse
def test_layers_alike_are_as_if_timed_one_by_one(bandwidth):
    level = Level("link", 8, bandwidth, bandwidth, 1e-6)
    box = Cluster("box", Device({"float32": 1e9}, 1e9, 1e11), (level,))
    cases = [*_many_layers()]
    forget = lambda: (step_of.cache_clear(), stage_parts.cache_clear())
    forget()
    made = [s.cost(w, box) for s, w in cases]
    with patch("tpviz.core.step._blocks_of", iter):  # every part alone
        forget()
        alone = [s.cost(w, box) for s, w in cases]
    forget()
    for (strategy, _), found, truth in zip(cases, made, alone):
        assert len(found) == len(truth), strategy
        for a, b in zip(found, truth):
            assert (a.phase, a.layer, a.ready) == (b.phase, b.layer, b.ready), strategy
            assert a.latency == pytest.approx(b.latency, abs=1e-12), strategy
            assert a.exposed == pytest.approx(b.exposed, abs=1e-12), strategy
            assert sum(a.hidden.values()) == pytest.approx(sum(b.hidden.values()), abs=1e-12)

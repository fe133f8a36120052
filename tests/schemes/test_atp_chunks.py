"""T(C) of chunked layers: against a clock that steps through them, a `Chunks` step, by hand."""

import subprocess
import sys
from dataclasses import replace
from math import inf

import numpy as np
import pytest

import tpviz as tv
from tpviz.cluster.clock.fast import Clock
from tpviz.cluster.clock.queues import Transfer
from tpviz.core.step import Chunks, Collective, Kernel, Part
from tpviz.schemes.atp.chunks import ChunkedLayer, backward, slowdown

RNG = np.random.default_rng(3)
CASES = [(*RNG.uniform(0.1, 10, 2), RNG.uniform(0.001, 1)) for _ in range(25)]
CASES += [(1.0, 0.0, 0.1), (0.0, 1.0, 0.1), (4.0, 4.0, 0.0), (9.0, 1.0, 0.01)]


def stepped(g, a, alpha, kappa, chunks):
    """Two lanes, moment by moment: a GEMM goes on at 1/kappa while a collective is in flight."""
    now, left, computed, sent, collective = 0.0, g / chunks, 0, 0, None
    while sent < chunks:
        if collective is None and computed > sent:
            collective = a / chunks + alpha
        rate = 1.0 if collective is None else 1 / kappa
        computing = computed < chunks
        ahead = [left / rate] if computing else []
        ahead += [] if collective is None else [collective]
        step = min(ahead)
        now += step
        if collective is not None:
            collective -= step
            if collective <= 1e-12:
                collective, sent = None, sent + 1
        if computing:
            left -= step * rate
            if left <= 1e-12:
                computed, left = computed + 1, g / chunks
    return now


@pytest.mark.parametrize("kappa", [1.0, 1.3, 2.0, 4.0])
@pytest.mark.parametrize("g, a, alpha", CASES)
def test_seconds_are_those_of_two_lanes(g, a, alpha, kappa):
    layer = ChunkedLayer(g, a, alpha, kappa)
    for chunks in (1, 2, 3, 7, 16):
        assert layer.seconds(chunks) == pytest.approx(stepped(g, a, alpha, kappa, chunks))


@pytest.mark.parametrize("g, a, alpha", CASES)
def test_without_contention_it_is_the_cost_of_the_step(g, a, alpha):
    for chunks in (1, 2, 5, 8):
        one = Transfer("d2", a / chunks + alpha, alpha)
        clock = Clock(lambda kernel: kernel.flops, lambda move, one=one: one)
        operation = Chunks(Kernel(g / chunks, 0), Collective("d2", "all_reduce", 0), chunks)
        layer, seconds = (
            ChunkedLayer(g, a, alpha),
            sum(segment.seconds for segment in clock.run([Part("forward", "", (operation,))])),
        )
        assert seconds - g == pytest.approx(layer.exposed(chunks), abs=1e-12)
        assert seconds == pytest.approx(layer.seconds(chunks))


@pytest.mark.parametrize("kappa", [1.0, 1.1, 2.0])
@pytest.mark.parametrize("g, a, alpha", [c for c in CASES if c[2]])
def test_best_against_all(g, a, alpha, kappa):
    layer = ChunkedLayer(g, a, alpha, kappa)
    if layer.optimum < 3000:
        times = [layer.seconds(chunks) for chunks in range(1, 3200)]
        assert layer.seconds(layer.best()) == pytest.approx(min(times), rel=1e-12)
    assert layer.best((8, 2, 1)) == min((1, 2, 8), key=layer.seconds)
    near = layer.optimum * np.array([0.9, 1.1])
    one = lambda c: max(
        g + (c - 1) * (1 - 1 / kappa) * (a / c + alpha) + a / c + alpha, g / c + a + c * alpha
    )
    assert all(one(layer.optimum) <= one(max(1.0, c)) + 1e-12 for c in near)


def test_optimum_by_hand():
    assert ChunkedLayer(2.0, 100.0, 0.02).optimum == pytest.approx(10)  # sqrt(g / alpha)
    assert ChunkedLayer(100.0, 2.0, 0.02).optimum == pytest.approx(4900)  # (g - a) / alpha
    assert ChunkedLayer(100.0, 2.0, 0.02, 2.0).optimum == pytest.approx(10)  # sqrt(a / alpha)
    assert ChunkedLayer(8.0, 8.0, 0.5).optimum == 4
    assert ChunkedLayer(1.0, 0.0, 0.5).optimum == ChunkedLayer(0.0, 1.0, 0.5).optimum == 1
    assert ChunkedLayer(1.0, 1.0).optimum == inf


def test_section_4_3_by_hand():
    """A compute-bound layer hides half of its sum with 2 chunks, three quarters with 4."""
    layer = ChunkedLayer(100.0, 8.0)
    assert [layer.exposed(chunks) for chunks in (1, 2, 4)] == pytest.approx([8.0, 4.0, 2.0])
    bound = ChunkedLayer(2.0, 100.0, 0.02)
    assert bound.exposed(4) == pytest.approx(100 - 2 * (1 - 1 / 4) + 4 * 0.02)


def test_backward():
    assert backward(3.0, 5.0, 2.0) == 8.0 and backward(3.0, 5.0, 9.0) == 12.0
    # 2 of collective: under it the GEMM does 1, the other 4 afterwards
    assert backward(3.0, 5.0, 2.0, kappa=2) == 3 + 2 + 4
    # a collective as long as the slow GEMM: kappa g_w, the reference's bound, exactly
    assert backward(3.0, 5.0, 10.0, kappa=2) == 3 + 10
    for a in (0.5, 3.0, 7.0, 20.0):
        assert backward(1.0, 5.0, a, 1.5) <= 1.0 + max(a, 1.5 * 5.0)


def test_slowdown_of_a_step():
    w = tv.GPT(layers=3, hidden=64, heads=4, seq=32, batch=4)
    plain = tv.ATP(mesh=(2, 2))
    seconds, moved = lambda kernel: 4.0, lambda move: Transfer(move.axis, 2.0, 0.5)
    assert slowdown(plain, w, seconds, moved, 1.0) == 0
    # kernels of 4 over sums of 2: each sum costs 2 (1 - 1/2) = 1; four a block, one in the head
    assert slowdown(plain, w, seconds, moved, 2.0) == pytest.approx(3 * 4 + 1)
    # four layers of two chunks more, where one kernel is under one sum
    assert slowdown(replace(plain, chunks=2), w, seconds, moved, 2.0) == pytest.approx(3 * 8 + 1)
    with pytest.raises(ValueError, match="no formula for contention with chunking='pipelined'"):
        slowdown(tv.ATP(mesh=(2, 2), chunks=2, chunking="pipelined"), w, seconds, moved, 2.0)


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: ChunkedLayer(1.0, 1.0).best(), "without latency more chunks are always better"),
        (lambda: ChunkedLayer(1.0, 1.0, 0.1).best(()), "no counts to choose from"),
        (lambda: ChunkedLayer(1.0, 1.0).seconds(0), "chunks=0 is too small"),
        (lambda: backward(1.0, 1.0, 1.0, 0.5), "kappa=0.5 is not between 1 and 1000"),
    ],
)
def test_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_it_needs_no_torch():
    code = "import sys, tpviz.schemes.atp.chunks; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"

"""What of T3 on a GPU needs neither a GPU nor Triton: checks, orders, words, numbers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tpviz.evidence.t3_gpu import (
    Settings,
    TrafficContention,
    bandwidths,
    contention,
    machine_fields,
    matmul_reduce_scatter,
    ring_sum,
)
from tpviz.evidence.t3_hardware.dram import COMM, READ, Dram, EventClock
from tpviz.evidence.t3_hardware.machine import Machine

ROOT = Path(__file__).parents[2]


def test_the_ring_adds_in_its_order():
    partials = torch.tensor([1e8, 1.0, -1e8]).reshape(3, 1, 1).expand(3, 3, 1).contiguous()
    # chunk 0: (p2 + p1) + p0; chunk 1: (p0 + p2) + p1; chunk 2: (p1 + p0) + p2
    assert ring_sum(partials).flatten().tolist() == [0.0, 1.0, 0.0]


def test_bad_settings_and_sizes_are_refused_with_what_works():
    for error, make in [
        ("power of two: use 32 or 64", lambda: Settings(tile=(48, 16, 16))),
        ("tile columns=8 is too small", lambda: Settings(tile=(16, 8, 16))),
        ("reduce='sum'", lambda: Settings(reduce="sum")),
        ("warps=3", lambda: Settings(warps=3)),
        ("use at most 66 ranks", lambda: Settings(movers=1).workers(100, 132)),
        ("use movers=3", lambda: Settings(movers=4).workers(1, 4)),
        (
            "must be \\(2, 8, n\\)",
            lambda: matmul_reduce_scatter(torch.ones(2, 4, 8), torch.ones(2, 6, 4)),
        ),
        (
            "both are one matrix a rank",
            lambda: matmul_reduce_scatter(torch.ones(4, 8), torch.ones(8, 4)),
        ),
        (
            "ranks=1 is too small",
            lambda: matmul_reduce_scatter(torch.ones(1, 4, 8), torch.ones(1, 8, 4)),
        ),
        (
            "m=7 does not split",
            lambda: matmul_reduce_scatter(torch.ones(2, 7, 8), torch.ones(2, 8, 4)),
        ),
        (
            "nominal rate is at least 1.2e\\+12",
            lambda: machine_fields({"read": 1.2e12, "update": 3e11}, 1e12),
        ),
        ("found\\['update'\\] must be a number", lambda: machine_fields({"read": 9e11}, 1e12)),
        ("found\\['read'\\]=0 is not between", lambda: machine_fields({"read": 0}, 1e12)),
        (
            "update=0.8 is not between 1.0 and 8.0.*measure again",
            lambda: machine_fields({"read": 9e11, "update": 5e11}, 1e12),
        ),
        (
            "use a smaller k",
            lambda: machine_fields(
                {"read": 9e11, "update": 3e11},
                1e12,
                [TrafficContention("update", 0, 2e11, 1e-3, 1.1e-3, 1.1)],
            ),
        ),
    ]:
        with pytest.raises(ValueError, match=error):
            make()


def test_without_triton_the_error_says_where_it_comes_from(monkeypatch):
    from tpviz.evidence import t3_gpu as gpu

    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "tpviz.evidence.t3_gpu.kernels", raising=False)
    monkeypatch.delattr(gpu, "kernels", raising=False)
    with pytest.raises(RuntimeError, match="comes with torch for CUDA"):
        matmul_reduce_scatter(torch.ones(2, 4, 8), torch.ones(2, 8, 4))


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it measures")
@pytest.mark.parametrize("measure", [bandwidths, contention])
def test_without_a_gpu_the_error_says_so(measure):
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        measure()


def test_measured_bandwidths_become_fields_of_the_simulated_machine():
    """Measured on a simulated one, whose fields come back: alone, and copies or updates beside a
    GEMM that the memory bounds, in blocks of 8 KB."""
    for kind, policy, known in (("copy", "fifo", 0.6), ("update", "round_robin", 0.45)):
        machine = Machine(dram=2e12, efficiency=0.9, mixed=known, update=2.5)
        found = {}
        for way in PARTS:
            seconds, moved = simulated(machine, policy, 0, way, 1000)
            found[way] = moved * BLOCK / seconds
        alone, _ = simulated(machine, policy, 1000)
        seconds, moved = simulated(machine, policy, 1000, kind)
        row = TrafficContention(kind, 0, moved * BLOCK / seconds, alone, seconds, seconds / alone)
        slight = row._replace(rate=1.0, slowdown=1.0)  # less traffic counts for nothing
        fields = machine_fields(found, 2e12, [slight, row])
        assert fields["efficiency"] == pytest.approx(0.9)
        assert fields["update"] == pytest.approx(2.5)
        assert fields["mixed"] == pytest.approx(known, rel=0.02) and row.slowdown > 1.5


BLOCK = 8192


def simulated(machine, policy, reads, kind=None, blocks=None):
    """(seconds, blocks moved): so many reads of a GEMM, eight asked for at once, and eight movers
    beside it until it is done, or so many ``blocks`` are moved."""
    clock, moved, left = EventClock(), 0, reads
    dram = Dram(clock, machine, policy)

    def read(now, _):
        nonlocal left
        left -= 1
        if left >= 8:
            dram.ask(now, READ, "gemm_read", BLOCK, 1, read, None)

    def move(now, parts):
        nonlocal moved
        moved += not parts
        if parts:
            cost = machine.update if parts[0] == "update" else 1
            dram.ask(now, COMM, "rs_read", BLOCK, cost, move, parts[1:])
        elif moved < blocks if blocks else left:
            move(now, PARTS[kind])

    for _ in range(8 if kind else 0):
        move(0.0, PARTS[kind])
    for _ in range(min(reads, 8)):
        dram.ask(0.0, READ, "gemm_read", BLOCK, 1, read, None)
    return clock.run(), moved


PARTS = {"read": ["read"], "copy": ["read", "write"], "update": ["read", "update"]}


def test_gpus_without_atomics_between_them_are_refused(monkeypatch):
    from tpviz.evidence.t3_gpu import symmetric

    class Four:
        size = staticmethod(lambda: 4)

    def everyone(found, own, group):
        found[:] = [0, 1, 0, 2]

    monkeypatch.setattr(symmetric.dist, "all_gather_object", everyone)
    asked, joined = [], lambda *pair: asked.append(pair) or pair != (2, 1)
    monkeypatch.setattr(symmetric, "native_atomics", joined)
    with pytest.raises(RuntimeError, match="GPU 2 has no atomics on the memory of GPU 1"):
        symmetric.check_atomics(0, Four)
    assert set(asked) == {(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)}


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it measures")
def test_the_bench_says_that_there_is_no_gpu():
    done = subprocess.run(
        [sys.executable, ROOT / "bench/bench_t3_gpu.py"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "no CUDA device: nothing to measure\n")


def test_cpu_paths_load_nothing_of_it():
    code = "import sys, tpviz; tpviz.T3; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    modules = loaded.stdout.split()
    assert "tpviz.schemes.t3" in modules
    assert not [m for m in modules if m == "triton" or m.startswith("tpviz.evidence.t3_gpu")]

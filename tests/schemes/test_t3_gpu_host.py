"""What of T3 on a GPU needs neither a GPU nor Triton: checks, orders, words, numbers."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tpviz.schemes.t3.gpu import (
    Settings,
    bandwidths,
    contention,
    machine_fields,
    matmul_reduce_scatter,
    ring_sum,
)

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
            ("must be \\(2, 8, n\\)", lambda: matmul_reduce_scatter(torch.ones(2, 4, 8),
                                                                    torch.ones(2, 6, 4))),
            ("both are one matrix a rank", lambda: matmul_reduce_scatter(torch.ones(4, 8),
                                                                         torch.ones(8, 4))),
            ("ranks=1 is too small", lambda: matmul_reduce_scatter(torch.ones(1, 4, 8),
                                                                   torch.ones(1, 8, 4))),
            ("m=7 does not split", lambda: matmul_reduce_scatter(torch.ones(2, 7, 8),
                                                                 torch.ones(2, 8, 4))),
            ("nominal rate is at least 1.2e\\+12", lambda: machine_fields(
                {"read": 9e11, "copy": 6e11, "update": 3e11}, dram=1e12))]:
        with pytest.raises(ValueError, match=error):
            make()


def test_without_triton_the_error_says_where_it_comes_from(monkeypatch):
    from tpviz.schemes.t3 import gpu
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "tpviz.schemes.t3.gpu.kernels", raising=False)
    monkeypatch.delattr(gpu, "kernels", raising=False)
    with pytest.raises(RuntimeError, match="comes with torch for CUDA"):
        matmul_reduce_scatter(torch.ones(2, 4, 8), torch.ones(2, 8, 4))


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it measures")
@pytest.mark.parametrize("measure", [bandwidths, contention])
def test_without_a_gpu_the_error_says_so(measure):
    with pytest.raises(RuntimeError, match="needs a CUDA device"):
        measure()


def test_measured_bandwidths_become_fields_of_the_simulated_machine():
    from tpviz.schemes.t3.hardware.machine import Machine
    fields = machine_fields({"read": 9e11, "copy": 4e11, "update": 8e11 / 3}, dram=1e12)
    machine = Machine(dram=1e12, **fields)
    assert (machine.efficiency, machine.mixed) == (0.9, 0.8)
    # A read and an update take (1 + update) bytes' time at the mixed rate.
    assert machine.update == pytest.approx(2) and 8e11 / (1 + machine.update) == pytest.approx(
        8e11 / 3)


@pytest.mark.skipif(torch.cuda.is_available(), reason="here it measures")
def test_the_bench_says_that_there_is_no_gpu():
    done = subprocess.run([sys.executable, ROOT / "bench/bench_t3_gpu.py"], capture_output=True,
                          text=True)
    assert (done.returncode, done.stdout) == (0, "no CUDA device: nothing to measure\n")


def test_cpu_paths_load_nothing_of_it():
    code = "import sys, tpviz; tpviz.T3; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    modules = loaded.stdout.split()
    assert "tpviz.schemes.t3" in modules
    assert not [m for m in modules if m == "triton" or m.startswith("tpviz.schemes.t3.gpu")]

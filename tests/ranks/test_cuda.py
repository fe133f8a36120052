"""The recorder on a GPU: times of CUDA events, bytes moved by NCCL."""

import pytest
import torch

import tpviz as tv


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_times_come_from_events():
    with_cuda = tv.launch(_cuda_step, world_size=1, device="cuda")[0]
    assert with_cuda["device"] == "cuda"
    assert with_cuda["seconds"] > 1e-5
    assert with_cuda["badge"] == "NCCL"


def _cuda_step():
    x = torch.randn(4096, 4096, device="cuda")
    x @ x
    with tv.record() as rec:
        y = x @ x
        torch.distributed.all_reduce(y)
    (gemm,) = rec.trace.select(name="mm")
    return {
        "device": rec.trace.meta["device"],
        "badge": rec.trace.meta["badge"],
        "seconds": gemm.end - gemm.start,
    }

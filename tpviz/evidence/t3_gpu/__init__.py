"""T3 on a GPU: a GEMM whose tiles are sent and reduced while it still runs.

`ring`: N virtual ranks on one GPU, modes sequential, chunk and tile. `symmetric`: the same kernel,
a process for each rank. `traffic`: what copies beside a GEMM cost it (`contention`), and the fields
of the simulator's `Machine` that follow (`machine_fields`). `kernels`: Triton.

    from tpviz.evidence.t3_gpu import Settings, contention, matmul_reduce_scatter

Nothing here is imported by the rest of tpviz. It needs CUDA and Triton, which comes with torch for
CUDA. The kernels are tested in Triton's interpreter on the CPU and compiled for sm_80 and sm_90;
they ran on one H200, whose figures are in docs/gpu, not on several GPUs.
"""

import importlib

_HOME = {
    "Settings": "settings",
    "VirtualRing": "ring",
    "matmul_reduce_scatter": "ring",
    "ring_sum": "ring",
    "SymmetricRing": "symmetric",
    "contention": "traffic",
    "TrafficContention": "traffic",
    "bandwidths": "traffic",
    "machine_fields": "traffic",
}
__all__ = sorted(_HOME)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name):
    if name not in _HOME:
        raise AttributeError(f"{__name__} has no {name!r}; it has {', '.join(__all__)}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)

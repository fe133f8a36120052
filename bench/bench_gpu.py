"""What one GPU gives the cost model: GEMMs by shape, memory-bound kernels, launches, whole steps.

All are medians: of CUDA events where the GPU is kept busy, of the host's clock where the host
decides. `tpviz.calibrate` fits a `Device` to a few training steps; this is the whole table, kept in
docs/gpu. Says so and ends where there is no CUDA device.
"""

import gc
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
import torch.nn.functional as F
from harness import report, row

import tpviz as tv
from tpviz.evidence.t3_gpu.traffic import timed
from tpviz.schemes.gpt.model import ReferenceGPT
from tpviz.schemes.gpt.program import Program
from tpviz.verbs.run import train_step

TOKENS = (256, 1024, 4096, 16384)
HIDDEN = (1024, 2048, 4096, 8192)
STREAMS = ((1024, 1024), (4096, 4096), (16384, 4096), (16384, 16384))
ATTENTION = ((16, 16, 512, 64), (8, 16, 1024, 64), (4, 16, 2048, 128), (1, 32, 4096, 128))
LOOP = 10
"""Calls between two events: what an event costs is then little beside them."""
LLAMA = {"norm": "rms", "rotary": True, "gated": True, "bias": False, "tied": False}
STEPS = (
    *(tv.GPT(2, 256, 4, 128, batch, 1024, dtype="bfloat16") for batch in (1, 16)),
    *(tv.GPT(2, 512, 8, 512, batch, 8192, dtype="bfloat16") for batch in (1, 16)),
    *(tv.GPT(4, 1024, 16, 1024, batch, 32768, dtype="bfloat16") for batch in (1, 8)),
    *(tv.GPT(4, 2048, 16, 2048, batch, 32768, dtype="bfloat16") for batch in (1, 4)),
    *(tv.GPT(2, 4096, 32, 2048, batch, 32768, dtype="bfloat16") for batch in (1, 4)),
    tv.GPT(1, 8192, 64, 4096, 1, 32768, dtype="bfloat16"),
    tv.GPT(2, 4096, 32, 4096, 1, 32000, ffn=11008, dtype="bfloat16", **LLAMA),
    tv.GPT(2, 4096, 32, 4096, 1, 128256, ffn=14336, kv_heads=8, dtype="bfloat16", **LLAMA),
    tv.GPT(4, 1024, 16, 1024, 4, 32768),
    tv.GPT(2, 4096, 32, 2048, 1, 32768),
)
_Rows = list[dict[str, Any]]


def busy(function: Callable[[], Any], repeats: int = 7) -> float:
    """Seconds of the GPU for one call, of `LOOP` in a row."""

    def loop():
        for _ in range(LOOP):
            function()

    return median([timed(loop) for _ in range(repeats + 3)][3:]) / LOOP


def gemms(dtype: torch.dtype, tokens: Sequence[int], sizes: Sequence[int]) -> _Rows:
    """The four GEMMs of a block, for each number of tokens and each hidden size."""
    found = []
    for hidden in sizes:
        for k, n in ((1, 3), (1, 1), (1, 4), (4, 1)):
            k, n = k * hidden, n * hidden
            weight = torch.randn(k, n, device="cuda", dtype=dtype)
            for m in tokens:
                a = torch.randn(m, k, device="cuda", dtype=dtype)
                out = torch.empty(m, n, device="cuda", dtype=dtype)
                found.append(
                    {
                        "dtype": str(dtype).removeprefix("torch."),
                        **{"m": m, "k": k, "n": n},
                        "seconds": busy(partial(torch.mm, a, weight, out=out), 5),
                        "flops": 2 * m * k * n,
                        "bytes": a.element_size() * (m * k + k * n + m * n),
                    }
                )
    return found


def attentions() -> _Rows:
    """Causal attention in bfloat16; FLOPs of all scores, of which a step's data counts half."""
    found = []
    for batch, heads, seq, size in ATTENTION:
        qkv = torch.randn(3, batch, heads, seq, size, device="cuda", dtype=torch.bfloat16)
        qkv = [x.requires_grad_() for x in qkv.unbind()]
        attend = partial(F.scaled_dot_product_attention, *qkv, is_causal=True)
        out = attend()
        backward = partial(torch.autograd.grad, out, qkv, torch.randn_like(out), retain_graph=True)
        shape = {"batch": batch, "heads": heads, "seq": seq, "size": size}
        flops = 4 * batch * heads * seq**2 * size
        for name, call, times in (("forward", attend, 1), ("backward", backward, 2)):
            found.append({"pass": name, **shape, "seconds": busy(call), "flops": times * flops})
    return found


def streams(tokens: int, hidden: int) -> _Rows:
    """Memory-bound kernels of PyTorch on bfloat16: the bytes of `pointwise`'s table, seconds."""
    x, y, grad = torch.randn(3, tokens, hidden, device="cuda", dtype=torch.bfloat16)
    weight = torch.ones(hidden, device="cuda", dtype=torch.bfloat16)
    out, full, step = torch.empty_like(x), x.float(), torch.ones((), device="cuda")
    probable = torch.softmax(x, -1)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [hidden], weight, weight, 1e-5)
    master, first, second = torch.zeros(3, tokens, hidden, device="cuda")
    norm = (x, [hidden], mean, rstd, weight, weight, [True, True, True])
    rates = {"lr": 1e-4, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.0, "eps": 1e-8}
    states = [[master], [full], [first], [second], [], [step]]
    calls: dict[str, tuple[int, Callable[[], Any]]] = {
        "copy": (2, lambda: out.copy_(x)),
        "add": (3, lambda: torch.add(x, y, out=out)),
        "bias": (2, lambda: torch.add(x, weight, out=out)),
        "gelu": (2, lambda: F.gelu(x)),
        "gelu backward": (3, lambda: torch.ops.aten.gelu_backward(grad, x)),
        "silu": (2, lambda: F.silu(x)),
        "multiply": (3, lambda: x * y),
        "layer norm": (2, lambda: F.layer_norm(x, (hidden,), weight, weight)),
        "layer norm backward": (5, lambda: torch.ops.aten.native_layer_norm_backward(grad, *norm)),
        "softmax": (2, lambda: torch.softmax(x, -1)),
        "softmax backward": (
            3,
            lambda: torch.ops.aten._softmax_backward_data(grad, probable, -1, torch.bfloat16),
        ),
        "cast to float32": (3, lambda: x.float()),
        "sum of rows": (1, lambda: x.sum(0)),
        "fused AdamW, float32": (
            14,
            lambda: torch.ops.aten._fused_adamw_(*states, **rates, amsgrad=False, maximize=False),
        ),
    }
    about = {"tokens": tokens, "hidden": hidden}
    return [
        {"kernel": name, **about, "seconds": busy(call), "bytes": passes * 2 * x.numel()}
        for name, (passes, call) in calls.items()
    ]


def launches() -> _Rows:
    """Seconds of the host for one call whose kernels take next to none, by how it is called."""
    x = torch.ones(8, 8, device="cuda")
    layer = torch.nn.Linear(8, 8, device="cuda")

    def host(function, count=300):
        times = []
        for _ in range(7):
            torch.cuda.synchronize()
            start = time.perf_counter()
            for _ in range(count):
                function()
            torch.cuda.synchronize()
            times.append((time.perf_counter() - start) / count)
        return median(times[1:])

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(100):
            x.add_(0)
    found = {
        "add": host(lambda: x.add_(0)),
        "mm": host(lambda: torch.mm(x, x)),
        "linear, forward": host(lambda: layer(x)),
        "linear and sum, forward and backward": host(lambda: layer(x).sum().backward(), 100),
        "one of 100 adds in a CUDA graph": host(graph.replay, 20) / 100,
    }
    with tv.record():
        found["mm, recorded"] = host(lambda: torch.mm(x, x), 100)
    return [{"what": what, "seconds": seconds} for what, seconds in found.items()]


def steps() -> _Rows:
    """Training steps of one process as `tpviz.run` trains: seconds of the host's clock, plain and
    recorded; how long the host takes to issue one; bytes allocated at the peak."""
    return [step_of(workload) for workload in STEPS]


def step_of(workload: tv.GPT) -> dict[str, Any]:
    """One row of `steps`."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    # Not `reference_program`: its initial values, the same for every strategy, come from the CPU.
    module = ReferenceGPT(workload, dtype=getattr(torch, workload.dtype), device="cuda")
    program = Program(workload, module)

    def train():
        torch.cuda.synchronize()
        start = time.perf_counter()
        train_step(program, workload, 0, "cuda")
        issued = time.perf_counter() - start
        torch.cuda.synchronize()
        return time.perf_counter() - start, issued

    plain = [train() for _ in range(9)][2:]
    peak = torch.cuda.max_memory_allocated()
    with tv.record() as recorder:
        for _ in range(3):
            with recorder.step():
                train()
    last = recorder.trace.select(kind="compute", step=2)
    return {
        "workload": workload.short,
        "parameters": workload.num_parameters,
        "seconds": median(seconds for seconds, _ in plain),
        "issued": median(issued for _, issued in plain),
        "recorded": recorder.trace.step_time,
        "computing": float((last["end"] - last["start"]).sum()),
        "flops": float(last["flops"].sum()),
        "kernels": len(last),
        "peak": peak,
    }


def main() -> None:
    if not torch.cuda.is_available():
        print("no CUDA device: nothing to measure")
        return
    torch.backends.cuda.matmul.allow_tf32 = False
    tables: dict[str, _Rows] = {
        "launches": launches(),
        "steps": steps(),
        "gemms": gemms(torch.bfloat16, TOKENS, HIDDEN)
        + gemms(torch.float32, (1024, 4096), (1024, 4096)),
        "attention": attentions(),
        "streams": [found for size in STREAMS for found in streams(*size)],
    }
    rows = [row(f"launch: {r['what']}", 1e6 * r["seconds"], "µs") for r in tables["launches"]]
    rows += [row(f"step: {r['workload']}", 1e3 * r["seconds"], "ms") for r in tables["steps"]]
    rows += [
        row(
            f"GEMM {r['m']}x{r['k']}x{r['n']}, {r['dtype']}", r["flops"] / r["seconds"] / 1e12, "TF"
        )
        for r in tables["gemms"]
        if r["m"] == 4096
    ]
    rows += [
        row(
            f"attention {r['pass']} {r['batch']}x{r['heads']}x{r['seq']}x{r['size']}",
            r["flops"] / r["seconds"] / 1e12,
            "TF",
        )
        for r in tables["attention"]
    ]
    rows += [
        row(f"{r['kernel']} {r['tokens']}x{r['hidden']}", r["bytes"] / r["seconds"] / 1e9, "GB/s")
        for r in tables["streams"]
    ]
    report("gpu", f"one {torch.cuda.get_device_name()}", rows, **tables)


if __name__ == "__main__":
    sys.exit(main())

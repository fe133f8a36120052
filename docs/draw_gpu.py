"""Write docs/gpu/README.md: ``make validate``. What GPUs measured beside our predictions."""

import json
from collections.abc import Callable
from dataclasses import replace
from math import log
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import tpviz as tv
from tpviz.cluster import Device
from tpviz.cluster.clusters import GPUS, as_run_by, dgx
from tpviz.schemes.gpt.step import kernels
from tpviz.verbs.calibrate import device_of_steps
from tpviz.verbs.timing import GPU_MODELS

HERE = Path(__file__).parent / "gpu"
FILES = {"H200-SXM-141GB": "h200-torch-2.11.json", "H100-SXM-80GB": "h100-torch-2.11.json"}
RANKS, KINETO, PICTURE = "ranks-h200-torch-2.11.json", "kineto", "kineto.svg"
ONE = tv.DataParallel(dp=1)
INTRODUCTION = """# GPUs, measured

By `bench/bench_gpu.py` and `bench/bench_gpu_ranks.py`, medians; written by `docs/draw_gpu.py` from
the files of this folder. [One more](t3-h200-torch-2.11.json) is `bench/bench_t3_gpu.py` on an H200.

*Calibrated* is the device that `tv.calibrate` fits; the steps marked * are what it times, all
others are foreseen. How it fits was chosen on the H200; the H100 came after.
*Profiles* are those of published runs, fitted to other people's GPUs and frozen before this was
measured; they take a launch of 10 µs (FSDP, assumed) and 83 µs (nanotron, fitted). *Constant
share*: one share of the peak, the median of the steps marked *. *Ideal device*: datasheet rates.
"""
OF_A_GPU = """
## {title}

Torch {torch}, a host of {cores} cores ([file]({file})). The calibrated device: {losses}.

### Training steps of one process
"""


def load(gpu: str) -> dict[str, Any]:
    """The tables of a GPU of `tpviz.clusters.GPUS`, and its name under "gpu"."""
    return {"gpu": gpu, **json.loads((HERE / FILES[gpu]).read_text())}


def workload(row: dict[str, Any]) -> tv.GPT:
    """The workload of a row of steps."""
    return eval(row["workload"], {"GPT": tv.GPT})


def step_on(device: Device, gpu: str) -> Callable[[tv.GPT], float]:
    """Seconds of a step on one such device, by `tpviz.predict`."""
    cluster = replace(dgx(gpu, 2), device=device)
    return lambda w: tv.predict(ONE, w, cluster).step_time


def measured_device(tables: dict[str, Any]) -> Device:
    """What `tpviz.calibrate` makes of this GPU: rates of one large GEMM a dtype and of a copy, and
    its five models' steps."""
    square = {r["dtype"]: r["flops"] / r["seconds"] for r in tables["gemms"] if is_large(r)}
    copy = max(r["bytes"] / r["seconds"] for r in tables["streams"] if r["kernel"] == "copy")
    device = replace(GPUS[tables["gpu"]], flops=square, memory_bandwidth=copy)
    steps = {workload(r): r["seconds"] for r in tables["steps"] if is_fitted(r)}
    return device_of_steps(device, steps, ahead=True)


def is_large(row: dict[str, Any]) -> bool:
    """Whether a GEMM is the one that `tpviz.calibrate` measures."""
    return row["m"] == row["k"] == row["n"] == 4096


def is_fitted(row: dict[str, Any]) -> bool:
    """Whether `tpviz.calibrate` times this model."""
    return workload(row) in {replace(w, dtype="bfloat16") for w in GPU_MODELS}


def predictors(tables: dict[str, Any]) -> dict[str, Callable[[tv.GPT], float]]:
    """{who: seconds of a step of a workload}."""
    gpu = tables["gpu"]
    ideal = GPUS[gpu]
    fitted = [r for r in tables["steps"] if is_fitted(r)]
    share = median(flops_of(workload(r)) / r["seconds"] / ideal.flops["bfloat16"] for r in fitted)
    return {
        "calibrated": step_on(measured_device(tables), gpu),
        "profile FSDP": step_on(as_run_by(dgx(gpu, 8), "FSDP").device, gpu),
        "profile nanotron": step_on(as_run_by(dgx(gpu, 8), "nanotron").device, gpu),
        "constant share": lambda w: flops_of(w) / (share * ideal.flops[w.dtype]),
        "ideal device": step_on(ideal, gpu),
    }


def flops_of(w: tv.GPT) -> float:
    """FLOPs of a step's GEMMs and attention."""
    k = kernels(w)
    layers = (k.qkv, k.core, k.out, k.up, k.down)
    block = sum(kernel.flops for layer in layers for kernel in layer)
    return w.layers * block + sum(kernel.flops for kernel in k.head)


def errors(rows: list[dict[str, Any]], predict: Callable[[tv.GPT], float]) -> list[float]:
    """Predicted over measured, less one, of each."""
    return [predict(workload(r)) / r["seconds"] - 1 for r in rows]


def summary(tables: dict[str, Any]) -> dict[str, tuple[float, float, float]]:
    """{who: (median error, largest, median of those that the device bounds)} in %, of the steps
    that were not fitted to."""
    rows = [r for r in tables["steps"] if not is_fitted(r)]
    bound = [r for r in rows if r["seconds"] > 1.3 * r["issued"]]
    found = {}
    for who, predict in predictors(tables).items():
        all_of_them, of_device = (
            [100 * abs(e) for e in errors(part, predict)] for part in (rows, bound)
        )
        found[who] = median(all_of_them), max(all_of_them), median(of_device)
    return found


def gemm_errors(tables: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """{who: (median, 90th percentile)} of the error in % over GEMMs in bfloat16."""
    gpu, rows = tables["gpu"], [r for r in tables["gemms"] if r["dtype"] == "bfloat16"]
    peak = GPUS[gpu].flops["bfloat16"]
    share = median(r["flops"] / r["seconds"] / peak for r in rows)
    devices = {
        "calibrated": measured_device(tables),
        "profile FSDP": as_run_by(dgx(gpu, 8), "FSDP").device,
        "profile Megatron-LM": as_run_by(dgx(gpu, 8), "Megatron-LM").device,
        "ideal device": GPUS[gpu],
    }
    alone = {who: replace(device, launch=0.0) for who, device in devices.items()}
    asked: dict[str, Callable[[dict[str, Any]], float]] = {
        who: lambda r, device=device: device.time(r["flops"], r["bytes"], "bfloat16")
        for who, device in alone.items()
    }
    asked["constant share, of these rows"] = lambda r: r["flops"] / (share * peak)
    found = {}
    for who, predict in asked.items():
        off = [100 * abs(predict(r) / r["seconds"] - 1) for r in rows]
        found[who] = median(off), quantiles(off, n=10)[-1]
    return found


def section(content: dict[str, Any]) -> list[str]:
    """Lines of Markdown about one GPU."""
    by, losses = predictors(content), measured_device(content).losses
    file = FILES[content["gpu"]]
    text = OF_A_GPU.format(file=file, losses=losses, **content, **content["machine"])
    lines = [
        *text.splitlines(),
        "",
        "| step | measured, ms | host issues, ms | " + " | ".join(by) + " |",
        "|---|" + "--:|" * (2 + len(by)),
    ]
    for r in content["steps"]:
        name = r["workload"].removeprefix("GPT(").removesuffix(")").replace("'", "")
        cells = [f"{1e3 * predict(workload(r)):.1f}" for predict in by.values()]
        start = f"{name}{' *' * is_fitted(r)} | {1e3 * r['seconds']:.1f} | {1e3 * r['issued']:.1f}"
        lines.append(f"| {start} | {' | '.join(cells)} |")
    lines += [
        "",
        "Error over the steps that were not fitted to, %:",
        "",
        "| | median | largest | median where the GPU, not the host, bounds the step |",
        "|---|--:|--:|--:|",
    ]
    for who, figures in summary(content).items():
        lines.append(f"| {who} | " + " | ".join(f"{f:.1f}" for f in figures) + " |")
    lines += [
        "",
        "### GEMMs in bfloat16 of 256 to 16,384 tokens and hidden sizes of 1,024 to 8,192",
        "",
        "Error of `Device.time`, %:",
        "",
        "| | median | 90th percentile |",
        "|---|--:|--:|",
    ]
    for who, figures in gemm_errors(content).items():
        lines.append(f"| {who} | " + " | ".join(f"{f:.1f}" for f in figures) + " |")
    lines += ["", "### Launches", "", "| | us |", "|---|--:|"]
    lines += [f"| {r['what']} | {1e6 * r['seconds']:.1f} |" for r in content["launches"]]
    sizes = list(dict.fromkeys((r["tokens"], r["hidden"]) for r in content["streams"]))
    lines += [
        "",
        "### Memory-bound kernels, GB/s of the bytes that `tpviz.schemes.gpt.pointwise` counts",
        "",
        "Those of 2 MB and 34 MB stay in the cache.",
        "",
        "| bfloat16 | " + " | ".join(f"{t} x {h}" for t, h in sizes) + " |",
        "|---|" + "--:|" * len(sizes),
    ]
    rates: dict[str, list[str]] = {}
    for r in content["streams"]:
        rates.setdefault(r["kernel"], []).append(f"{r['bytes'] / r['seconds'] / 1e9:.0f}")
    lines += [f"| {name} | {' | '.join(cells)} |" for name, cells in rates.items()]
    lines += ["", "### Attention, causal, TFLOP/s of all scores", "", "| | |", "|---|--:|"]
    for r in content["attention"]:
        name = (
            f"{r['pass']}, batch {r['batch']}, {r['heads']} heads of {r['size']}, {r['seq']} tokens"
        )
        lines.append(f"| {name} | {r['flops'] / r['seconds'] / 1e12:.0f} |")
    return lines


def rank_errors(content: dict[str, Any], n: int, hidden: int) -> dict[str, float]:
    """{who: median error} in % of plain steps of n ranks at a hidden size."""
    rows = [r for r in content["steps"] if r["ranks"] == n and workload(r).hidden == hidden]
    return {
        who: 100 * median(abs(r[who] / r["plain"] - 1) for r in rows)
        for who in ("predicted", "simulated", "ideal")
    }


def of_ranks(content: dict[str, Any]) -> list[str]:
    """Lines of Markdown about ranks that share a GPU."""
    lines = [
        "",
        f"## Ranks that share one {content['gpu'].removeprefix('NVIDIA ')}",
        "",
        "16 strategies of every scheme, a model of each hidden size, in bfloat16; gloo moves the",
        "bytes through the host. Median error of a step, %, after `tv.calibrate` alone, which",
        f"sees none of the strategies ([file]({RANKS})). *Ideal*: GEMMs, copies and all-reduces as",
        "calibrated, nothing besides.",
        "",
        "| ranks | hidden | predicted | simulated | ideal |",
        "|--:|--:|--:|--:|--:|",
    ]
    for n, hidden in sorted({(r["ranks"], workload(r).hidden) for r in content["steps"]}):
        figures = rank_errors(content, n, hidden).values()
        lines.append(f"| {n} | {hidden} | " + " | ".join(f"{f:.1f}" for f in figures) + " |")
    furthest = sorted(content["steps"], key=lambda r: -abs(log(r["simulated"] / r["plain"])))[:4]
    words = (
        f"{r['strategy']} on {r['ranks']} at {workload(r).hidden}, "
        f"{r['simulated'] / r['plain']:.2f} of the measured step"
        for r in furthest
    )
    error = max(r["error"] for r in content["verified"])
    exact = all(r["exact"] for r in content["verified"])
    recorded = median(r["recorded"] / r["plain"] for r in content["steps"])
    lines += [
        "",
        f"Furthest off by `simulate`: {'; '.join(words)}.",
        f"To record a step takes {recorded:.2f} times the plain one. In float64 all",
        f"{len(content['verified'])} equal one process within {error:.1e}, byte ledgers",
        f"{'exact' if exact else 'OFF'}. The first steps of a strategy, not measured here, take up",
        "to three times as long: torch then allocates the pinned memory that gloo copies through.",
    ]
    return lines


def of_kineto(trace: tv.Trace) -> list[str]:
    """Lines of Markdown about the imported trace."""
    kernels = trace.select(kind="compute", rank=0)
    busy = 1e3 * float((kernels["end"] - kernels["start"]).sum())
    moved = sum(e.bytes for e in trace.select(kind="comm", rank=0))
    return [
        "",
        "## A Kineto trace of a step",
        "",
        "`torch.profiler` on the H200: two ranks of Megatron(tp=2) that share it, two layers of",
        f"hidden size 1,024, 4 x 512 tokens, bfloat16 (files of [rank 0]({KINETO}/rank0.json.gz) "
        f"and [rank 1]({KINETO}/rank1.json.gz)), as `tv.load_trace`",
        f"reads and `tv.Timeline` draws them. Rank 0: {len(kernels)} kernels, {busy:.1f} ms of",
        f"{1e3 * trace.step_time:.0f}; {moved / 2**20:.1f} MiB through collectives. Of the step,",
        f"mean of both ranks: {trace.breakdown().mean.describe()}. Idle is where",
        "the host has launched nothing.",
        "",
        f"![a step on two ranks]({PICTURE})",
    ]


def page() -> str:
    """The page, in Markdown."""
    lines = INTRODUCTION.splitlines()
    for gpu in FILES:
        lines += section(load(gpu))
    lines += of_ranks(json.loads((HERE / RANKS).read_text()))
    return "\n".join([*lines, *of_kineto(tv.load_trace(HERE / KINETO))]) + "\n"


def picture() -> str:
    """The Kineto trace, as SVG."""
    return tv.Timeline(tv.load_trace(HERE / KINETO)).to_svg()


def main() -> None:
    """The page of the files and its picture."""
    (HERE / "README.md").write_text(page())
    (HERE / PICTURE).write_text(picture())


if __name__ == "__main__":
    main()

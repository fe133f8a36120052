"""Write docs/gpu/README.md: ``make validate``. What one GPU measured beside our predictions."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import tpviz as tv
from tpviz.cluster import Device
from tpviz.clusters import GPUS, as_run_by, dgx
from tpviz.schemes.gpt.step import kernels
from tpviz.verbs.calibrate import device_of_steps
from tpviz.verbs.timing import GPU_MODELS

HERE = Path(__file__).parent / "gpu"
FILE = HERE / "h200-torch-2.11.json"
GPU = "H200-SXM-141GB"
ONE = tv.DataParallel(dp=1)
INTRODUCTION = """# One H200

Measured by `bench/bench_gpu.py` on {title}, torch {torch}, a host of {cores} cores; medians.
Written by `docs/draw_gpu.py` from [its file]({file}). [Another](t3-h200-torch-2.11.json) is
`bench/bench_t3_gpu.py` on the same kind of machine.

## Training steps of one process

*Calibrated* is the device that `tv.calibrate` fits; the steps marked * are what it times, all
others are foreseen ({losses}).
*Profiles* are those of published runs, fitted to other people's GPUs and frozen before this was
measured; they take a launch of 10 us (FSDP, assumed) and 83 us (nanotron, fitted). *Constant
share*: one share of the peak, the median of the steps marked *. *Ideal device*: datasheet rates.
"""


def workload(row: dict[str, Any]) -> tv.GPT:
    """The workload of a row of steps."""
    return eval(row["workload"], {"GPT": tv.GPT})


def step_on(device: Device) -> Callable[[tv.GPT], float]:
    """Seconds of a step on one such device, by `tpviz.predict`."""
    cluster = replace(dgx(GPU, 2), device=device)
    return lambda w: tv.predict(ONE, w, cluster).step_time


def measured_device(tables: dict[str, Any]) -> Device:
    """What `tpviz.calibrate` makes of this GPU: rates of one large GEMM a dtype and of a copy, and
    its five models' steps."""
    square = {r["dtype"]: r["flops"] / r["seconds"] for r in tables["gemms"] if is_large(r)}
    copy = max(r["bytes"] / r["seconds"] for r in tables["streams"] if r["kernel"] == "copy")
    device = replace(GPUS[GPU], flops=square, memory_bandwidth=copy)
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
    ideal = GPUS[GPU]
    fitted = [r for r in tables["steps"] if is_fitted(r)]
    share = median(flops_of(workload(r)) / r["seconds"] / ideal.flops["bfloat16"] for r in fitted)
    return {
        "calibrated": step_on(measured_device(tables)),
        "profile FSDP": step_on(as_run_by(dgx(GPU, 8), "FSDP").device),
        "profile nanotron": step_on(as_run_by(dgx(GPU, 8), "nanotron").device),
        "constant share": lambda w: flops_of(w) / (share * ideal.flops[w.dtype]),
        "ideal device": step_on(ideal),
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
    rows = [r for r in tables["gemms"] if r["dtype"] == "bfloat16"]
    peak = GPUS[GPU].flops["bfloat16"]
    share = median(r["flops"] / r["seconds"] / peak for r in rows)
    devices = {
        "calibrated": measured_device(tables),
        "profile FSDP": as_run_by(dgx(GPU, 8), "FSDP").device,
        "profile Megatron-LM": as_run_by(dgx(GPU, 8), "Megatron-LM").device,
        "ideal device": GPUS[GPU],
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


def page(content: dict[str, Any]) -> str:
    """The page, in Markdown."""
    by, device = predictors(content), measured_device(content)
    losses = device.losses
    text = INTRODUCTION.format(file=FILE.name, losses=losses, **content, **content["machine"])
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
        "## GEMMs in bfloat16 of 256 to 16,384 tokens and hidden sizes of 1,024 to 8,192",
        "",
        "Error of `Device.time`, %:",
        "",
        "| | median | 90th percentile |",
        "|---|--:|--:|",
    ]
    for who, figures in gemm_errors(content).items():
        lines.append(f"| {who} | " + " | ".join(f"{f:.1f}" for f in figures) + " |")
    lines += ["", "## Launches", "", "| | us |", "|---|--:|"]
    lines += [f"| {r['what']} | {1e6 * r['seconds']:.1f} |" for r in content["launches"]]
    sizes = list(dict.fromkeys((r["tokens"], r["hidden"]) for r in content["streams"]))
    lines += [
        "",
        "## Memory-bound kernels, GB/s of the bytes that `tpviz.schemes.gpt.pointwise` counts",
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
    lines += ["", "## Attention, causal, TFLOP/s of all scores", "", "| | |", "|---|--:|"]
    for r in content["attention"]:
        name = (
            f"{r['pass']}, batch {r['batch']}, {r['heads']} heads of {r['size']}, {r['seq']} tokens"
        )
        lines.append(f"| {name} | {r['flops'] / r['seconds'] / 1e12:.0f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """The page of the file."""
    (HERE / "README.md").write_text(page(json.loads(FILE.read_text())))


if __name__ == "__main__":
    main()

"""What all benchmarks share: interleaved repeats, medians and ratios, the machine, the report.

Two things are compared by running them in turn (A B, B A, A B, ...), so that whatever else the
machine does falls on both; the figure that counts is the median of the ratios of the pairs. Run
benchmarks alone on the machine.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpviz import GPT, Strategy, Trace

OUT = Path(__file__).resolve().parents[1] / "out" / "bench"


def machine() -> dict[str, Any]:
    """What the numbers were measured on; the load says whether something else ran."""
    import torch

    known = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next(
        (line.split(":", 1)[1].strip() for line in known if line.startswith("model name")),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(memory / 1e9, 1),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda_devices": torch.cuda.device_count(),
        "load_1min": round(os.getloadavg()[0], 2),
    }


def seconds(function: Callable[[], Any]) -> float:
    """Seconds that one call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


def interleaved(
    functions: Mapping[str, Callable[[], Any]],
    repeats: int,
    warmup: int = 2,
    before: Callable[[], Any] = lambda: None,
) -> dict[str, list[float]]:
    """{name: seconds of each repeat}, the functions taking turns and every other turn in reverse.

    functions: {name: callable}. before: called ahead of each timed call, for example a barrier.
    """
    times = {name: [] for name in functions}
    for turn in range(-warmup, repeats):
        order = list(functions) if turn % 2 else list(functions)[::-1]
        for name in order:
            before()
            taken = seconds(functions[name])
            if turn >= 0:
                times[name].append(taken)
    return times


def slowest(per_rank: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, list[float]]:
    """{name: seconds} of the slowest rank of each repeat, from each rank's `interleaved`."""
    return {
        name: [max(values) for values in zip(*(times[name] for times in per_rank))]
        for name in per_rank[0]
    }


def ratio(times: Mapping[str, Sequence[float]], this: str, other: str) -> float:
    """Median of this/other over the pairs."""
    return median(a / b for a, b in zip(times[this], times[other]))


def step_seconds(trace: "Trace", step: int) -> float:
    """Seconds of a recorded step, from the first rank's start to the last one's end."""
    marks = trace.select(kind="step", step=step)
    return float(marks["end"].max() - marks["start"].min())


def sweep(cases: "Iterable[tuple[Strategy, GPT]]", steps: int) -> None:
    """Verify every (strategy, workload) against one process; exits with 1 at the first that is not
    equal."""
    import tpviz as tv

    worst, count, start = 0.0, 0, time.perf_counter()
    for strategy, workload in cases:
        found = tv.verify(strategy, workload, steps=steps, progress=False)
        if not found:
            sys.exit(f"{strategy}, {workload}: {found}")
        worst, count = max(worst, found.max_error), count + 1
        if count % 50 == 0:
            print(
                f"{count} equal, largest error {worst:.1e}, {time.perf_counter() - start:.0f} s",
                flush=True,
            )
    print(f"{count} strategies equal one process, ledgers exact; largest error {worst:.1e}")
    tv.shutdown()


def row(
    what: str,
    value: float,
    unit: str = "",
    bound: float | None = None,
    samples: Sequence[float] = (),
) -> dict[str, Any]:
    """One line of a report; bound is the most that ``value`` may be, where that was promised."""
    spread = quantiles(samples, n=4)[::2] if len(samples) > 3 else None
    value = float(value)  # NumPy numbers are no JSON
    return {
        "what": what,
        "value": value,
        "unit": unit,
        "bound": bound,
        "quartiles": spread,
        "samples": len(samples),
        "ok": bound is None or value <= bound,
    }


def timing(
    what: str, samples: Sequence[float], unit: str = "ms", bound: float | None = None
) -> dict[str, Any]:
    """A `row` of the median of ``samples`` (seconds), in ms, us or s."""
    scale = {"s": 1, "ms": 1e3, "µs": 1e6}[unit]
    scaled = [s * scale for s in samples]
    return row(what, median(scaled), unit, bound, scaled)


def report(
    name: str, title: str, rows: list[dict[str, Any]], **details: Any
) -> list[dict[str, Any]]:
    """Print a table and keep everything in ``out/bench/<name>.json``; returns the rows."""
    about = machine()
    OUT.mkdir(parents=True, exist_ok=True)
    content = {"name": name, "title": title, "machine": about, "rows": rows, **details}
    (OUT / f"{name}.json").write_text(json.dumps(content, indent=1))
    print(f"\n{title}")
    print("  {cores} cores, {cpu}, torch {torch}, load {load_1min}".format(**about))
    width = max(len(r["what"]) for r in rows)
    for r in rows:
        print("  " + _line(r, width))
    return rows


def _line(r, width):
    text = f"{r['what']:<{width}}  {r['value']:10.4g} {r['unit']:<3}"
    if r["quartiles"]:
        text += "  quartiles {:.4g} to {:.4g}, {} runs".format(*r["quartiles"], r["samples"])
    if r["bound"] is not None:
        text += f"  {'within' if r['ok'] else 'ABOVE'} {r['bound']:g}"
    return text

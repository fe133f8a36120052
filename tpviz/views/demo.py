"""The demonstration behind ``make demo``: what tpviz shows on one page, and a check on real ranks.

    python -m tpviz.views.demo --steps 30 --out out/demo

A small GPT learns the text of Python's own help topics, in one process and on four ranks, split by
1D tensor parallelism and by tensor inside data parallelism. Losses must agree with the one process,
the measured ledger must equal the formula; otherwise the exit code is 1. The page opens with a step
on an emulated cluster, and one view of each of ATP, AxoNN, Merak and T3.
"""

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

import tpviz as tv
from tpviz.verbs.run import train_reference
from tpviz.views import gallery

from .figures.page import document, place
from .figures.svg import scrolled

# float32 rounds each loss to 1e-7 of itself and four ranks add in another order; over some tens of
# steps AdamW lets that grow a little. A wrong gradient is off by far more.
TOLERANCE = 1e-3
DRAWN_STEPS = 2
SLOW = 400  # motion: two cores that do nothing else keep up
WORKLOAD = tv.GPT(layers=2, hidden=64, heads=4, seq=64, batch=8)
STRATEGIES = {"tp4": tv.Megatron(tp=4), "tp2_dp2": tv.Megatron(tp=2) * tv.DataParallel(dp=2)}
ABOUT = (
    "<p class='facts'>tpviz starts real processes that stand for GPUs, records what they compute "
    "and send, and checks the result. This page is what <code>make demo</code> ran here.</p>"
)
SYSTEMS = gallery.blocks, gallery.grid, gallery.schedules, gallery.tiles
_Result = TypeVar("_Result")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; returns the exit code: 1 where a check failed, 130 interrupted."""
    options = parse(arguments)
    try:
        return demonstrate(options.steps, options.out)
    except KeyboardInterrupt:
        print("\ninterrupted: no page was written", file=sys.stderr)
        return 130
    finally:
        tv.shutdown()


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with a message on bad input."""
    about = (__doc__ or "").partition("\n")[0]
    parser = argparse.ArgumentParser("tpviz demo", description=about)
    parser.add_argument("--steps", type=int, default=30, help="training steps of each run")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for pictures")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps {options.steps}: use 1 or more")
    return options


def demonstrate(steps: int, out: Path) -> int:
    """Train, check, and write page and traces; the exit code."""
    print(f"A small GPT learns the text of Python's help topics, {steps} steps.")
    torch.set_num_threads(1)  # as every rank has
    reference, taken = timed(train_reference, WORKLOAD, steps)
    print(f"one process: {taken:.1f} s, loss {reference[0]:.4f} -> {reference[-1]:.4f}")
    out.mkdir(parents=True, exist_ok=True)
    runs = {name: train(s, reference) for name, s in STRATEGIES.items()}
    for name, (trace, _) in runs.items():
        last_steps(trace).to_chrome(out / f"{name}.trace.json")
    print("\none step on an emulated cluster, predicted and run ...", flush=True)
    emulated = emulate()
    print("drawing ATP, AxoNN, Merak and T3 ...", flush=True)
    body = opening(emulated) + systems() + training(runs, reference)
    (out / "index.html").write_text(document("tpviz: a demonstration", body), encoding="utf-8")
    print(farewell(out))
    return 0 if all(passed for _, (passed, _) in runs.values()) else 1


def emulate() -> "tv.Comparison":
    """A step on an emulated cluster. Where this machine is too busy for it, the badge says so."""
    strategy = next(iter(gallery.PARALLELISM.values()))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "this emulated run")
        return tv.compare(strategy, gallery.WORKLOAD, gallery.box(SLOW), **gallery.ASKED)


def timed(function: Callable[..., _Result], *args: Any, **kwargs: Any) -> tuple[_Result, float]:
    """(result, seconds)."""
    start = time.perf_counter()
    return function(*args, **kwargs), time.perf_counter() - start


def train(
    strategy: "tv.Strategy", reference: Sequence[float]
) -> tuple["tv.Trace", tuple[bool, str]]:
    """Train with one strategy; (trace, (whether the checks passed, their words)), also printed."""
    trace, taken = timed(tv.run, strategy, WORKLOAD, steps=len(reference), warmup=0, memory=False)
    largest = max(abs(a - b) for a, b in zip(trace.meta["losses"], reference))
    differences = trace.ledger().diff(strategy.ledger(WORKLOAD), ("measured", "formula"))
    right = largest < TOLERANCE
    checks = (
        f"Largest difference of a loss from one process: {largest:.1e}, "
        f"{'at rounding level' if right else 'TOO MUCH'}.\n"
        f"The measured ledger {'DIFFERS from' if differences else 'equals'} the formula."
    ) + "".join(f"\n  {line}" for line in differences)
    print(f"\n{strategy.short}: {strategy.world_size} real ranks ({trace.badge}), {taken:.1f} s")
    print(checks)
    return trace, (right and not differences, checks)


def last_steps(trace: "tv.Trace") -> "tv.Trace":
    """The steps that are kept; earlier ones only make the pictures larger."""
    return trace.where(np.isin(trace["step"], trace.steps[-DRAWN_STEPS:])).rebased()


# -- the page --------------------------------------------------------------------------------------
def opening(emulated: "tv.Comparison") -> str:
    """A step in which overlap shows, then prediction over measurement."""
    timeline = tv.Timeline(emulated.measured, autoplay=True)
    step = gallery.section(
        "One training step on four devices",
        "Two pairs of GPUs train a small GPT. A pair shares every weight (tensor parallelism), and "
        "each pair has half of the batch (data parallelism). Gradients are all-reduced while the "
        "backward pass still computes; red is communication that no computation hides.",
        place(timeline.kind, timeline.state()),
    )
    compared = gallery.section(
        "The same step, predicted, simulated and run",
        "Outlines are the formula, bars the simulation and the run; below, what the step's time "
        "is made of.",
        place("picture", gallery.beside(emulated)),
    )
    return ABOUT + step + compared


def systems() -> str:
    """A view of each of the four systems, playing."""
    words = {draw: (title, said) for title, (draw, said) in gallery.SECTIONS.items()}
    return "".join(gallery.section(*words[draw], draw()) for draw in SYSTEMS)


def training(runs: Mapping[str, Any], reference: Sequence[float]) -> str:
    """What was measured on this machine, and that it is right."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = (
        f"The same small GPT in one process and on four real ranks. They share {cores} cores here, "
        "so a rank mostly waits for the others' turns: look at losses, counts and bytes."
    )
    return gallery.section("Training on this machine, checked", words, "") + "".join(
        gallery.section(
            STRATEGIES[name].caption,
            checks,
            f"<pre>{escape(loss_table(reference, trace.meta['losses']))}</pre>"
            f"{scrolled(trace.ledger()._repr_html_())}"
            f"{place('timeline', tv.Timeline(last_steps(trace)).state())}",
        )
        for name, (trace, (_, checks)) in runs.items()
    )


def loss_table(reference: Sequence[float], losses: Sequence[float], rows: int = 6) -> str:
    """Some steps of both trainings as text."""
    chosen = sorted({round(i) for i in np.linspace(0, len(losses) - 1, rows)})
    lines = [
        f"{i + 1:6}  {one:11.6f}  {four:9.6f}  {four - one:+10.1e}"
        for i in chosen
        for one, four in [(reference[i], losses[i])]
    ]
    return "\n".join(["  step  one process    4 ranks  difference", *lines])


def farewell(out: Path) -> str:
    """What was written, and what to do next."""
    traces = "\n".join(f"  {out / name}.trace.json" for name in STRATEGIES)
    return (
        f"\nOpen in a browser (no network needed):\n  {out / 'index.html'}\n"
        f"Chrome traces, for Perfetto (ui.perfetto.dev) or chrome://tracing:\n{traces}\n"
        "Next: `tpviz lab`, or in a clone `make lab`, opens the first notebook."
    )


if __name__ == "__main__":
    sys.exit(main())

"""The demonstration behind ``make demo``: train on four real ranks, check it all, leave pictures.

    python -m tpviz.demo --steps 30 --out out/demo

A small GPT learns the text of Python's own help topics, in one process and on four ranks, cut by 1D
tensor parallelism and by tensor inside data parallelism. Losses must agree with the one process,
the measured ledger must equal the formula; otherwise the exit code is 1.
"""

import argparse
import sys
import time
from collections.abc import Callable, Collection, Sequence
from html import escape
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

import tpviz as tv
from tpviz.figures.page import write_page
from tpviz.verbs.run import train_reference

# float32 rounds each loss to 1e-7 of itself and four ranks add in another order; over some tens of
# steps AdamW lets that grow a little. A wrong gradient is off by far more.
TOLERANCE = 1e-3
DRAWN_STEPS = 2
_Result = TypeVar("_Result")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demonstration; returns the exit code, 1 where a check failed."""
    options = parse(arguments)
    workload = tv.GPT(layers=2, hidden=64, heads=4, seq=64, batch=8)
    strategies = {"tp4": tv.Megatron(tp=4), "tp2_dp2": tv.Megatron(tp=2) * tv.DataParallel(dp=2)}

    print(f"{workload}\nlearns the text of Python's help topics, {options.steps} steps.\n")
    torch.set_num_threads(1)  # as every rank has
    reference, taken = timed(train_reference, workload, options.steps)
    print(f"one process: {taken:.1f} s, loss {reference[0]:.4f} -> {reference[-1]:.4f}")
    passed = [
        show(name, strategy, workload, reference, options.out)
        for name, strategy in strategies.items()
    ]
    tv.shutdown()
    print(farewell(options.out, strategies))
    return 0 if all(passed) else 1


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; exits with a message on bad input."""
    parser = argparse.ArgumentParser("python -m tpviz.demo", description=__doc__.splitlines()[0])  # pyright: ignore[reportOptionalMemberAccess]
    parser.add_argument("--steps", type=int, default=30, help="training steps of each run")
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder for pictures")
    options = parser.parse_args(arguments)
    if options.steps < 1:
        parser.error(f"--steps {options.steps}: use 1 or more")
    return options


def timed(function: Callable[..., _Result], *args: Any, **kwargs: Any) -> tuple[_Result, float]:
    """(result, seconds)."""
    start = time.perf_counter()
    return function(*args, **kwargs), time.perf_counter() - start


def show(
    name: str, strategy: "tv.Strategy", workload: "tv.GPT", reference: Sequence[float], out: Path
) -> bool:
    """Train with one strategy, print and check, write the pictures; whether all checks passed."""
    trace, taken = timed(tv.run, strategy, workload, steps=len(reference), warmup=0, memory=False)
    losses = trace.meta["losses"]
    largest = max(abs(a - b) for a, b in zip(losses, reference))
    badge = trace.badge
    print(f"\n{strategy!r}\n{strategy.world_size} real ranks ({badge}): {taken:.1f} s")
    print(loss_table(reference, losses))
    print(
        f"largest difference of a loss: {largest:.1e}, "
        f"{'at rounding level' if largest < TOLERANCE else 'TOO MUCH'}\n"
    )
    differences = trace.ledger().diff(strategy.ledger(workload), ("measured", "formula"))
    verdict = "DIFFERS from" if differences else "=="
    print(f"{trace.ledger()}\nmeasured ledger {verdict} the formula")
    print("".join(f"  {line}\n" for line in differences), end="")
    write_pictures(name, strategy, trace, reference, out)
    return largest < TOLERANCE and not differences


def loss_table(reference: Sequence[float], losses: Sequence[float], rows: int = 6) -> str:
    """Some steps of both trainings as text."""
    chosen = sorted({round(i) for i in np.linspace(0, len(losses) - 1, rows)})
    lines = [
        f"{i + 1:6}  {one:11.6f}  {four:9.6f}  {four - one:+10.1e}"
        for i in chosen
        for one, four in [(reference[i], losses[i])]
    ]
    return "\n".join(["  step  one process    4 ranks  difference", *lines])


def write_pictures(
    name: str, strategy: "tv.Strategy", trace: "tv.Trace", reference: Sequence[float], out: Path
) -> None:
    """The page and the Chrome trace of the last steps; earlier ones only make them larger."""
    last = trace.where(np.isin(trace["step"], trace.steps[-DRAWN_STEPS:])).rebased()
    losses = f"<pre>{escape(loss_table(reference, trace.meta['losses'], rows=12))}</pre>"
    write_page(
        out / page_name(name),
        last,
        title=f"{strategy!r} on {strategy.world_size} ranks",
        sections=[("The loss compared with one process", losses), ("The other run", links(name))],
    )
    last.to_chrome(out / f"{name}.trace.json")


def page_name(name: str) -> str:
    """index.html for the first run, its own name for the other."""
    return "index.html" if name == "tp4" else f"{name}.html"


def links(name: str) -> str:
    """Each page names the other."""
    other, words = {
        "tp4": ("tp2_dp2", "tensor inside data parallelism"),
        "tp2_dp2": ("tp4", "1D tensor parallelism over all four ranks"),
    }[name]
    return f"<p>The same training, split otherwise: <a href='{page_name(other)}'>{words}</a>.</p>"


def farewell(out: Path, strategies: Collection[str]) -> str:
    """What was written, and what to do next."""
    pages = "\n".join(f"  {out / page_name(name)}" for name in strategies)
    traces = "\n".join(f"  {out / name}.trace.json" for name in strategies)
    return (
        f"\nOpen in a browser (timeline, mesh, ledger; no network needed):\n{pages}\n"
        f"Chrome traces, for Perfetto (ui.perfetto.dev) or chrome://tracing:\n{traces}\n"
        "Next: `make lab` opens the first notebook."
    )


if __name__ == "__main__":
    sys.exit(main())

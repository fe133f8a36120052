"""What the tile view says: a run in numbers, how many parts are in which state, a part's way."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from .svg import amount, seconds
from .tiles_states import STATES, fused

if TYPE_CHECKING:
    from tpviz.schemes.t3.hardware import SimResult

    from .tiles_layout import Panel

FACTS = (
    ("sublayer", lambda run: seconds(run.seconds)),
    ("GEMM ends", lambda run: seconds(run.gemm_end)),
    ("reduce-scatter ends", lambda run: seconds(run.rs_end)),
    ("memory moved", lambda run: amount(sum(run.dram.values()))),
    ("tracker at most", lambda run: f"{run.tracker.peak} of {run.tracker.capacity} records"),
)


def facts(acts: "Sequence[Panel]") -> list[list[str]]:
    """[label, text] pairs for the line above the picture."""
    found = [[label, " against ".join(say(act.run) for act in acts)] for label, say in FACTS]
    if len(acts) == 2:
        found.insert(1, ["speedup", f"{speedup(acts):.3f}"])
    return found


def speedup(acts: "Sequence[Panel]") -> float:
    """The second's time over the first's."""
    return acts[1].run.seconds / acts[0].run.seconds


def counts(acts: "Sequence[Panel]", times: Sequence[float]) -> list[str]:
    """Per time, in how many parts of each act is what: one sentence an act."""
    each = [_counted(act, times) for act in acts]
    return ["\n".join(lines) for lines in zip(*each)]


def _counted(act, times):
    labels = {s.key: s.label.split(":")[0].split(",")[0] for s in STATES}
    table = np.zeros((len(times), len(STATES)), int)
    places = {s.key: i for i, s in enumerate(STATES)}
    for stories in act.stories:
        for at, told in stories:
            steps = np.searchsorted(times, at)  # the first time at which the change has happened
            for step, before, after in zip(steps.tolist(), told, told[1:]):
                if step < len(times) and before.lower() != after.lower():
                    table[step, places[before.lower()]] -= 1
                    table[step, places[after.lower()]] += 1
            table[0, places["w"]] += 1
    names = [labels[s.key] for s in STATES]
    where = f"GPU {act.gpus[0]}" if len(act.gpus) == 1 else f"all {len(act.gpus)} GPUs"
    for row in np.cumsum(table, axis=0).tolist():
        said = ", ".join(f"{n} {name}" for n, name in zip(row, names) if n)
        yield f"{act.name}, {where}: {said}."


def to_table(acts: "Sequence[Panel]") -> list[list[str]]:
    """Rows of strings, header first: what each run did."""
    tables = [act.run.to_table() for act in acts]
    rows = {}
    for number, table in enumerate(tables):
        for what, value in table[1:]:
            rows.setdefault(what, [""] * len(acts))[number] = value
    return [
        ["what (simulated)", *(act.name for act in acts)],
        *([what, *values] for what, values in rows.items()),
    ]


def describe(acts: "Sequence[Panel]") -> str:
    """The runs in words, then what sets the first apart from the second."""
    said = [act.run.describe() for act in acts]
    if len(acts) == 2:
        one, two = (sum(act.run.dram.values()) for act in acts)
        said.append(
            f"{acts[0].name} is {speedup(acts):.3f} times as fast as {acts[1].name}, and "
            f"moves {one / two:.3f} times its bytes in memory."
        )
    return " ".join(said)


def story_of(act: "Panel", place: int, part: int) -> str:
    """A part of a GPU's output in words, all its moments; ``place``: of the GPU in ``act.gpus``."""
    run, found, gpu = act.run, act.moments[place], act.gpus[place]
    tiles = run.tiles
    t = {what: float(values[part]) for what, values in found.items()}
    wave = f", part {tiles.wave[part] + 1} of {run.gemm.wavefronts}" * (run.gemm.wavefronts > 1)
    said = [
        f"{act.name}, GPU {gpu}, tile ({tiles.row[part]}, {tiles.column[part]}){wave}, "
        f"chunk {tiles.chunk[part]}, {ordinal(int(t['position']))} in its order: computed "
        f"{seconds(t['start'])} to {seconds(t['computed'])}"
    ]
    words = (
        ("stored", "own store in memory at {}"),
        ("arrived", f"the sum so far comes at {{}} from GPU {(gpu + 1) % run.ranks}"),
        ("second", "updated twice at {}"),
        ("link", "on the link from {}"),
        ("sent", "sent at {}"),
        ("done", "whole sum here at {}"),
    )
    for what, text in sorted(words, key=lambda pair: t[pair[0]]):
        if t[what] == t[what]:
            also = ", which triggers the DMA" * (what == "second" and t["triggered"] == t[what])
            said.append(text.format(seconds(t[what])) + also)
    return "; ".join(said) + "."


def rule_of(run: "SimResult", position: int) -> str:
    """What becomes of the chunk at a place of the order, in few words."""
    last = run.ranks - 1
    if not fused(run):
        return "stored, summed later"
    if position == last:
        return "stays: its own" if last else "stays"
    return "stores go to the next GPU (r - 1)" if position == 0 else "DMA after 2 updates"


def ordinal(position: int) -> str:
    """1st, 2nd, ..."""
    number = position + 1
    suffix = (
        "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{suffix}"

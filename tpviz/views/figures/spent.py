"""Where a step went: one bar of the mean of its ranks, whose parts stand end to end.

>>> from tpviz.core.trace import Event, Trace
>>> comm = Event(lane="comm/tp", kind="comm", start=1.0, end=4.0)
>>> [part["label"] for part in spent(Trace.from_events([Event(end=3.0), comm]))["parts"]]
['computing 75.0 %', 'exposed communication 25.0 %']
"""

from collections import Counter, defaultdict
from itertools import accumulate
from typing import Any

import numpy as np

from tpviz.core.inks import phase_key
from tpviz.core.trace import Trace
from tpviz.core.trace.analyses import LEAST
from tpviz.core.trace.columns import codes

from .lanes import mark
from .legend import key_of
from .svg import text, width_of
from .tokens import INKS

NAMES = {"exposed": "exposed communication", "copy": "copying", "idle": "idle"}
CHIP, APART = 19, 16  # px: a label's mark and the gap to its words; between labels


def spent(step: Trace) -> dict[str, Any]:
    """Of a step: ``title``, ``words`` (`Breakdown.describe`), ``finding`` (a sentence) and
    ``parts``, ready for JSON.

    A part is a `key_of` with its ``share`` of the step, 0..1; its ``label``, and ``under``, the
    share that this is of. Computing has a part for each phase, by their seconds, and one label,
    that of the first. What rounds to nothing has none; nor has a step without time any.
    """
    mean, ranks = step.breakdown().mean, step.ranks
    compute = step["kind"] == "compute"
    phases: dict[str, float] = defaultdict(float)
    alike = Counter(map(step.model_of, ranks))  # how many ranks share a rank's rows
    rank, start, end, phase = (step[of][compute] for of in ("rank", "start", "end", "phase"))
    taken = (end - start) * np.array([alike[r] for r in ranks])[np.searchsorted(ranks, rank)]
    names, code = codes(phase)
    for phase, length in zip(names.tolist(), np.bincount(code, taken, len(names)).tolist()):
        phases[phase_key(phase)] += length
    computing = mean.parts["computing"] / (sum(phases.values()) or 1.0)
    lengths = {ink: computing * phases[ink] for ink in INKS if ink in phases}
    lengths |= {ink: mean.parts[name] for ink, name in NAMES.items()}
    shown = {ink: length for ink, length in lengths.items() if length >= LEAST * mean.span > 0}
    names = {next(iter(shown), ""): "computing"} | NAMES
    under = {i: round(mean.parts[name] / mean.span, 9) for i, name in names.items() if i in shown}
    parts = [
        {**key_of(ink, ink), "share": round(length / mean.span, 9), "under": under.get(ink, 0.0)}
        | {"label": f"{names[ink]} {100 * under[ink]:.1f} %" if ink in under else ""}
        for ink, length in shown.items()
    ]
    of = f", mean of {len(ranks)} ranks" if len(ranks) > 1 else ""
    title = f"where the step went{of}" + ": unknown, it takes no time" * (not parts)
    words = f"of it{of}: {mean.describe()}"
    return {"title": title, "words": words, "finding": _finding(under), "parts": parts}


def _finding(shares: dict[str, float]) -> str:
    """ "Exposed communication takes 25.0 % of the step, idle 5.0 %; the rest computes." """
    lost = sorted(shares.keys() & NAMES.keys(), key=lambda ink: -shares[ink])
    if not lost:
        return "All of the step computes."
    first, *more = [(NAMES[ink], f"{100 * shares[ink]:.1f} %") for ink in lost]
    said = ", ".join([" takes ".join(first) + " of the step", *map(" ".join, more)])
    rest = "the rest computes" if shares.keys() - NAMES.keys() else "nothing computes"
    return f"{said[0].upper()}{said[1:]}; {rest}."


def spent_bar(
    parts: list[dict[str, Any]], left: float, right: float, y: float, height: float
) -> str:
    """The parts from ``left`` to ``right`` px, and below them their labels: each begins under its
    part, or as near to it as the others leave room."""
    ends = [left + (right - left) * share for share in accumulate(p["share"] for p in parts)]
    labels, free, out = [], left, ""
    for part, x, end in zip(parts, [left, *ends], ends):
        name = part["key"]
        out += mark(name, x, y, end - x, height)
        if part["label"]:
            labels.append((max(x, free), [], part["label"]))
        start, chips, words = labels[-1]
        chips.append(name)  # of all that one label stands for
        free = start + CHIP * len(chips) + width_of(words) + APART
    for x, chips, words in reversed(labels):
        right = min(x, right - CHIP * len(chips) - width_of(words))
        for number, chip in enumerate(chips):
            out += mark(chip, right + CHIP * number, y + height + 7, CHIP - 5, 11)
        out += text(right + CHIP * len(chips), y + height + 17, words)
        right -= APART
    return out

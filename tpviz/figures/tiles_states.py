"""What each part of a tile is doing at any time: the states of a simulated T3 run (`SimResult`).

    waiting -> computing -> its store queued -> stored -> updated twice -> on the link -> sent
    -> done: the whole sum is in this GPU's memory

What a chunk's place in the order leaves out (2.3 of the paper's notes: the first goes straight to
the link, the last stays) is skipped. Where the sum so far, from GPU r + 1, comes before the part
itself is stored, the state is marked. Without a tracker a part is stored, and nothing counts that.
Works on the attributes of a `SimResult` alone.
"""

from collections.abc import Iterable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from tpviz.schemes.t3.hardware import SimResult


class State(NamedTuple):
    """key : one letter. ink and pattern : of the palette, without a pattern faint. sign : drawn on
    the part, where there is room."""

    key: str
    label: str
    ink: str
    pattern: str
    sign: str = ""


STATES = (
    State("w", "waiting", "rule", ""),
    State("c", "computing", "forward", "solid"),
    State("q", "computed, its store queued", "recompute", "dots"),
    State("p", "stored", "optimizer_state", "zigzag"),
    State("s", "stored: one update", "optimizer_state", "zigzag", "1"),
    State("t", "updated twice: triggered", "axis1", "back", "2"),
    State("l", "on the link", "axis0", "lines", "→"),
    State("x", "sent", "wait", "cross", "·"),
    State("d", "done: the whole sum is here", "backward", "diagonal", "✓"),
)
BY_KEY = {state.key: state for state in STATES}
EARLY = "wcq"
"""States that may be marked, as capitals: the sum so far is there before the own store."""


def moments(run: "SimResult", gpu: int = 0) -> dict[str, np.ndarray]:
    """{what: seconds of each part of a GPU's output, nan where it never is}, in the order of
    ``run.tiles``; also ``position`` of its chunk in the order of computing.

    start, computed, stored, arrived, second, triggered, sent : as in ``run.tiles``. link : its
    first byte leaves. done : the whole sum is there, at last by the all-gather. Of GPUs that a
    mirrored run leaves out: those of GPU 0, chunks turned by ``gpu``.
    """
    tiles, found = run.tiles, {}
    row, like = (gpu, slice(None)) if len(run.logs) > 1 else (0, turned(run, gpu))
    for what in (
        "position",
        "start",
        "computed",
        "stored",
        "arrived",
        "second",
        "triggered",
        "sent",
    ):
        found[what] = getattr(tiles, what)[row][like].astype(float)
    found["link"] = _left(run, row)[like]
    ahead = (tiles.chunk - gpu) % run.ranks  # 0 for its own, then as the ring brings them
    if fused(run):
        found["done"] = np.where(ahead == 0, found["second"], np.nan)
    else:
        _passed(run, ahead, found)
    gathers = _steps(run, run.rs_end)
    if gathers:
        ends = np.array([np.nan, *(end + run.machine.latency for _, end in gathers)])
        found["done"] = np.where(ahead == 0, found["done"], np.minimum(ends[ahead], run.ag_end))
    return found


def fused(run: "SimResult") -> bool:
    """Whether tiles are tracked and sent one by one."""
    return run.config in ("t3", "t3_mca")


def turned(run: "SimResult", gpu: int) -> np.ndarray:
    """Per part of a GPU's output, the part of GPU 0's at the same place of the same position."""
    if not gpu or not fused(run):
        return np.arange(len(run.tiles.chunk))
    places = [np.flatnonzero(run.tiles.chunk == c) for c in range(run.ranks)]
    return np.concatenate([places[(c - gpu) % run.ranks] for c in range(run.ranks)])


def _left(run, row):
    """Per part, when the first byte of it leaves."""
    tiles = run.tiles
    found = np.full(int(tiles.tile.max() + 1) * run.gemm.wavefronts, np.nan)
    for _, start, _, _, _, part in run.logs[row]["sent"]:
        if part >= 0:
            found[part] = start
    return found[tiles.tile * run.gemm.wavefronts + tiles.wave]


def _steps(run, since, until=np.inf):
    """[(start, end)] of the steps of a ring pass by itself, which sends nothing but chunks."""
    rows = sorted(row[1:3] for row in run.logs[0]["sent"] if row[5] < 0 and since <= row[0] < until)
    edges = [len(rows) * j // max(run.ranks - 1, 1) for j in range(run.ranks)]
    return [(rows[a][0], rows[b - 1][1]) for a, b in pairwise(edges)] if rows else []


def _passed(run, ahead, found):
    """A reduce-scatter by itself, chunk by chunk: in step j goes the chunk j + 1 ahead."""
    steps = np.array([(np.nan, np.nan), *_steps(run, 0.0, run.rs_end)])
    if len(steps) == run.ranks:
        found["link"], found["sent"] = steps[ahead].T
    found["done"] = np.where(ahead == 0, run.rs_end, np.nan)


def stories(found: dict[str, np.ndarray]) -> list[tuple[tuple[float, ...], str]]:
    """Per part (seconds at which it changes, the keys of its states: one more): what `moments`
    found, in order. A capital: see `EARLY`."""
    stored = "p" if np.isnan(found["second"]).all() else "s"  # nothing is updated a second time
    names = {
        "computed": "q",
        "stored": stored,
        "second": "t",
        "link": "l",
        "sent": "x",
        "done": "d",
    }
    columns = np.array([found["start"], *(found[name] for name in names)]).T
    return [
        _story(times, "c" + "".join(names.values()), came)
        for times, came in zip(columns.tolist(), found["arrived"].tolist())
    ]


def _story(times, keys, came):
    events = [(t, key) for t, key in zip(times, keys) if t == t]
    if came == came and came < max((t for t, key in events if key in "qs"), default=came):
        events.append((came, "+"))
        events.sort(key=lambda event: event[0])
    at, told, early = [], "w", False
    for time, key in sorted(events, key=lambda event: event[0]):
        early = early or key == "+"
        base = told[-1].lower() if key == "+" else key
        at.append(time)
        told += base.upper() if early and base in EARLY else base
    return tuple(at), told


def state_at(at: Iterable[float], told: str, time: float) -> str:
    """The key of a story's state at a time."""
    return told[sum(t <= time for t in at)]

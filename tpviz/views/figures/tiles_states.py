"""The state of each part of a tile over time, in a simulated T3 run (`SimResult`), and the run in
numbers and words.

    waiting -> computing -> its store queued -> stored -> updated twice -> on the link -> sent ->
    done: the reduced result is in this GPU's memory

States that a chunk does not have at its place in the order (the first goes straight to the link,
the last stays) are skipped. If the partial sum from GPU r + 1 arrives before the part itself is
stored, the state is marked. Without a tracker stores are not counted.
Works on the attributes of a `SimResult` alone.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .svg import amount, seconds

if TYPE_CHECKING:
    from tpviz.evidence.t3_hardware import SimResult


class TileState(NamedTuple):
    """key : one letter. ink and pattern : of the palette, without a pattern faint. sign : drawn on
    the part, where there is room."""

    key: str
    label: str
    ink: str
    pattern: str
    sign: str = ""


STATES = (
    TileState("w", "waiting", "rule", ""),
    TileState("c", "computing", "forward", "solid"),
    TileState("q", "computed, its store queued", "recompute", "dots"),
    TileState("p", "stored", "optimizer_state", "zigzag"),
    TileState("s", "stored: one update", "optimizer_state", "zigzag", "1"),
    TileState("t", "updated twice: triggered", "axis1", "back", "2"),
    TileState("l", "on the link", "axis0", "lines", "→"),
    TileState("x", "sent", "wait", "cross", "·"),
    TileState("d", "done: the reduced result is here", "backward", "diagonal", "✓"),
)
BY_KEY = {state.key: state for state in STATES}
EARLY = "wcq"
"""States that may be marked, as capitals: the partial sum arrives before the own store."""


def moments(run: "SimResult", gpu: int = 0) -> dict[str, np.ndarray]:
    """{what: seconds of each part of a GPU's output, nan where it never is}, in the order of
    ``run.tiles``; also ``position`` of its chunk in the order of computing.

    start, computed, stored, arrived, second, triggered, sent : as in ``run.tiles``. link : its
    first byte leaves. done : the reduced result is there, at last by the all-gather. Of GPUs that a
    mirrored run leaves out: those of GPU 0, chunks turned by ``gpu``.
    """
    tiles, times = run.tiles, {}
    row, like = (gpu, slice(None)) if len(run.logs) > 1 else (0, turned(run, gpu))
    names = "position", "start", "computed", "stored", "arrived", "second", "triggered", "sent"
    for what in names:
        times[what] = getattr(tiles, what)[row][like].astype(float)
    times["link"] = _left(run, row)[like]
    ahead = (tiles.chunk - gpu) % run.ranks  # 0 for its own, then as the ring brings them
    if fused(run):
        times["done"] = np.where(ahead == 0, times["second"], np.nan)
    else:
        _passed(run, ahead, times)
    gathers = _steps(run, run.rs_end)
    if gathers:
        ends = np.array([np.nan, *(end + run.machine.latency for _, end in gathers)])
        times["done"] = np.where(ahead == 0, times["done"], np.minimum(ends[ahead], run.ag_end))
    return times


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
    first = np.full(int(tiles.tile.max() + 1) * run.gemm.wavefronts, np.nan)
    for _, start, _, _, _, part in run.logs[row]["sent"]:
        if part >= 0:
            first[part] = start
    return first[tiles.tile * run.gemm.wavefronts + tiles.wave]


def _steps(run, since, until=np.inf):
    """[(start, end)] of the steps of a ring pass by itself, which sends nothing but chunks."""
    rows = sorted(row[1:3] for row in run.logs[0]["sent"] if row[5] < 0 and since <= row[0] < until)
    edges = [len(rows) * j // max(run.ranks - 1, 1) for j in range(run.ranks)]
    return [(rows[a][0], rows[b - 1][1]) for a, b in pairwise(edges)] if rows else []


def _passed(run, ahead, times):
    """A separate reduce-scatter, chunk by chunk: step j sends the chunk j + 1 ahead."""
    steps = np.array([(np.nan, np.nan), *_steps(run, 0.0, run.rs_end)])
    if len(steps) == run.ranks:
        times["link"], times["sent"] = steps[ahead].T
    times["done"] = np.where(ahead == 0, run.rs_end, np.nan)


def stories(times: dict[str, np.ndarray]) -> list[tuple[tuple[float, ...], str]]:
    """Per part (seconds at which it changes, the keys of its states: one more): what `moments`
    gives, in order. A capital: see `EARLY`."""
    stored = "p" if np.isnan(times["second"]).all() else "s"  # nothing is updated a second time
    names = {
        "computed": "q",
        "stored": stored,
        "second": "t",
        "link": "l",
        "sent": "x",
        "done": "d",
    }
    columns = np.array([times["start"], *(times[name] for name in names)]).T
    return [
        _story(row, "c" + "".join(names.values()), came)
        for row, came in zip(columns.tolist(), times["arrived"].tolist())
    ]


def _story(times, states, came):
    events = [(t, key) for t, key in zip(times, states) if t == t]
    if came == came and came < max((t for t, key in events if key in "qs"), default=came):
        events.append((came, "+"))
        events.sort(key=lambda event: event[0])
    at, keys, early = [], "w", False
    for time, key in sorted(events, key=lambda event: event[0]):
        early = early or key == "+"
        base = keys[-1].lower() if key == "+" else key
        at.append(time)
        keys += base.upper() if early and base in EARLY else base
    return tuple(at), keys


def state_at(at: Iterable[float], keys: str, time: float) -> str:
    """The key of a story's state at a time."""
    return keys[sum(t <= time for t in at)]


# -- a run in numbers and words -------------------------------------------------------------------
NAMES = {"sequential": "sequential", "t3": "T3", "t3_mca": "T3-MCA"}
"""{config: what it is called}."""
SAMPLES = 260  # of what is drawn over time


class TilesPanel:
    """One `SimResult`, and the GPUs whose tiles are drawn."""

    def __init__(self, run: "SimResult", gpus: Iterable[int] = (0,)):
        self.run, self.gpus = run, tuple(gpus)

    @property
    def name(self) -> str:
        """Of its configuration; for plain T3 with the memory's policy."""
        policy = f", {self.run.machine.policy.replace('_', ' ')}" * (self.run.config == "t3")
        return NAMES[self.run.config] + policy

    @cached_property
    def moments(self) -> list[dict[str, np.ndarray]]:
        """Per GPU drawn what `tiles_states.moments` gives."""
        return [moments(self.run, gpu) for gpu in self.gpus]

    @cached_property
    def stories(self) -> list[list[tuple[tuple[float, ...], str]]]:
        """Per GPU drawn, per part its story."""
        return [stories(times) for times in self.moments]

    @cached_property
    def series(self) -> dict[str, np.ndarray]:
        """Of GPU 0 over time."""
        return self.run.series(SAMPLES)

    @cached_property
    def computing(self) -> np.ndarray:
        """Tiles that GPU 0 computes at the times of `series`."""
        tiles = self.run.tiles
        first = tiles.wave == 0
        edges = [np.sort(getattr(tiles, what)[0][first]) for what in ("start", "computed")]
        begun, over = (np.searchsorted(e, self.series["time"], side="right") for e in edges)
        return begun - over


FACTS = (
    ("sublayer", lambda run: seconds(run.seconds)),
    ("GEMM ends", lambda run: seconds(run.gemm_end)),
    ("reduce-scatter ends", lambda run: seconds(run.rs_end)),
    ("memory moved", lambda run: amount(sum(run.dram.values()))),
    ("tracker at most", lambda run: f"{run.tracker.peak} of {run.tracker.capacity} records"),
)


def facts(panels: Sequence[TilesPanel]) -> list[list[str]]:
    """[label, text] pairs for the line above the picture."""
    pairs = [[label, " against ".join(say(panel.run) for panel in panels)] for label, say in FACTS]
    if len(panels) == 2:
        pairs.insert(1, ["speedup", f"{speedup(panels):.3f}"])
    return pairs


def speedup(panels: Sequence[TilesPanel]) -> float:
    """The second's time over the first's."""
    return panels[1].run.seconds / panels[0].run.seconds


def counts(panels: Sequence[TilesPanel], times: Sequence[float]) -> list[str]:
    """Per time, the number of parts in each state: one sentence a panel."""
    each = [_counted(panel, times) for panel in panels]
    return ["\n".join(lines) for lines in zip(*each)]


def _counted(panel, times):
    labels = {s.key: s.label.split(":")[0].split(",")[0] for s in STATES}
    table = np.zeros((len(times), len(STATES)), int)
    places = {s.key: i for i, s in enumerate(STATES)}
    for stories in panel.stories:
        for at, keys in stories:
            steps = np.searchsorted(times, at)  # the first time at which the change has happened
            for step, before, after in zip(steps.tolist(), keys, keys[1:]):
                if step < len(times) and before.lower() != after.lower():
                    table[step, places[before.lower()]] -= 1
                    table[step, places[after.lower()]] += 1
            table[0, places["w"]] += 1
    names = [labels[s.key] for s in STATES]
    where = f"GPU {panel.gpus[0]}" if len(panel.gpus) == 1 else f"all {len(panel.gpus)} GPUs"
    for row in np.cumsum(table, axis=0).tolist():
        counted = ", ".join(f"{n} {name}" for n, name in zip(row, names) if n)
        yield f"{panel.name}, {where}: {counted}."


def to_table(panels: Sequence[TilesPanel]) -> list[list[str]]:
    """Rows of strings, header first: the numbers of each run."""
    tables = [panel.run.to_table() for panel in panels]
    rows = {}
    for number, table in enumerate(tables):
        for what, value in table[1:]:
            rows.setdefault(what, [""] * len(panels))[number] = value
    return [
        ["what (simulated)", *(panel.name for panel in panels)],
        *([what, *values] for what, values in rows.items()),
    ]


def describe(panels: Sequence[TilesPanel]) -> str:
    """The runs in words, then how the first differs from the second."""
    sentences = [panel.run.describe() for panel in panels]
    if len(panels) == 2:
        one, two = (sum(panel.run.dram.values()) for panel in panels)
        sentences.append(
            f"{panels[0].name} is {speedup(panels):.3f} times as fast as {panels[1].name}, and "
            f"moves {one / two:.3f} times its bytes in memory."
        )
    return " ".join(sentences)


def story_of(panel: TilesPanel, place: int, part: int) -> str:
    """A part of an output in words, all its moments; ``place``: of its GPU in ``panel.gpus``."""
    run, moments, gpu = panel.run, panel.moments[place], panel.gpus[place]
    tiles = run.tiles
    t = {what: float(values[part]) for what, values in moments.items()}
    wave = f", part {tiles.wave[part] + 1} of {run.gemm.wavefronts}" * (run.gemm.wavefronts > 1)
    clauses = [
        f"{panel.name}, GPU {gpu}, tile ({tiles.row[part]}, {tiles.column[part]}){wave}, "
        f"chunk {tiles.chunk[part]}, {ordinal(int(t['position']))} in its order: computed "
        f"{seconds(t['start'])} to {seconds(t['computed'])}"
    ]
    words = (
        ("stored", "own store in memory at {}"),
        ("arrived", f"the sum so far comes at {{}} from GPU {(gpu + 1) % run.ranks}"),
        ("second", "updated twice at {}"),
        ("link", "on the link from {}"),
        ("sent", "sent at {}"),
        ("done", "reduced result here at {}"),
    )
    for what, text in sorted(words, key=lambda pair: t[pair[0]]):
        if t[what] == t[what]:
            also = ", which triggers the DMA" * (what == "second" and t["triggered"] == t[what])
            clauses.append(text.format(seconds(t[what])) + also)
    return "; ".join(clauses) + "."


def rule_of(run: "SimResult", position: int) -> str:
    """The destination of the chunk at a place of the order, in few words."""
    last = run.ranks - 1
    if not fused(run):
        return "stored, reduced later"
    if position == last:
        return "stays here" if last else "stays"
    return "stored on GPU r - 1" if position == 0 else "DMA after 2 updates"


def ordinal(position: int) -> str:
    """1st, 2nd, ..."""
    number = position + 1
    suffix = (
        "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    )
    return f"{number}{suffix}"

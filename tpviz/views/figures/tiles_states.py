"""The state of each part of a tile over time, in a simulated T3 run (`SimResult`), and the run in
numbers and words.

    waiting -> computing -> its store queued -> stored -> updated twice -> on the link -> sent ->
    done: the reduced result is in this GPU's memory

States that a chunk does not have at its place in the order (the first goes straight to the link,
the last stays) are skipped. Without a tracker stores are not counted.
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
    """key : one letter. legend : the words of its ink there, "" where another state has them.
    opacity : of its ink."""

    key: str
    label: str
    ink: str
    pattern: str
    legend: str = ""
    opacity: float = 1.0


STATES = (
    TileState("w", "waiting", "rule s-muted", "", "waiting", 0.6),
    TileState("c", "computing", "forward", "solid", "computing"),
    TileState("q", "computed, its store queued", "optimizer_state", "dots", "", 0.45),
    TileState("p", "stored", "optimizer_state", "zigzag", "stored (faint: computed)"),
    TileState("s", "stored: one update", "optimizer_state", "zigzag"),
    TileState("t", "updated twice: triggered", "axis1", "back", "updated twice: triggered"),
    TileState("l", "on the link", "axis0", "lines", "on the link (faint: sent)"),
    TileState("x", "sent", "axis0", "cross", "", 0.3),
    TileState("d", "done: the reduced result is here", "backward", "diagonal", "done"),
)
BY_KEY = {state.key: state for state in STATES}


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
    gives, in order."""
    stored = "p" if np.isnan(times["second"]).all() else "s"  # nothing is updated a second time
    names = {
        "start": "c",
        "computed": "q",
        "stored": stored,
        "second": "t",
        "link": "l",
        "sent": "x",
        "done": "d",
    }
    columns = np.array([times[name] for name in names]).T
    order, states = np.argsort(columns, axis=1, kind="stable").tolist(), "".join(names.values())
    told = []
    for row, places in zip(columns.tolist(), order):
        there = [i for i in places if row[i] == row[i]]
        told.append((tuple(row[i] for i in there), "w" + "".join(states[i] for i in there)))
    return told


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


def figures(panels: Sequence[TilesPanel]) -> list[list[str]]:
    """The table under the picture, header first: a run each."""
    head = "run", "sublayer", "GEMM ends", "reduce-scatter ends", "memory moved", "tracker", "GPUs"
    rows = [[*head]]
    for panel in panels:
        run = panel.run
        ends = [seconds(time) for time in (run.seconds, run.gemm_end, run.rs_end)]
        rows.append([panel.name, *ends, amount(sum(run.dram.values()))])
        used = f"{run.tracker.peak} of {run.tracker.capacity}" if fused(run) else "not used"
        rows[-1] += [
            used,
            f"1 of {run.ranks}, all alike" if run.mode == "mirror" else f"{run.ranks}",
        ]
    return rows


def speedup(panels: Sequence[TilesPanel]) -> float:
    """The second's time over the first's."""
    return panels[1].run.seconds / panels[0].run.seconds


def finding(panels: Sequence[TilesPanel]) -> str:
    """What the picture shows, in a sentence."""
    one, *others = panels
    if not others:
        return f"{one.name} takes {seconds(one.run.seconds)}."
    times = speedup(panels)
    how = f"{times:.2f} times as fast" if times >= 1 else f"{1 / times:.2f} times as slow"
    return f"{one.name} is {how} as {others[0].name}."


def said(panels: Sequence[TilesPanel], tables: Sequence[np.ndarray]) -> list[str]:
    """Per row of the `counted` tables of panels: one sentence a panel."""
    names = [state.label.split(":")[0].split(",")[0] for state in STATES]

    def sentence(panel, row):
        one = len(panel.gpus) == 1
        where = f"GPU {panel.gpus[0]}" if one else f"all {len(panel.gpus)} GPUs"
        numbers = ", ".join(f"{n} {name}" for n, name in zip(row, names) if n)
        return f"{panel.name}, {where}: {numbers}."

    rows = zip(*(table.tolist() for table in tables))
    return ["\n".join(map(sentence, panels, row)) for row in rows]


def counted(panel: TilesPanel, times: Sequence[float]) -> np.ndarray:
    """How many parts are in each of the `STATES`, at each time."""
    table = np.zeros((len(times), len(STATES)), int)
    places = {state.key: i for i, state in enumerate(STATES)}
    every = [story for stories in panel.stories for story in stories]
    table[0, places["w"]] = len(every)
    at = np.searchsorted(times, [time for at, _ in every for time in at])
    before = [places[key] for _, keys in every for key in keys[:-1]]
    after = [places[key] for _, keys in every for key in keys[1:]]
    seen = at < len(times)  # the first of these times at which a change has happened
    np.add.at(table, (at[seen], np.array(before)[seen]), -1)
    np.add.at(table, (at[seen], np.array(after)[seen]), 1)
    return np.cumsum(table, axis=0)


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

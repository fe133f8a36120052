"""A simulated T3 run, tile by tile -> scene: the output's tiles by state, and lanes on one clock.

Works on `SimResult` runs of `tpviz.evidence.t3_hardware`, of which it needs the attributes alone.
All times are simulated. Where one GPU stands for all ("mirror"), the others are it with chunks
turned.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from .film import film_svg
from .lanes import axis_below, play_head, ring, timed, window, zoomable
from .legend import keyed
from .svg import (
    VIEW,
    amount,
    check_step,
    pattern_defs,
    rect,
    seconds,
    shape,
    table_html,
    text,
    width_of,
)
from .tiles_states import (
    BY_KEY,
    STATES,
    TilesPanel,
    counted,
    figures,
    finding,
    fused,
    ordinal,
    rule_of,
    said,
    state_at,
    story_of,
)

if TYPE_CHECKING:
    from tpviz.evidence.t3_hardware import Gemm

BADGE = "simulated"
Time = TypeVar("Time", float, np.ndarray)
RIGHT, MAX_PARTS, STEPS = 12, 2304, 120
HEAD, LANE, GAP, BELOW, AXIS = 28, 34, 8, 18, 24
"""px: of a panel's name; of a lane; between lanes; under a panel; of the time axis."""
LANES = "computing", "memory", "tracker", "link"
HIGH = len(LANES) * (LANE + GAP) - GAP
SIDE, MAPS, NAMES, GPU = 3, (170, 100), 96, 18
"""px: left of tiles; of tiles, at most across beside lanes, or down above them; of lanes' names; of
a GPU's."""
SMALL = 6  # px of a part, at least, that a gap parts from the next


def tiles_scene(panels: Sequence[TilesPanel], title: str) -> dict[str, Any]:
    """The scene of one or two `TilesPanel`s on one clock, ready for JSON; as `Film` wants it.

    Its ``stops`` are equal steps of time. ``tiles`` has of each part [x, y, px at which its state
    changes, the keys of its states: one more]; ``looks`` {key: SVG of a path "@" of all parts in
    that state}; ``size`` px of a part; ``over`` (SVG) stands above them; ``map`` is how many parts
    a GPU has. Raises ``ValueError`` above `MAX_PARTS` parts.
    """
    check(sum(len(panel.gpus) for panel in panels), panels[0].run.gemm)
    layout, rows = TilesLayout(panels), figures(panels)
    times = [layout.duration * step / STEPS for step in range(STEPS + 1)]
    tables = [counted(panel, times) for panel in panels]
    drawn = [pattern_defs(), window(layout.left, VIEW - RIGHT, layout.bottom)]
    for number, panel in enumerate(panels):
        drawn += _lanes(panels, number, layout)
        drawn.append(text(0, layout.heads[number] + 16, heading(panel), size=16, weight=650))
    axis = axis_below(layout.left, layout.bottom, layout.scale, layout.duration, seconds)
    return {
        "title": title,
        "badge": BADGE,
        "width": VIEW,
        "least": VIEW if len(layout.maps) > len(panels) else layout.left + 60,
        "top": 0,
        "height": round(layout.bottom) + AXIS,
        "common": "".join([*drawn, axis]),
        "over": "".join(part for map in layout.maps for part in _over(panels[map.panel], map)),
        "tiles": [tile for map in layout.maps for tile in _tiles(panels[map.panel], map, layout)],
        "looks": {state.key: _look(state) for state in STATES},
        "size": [round(side, 2) for side in layout.size],
        "map": len(panels[0].run.tiles.tile),
        "legend": keyed((s.ink, s.pattern, s.legend) for s in STATES if s.legend),
        "table": rows,
        "under": table_html(rows),
        "words": said(panels, tables),
        "finding": finding(panels),
        "stops": [round(layout.x(time), 2) for time in times],
        "captions": [f"at {seconds(t)} of {seconds(layout.duration)}" for t in times],
        "head": round(layout.lanes[0] - 2, 1),
        "foot": round(layout.bottom, 1),
        "axis": zoomable(layout.left, VIEW - RIGHT, layout.bottom, layout.duration, "s"),
        "opens": int(np.argmax((tables[0] > 0).sum(axis=1))),  # the first with the most states
    }


def heading(panel: TilesPanel) -> str:
    """ "T3-MCA: 700 µs"."""
    return f"{panel.name}: {seconds(panel.run.seconds)}"


def check(gpus: int, gemm: "Gemm") -> None:
    """Raise ``ValueError`` where the parts of so many GPUs' outputs would not be legible."""
    down, across = gemm.tiles
    if gpus * down * across * gemm.wavefronts > MAX_PARTS:
        raise ValueError(
            f"{gpus} x {down} x {across} tiles, each of {gemm.wavefronts} to draw, are more than "
            f"the {MAX_PARTS} that this view shows: use larger tiles, fewer wavefronts, a smaller "
            "output, or shown='one'"
        )


# -- where everything is ---------------------------------------------------------------------------
class TileMap(NamedTuple):
    """A GPU's tiles: which panel and GPU, its left and top, px of a tile."""

    panel: int
    gpu: int
    x: float
    y: float
    cell: float


class TilesLayout:
    """Where everything is, in px, panel below panel: the tiles of GPU 0 beside its lanes, those of
    all GPUs above them. What the knobs of sizes change is not its height.

    maps : `TileMap`s. size : width and height of a part. heads, lanes : per panel the top of its
    name and of its lanes. left : of the time axis. scale : px of a second.
    """

    def __init__(self, panels: Sequence[TilesPanel]):
        (down, across), waves = panels[0].run.gemm.tiles, panels[0].run.gemm.wavefronts
        several = max(len(panel.gpus) for panel in panels)
        if several == 1:
            each, above = VIEW, 0
            cell = min(MAPS[0] / across, (HIGH - GPU) / down)
            self.left = SIDE + across * cell + NAMES
        else:
            each, above, self.left = VIEW / several, GPU + MAPS[1] + 12, float(NAMES)
            cell = min((each - 14) / across, MAPS[1] / down)
        self.heads: list[float] = []
        self.lanes: list[float] = []
        self.maps: list[TileMap] = []
        y = 0.0
        for number, panel in enumerate(panels):
            self.heads.append(y)
            y += HEAD
            top = y + GPU * (several > 1)
            self.maps += [
                TileMap(number, gpu, SIDE + i * each, top, cell) for i, gpu in enumerate(panel.gpus)
            ]
            self.lanes.append(y + above)
            y += above + HIGH + BELOW
        self.bottom = y - BELOW + 6
        self.duration = max(panel.run.seconds for panel in panels)
        self.scale = (VIEW - RIGHT - self.left) / (self.duration or 1.0)
        gap = float(cell / waves >= SMALL)
        self.size = cell - gap, cell / waves - gap

    def x(self, time: Time) -> Time:
        """Of a time."""
        return self.left + time * self.scale


# -- tiles -----------------------------------------------------------------------------------------
def boxes(panel: TilesPanel, map: TileMap) -> tuple[np.ndarray, np.ndarray]:
    """(x, y) px of each part in a map, in the order of its tiles."""
    tiles, waves = panel.run.tiles, panel.run.gemm.wavefronts
    return (
        map.x + tiles.column * map.cell,
        map.y + tiles.row * map.cell + tiles.wave * map.cell / waves,
    )


def _tiles(panel, map, layout):
    """``tiles`` of a map; see `tiles_scene`."""
    stories = panel.stories[panel.gpus.index(map.gpu)]
    places = zip(*(np.round(values, 2).tolist() for values in boxes(panel, map)))
    for (at, keys), (x, y) in zip(stories, places):
        yield [x, y, [round(layout.x(t), 1) for t in at], keys]


def _look(state):
    """A path of all parts in a state; small ones have no gaps, so that patterns go on."""
    looks = f"fill-opacity='{state.opacity:g}' data-state='{state.key}'"
    return shape("@", state.ink, state.pattern, looks)


def _over(panel, map):
    """A line around each chunk, where it goes in words where one points at it; and which GPU this
    is, of several."""
    tiles, run, cell = panel.run.tiles, panel.run, map.cell
    position = panel.moments[panel.gpus.index(map.gpu)]["position"]
    for chunk in range(run.ranks):
        mine = tiles.chunk == chunk
        j = int(position[mine][0])
        path = ""
        for row in np.unique(tiles.row[mine]).tolist():  # of which it has one piece
            columns = tiles.column[mine & (tiles.row == row)]
            x, wide = map.x + columns.min() * cell, (np.ptp(columns) + 1) * cell
            path += f"M{x:.1f},{map.y + row * cell:.1f}h{wide:.1f}v{cell:.1f}h-{wide:.1f}z"
        said = f"chunk {chunk}, {ordinal(j)}: {rule_of(run, j)}"
        yield f"<path d='{path}' fill='transparent'><title>{said}</title></path>"
    chunk = np.full([side + 2 for side in run.gemm.tiles], -1)
    chunk[tiles.row + 1, tiles.column + 1] = tiles.chunk
    down, along = (np.argwhere(np.diff(chunk, axis=axis)).tolist() for axis in (0, 1))
    lines = [f"M{map.x + (c - 1) * cell:.1f},{map.y + r * cell:.1f}h{cell:.1f}" for r, c in down]
    lines += [f"M{map.x + c * cell:.1f},{map.y + (r - 1) * cell:.1f}v{cell:.1f}" for r, c in along]
    yield f"<path d='{''.join(lines)}' class='s-muted' fill='none'/>"
    if len(panel.gpus) > 1:
        yield text(map.x, map.y - 4, f"GPU {map.gpu}", "muted")
    else:
        yield text(map.x, map.y + run.gemm.tiles[0] * cell + 15, "output tiles", "muted")


# -- lanes: GPU 0's slots, memory queue, tracker and link over time --------------------------------
def _lanes(panels, number, layout):
    """A panel's lanes and what ends when, as pieces of SVG. Panels share each lane's scale."""
    panel, y = panels[number], layout.lanes[number]
    left = max(layout.left, 12 + 1.06 * width_of(heading(panel), 16))
    ends = _ends(panel, layout, layout.heads[number] + 16, y, left)
    for what in LANES:
        areas, top = _drawn(panels, panel, what)
        for down, token, words in ((-2, "fg", what), (13, "muted", _most(panel.run, what, top))):
            yield text(layout.left - 10, y + LANE / 2 + down, words, token, anchor="end")
        wide = panel.run.seconds * layout.scale
        ground = rect(layout.left, y, wide, LANE, "rule", "fill-opacity='.5'")
        drawn = _stack(panel.series["time"], areas, top, y, layout, what)
        yield timed(ground + "".join(drawn))
        y += LANE + GAP
    yield timed("".join(ends))


def _most(run, what, top):
    """What the top of a lane is, in words."""
    if what == "tracker" and not fused(run):
        return "not used"
    words = {"computing": f"{top} tiles", "memory": amount(top), "tracker": f"{top} parts"}
    return f"\N{LESS-THAN OR EQUAL TO} {words.get(what, f'{amount(run.machine.link)}/s')}"


def _drawn(panels, panel, what):
    """([(ink, values)] from below, the value at a lane's top)."""
    run, series = panel.run, panel.series
    if what == "computing":
        return [("forward", panel.computing)], run.machine.slots
    if what == "memory":
        top = max((a.series["gemm_queue"] + a.series["comm_queue"]).max() for a in panels)
        return [("forward", series["gemm_queue"]), ("axis0", series["comm_queue"])], top
    if what == "tracker":
        top = max(max(a.run.tracker.peak for a in panels), 1)
        return [("axis1", series["tracker"])] * fused(run), top
    return [("axis0", np.minimum(series["link"], 1.0))], 1.0


def _stack(time, areas, top, y, layout, what):
    """Areas on top of each other, each in its ink; drawn from above, so that all end below."""
    x, high = layout.x(time).round(1), np.zeros(len(time))
    drawn = []
    for ink, values in areas:
        high = high + values
        edge = (y + LANE * (1 - np.minimum(high / (top or 1.0), 1.0))).round(1)
        turns = np.flatnonzero(np.diff(edge))  # what is level needs its ends alone
        kept = sorted({0, len(edge) - 1, *turns.tolist(), *(turns + 1).tolist()})
        line = "L".join(f"{a:g},{b:g}" for a, b in zip(x[kept].tolist(), edge[kept].tolist()))
        path = f"M{line}V{y + LANE:g}H{x[0]:g}z"
        drawn.append(shape(path, ink, None, f"data-lane='{what}' data-key='{ink}'"))
    return drawn[::-1]


def _ends(panel, layout, y, top, left):
    """A labelled line at the end of the GEMM, of the reduce-scatter and of the run. y : of words;
    left : px from which there is room for them."""
    run = panel.run
    ends = [(run.gemm_end, "GEMM"), (run.rs_end, "reduce-scatter"), (run.ag_end, "all-gather")]
    for time, _ in ends:
        yield f"<path d='M{layout.x(time):.1f},{top - 5}v{HIGH + 5}' class='s-fg'/>"
    said: list[tuple[float, str]] = [(left, "")]
    for x, words in sorted((layout.x(time), words) for time, words in ends):
        while len(said) > 1 and x - width_of(words) < said[-1][0] + 8:
            words = f"{said.pop()[1]}, {words}"
        said.append((max(x, said[0][0] + width_of(words)), words))
    for x, words in said[1:]:
        yield text(x, y, words, "muted", anchor="end")


# -- the selected part, and the whole picture ------------------------------------------------------
def tiles_detail(panels: Sequence[TilesPanel], part: int) -> dict[str, Any]:
    """{"part", "words", "mark"} of a part, counted over all maps, ready for JSON; -1: of none.

    Raises ``ValueError`` for a part that does not exist.
    """
    if part < 0:
        return {"part": -1, "words": "", "mark": ""}
    layout, rest = TilesLayout(panels), part
    for map in layout.maps:
        panel = panels[map.panel]
        count = len(panel.run.tiles.tile)
        if rest < count:
            x, y = (float(values[rest]) for values in boxes(panel, map))
            size = map.cell + 2, map.cell / panel.run.gemm.wavefronts + 2
            return {
                "part": part,
                "words": story_of(panel, panel.gpus.index(map.gpu), rest),
                "mark": ring(x - 1.5, y - 1.5, *size, 2, 2.4, "data-chosen=''"),
            }
        rest -= count
    raise ValueError(f"part={part} is not in this view: use 0 to {part - rest - 1}, or -1 for none")


def tiles_svg(
    scene: dict[str, Any], step: int = 0, detail: dict[str, Any] | None = None, theme: str = "auto"
) -> str:
    """The picture at a step as a whole SVG. detail : what `tiles_detail` gives, None for no part.
    theme "light", "dark" or "auto". Raises ``ValueError`` for a step that does not exist."""
    check_step(scene, step)
    at = scene["stops"][step]
    drawn = placed(scene, at) + scene["over"] + play_head(scene, at)
    mark = detail["mark"] if detail else ""
    return film_svg(scene, step, theme, words_of(scene, step, detail), drawn + mark)


def placed(scene: dict[str, Any], at: float) -> str:
    """Every part in its state at ``at`` px of the time axis: a path for each state."""
    (wide, high), paths = scene["size"], dict.fromkeys(BY_KEY, "")
    for x, y, times, keys in scene["tiles"]:
        paths[state_at(times, keys, at)] += f"M{x:g},{y:g}h{wide}v{high}h-{wide}z"
    return "".join(scene["looks"][key].replace("@", path) for key, path in paths.items() if path)


def words_of(scene: dict[str, Any], step: int, detail: dict[str, Any] | None) -> str:
    """The description at a step: of the selected part, or the number of parts in each state."""
    return detail["words"] if detail and detail["words"] else scene["words"][step]

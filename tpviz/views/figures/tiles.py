"""A simulated T3 run, tile by tile -> scene: the output's tiles by state, and lanes on one clock.

Works on `SimResult` runs of `tpviz.evidence.t3_hardware`, of which it needs the attributes alone.
All times are simulated. Where one GPU stands for all ("mirror"), the others are it with chunks
turned.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from .lanes import axis_below, idle, play_head, ring, timed, window, zoomable
from .legend import Look, legend
from .svg import (
    VIEW,
    alone,
    amount,
    check_step,
    lines,
    pattern_defs,
    seconds,
    shape,
    text,
    width_of,
)
from .tiles_states import (
    BY_KEY,
    EARLY,
    STATES,
    TilesPanel,
    counts,
    facts,
    fused,
    ordinal,
    rule_of,
    state_at,
    story_of,
)

if TYPE_CHECKING:
    from tpviz.evidence.t3_hardware import Gemm

BADGE = "simulated"
Time = TypeVar("Time", float, np.ndarray)
LEFT, RIGHT, TOP = 110, 236, 84
MAX_PARTS, STEPS = 2304, 120
HIGH, LANE, GAP = 236, 34, 9
"""px: of a GPU's tiles at most; of a lane; between lanes."""
HEAD = 36
"""px of a panel's name, and of names of chunks or GPUs, over its tiles."""
LABELS, UNNAMED = (60, 182), (7, 7)
"""px left and right of a GPU's tiles, where its chunks are named, and where not."""
LANES = {
    "computing": "tiles computing",
    "memory": "memory queue",
    "tracker": "tracker, records",
    "link": "link, share",
}
"""{lane: its name}."""
LINE, SIGN, SMALL = 15, 9.5, 6
LOOK = Look(14, 11, 6, 7, 18, 9, 13, 18, "muted")
PART = re.compile(r"(<g data-at='([^']*)' data-is='(\w+)' data-place='([^']*)'>)</g>")


def tiles_scene(panels: Sequence[TilesPanel], title: str) -> dict[str, Any]:
    """The scene of one or two `TilesPanel`s on one clock, ready for JSON; as `Film` wants it.

    Its ``stops`` are equal steps of time. In ``common`` every part is an empty ``<g>`` with
    ``data-at`` (px at which its state changes), ``data-is`` (the keys of its states, one more) and
    ``data-place`` (px); ``parts`` has what is drawn in it, {key of a state: SVG, "@" for its
    place}. ``map`` is how many parts a GPU has. Raises ``ValueError`` above `MAX_PARTS` parts.
    """
    check(sum(len(panel.gpus) for panel in panels), panels[0].run.gemm)
    layout = lay_out(panels)
    times = [layout.duration * step / STEPS for step in range(STEPS + 1)]
    out = [pattern_defs(), window(LEFT, VIEW - RIGHT, layout.bottom)]
    for panel, (x, y) in zip(panels, layout.heads):
        out.append(
            text(x, y + 11, f"{panel.name}: {seconds(panel.run.seconds)}", size=16, weight=700)
        )
    for map in layout.maps:
        out += _map(panels[map.panel], layout, map)
    for number in range(len(panels)):
        out += _lanes(panels, number, layout)
    beside = "time", VIEW - RIGHT + 24
    axis = axis_below(LEFT, layout.bottom, layout.scale, layout.duration, seconds, *beside)
    marks, y = legend(_marks(panels), 12.0, layout.bottom + 35, VIEW, LOOK)
    return {
        "title": title,
        "badge": BADGE,
        "width": VIEW,
        "top": TOP - 6,
        "height": round(y + 23),
        "common": "".join([*out, axis, marks]),
        "parts": _parts(panels, layout),
        "map": len(panels[0].run.tiles.tile),
        "facts": facts(panels),
        "words": counts(panels, times),
        "stops": [round(layout.x(time), 2) for time in times],
        "captions": [f"at {seconds(t)} of {seconds(layout.duration)}" for t in times],
        "head": round(layout.head, 1),
        "foot": round(layout.bottom, 1),
        "axis": zoomable(LEFT, VIEW - RIGHT, layout.bottom, layout.duration, "s"),
        "opens": opening(panels[0], times),
    }


def opening(panel: TilesPanel, times: Sequence[float]) -> int:
    """The step at which a page opens: the first with the most states side by side."""
    now = lambda t: {state_at(at, keys, t).lower() for at, keys in panel.stories[0]}
    return max(range(len(times)), key=lambda step: len(now(times[step])))


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
    """A GPU's tiles: which panel and GPU, its left and top, px of a tile, whether chunks are
    named."""

    panel: int
    gpu: int
    x: float
    y: float
    cell: float
    named: bool


class TilesLayout(NamedTuple):
    """Where everything is, in px. maps : `TileMap`s. heads : (x, y) of each panel's name. lanes :
    per panel the top of its lanes. scale : px of a second."""

    maps: tuple[TileMap, ...]
    heads: tuple[tuple[float, float], ...]
    lanes: tuple[float, ...]
    head: float
    bottom: float
    scale: float
    duration: float

    def x(self, time: Time) -> Time:
        """Of a time."""
        return LEFT + time * self.scale


def lay_out(panels: Sequence[TilesPanel]) -> TilesLayout:
    """The `TilesLayout`: GPU 0 of the panels side by side; or all GPUs in a row, panel below
    panel."""
    down, across = panels[0].run.gemm.tiles
    stacked = any(len(panel.gpus) > 1 for panel in panels)
    maps, heads, y = [], [], TOP + 12
    wide = (VIEW - 24) / (1 if stacked else len(panels))
    for number, panel in enumerate(panels):
        x = 12 + (0 if stacked else number * wide)
        heads.append((x, y))
        each = wide / len(panel.gpus)
        sides = UNNAMED if stacked else LABELS
        cell = min((each - sum(sides)) / across, HIGH / down, 34.0)
        maps += [
            TileMap(number, gpu, x + i * each + sides[0], y + HEAD, cell, not stacked)
            for i, gpu in enumerate(panel.gpus)
        ]
        if stacked:
            y += HEAD + down * cell + 22
    if not stacked:
        y += HEAD + down * maps[0].cell + 22
    head, lanes = y + 4, []
    y = head + 8
    for _ in panels:
        lanes.append(y + 18)
        y += 18 + len(LANES) * (LANE + GAP) + 6
    duration = max(panel.run.seconds for panel in panels)
    return TilesLayout(
        tuple(maps),
        tuple(heads),
        tuple(lanes),
        head,
        y,
        (VIEW - LEFT - RIGHT) / (duration or 1.0),
        duration,
    )


# -- tiles -----------------------------------------------------------------------------------------
def _parts(panels, layout):
    cell, waves = layout.maps[0].cell, panels[0].run.gemm.wavefronts
    return {key: _part(key, cell, cell / waves) for key in [*BY_KEY, *EARLY.upper()]}


def _part(key, width, height):
    """Small parts have no gaps, and a pattern goes on from one to the next: there it shows."""
    state = BY_KEY[key.lower()]
    gap = float(height >= SMALL)
    size = width - gap, height - gap
    path = "M@h{0:.2f}v{1:.2f}h-{0:.2f}z".format(*size)
    out = shape(path, state.ink, state.pattern, "" if state.pattern else "fill-opacity='.5'")
    if state.sign and min(size) >= SIGN:
        x, high = size[0] / 2, min(size) * 0.85
        out += (
            f"<text transform='translate(@)' x='{x:.1f}' y='{size[1] / 2 + high * 0.36:.1f}' "
            f"class='f-halo-{state.ink}' font-size='{high:.1f}' font-weight='700' "
            f"text-anchor='middle'>{state.sign}</text>"
        )
    if key.isupper():
        side = min(size) * 0.62
        out += f"<path d='M@h{side:.1f}l-{side:.1f},{side:.1f}z' class='f-fg'/>"
    return out


def boxes(panel: TilesPanel, map: TileMap) -> tuple[np.ndarray, np.ndarray]:
    """(x, y) px of each part in a map, in the order of its tiles."""
    tiles, waves = panel.run.tiles, panel.run.gemm.wavefronts
    return (
        map.x + tiles.column * map.cell,
        map.y + tiles.row * map.cell + tiles.wave * map.cell / waves,
    )


def _map(panel, layout, map):
    index = panel.gpus.index(map.gpu)
    for (at, keys), x, y in zip(panel.stories[index], *boxes(panel, map)):
        when = ",".join(f"{layout.x(t):.1f}" for t in at)
        yield f"<g data-at='{when}' data-is='{keys}' data-place='{x:.1f},{y:.1f}'></g>"
    yield _borders(panel, map)
    yield from _chunks(panel, map, panel.moments[index]["position"])


def _borders(panel, map):
    """Lines between tiles of different chunks, and around all."""
    tiles, (down, across) = panel.run.tiles, panel.run.gemm.tiles
    chunk = np.full((down + 2, across + 2), -1)
    chunk[tiles.row + 1, tiles.column + 1] = tiles.chunk
    lines = []
    for r, c in np.argwhere(chunk[:-1, 1:-1] != chunk[1:, 1:-1]).tolist():
        lines.append(f"M{map.x + c * map.cell:.1f},{map.y + r * map.cell:.1f}h{map.cell:.1f}")
    for r, c in np.argwhere(chunk[1:-1, :-1] != chunk[1:-1, 1:]).tolist():
        lines.append(f"M{map.x + c * map.cell:.1f},{map.y + r * map.cell:.1f}v{map.cell:.1f}")
    return f"<path d='{''.join(lines)}' class='s-fg' fill='none' stroke-width='1.4'/>"


def _chunks(panel, map, position):
    """The place of each chunk, and its destination; on a small map only the GPU's number."""
    if not map.named:
        yield text(map.x, map.y - 4, f"GPU {map.gpu}")
        return
    tiles, run = panel.run.tiles, panel.run
    down, across = run.gemm.tiles
    rows = down >= across  # chunks lie one below the other
    x, y = (values + map.cell / 2 for values in boxes(panel, map))
    right = map.x + across * map.cell
    for chunk in range(run.ranks):
        mine = tiles.chunk == chunk
        j = int(position[mine][0])
        if rows:
            middle = float(y[mine].mean()) + 2
            yield text(map.x - 6, middle, f"chunk {chunk}", "muted", anchor="end")
            yield text(right + 6, middle, f"{ordinal(j)}: {rule_of(run, j)}", "muted")
        else:
            yield text(float(x[mine].mean()), map.y - 3, f"{chunk}", "muted", anchor="middle")
    if not rows:
        yield text(map.x - 6, map.y - 3, "chunk", "muted", anchor="end")


def _marks(panels):
    """(mark, words) of the states that there are."""
    keys = {
        key for panel in panels for stories in panel.stories for _, keys in stories for key in keys
    }
    items = [(s.key, s.label) for s in STATES if {s.key, s.key.upper()} & keys]
    if keys & set(EARLY.upper()):
        items.append(("W", "marked: the partial sum arrived first"))
    return [
        (lambda x, y, key=key: _part(key, 14, 11).replace("@", f"{x:g},{y:g}"), words)
        for key, words in items
    ]


# -- lanes: GPU 0's slots, memory queue, tracker and link over time --------------------------------
def _lanes(panels, number, layout):
    """A panel's lanes and what ends when, as pieces of SVG. Acts share each lane's scale."""
    panel, y = panels[number], layout.lanes[number]
    name = f"{panel.name}, {'each GPU' if panel.run.mode == 'mirror' else 'GPU 0'}"
    yield text(12, y - 7, name, weight=700)
    yield timed("".join(_ends(panel, layout, y, 16 + 1.1 * width_of(name))))
    for what, name in LANES.items():
        yield text(LEFT - 8, y + LANE / 2 + 4, name, anchor="end")
        top, areas, rows = _drawn(panels, panel, what)
        lane = idle(LEFT, y, layout.duration * layout.scale, LANE, ".35")
        yield timed(lane + "".join(_stack(panel.series["time"], areas, top, y, layout, what)))
        x = VIEW - RIGHT + 12
        if len(areas) > 1:  # a chip for each, before its line
            for i, (ink, pattern, _) in enumerate(areas[::-1]):
                yield shape(f"M{x},{y + 4 + 14 * i}h10v10h-10z", ink, pattern)
            x += 15
        yield lines(x, y + 13, rows, 14, "muted")
        y += LANE + GAP


def _drawn(panels, panel, what):
    """(the value at a lane's top, [(ink, pattern, values)] from below, lines at its right)."""
    run, series = panel.run, panel.series
    if what == "computing":
        slots = run.machine.slots
        return slots, [("forward", "solid", panel.computing)], [f"{slots} slots: one wave"]
    if what == "memory":
        gemm, sent = series["gemm_queue"], series["comm_queue"]
        top = max(_most(a.series["gemm_queue"] + a.series["comm_queue"]) for a in panels)
        words = [f"communication ≤ {amount(_most(sent))}"]
        words.append(f"GEMM ≤ {amount(_most(gemm))}")
        return top, [("forward", "solid", gemm), ("axis0", "diagonal", sent)], words
    if what == "tracker":
        tracker, top = run.tracker, max(max(a.run.tracker.peak for a in panels), 1)
        if not fused(run):
            return top, [], ["not used"]
        words = [f"at most {tracker.peak} of {tracker.capacity}"]
        words.append(f"{tracker.stalls} update{'s' * (tracker.stalls != 1)} waited")
        return top, [("axis1", "back", series["tracker"])], words
    busy = f"busy {100 * series['link'].mean():.0f} %"
    share = np.minimum(series["link"], 1.0)
    return 1.0, [("axis0", "lines", share)], [f"{amount(run.link_bytes)} sent", busy]


def _most(values):
    return float(values.max(initial=0.0))


def _stack(time, areas, top, y, layout, what):
    """Areas on top of each other, each in its ink and pattern."""
    x, below = layout.x(time), np.zeros(len(time))
    for ink, pattern, values in areas:
        above = below + values
        up, low = (y + LANE * (1 - np.minimum(v / (top or 1.0), 1.0)) for v in (above, below))
        corners = zip([*x, *x[::-1]], [*up, *low[::-1]])
        path = "M" + "L".join(f"{a:.1f},{b:.1f}" for a, b in corners) + "z"
        yield shape(path, ink, pattern, f"data-lane='{what}' data-key='{ink}'")
        below = above


def _ends(panel, layout, y, left):
    """A labelled line at the end of the GEMM, of the reduce-scatter and of the run. left : px at
    which there is room for words."""
    run, high = panel.run, len(LANES) * (LANE + GAP) - GAP
    ends = [
        (run.gemm_end, "GEMM"),
        (run.rs_end, "reduce-scatter"),
        (run.ag_end, "all-gather"),
    ]
    for time, _ in ends:
        yield (
            f"<path d='M{layout.x(time):.1f},{y - 4}v{high + 4}' class='s-fg' "
            "stroke-dasharray='3 3'/>"
        )
    said: list[tuple[float, str]] = [(left, "")]
    for x, words in sorted((layout.x(time) - 3, words) for time, words in ends):
        while len(said) > 1 and x - width_of(words) < said[-1][0] + 8:
            words = f"{said.pop()[1]}, {words}"
        said.append((max(x, said[0][0] + width_of(words)), words))
    for x, words in said[1:]:
        yield text(x, y - 7, words, "muted", anchor="end")


# -- the selected part, and the whole picture ------------------------------------------------------
def tiles_detail(panels: Sequence[TilesPanel], part: int) -> dict[str, Any]:
    """{"part", "words", "mark"} of a part, counted over all maps, ready for JSON; -1: of none.

    Raises ``ValueError`` for a part that does not exist.
    """
    if part < 0:
        return {"part": -1, "words": "", "mark": ""}
    layout, rest = lay_out(panels), part
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
    at, summary = scene["stops"][step], words_of(scene, step, detail)
    body = placed(scene, at) + play_head(scene, at) + (detail["mark"] if detail else "")
    return alone(scene, f"{scene['captions'][step]}\n{summary}", body, theme)


def placed(scene: dict[str, Any], at: float) -> str:
    """``common`` with every part in its state at ``at`` px of the time axis."""

    def now(part):
        tag, times, keys, place = part.groups()
        key = state_at(map(float, filter(None, times.split(","))), keys, at)
        return f"{tag}{scene['parts'][key].replace('@', place)}</g>"

    return PART.sub(now, scene["common"])


def words_of(scene: dict[str, Any], step: int, detail: dict[str, Any] | None) -> str:
    """The description at a step: of the selected part, or the number of parts in each state."""
    return detail["words"] if detail and detail["words"] else scene["words"][step]

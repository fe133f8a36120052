"""A simulated T3 run, tile by tile -> scene: the output's tiles by state, and lanes on one clock.

Works on `SimResult` runs of `tpviz.schemes.t3.hardware`, of which it needs the attributes alone.
All times are simulated. Where one GPU stands for all ("mirror"), the others are it with chunks
turned.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .microscope_svg import wrapped
from .palette import svg_style
from .svg import check_step, document, head, pattern_defs, rect, seconds, text, ticks
from .tiles_lanes import area, lanes
from .tiles_layout import LEFT, MAX_PARTS, RIGHT, STEPS, TOP, WIDTH, Layout, Map, Panel, lay_out
from .tiles_states import BY_KEY, EARLY, STATES, state_at
from .tiles_words import ordinal, rule_of, story_of

if TYPE_CHECKING:
    from tpviz.schemes.t3.hardware import Gemm

BADGE = "simulated"
"""{config: what it is called}."""
"""px: of a GPU's tiles at most; of a lane; between lanes."""
"""px of an act's name, and of names of chunks or GPUs, over its tiles."""
"""px left and right of a GPU's tiles, where its chunks are named; without names: SMALL."""


def tiles_scene(acts: Sequence[Panel], title: str) -> dict[str, Any]:
    """The scene of one or two `Panel`s on one clock, ready for JSON; as `Film` wants it.

    Its ``stops`` are equal steps of time. In ``common`` every part is an empty ``<g>`` with
    ``data-at`` (px at which its state changes), ``data-is`` (the keys of its states, one more) and
    ``data-place`` (px); ``parts`` has what is drawn in it, by key, with "@" for its place. ``map``
    is how many parts a GPU has. Raises ``ValueError`` above `MAX_PARTS` parts.
    """
    from .tiles_words import counts, facts

    check(sum(len(act.gpus) for act in acts), acts[0].run.gemm)
    layout = lay_out(acts)
    times = [layout.duration * step / STEPS for step in range(STEPS + 1)]
    return {
        "title": title,
        "badge": BADGE,
        "width": WIDTH,
        "top": TOP - 6,
        **picture(acts, layout),
        "map": len(acts[0].run.tiles.tile),
        "facts": facts(acts),
        "words": counts(acts, times),
        "stops": [round(layout.x(time), 2) for time in times],
        "captions": [f"at {seconds(t)} of {seconds(layout.duration)}" for t in times],
        "head": round(layout.head, 1),
        "foot": round(layout.bottom, 1),
    }


def check(gpus: int, gemm: "Gemm") -> None:
    """Raise ``ValueError`` where the parts of so many GPUs' outputs would not be legible."""
    down, across = gemm.tiles
    if gpus * down * across * gemm.wavefronts > MAX_PARTS:
        raise ValueError(
            f"{gpus} x {down} x {across} tiles, each of {gemm.wavefronts} to draw, are more than "
            f"the {MAX_PARTS} that this view shows: use larger tiles, fewer wavefronts, a smaller "
            "output, or shown='one'"
        )


LETTERS, LINE, SIGN, SMALL = 165, 15, 9.5, 6
PART = re.compile(r"(<g data-at='([^']*)' data-is='(\w+)' data-place='([^']*)'>)</g>")


def picture(acts: Sequence[Panel], layout: Layout) -> dict[str, Any]:
    """{"height", "common", "parts"}: the whole picture but for the play-head and the tile looked
    at, as SVG; and what its parts, which are empty, look like: {key of a state: SVG, "@" where its
    place comes}."""
    out = [pattern_defs()]
    for number, act in enumerate(acts):
        x, y = layout.heads[number]
        out.append(text(x, y + 11, f"{act.name}: {seconds(act.run.seconds)}", size=14, weight=700))
    for map in layout.maps:
        out += _map(acts[map.act], layout, map)
    for number in range(len(acts)):
        out += lanes(acts, number, layout)
    legend = _legend(acts, layout.bottom + 44)
    return {
        "height": round(legend[1]),
        "common": "".join([*out, _axis(layout), legend[0]]),
        "parts": _parts(acts, layout),
    }


# -- tiles -----------------------------------------------------------------------------------------
def _parts(acts, layout):
    cell, waves = layout.maps[0].cell, acts[0].run.gemm.wavefronts
    return {key: _part(key, cell, cell / waves) for key in [*BY_KEY, *EARLY.upper()]}


def _part(key, width, height):
    """Small parts have no gaps, and a pattern goes on from one to the next: there it shows."""
    state = BY_KEY[key.lower()]
    gap = float(height >= SMALL)
    size = width - gap, height - gap
    out = area(
        "M@h{0:.2f}v{1:.2f}h-{0:.2f}z".format(*size),
        state.ink,
        state.pattern,
        "" if state.pattern else "fill-opacity='.5'",
    )
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


def boxes(act: Panel, map: Map) -> tuple[np.ndarray, np.ndarray]:
    """(x, y) px of each part in a map, in the order of its tiles."""
    tiles, waves = act.run.tiles, act.run.gemm.wavefronts
    return (
        map.x + tiles.column * map.cell,
        map.y + tiles.row * map.cell + tiles.wave * map.cell / waves,
    )


def _map(act, layout, map):
    index = act.gpus.index(map.gpu)
    for (at, told), x, y in zip(act.stories[index], *boxes(act, map)):
        when = ",".join(f"{layout.x(t):.1f}" for t in at)
        yield f"<g data-at='{when}' data-is='{told}' data-place='{x:.1f},{y:.1f}'></g>"
    yield _borders(act, map)
    yield from _chunks(act, map, act.moments[index]["position"])


def _borders(act, map):
    """Lines between tiles of different chunks, and around all."""
    tiles, (down, across) = act.run.tiles, act.run.gemm.tiles
    chunk = np.full((down + 2, across + 2), -1)
    chunk[tiles.row + 1, tiles.column + 1] = tiles.chunk
    lines = []
    for r, c in np.argwhere(chunk[:-1, 1:-1] != chunk[1:, 1:-1]).tolist():
        lines.append(f"M{map.x + c * map.cell:.1f},{map.y + r * map.cell:.1f}h{map.cell:.1f}")
    for r, c in np.argwhere(chunk[1:-1, :-1] != chunk[1:-1, 1:]).tolist():
        lines.append(f"M{map.x + c * map.cell:.1f},{map.y + r * map.cell:.1f}v{map.cell:.1f}")
    return f"<path d='{''.join(lines)}' class='s-fg' fill='none' stroke-width='1.4'/>"


def _chunks(act, map, position):
    """Which chunk is where, and what becomes of it; on a small map only the GPU's number."""
    if not map.named:
        yield text(map.x, map.y - 4, f"GPU {map.gpu}", size=11)
        return
    tiles, run = act.run.tiles, act.run
    down, across = run.gemm.tiles
    rows = down >= across  # chunks lie one below the other
    x, y = (values + map.cell / 2 for values in boxes(act, map))
    right = map.x + across * map.cell
    for chunk in range(run.ranks):
        mine = tiles.chunk == chunk
        j = int(position[mine][0])
        if rows:
            middle = float(y[mine].mean()) + 2
            yield text(map.x - 6, middle, f"chunk {chunk}", "muted", 10.5, "end")
            yield text(right + 6, middle, f"{ordinal(j)}: {rule_of(run, j)}", "muted", 10.5)
        else:
            yield text(float(x[mine].mean()), map.y - 3, f"{chunk}", "muted", 10.5, "middle")
    if not rows:
        yield text(map.x - 6, map.y - 3, "chunk", "muted", 10.5, "end")


# -- axis and legend -------------------------------------------------------------------------------
def _axis(layout):
    y, out = layout.bottom, []
    for tick in ticks(0, layout.duration, 10):
        x = layout.x(tick)
        out.append(
            f"<path d='M{x:.1f},{y:g}v5' class='s-muted'/>"
            + text(x, y + 17, seconds(tick), "muted", 10, "middle")
        )
    return (
        f"<path d='M{LEFT},{y:g}H{layout.x(layout.duration):.1f}' class='s-muted'/>"
        + "".join(out)
        + text(WIDTH - RIGHT + 24, y + 17, "time", "muted", 10)
    )


def _legend(acts, y):
    """(what means what, in lines; y of their end): of the states that there are."""
    out, x = [], 12.0
    told = {key for act in acts for stories in act.stories for _, keys in stories for key in keys}
    items = [(s.key, s.label) for s in STATES if {s.key, s.key.upper()} & told]
    if told & set(EARLY.upper()):
        items.append(("W", "marked: the sum so far came first"))
    for key, words in items:
        wide = 22 + 5.9 * len(words) + 16
        if x + wide > WIDTH:
            x, y = 12.0, y + 18
        out.append(
            _part(key, 14, 11).replace("@", f"{x:g},{y - 9:g}")
            + text(x + 20, y, words, "muted", 11)
        )
        x += wide
    return "".join(out), y + 14


# -- what is looked at, and the whole --------------------------------------------------------------
def look(acts: Sequence[Panel], part: int) -> dict[str, Any]:
    """{"part", "words", "mark"} of a part, counted over all maps, ready for JSON; -1: of none."""
    if part < 0:
        return {"part": -1, "words": "", "mark": ""}
    layout, rest = lay_out(acts), part
    for map in layout.maps:
        act = acts[map.act]
        count = len(act.run.tiles.tile)
        if rest < count:
            x, y = (float(values[rest]) for values in boxes(act, map))
            size = map.cell + 1, map.cell / act.run.gemm.wavefronts + 1
            ring = "".join(
                rect(x - 1.5, y - 1.5, size[0] + 1, size[1] + 1, "", f"rx='2' fill='none' {line}")
                for line in (
                    "class='s-bg' stroke-width='5'",
                    "class='s-fg' stroke-width='2.4' data-chosen=''",
                )
            )
            return {
                "part": part,
                "words": story_of(act, act.gpus.index(map.gpu), rest),
                "mark": ring,
            }
        rest -= count
    raise ValueError(f"part={part} is not in this view: use 0 to {part - rest - 1}, or -1 for none")


def tiles_svg(
    scene: dict[str, Any], step: int = 0, looked: dict[str, Any] | None = None, theme: str = "auto"
) -> str:
    """The picture at a step as a whole SVG. looked : what `look` gives, None for no part. theme
    "light", "dark" or "auto". Raises ``ValueError`` on a step that is not there."""
    check_step(scene, step)
    at = scene["stops"][step]
    said = words_of(scene, step, looked)
    lines = [part for line in said.splitlines() for part in wrapped(line, LETTERS)]
    top = head({**scene, "title": f"{scene['title']}, {scene['captions'][step]}"})
    top += "".join(text(12, 43 + LINE * i, line, size=12) for i, line in enumerate(lines))
    top += (
        f"<path d='M{at},{scene['head']}V{scene['foot']}' class='s-fg' stroke-width='1.4'/>"
        f"<path d='M{at},{scene['head']}l-5,-6h10z' class='f-fg'/>"
    )
    body = placed(scene, at) + top + (looked["mark"] if looked else "")
    return document(
        scene["width"], scene["height"], body, f"{scene['title']}, {said}", svg_style(theme), theme
    )


def placed(scene: dict[str, Any], at: float) -> str:
    """``common`` with every part in its state at ``at`` px of the time axis."""

    def now(found):
        key = state_at(map(float, filter(None, found[2].split(","))), found[3], at)
        return f"{found[1]}{scene['parts'][key].replace('@', found[4])}</g>"

    return PART.sub(now, scene["common"])


def words_of(scene: dict[str, Any], step: int, looked: dict[str, Any] | None) -> str:
    """What is said at a step: of the part looked at, or how many parts are in which state."""
    return looked["words"] if looked and looked["words"] else scene["words"][step]

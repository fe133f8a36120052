"""Small helpers shared by the figures: SVG text, readable numbers, round ticks. NumPy only."""

import math
import re
from base64 import b64encode
from collections.abc import Iterable, Sequence
from html import escape
from secrets import token_hex
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np

from tpviz.core.checks import whole_number
from tpviz.core.tables import show_bytes, show_seconds

from .tokens import INKS, PATTERNS, TYPE, svg_style

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_IMAGE = "".join(
    f"body[data-jp-theme-light='{light}'] .tpv-image{{color-scheme:{scheme}}}"
    for light, scheme in (("true", "light"), ("false", "dark"))
)
SMALL = TYPE["small"]
VIEW, LETTERS = 676, 97
"""px of a view's picture, which with its frame fits the outputs of a notebook in JupyterLab, its
window 900 wide; small letters in a line."""
FILM = 746
"""px of the picture of a block: some of its steps are wider than a `VIEW`."""
GROWTH, WIDE = 1.4, 1050
"""Where its column is wide, a picture grows to so many times its own width, up to so many px; also
in room.js."""
LINE = 17
"""px from a line of small text to the next."""
seconds, amount = show_seconds, show_bytes
FONT = "font-family='system-ui,-apple-system,Segoe UI,Helvetica,Arial,sans-serif'"


def so_far(done: float, total: float) -> str:
    """Bytes of a total, with one unit where both have the same: "1.02 of 201 kB"."""
    (number, unit), whole = (amount(size).split() for size in (done, total))
    return (
        f"{number} of {' '.join(whole)}"
        if unit in whole or not done
        else f"{number} {unit} of {' '.join(whole)}"
    )


def text(
    x: float,
    y: float,
    content: object,
    token: str = "fg",
    size: float = SMALL,
    anchor: str = "start",
    weight: int | str = "",
    extra: str = "",
) -> str:
    """An SVG ``<text>``; content is escaped."""
    bold = f" font-weight='{weight}'" if weight else ""
    return (
        f"<text x='{x:.1f}' y='{y:.1f}' class='f-{token}' font-size='{size}'"
        f" text-anchor='{anchor}'{bold} {extra}>{escape(str(content))}</text>"
    )


def rect(x: float, y: float, width: float, height: float, token: str, extra: str = "") -> str:
    """An SVG ``<rect>`` filled with a palette token ("" leaves the fill to ``extra``)."""
    fill = f" class='f-{token}'" if token else ""
    return (
        f"<rect x='{x:.2f}' y='{y:.2f}' width='{max(width, 0):.2f}'"
        f" height='{max(height, 0):.2f}'{fill} {extra}/>"
    )


def document(
    width: float,
    height: float,
    parts: Iterable[str],
    label: str,
    theme: str = "auto",
    words: str = "",
) -> str:
    """A whole SVG with its own background, so that it reads on any page.

    label : its name. theme : as of `tokens.svg_style`. words : its text alternative. Ids of
    patterns are of this picture alone: a browser draws none of a picture that is not shown.
    """
    style, body = svg_style(theme), clean("".join(parts))
    # A page of a notebook may have the very same picture twice; a file stays as it was.
    own = token_hex(4) if theme == "page" else f"{theme}-{crc32(body.encode()):08x}"
    body = re.sub(r"(url\(#|id=')tpv-", rf"\1tpv-{own}-", body)
    body = (f"<desc>{escape(words)}</desc>" if words else "") + body
    return clean(
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width:.0f} {height:.0f}'"
        f" width='{width:.0f}' height='{height:.0f}' class='tpv-{theme}' role='img'"
        f" aria-label='{escape(label, quote=True)}' {FONT}>{style}"
        f"{rect(0, 0, width, height, 'bg')}{body}</svg>"
    )


def stacked(pictures: Iterable[str], label: str, theme: str = "auto") -> str:
    """Pictures that stand alone, one below the other under their ``label``, as one."""
    out, wide, y = [text(10, 20, label, size=16, weight=700)], 1.06 * width_of(label, 16) + 20, 30.0
    for svg in pictures:
        width, height = (float(side) for side in re.findall(r" (?:width|height)='(\d+)'", svg)[:2])
        out.append(svg.replace("<svg ", f"<svg y='{y:g}' ", 1))
        wide, y = max(wide, width), y + height + 8
    return document(wide, y, out, label, theme)


def image(svg: str, words: str, least: float = 0) -> str:
    """A picture as an HTML ``<img>``, with ``words`` for those who cannot see it.

    It keeps its ids to itself, and JupyterLab shows it in notebooks that it does not trust, unlike
    an ``<svg>``. ``svg`` is of the theme "auto", and follows the page's; its width is that of
    `fitted`. Where it keeps its own width, its frame scrolls, also by keys.
    """
    data = b64encode(svg.encode()).decode()
    keys = "" if least == 1 else " tabindex='0' role='group' aria-label='picture'"
    return (
        f"<div style='overflow-x:auto'{keys}><style>{_IMAGE}</style><img class='tpv-image'"
        f" alt='{clean(escape(words, quote=True))}' style='{_width(svg, least)}'"
        f" src='data:image/svg+xml;base64,{data}'></div>"
    )


class Picture(NamedTuple):
    """A picture that a notebook shows and keeps, also where it is not trusted; ``words`` for those
    who cannot see it. ``svg`` is of the theme "auto"."""

    svg: str
    words: str

    def __repr__(self):
        return self.words

    @property
    def html(self) -> str:
        """The picture as an HTML ``<img>``."""
        return image(self.svg, self.words)

    def _repr_html_(self):
        return self.html

    def _repr_mimebundle_(self, include=None, exclude=None):
        return {"text/html": self.html, "image/svg+xml": self.svg, "text/plain": self.words}


def fitted(svg: str, least: float | None = None) -> str:
    """An SVG that grows where its column is wide, and shrinks where it is narrow; if ``least`` is
    given to so many px, 0 for its own width."""
    return svg.replace("<svg ", f"<svg style='{_width(svg, least)}' ", 1)


def _width(svg, least):
    own = int(re.findall(r" width='(\d+)'", svg)[0])
    most = max(own, min(GROWTH * own, WIDE))
    stays = "" if least is None else f"min-width:{least or own:.0f}px;"
    return f"width:100%;height:auto;{stays}max-width:{most:.0f}px"


def scrolled(html: str) -> str:
    """A picture or a table in its size, so that its text stays legible; it scrolls where its column
    is narrow, also by keys."""
    frame = "style='overflow-x:auto' tabindex='0' role='group' aria-label='picture or table'"
    return f"<div {frame}>{html}</div>"


def clean(markup: str) -> str:
    """SVG or HTML with the replacement character for what XML cannot hold: control characters,
    and lone surrogates, which no UTF-8 file can hold either."""
    return _NO_XML.sub("\ufffd", markup)


def outline(
    x: float,
    y: float,
    width: float,
    height: float,
    token: str = "fg",
    stroke: float = 1,
    rx: float = 0,
    extra: str = "",
) -> str:
    """An unfilled SVG ``<rect>``. stroke : px of its line; rx : of its round corners."""
    round_ = f"rx='{rx}' " if rx else ""
    thick = f" stroke-width='{stroke}'" if stroke != 1 else ""
    return rect(x, y, width, height, "", f"{round_}fill='none' class='s-{token}'{thick} {extra}")


def swatch(
    x: float,
    y: float,
    width: float,
    height: float,
    key: str,
    pattern: str | None = None,
    extra: str = "",
) -> str:
    """A rect in an ink under its pattern. pattern : one of `PATTERNS`, "idle", "exposed", or one of
    these after another; None is the ink's own. What is exposed looks so in every picture: pale,
    under red hatching, with an edge in the ink of the axis."""
    key, look, over = _dressed(key, pattern)
    out = rect(x, y, width, height, key, look + extra)
    return out + "".join(rect(x, y, width, height, "", f"{extra} {fill}") for fill in over)


def shape(path: str, key: str, pattern: str | None = None, extra: str = "") -> str:
    """As `swatch`, of a path in px; nothing where it is empty."""
    key, look, over = _dressed(key, pattern)
    drawn = (f"class='f-{key}' {look}{extra}", *over)
    return "".join(f"<path d='{path}' {one}/>" for one in drawn) if path else ""


def _dressed(key, pattern):
    """(classes, looks of a mark; the fills over it: patterns, and what is exposed, always)."""
    ink = key.partition(" ")[0]
    names = (INKS[ink].pattern if pattern is None else pattern).split()
    bare = ink == "exposed" or "exposed" in names
    names = [n for n in names if n not in ("solid", "exposed", "hatch" if bare else "")]
    over = [f"class='tpv-mark' fill='url(#tpv-{name})'" for name in names]
    over += ["fill='url(#tpv-exposed)'"] * bare
    if bare and key == ink != "exposed":
        return f"{key} s-{key}", "fill-opacity='0.5' stroke-width='2' ", over
    return key, "fill-opacity='0.3' " * (bare or "idle" in names), over


def lines(
    x: float,
    y: float,
    rows: Iterable[object],
    step: float,
    token: str = "fg",
    size: float = SMALL,
    anchor: str = "start",
) -> str:
    """Rows of text one below the other, ``step`` px apart."""
    return "".join(text(x, y + step * i, row, token, size, anchor) for i, row in enumerate(rows))


def table(x: float, y: float, rows: Iterable[Sequence[str]]) -> tuple[str, float]:
    """(rows of strings as SVG, header first, y of the last line); columns become rows where they
    are wider than a `VIEW`."""
    columns, out = [*zip(*rows)], ""
    widths = [max(map(width_of, column)) + 16 for column in columns]
    if x + sum(widths) > VIEW:
        columns = [*zip(*columns)]
        widths = [max(map(width_of, column)) + 16 for column in columns]
    for column, wide in zip(columns, widths):
        out += lines(x, y, column[:1], LINE, "muted") + lines(x, y + LINE, column[1:], LINE)
        x += wide
    return out, y + LINE * max(len(columns[0]) - 1 if columns else 0, 0)


def table_html(rows: Iterable[Sequence[str]]) -> str:
    """As `table`, in HTML."""
    rows = [*rows]
    cells = (("td" if i else "th", row) for i, row in enumerate(rows))
    lines = ("".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row) for tag, row in cells)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table style='--rows: {len(rows[0]) if rows else 0}'>{body}</table>"


def wrapped(words: str, letters: int) -> list[str]:
    """Lines of at most so many letters, broken between words, but not at a no-break space, and
    where there is a new line."""
    rows = []
    for line in words.split("\n"):
        rows.append("")
        for word in filter(None, line.split(" ")):
            if rows[-1] and len(rows[-1]) + 1 + len(word) > letters:
                rows.append("")
            rows[-1] += (" " if rows[-1] else "") + word
    return rows


def width_of(words: str, size: float = SMALL) -> float:
    """px of a text, about: a little more than most fonts need."""
    narrow, wide = "fijlrtI.,:;'|!()[]/- ", "mwMW@%"
    letters = (
        0.4 if c in narrow else 0.95 if c in wide else 0.72 if c.isupper() else 0.64 for c in words
    )
    return size * sum(letters)


MEANS = {
    "predicted": "by formulas, nothing ran",
    "simulated": "its operations on a virtual clock, nothing ran",
    "emulated": "real ranks ran it; kernels and links last as long as formulas say",
}


def meanings(badges: Iterable[str]) -> list[str]:
    """A sentence for each of the sources of numbers that a newcomer cannot know."""
    sources = (re.split("[,; ]", words)[0] for words in badges)
    return [f"{word.capitalize()}: {MEANS[word]}." for word in sources if word in MEANS]


def badge(
    x: float, y: float, words: str, dash: str = "", notes: Iterable[str] = ()
) -> tuple[str, float]:
    """(where the numbers come from, in a round frame; its width), as ``.tpv-badge`` of pages.
    dash : of a broken frame. notes : more of it, where one points."""
    width = 1.06 * width_of(words) + 18  # the letters are bold
    broken = f"stroke-dasharray='{dash}'" if dash else ""
    frame = outline(x, y, width, 20, "fg", 1.2, 10, broken)
    frame += text(x + width / 2, y + 14, words, "fg", anchor="middle", weight=600)
    about = "\n".join(dict.fromkeys((*meanings([words]), *notes)))
    return f"<g><title>{escape(about)}</title>{frame}</g>" if about else frame, width


def head(scene: dict[str, Any], title: str | None = None) -> str:
    """The badge and the title of a scene, on top of a picture that stands alone; ``notes`` and
    ``about``, which may lack, tell more of them where one points."""
    frame, width = badge(10, 8, scene["badge"], notes=scene.get("notes", ()))
    words = text(width + 20, 22, scene["title"] if title is None else title, "muted")
    about = f"<title>{escape(scene['about'])}</title>" if scene.get("about") else ""
    return f"{frame}<g>{about}{words}</g>"


def alone(
    scene: dict[str, Any], said: str, body: str, theme: str = "auto", label: str = "", side: int = 0
) -> str:
    """The picture of a film with what a page shows around it: badge and title, the sentence of the
    step above, notes below. said : the sentence; body : SVG of the scene's size; side : px left and
    right of it."""
    width, top = scene["width"] + 2 * side, scene.get("top", 0)
    letters = int(width / 7.2)
    rows = wrapped(said, letters)
    told = [*scene.get("notes", ()), *scene.get("help", ())]
    notes = [line for note in told for line in wrapped(note, letters)]
    start = 42 + LINE * len(rows)
    foot = start + scene["height"] - top
    parts = [
        head(scene),
        lines(12, 48, rows, LINE),
        f"<g transform='translate({side} {start - top:g})'>{body}</g>",
        lines(12, foot + 14, notes, LINE, "muted"),
    ]
    height = foot + (LINE * len(notes) + 8) * bool(notes)
    return document(width, height, parts, label or f"{scene['title']}, {said}", theme)


def clickable(what: str, drawn: str, said: str = "") -> str:
    """SVG that chooses a rank or a step of a film where one clicks on it. what : "rank='0'" or
    "step='0'", and other attributes. said : its words, where one points at it."""
    title = f"<title>{escape(said)}</title>" if said else ""
    return f"<g data-{what} style='cursor:pointer'>{title}{drawn}</g>"


def check_step(scene: dict[str, Any], step: int) -> None:
    """Raise ``ValueError`` unless the scene, a film (`tpviz.views.widgets.base.Film`), has this
    step."""
    last = len(scene["captions"]) - 1
    if not 0 <= whole_number("step", step, None) <= last:
        raise ValueError(f"step={step} is not in this view: use 0 to {last}")


def pattern_defs() -> str:
    """``<defs>`` with every pattern, in the background colour; ``exposed`` is red, and leans the
    other way than that of the backward pass, beside which it often stands; ``idle`` is in its own
    ink too, as nothing stands there that a background could cut."""
    tiles = "".join(_tile(name, tile, "s-bg", 1, 0.55) for name, tile in PATTERNS.items() if tile)
    tiles += _tile("exposed", (5, "M-1,4l2,2M0,0l5,5M4,-1l2,2"), "s-exposed", 1.4)
    return f"<defs>{tiles}{_tile('idle', PATTERNS[INKS['idle'].pattern], 's-idle', 1.2)}</defs>"


def _tile(name, tile, ink, width, opacity=1.0):
    size, path = tile
    return (
        f"<pattern id='tpv-{name}' width='{size}' height='{size}' patternUnits='userSpaceOnUse'>"
        f"<path d='{path}' class='{ink}' fill='none' stroke-width='{width}'"
        f" stroke-opacity='{opacity}'/></pattern>"
    )


def bars_path(start: np.ndarray, end: np.ndarray, y: float, height: float) -> str:
    """One path for many bars of a row: arrays of x in px. A path draws far faster than rects."""
    widths = np.maximum(end - start, 0.3)
    return "".join(
        f"M{x:.2f},{y}h{w:.2f}v{height}h-{w:.2f}z" for x, w in zip(start.tolist(), widths.tolist())
    )


def ticks(low: float, high: float, count: float = 8) -> list[float]:
    """Round numbers between low and high, about ``count`` of them."""
    span = high - low
    if not span > 0:
        return [low]
    raw = span / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]

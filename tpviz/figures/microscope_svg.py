"""The pictures of the microscope: buffers before each step, its messages on their way."""

from html import escape
from math import atan2, degrees
from typing import Any

from .palette import svg_style
from .svg import check_step, document, head, pattern_defs, rect, text

TOKEN = (38, 20)
LINE = 16
HALFWAY = 0.36  # a little less than half: messages that cross do not cover each other


def microscope_svg(scene: dict[str, Any], step: int = 0, theme: str = "auto") -> str:
    """Draw the state before ``step`` with the messages of that step on their way.

    step: 0 to the number of steps; there, everything has arrived. theme "light", "dark" or "auto".
    Raises ValueError on a step that is not there.
    """
    check_step(scene, step)
    width, low = max(scene["width"], 560), scene["height"]
    notes = [line for note in scene["notes"] for line in wrapped(note, int(width / 5.6))]
    body = [
        scene["common"],
        head(scene),
        text(12, 46, scene["captions"][step], size=12, weight=600),
    ]
    body += [scene["pieces"][place] for place in scene["frames"][step]]
    body += [text(12, low + 14 + LINE * i, line, "muted") for i, line in enumerate(notes)]
    label = f"{scene['title']}, {scene['captions'][step]}"
    height = low + 12 + LINE * len(notes)
    return document(width, height, "".join(body), label, svg_style(theme), theme)


def pictures(
    drawing: dict[str, Any], frames: list[list[list[Any]]], steps: list[list[dict[str, Any]]]
) -> dict[str, Any]:
    """{"width", "height", "top", "common", "pieces", "frames"}: what all steps share, and each of
    them as places in the pieces, for most cells of a step stay what they were.

    drawing : of `microscope_layout.arrange`. frames : `microscope.frames`. steps : messages.
    """
    pieces = {}
    found = [
        [pieces.setdefault(piece, len(pieces)) for piece in _pieces(drawing, frame, messages)]
        for frame, messages in zip(frames, [*steps, []])
    ]
    return {
        "width": drawing["width"],
        "height": drawing["height"],
        "top": 44,
        "common": pattern_defs() + "".join(_edge(*edge) for edge in drawing["edges"]),
        "pieces": list(pieces),
        "frames": found,
    }


def _pieces(drawing, frame, messages):
    yield from map(_arrow, messages)
    for here, cells in zip(drawing["ranks"], frame):
        yield f"<g data-rank='{here['rank']}'>{_box(drawing['box'], here)}"
        for (dx, dy), cell in zip(drawing["places"], cells):
            x, y = here["x"] + dx, here["y"] + dy
            yield _cell(x, y, *drawing["box"]["cell"], cell)  # pyright: ignore[reportCallIssue]
        yield "</g>"
    yield from map(_token, messages)


def wrapped(words: str, letters: int) -> list[str]:
    """Lines of at most so many letters, broken between words."""
    lines = [""]
    for word in words.split():
        if lines[-1] and len(lines[-1]) + 1 + len(word) > letters:
            lines.append("")
        lines[-1] += (" " if lines[-1] else "") + word
    return lines


def _box(box, here):
    """A rank's frame and its name."""
    x, y = here["x"], here["y"]
    out = [
        rect(x, y, box["width"], box["height"], "bg", "rx='7'"),
        rect(
            x,
            y,
            box["width"],
            box["height"],
            "",
            "rx='7' fill='none' class='s-muted' stroke-width='1.2'",
        ),
        text(x + 7, y + 14, f"rank {here['rank']}", size=11, weight=700),
    ]
    if box["parting"]:
        out.append(text(x + box["width"] - 6, y + 14, "to send", "muted", 9, "end"))
        out.append(text(x + 7, y + box["parting"], "received", "muted", 9))
    return "".join(out)


def _cell(x, y, width, height, cell):
    if not cell:
        return rect(
            x, y, width, height, "", "rx='3' fill='none' class='s-rule' stroke-dasharray='3 3'"
        )
    key, full = cell["key"], cell["full"] >= 1
    out = [
        rect(
            x,
            y,
            width,
            height,
            key if full else "",
            "rx='3'" if full else f"rx='3' fill='none' class='s-{key}' stroke-width='1.4'",
        )
    ]
    if full and cell["pattern"] != "solid":
        out.append(rect(x, y, width, height, "", f"rx='3' fill='url(#tpv-{cell['pattern']})'"))
    if not full:
        out.append(rect(x, y + height - 4, width * cell["full"], 4, key))
    ink, small = (f"halo-{key}",) * 2 if full else ("fg", "muted")
    out.append(text(x + 3, y + 10, f"c{cell['chunk']}", small, 9))
    out.append(text(x + width / 2, y + 24, cell["value"], ink, 13, "middle", 700))
    out.append(text(x + width / 2, y + 34, cell["terms"], small, 9, "middle"))
    if cell["new"]:
        out.append(
            rect(
                x - 1,
                y - 1,
                width + 2,
                height + 2,
                "",
                "rx='4' fill='none' class='s-fg' stroke-width='2'",
            )
        )
    return "".join(out)


def _arrow(message):
    x0, y0, cx, cy, x1, y1 = message["path"]
    turn = degrees(atan2(y1 - cy, x1 - cx))
    return (
        f"<path d='M{x0},{y0}Q{cx},{cy} {x1},{y1}' class='s-{message['key']}' fill='none' "
        f"stroke-width='2'/><path d='M0,0l-9,-4.5v9z' class='f-{message['key']}' "
        f"transform='translate({x1},{y1})rotate({turn:.1f})'/>"
    )


def _edge(x0, y0, x1, y1):
    return (
        f"<path d='M{x0:.1f},{y0:.1f}L{x1:.1f},{y1:.1f}' class='s-rule' fill='none' "
        "stroke-width='2'/>"
    )


def _token(message):
    """Drawn around (0, 0) and put on its way, along which a page moves it."""
    x0, y0, cx, cy, x1, y1 = message["path"]
    at = max(HALFWAY - message["lag"], 0)
    x, y = (
        (1 - at) ** 2 * a + 2 * at * (1 - at) * c + at * at * b
        for a, c, b in ((x0, cx, x1), (y0, cy, y1))
    )
    width, height = TOKEN
    token = rect(-width / 2, -height / 2, width, height, message["key"], "rx='10'")
    outline = rect(
        -width / 2,
        -height / 2,
        width,
        height,
        "",
        "rx='10' fill='none' class='s-bg' stroke-width='1.5'",
    )
    sign = "+" if message["phase"] == "reduce" else ""
    name = "-".join(str(message[what]) for what in ("sender", "receiver", "chunk"))
    return (
        f"<g data-message='{name}' data-path='{message['path']}' data-lag='{message['lag']}' "
        f"transform='translate({x:.1f},{y:.1f})'><title>{escape(message['words'])}</title>"
        + token
        + outline
        + text(0, 4, sign + message["value"], f"halo-{message['key']}", 11, "middle", 700)
        + "</g>"
    )

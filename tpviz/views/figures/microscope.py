"""Microscope -> scene: every rank's buffer before each step, and the messages of the step.

A finished cell is filled with the colour of its chunk; a partial sum shows its terms, and a bar of
how many ranks are in it.
"""

from html import escape
from itertools import accumulate
from math import atan2, degrees
from typing import TYPE_CHECKING, Any

from . import microscope_layout as layout
from . import microscope_ring as ring
from .film import film_svg
from .svg import amount, image, outline, pattern_defs, rect, seconds, so_far, swatch, text

__all__ = ["arithmetic", "describe", "film_svg", "image", "microscope_scene", "to_table"]

if TYPE_CHECKING:
    from tpviz.views.collectives.result import Microscope

CHUNK_INKS = "axis0 forward backward axis2 axis1 optimizer_state parameters axis3".split()
"""Chunk c has the ink c modulo 8; its number is always written, and beyond 8 it has a pattern."""
SIGNS = (
    "A cell is a chunk: filled where complete, else its bar says how many ranks are in its sum. "
    "Messages with + are added, others copied."
)
PETALS = (
    "A petal is a slice of a rank's gradients, as large as the part of the ranks that is in its "
    "sum. Point at one for its numbers."
)
LEGEND = [
    [{"key": CHUNK_INKS[0], "kind": "", "pattern": "solid"}, "a slice's own colour"],
    [{"key": "frame", "kind": "predicted", "pattern": "solid"}, "just arrived"],
]
TERMS = 6  # letters that fit under the number of a cell
GIVES = {
    "all_reduce": "the whole sum",
    "reduce_scatter": "its slice of the sum",
    "all_gather": "every rank's slice",
    "all_to_all": "its slice of every rank",
}


def microscope_scene(microscope: "Microscope") -> dict[str, Any]:
    """The scene of a `Microscope`, ready for JSON.

    A dict: ``steps`` (the messages of each, with their path [x0, y0, control x, y, x1, y1]),
    ``captions`` and ``words`` (of each step, and of the end), ``notes``, and the picture
    as SVG: ``common``, and for each step, and the end, ``frames``, its places in ``pieces``.
    """
    m = microscope
    n, places = m.world_size, len(m.values[0][0])
    drawing = layout.arrange(m.layout, n, places, 2 if m.collective == "all_to_all" else 1)
    steps = [_messages(m, number, drawing) for number in range(len(m.steps))]
    return {
        "title": f"{m.algorithm} {m.collective} on {n} ranks",
        "badge": m.trace.badge,
        "steps": steps,
        "captions": [
            *(caption(m, number) for number in range(len(steps))),
            f"the end, after {len(steps)} steps",
        ],
        "words": ["; ".join(message["words"] for message in step) for step in steps] + [""],
        "says": [],
        "finding": f"After {_count(len(steps), 'step')} every rank has {GIVES[m.collective]}.",
        "numbers": numbers(m),
        "legend": LEGEND,
        "opens": min(1, len(steps)),
        **_drawn(m, drawing, steps),
    }


def _drawn(m, drawing, steps):
    """What depends on the form: a ring, or boxes."""
    if not ring.is_ring(m):
        return {"notes": [*arithmetic(m), SIGNS], **pictures(drawing, frames(m), steps)}
    says = [ring.says(m, number) for number in range(len(steps) + 1)]
    return {"notes": [PETALS], "says": says, **ring.pictures(m, frames(m), steps, sent_before(m))}


def frames(m: "Microscope") -> list[list[list[Any]]]:
    """Before each step, and at the end, the cells of every rank; 0 where empty, "new" where a
    message has just arrived."""
    return [_frame(m, number, cells) for number, cells in enumerate(m.cells)]


def _ink(chunk):
    key = CHUNK_INKS[chunk % len(CHUNK_INKS)]
    return key, "solid" if chunk < len(CHUNK_INKS) else "diagonal"


def _frame(m, number, cells):
    """The cells of every rank before a step; those that the step before it changed are new."""
    arrived = {(x.receiver, x.slot) for x in m.steps[number - 1]} if number else set()
    return [
        [_cell(m, cell, (rank, place) in arrived) for place, cell in enumerate(row)]
        for rank, row in enumerate(cells)
    ]


def _cell(m, cell, new):
    """One cell of one frame: its text, its ink, and how full it is (0..1)."""
    if cell is None:
        return 0
    sums = m.collective in ("all_reduce", "reduce_scatter")
    whole = m.world_size if sums else 1
    key, pattern = _ink(cell.chunk)
    return {
        "chunk": f"c{cell.chunk}" * (len(m.values[0][0]) > 1),
        "value": f"{cell.value:g}",
        "terms": _terms(m, cell) if sums else "",
        "ranks": list(cell.ranks),
        "full": len(cell.ranks) / whole,
        "new": new,
        "key": key,
        "pattern": pattern,
    }


def _terms(m, cell):
    """ "3+5+2" where it fits, else how many ranks a partial sum has; nothing for a single term."""
    count = len(cell.ranks)
    if count == 1:
        return ""
    terms = "+".join(f"{m.values[0][rank][cell.chunk]:g}" for rank in cell.ranks)
    if len(terms) <= TERMS:
        return terms
    return f"{count} of {m.world_size}" if count < m.world_size else ""


def _messages(m, number, drawing):
    """The messages of one step, with their paths."""
    cells, seen, messages = m.cells[number], {}, []
    for x in m.steps[number]:
        pair = x.sender, x.receiver
        seen[pair] = seen.get(pair, -1) + 1
        chunk = cells[x.sender][x.chunk].chunk
        key, pattern = _ink(chunk)
        names = "sender", "receiver", "slot", "bytes", "phase"
        messages.append(
            {name: getattr(x, name) for name in names}
            | {"chunk": chunk, "place": x.chunk, "value": f"{x.value:g}"}
            | {"key": key, "pattern": pattern, "lag": 0.14 * seen[pair]}
            | {
                "path": layout.path(drawing, *pair),
                "words": f"rank {x.sender} to rank {x.receiver}: chunk {chunk} "
                f"({x.value:g}), {x.bytes:,} bytes, {_done(x)}, {seconds(x.end - x.start)}",
            }
        )
    return messages


def _done(message):
    """The receiver's operation on it."""
    return "added" if message.phase == "reduce" else "copied"


def caption(m: "Microscope", number: int) -> str:
    """One step in words."""
    step = m.steps[number]
    doing = " and ".join(
        f"{sum(x.phase == phase for x in step)} {word}"
        for phase, word in (("reduce", "added"), ("copy", "copied"))
        if any(x.phase == phase for x in step)
    )
    sizes = sorted({x.bytes for x in step})
    each = " or ".join(f"{size:,}" for size in sizes)
    text = (
        f"step {number + 1} of {len(m.steps)}: {_count(len(step), 'message')} of {each} bytes "
        f"({doing}), {seconds(m.step_seconds[number])}"
    )
    if m.predicted:
        text += f", predicted {seconds(m.predicted[number])}"
    return text


def sent_before(m: "Microscope") -> list[int]:
    """Bytes that rank 0 has sent before each step, and at the end."""
    return [*accumulate((sum(x.bytes for x in s if not x.sender) for s in m.steps), initial=0)]


def numbers(m: "Microscope") -> list[list[list[str]]]:
    """Before each step, and at the end, (label, text) pairs: what a rank has sent, the time of the
    step or of all, the bandwidth."""
    times = [["this step takes", seconds(each)] for each in m.step_seconds]
    for time, predicted in zip(times, m.predicted or ()):
        time[1] += f", predicted {seconds(predicted)}"
    *_, total = sent = sent_before(m)
    rate = ["bus bandwidth", f"{amount(m.busbw)}/s"]
    return [
        [["rank 0 has sent", so_far(done, total)], time, rate]
        for done, time in zip(sent, [*times, ["time", seconds(m.seconds)]])
    ]


def arithmetic(m: "Microscope") -> list[str]:
    """Lines that compute steps, bytes, algbw and busbw with the numbers of this run."""
    n, hops, volume = m.world_size, *m.cost
    factor = f"{'2 ' if m.collective == 'all_reduce' else ''}(n-1)/n"
    lines = [
        f"Steps: {len(m.steps)} recorded; the formula for {_plain(m.formula)} has {hops} hops.",
        f"Bytes: the busiest rank sent {max(m.sent):,} = {max(m.sent) / m.payload:.4g} S (S: "
        f"payload), the mean rank {sum(m.sent) / n:,.0f}; by the formula {volume:,.0f} through the "
        "busiest port.",
        f"algbw = S / t = {m.payload:,} bytes / {seconds(m.seconds, 4)} = {amount(m.algbw)}/s.",
        f"busbw = algbw x {factor} = {amount(m.algbw)}/s x {m.bus_factor:.4g} = "
        f"{amount(m.busbw)}/s.",
    ]
    if m.algorithm == "tree":
        lines.insert(
            2,
            "A single tree: its inner ranks send each byte to two children. The formula is for "
            "two trees that share the work (algorithm='double_tree').",
        )
    if len(m.steps) > hops:
        lines.insert(
            1,
            "The chunks are pipelined, so the last one is late by the number of chunks before it; "
            "the formula assumes perfect pipelining.",
        )
    if m.predicted and m.cluster:
        link = m.cluster.link(range(n), n)
        lines += [
            f"On {m.cluster.caption}: its messages are predicted to take "
            f"{seconds(sum(m.predicted), 4)}; t = {seconds(m.seconds, 4)}.",
            f"The formula with the bandwidth of a whole group: {hops} x {seconds(link.latency)} + "
            f"{volume:,.0f} bytes / {amount(link.bandwidth)}/s = {seconds(m.cluster_seconds, 4)}.",  # pyright: ignore[reportArgumentType]
        ]
    return lines


def to_table(m: "Microscope") -> list[list[str]]:
    """Rows of strings, header first: one message each."""
    table = [["step", "from", "to", "chunk", "bytes", "number", "then", "time"]]
    for number, (step, cells) in enumerate(zip(m.steps, m.cells), 1):
        for x in step:
            chunk = cells[x.sender][x.chunk].chunk  # pyright: ignore[reportOptionalMemberAccess]
            row = [str(cell) for cell in (number, x.sender, x.receiver, chunk, x.bytes)]
            table.append([*row, f"{x.value:g}", _done(x), seconds(x.end - x.start)])
    return table


def describe(m: "Microscope") -> str:
    """The collective in words, with its arithmetic."""
    checked = (
        "the result is the one of torch.distributed"
        if m.error == 0
        else f"the result differs from the one of torch.distributed by {m.error:g}"
    )
    return (
        f"{_plain(m.algorithm).capitalize()} {_plain(m.collective)} of {m.payload:,} bytes on "
        f"{m.world_size} ranks: {_count(len(m.steps), 'step')}, "
        f"{_count(len(m.messages), 'message')}; {checked}. {' '.join(arithmetic(m))}"
    )


def _plain(name):
    return name.replace("_", " ")


def _count(number, word):
    return f"{number} {word}{'' if number == 1 else 's'}"


# -- the pictures ----------------------------------------------------------------------------------
TOKEN = (38, 20)
HALFWAY = 0.36  # a little less than half: messages that cross do not cover each other


def pictures(
    drawing: dict[str, Any], frames: list[list[list[Any]]], steps: list[list[dict[str, Any]]]
) -> dict[str, Any]:
    """{"width", "height", "top", "common", "pieces", "frames"}: what all steps share, and each of
    them as places in ``pieces``, since most cells of a step do not change.

    drawing : of `microscope_layout.arrange`. frames : of `frames`. steps : messages.
    """
    pieces = {}
    places = [
        [pieces.setdefault(piece, len(pieces)) for piece in _pieces(drawing, frame, messages)]
        for frame, messages in zip(frames, [*steps, []])
    ]
    return {
        "width": drawing["width"],
        "height": drawing["height"],
        "top": layout.TOP - layout.MARGIN,
        "common": pattern_defs() + "".join(_edge(*edge) for edge in drawing["edges"]),
        "pieces": list(pieces),
        "frames": places,
    }


def _pieces(drawing, frame, messages):
    yield from map(_arrow, messages)
    yield from map(_token, messages)  # under the ranks, whose names stay legible
    for here, cells in zip(drawing["ranks"], frame):
        yield f"<g data-rank='{here['rank']}'>{_box(drawing['box'], here)}"
        for (dx, dy), cell in zip(drawing["places"], cells):
            x, y = here["x"] + dx, here["y"] + dy
            yield _draw_cell(x, y, *drawing["box"]["cell"], cell)  # pyright: ignore[reportCallIssue]
        yield "</g>"


def _box(box, here):
    """A rank's frame and its name."""
    x, y, size = here["x"], here["y"], (box["width"], box["height"])
    out = rect(x, y, *size, "bg", "rx='7'") + outline(x, y, *size, "muted", 1.2, 7)
    out += text(x + 7, y + 14, f"rank {here['rank']}", weight=700)
    if box["parting"]:
        out += text(x + box["width"] - 6, y + 14, "to send", "muted", anchor="end")
        out += text(x + 7, y + box["parting"], "received", "muted")
    return out


def _draw_cell(x, y, width, height, cell):
    if not cell:
        return outline(x, y, width, height, "rule", 1, 3, "stroke-dasharray='3 3'")
    key, full = cell["key"], cell["full"] >= 1
    if full:
        out = swatch(x, y, width, height, key, cell["pattern"], "rx='3'")
    else:
        out = outline(x, y, width, height, key, 1.4, 3)
        out += rect(x, y + height - 3.5, width * cell["full"], 3.5, key)
    ink, small = (f"halo-{key}",) * 2 if full else ("fg", "muted")
    out += text(x + 5, y + 14, cell["chunk"], small)
    out += text(x + width / 2, y + 30, cell["value"], ink, anchor="middle", weight=700)
    out += text(x + width / 2, y + 45, cell["terms"], small, anchor="middle")
    return out + (outline(x - 1, y - 1, width + 2, height + 2, "fg", 2, 4) if cell["new"] else "")


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
    """A message in flight: drawn around (0, 0), placed on its path, along which a page moves it."""
    x0, y0, cx, cy, x1, y1 = message["path"]
    at = max(HALFWAY - message["lag"], 0)
    x, y = (
        (1 - at) ** 2 * a + 2 * at * (1 - at) * c + at * at * b
        for a, c, b in ((x0, cx, x1), (y0, cy, y1))
    )
    place = -TOKEN[0] / 2, -TOKEN[1] / 2, *TOKEN
    sign = "+" if message["phase"] == "reduce" else ""
    name = "-".join(str(message[what]) for what in ("sender", "receiver", "chunk"))
    return (
        f"<g data-message='{name}' data-path='{message['path']}' data-lag='{message['lag']}' "
        f"transform='translate({x:.1f},{y:.1f})'><title>{escape(message['words'])}</title>"
        + rect(*place, message["key"], "rx='10'")
        + outline(*place, "bg", 1.5, 10)
        + text(0, 4, sign + message["value"], f"halo-{message['key']}", anchor="middle", weight=700)
        + "</g>"
    )

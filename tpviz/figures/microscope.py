"""Microscope -> scene: every rank's buffer before each step, and the messages of the step.

A cell that holds
all it will hold is filled with the colour of its chunk; a partial sum shows its terms, and a bar
of how many ranks are in it.
"""

from typing import TYPE_CHECKING, Any

from . import microscope_layout as layout
from .svg import amount, seconds

if TYPE_CHECKING:
    from tpviz.collectives.result import Microscope

CHUNK_INKS = (
    "axis0",
    "forward",
    "backward",
    "axis2",
    "axis1",
    "optimizer_state",
    "parameters",
    "axis3",
)
"""Chunk c has the ink c modulo 8; its number is always written, and beyond 8 it has a pattern."""
TERMS = 7  # letters that fit under the number of a cell


def microscope_scene(microscope: "Microscope") -> dict[str, Any]:
    """The scene of a `Microscope`, ready for JSON.

    A dict: ``steps`` (the messages of each, with their path [x0, y0, control x, y, x1, y1]),
    ``captions`` and ``words`` (of each step, and of the end), ``facts``, ``notes``, and the picture
    as SVG: ``common``, and for each step, and the end, ``frames``, its places in ``pieces``.
    """
    from .microscope_svg import pictures

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
        "facts": facts(m),
        "notes": arithmetic(m),
        **pictures(drawing, frames(m), steps),
    }


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
    """One cell of one frame: what is written in it, its ink, and how full it is (0..1)."""
    if cell is None:
        return 0
    sums = m.collective in ("all_reduce", "reduce_scatter")
    whole = m.world_size if sums else 1
    key, pattern = _ink(cell.chunk)
    return {
        "chunk": cell.chunk,
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
    for message in m.steps[number]:
        pair = message.sender, message.receiver
        seen[pair] = seen.get(pair, -1) + 1
        chunk = cells[message.sender][message.chunk].chunk
        key, pattern = _ink(chunk)
        messages.append(
            {
                "sender": message.sender,
                "receiver": message.receiver,
                "chunk": chunk,
                "place": message.chunk,
                "slot": message.slot,
                "bytes": message.bytes,
                "value": f"{message.value:g}",
                "phase": message.phase,
                "key": key,
                "pattern": pattern,
                "path": layout.path(drawing, *pair),
                "lag": 0.14 * seen[pair],
                "words": f"rank {message.sender} to rank {message.receiver}: chunk {chunk} "
                f"({message.value:g}), {message.bytes:,} bytes, "
                f"{'added' if message.phase == 'reduce' else 'copied'}, "
                f"{seconds(message.end - message.start)}",
            }
        )
    return messages


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


def facts(m: "Microscope") -> list[list[str]]:
    """(label, text) pairs for the line above the picture."""
    low, high = min(m.sent), max(m.sent)
    sent = amount(high) if low == high else f"{amount(low)} to {amount(high)}"
    return [
        ["S", amount(m.payload)],
        ["steps", str(len(m.steps))],
        ["sent per rank", sent],
        ["t", seconds(m.seconds)],
        ["algbw", f"{amount(m.algbw)}/s"],
        ["busbw", f"{amount(m.busbw)}/s"],
    ]


def arithmetic(m: "Microscope") -> list[str]:
    """Lines that work out steps, bytes, algbw and busbw with the numbers of this very run."""
    n, hops, volume = m.world_size, *m.cost
    factor = f"{'2 ' if m.collective == 'all_reduce' else ''}(n-1)/n"
    lines = [
        f"Steps: {len(m.steps)} recorded; the formula for {_plain(m.formula)} has {hops} hops.",
        f"Bytes: the busiest rank sent {max(m.sent):,} = {max(m.sent) / m.payload:.4g} S, the mean "
        f"{sum(m.sent) / n:,.0f}; the formula has {volume:,.0f} through the busiest port.",
        f"algbw = S / t = {m.payload:,} bytes / {seconds(m.seconds, 4)} = {amount(m.algbw)}/s.",
        f"busbw = algbw x {factor} = {amount(m.algbw)}/s x {m.bus_factor:.4g} = "
        f"{amount(m.busbw)}/s.",
    ]
    if m.algorithm == "tree":
        lines.insert(
            2,
            "A single tree: ranks inside it pass each byte to two children. The "
            "formula counts two trees that share this work (algorithm='double_tree').",
        )
    if len(m.steps) > hops:
        lines.insert(
            1,
            "The pieces follow each other, so the last one is late by the number of "
            "pieces before it; the formula takes this pipelining as perfect.",
        )
    if m.predicted and m.cluster:
        link = m.cluster.link(range(n), n)
        lines += [
            f"On {m.cluster.caption}: its messages are predicted to take "
            f"{seconds(sum(m.predicted), 4)}; t = {seconds(m.seconds, 4)}.",
            f"The formula on the links that a whole group drives: {hops} x "
            f"{seconds(link.latency)} + {volume:,.0f} bytes / {amount(link.bandwidth)}/s = "
            f"{seconds(m.cluster_seconds, 4)}.",  # pyright: ignore[reportArgumentType]
        ]
    return lines


def to_table(m: "Microscope") -> list[list[str]]:
    """Rows of strings, header first: one message each."""
    table = [["step", "from", "to", "chunk", "bytes", "number", "then", "time"]]
    for number, (step, cells) in enumerate(zip(m.steps, m.cells)):
        for x in step:
            chunk = cells[x.sender][x.chunk].chunk  # pyright: ignore[reportOptionalMemberAccess]
            then = "added" if x.phase == "reduce" else "copied"
            table.append(
                [
                    str(number + 1),
                    str(x.sender),
                    str(x.receiver),
                    str(chunk),
                    str(x.bytes),
                    f"{x.value:g}",
                    then,
                    seconds(x.end - x.start),
                ]
            )
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

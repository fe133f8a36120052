"""A ring collective as a ring: ranks on a circle, and a petal for each slice of their buffers.

A petal is as large as the part of the ranks that is in its sum: it grows as that goes round. The
slice that leaves a rank is the slice that arrives. Beside it, the bytes that a rank sends on rings
of other sizes: the curve flattens at 2 gradients for an all-reduce, at 1 for its halves.
"""

from collections.abc import Iterator
from html import escape
from math import cos, pi, sin
from typing import TYPE_CHECKING, Any

from tpviz.core.trace.ledger import wire_bytes

from .svg import lines, pattern_defs, rect, text
from .tokens import TYPE

if TYPE_CHECKING:
    from tpviz.views.collectives.result import Microscope

WIDE, SIDE = 608, 560
"""px of the picture."""
MOST = 12
"""Ranks on a ring; of more, petals would be too small."""
INNER, EDGE, GAP = 15, 5, 0.14
"""px within the petals, and around them; part of a petal's angle that stays free."""
LONGEST, BETWEEN = 92, 28
"""px of a petal, at most: words fit into a ring of three; and between two ranks' petals, where an
arrow stands."""
AWAY = 60, 264
"""px from the circle of ranks, and at most from its middle, to a slice halfway: outside of the
ranks and their arrows."""
CURVE = 300, 190
"""px of the curve beside the ring."""
LEFT, RIGHT, TOP, FOOT, FAR = 8, 292, 40, 160, 64
"""px of the curve's axes; the ranks at its right end."""
TIMES = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Payloads that a rank sends on an endless ring."""
PHASES = {"reduce": "reduce-scatter", "copy": "all-gather"}


def is_ring(m: "Microscope") -> bool:
    """Whether a `Microscope` is drawn so: a ring collective of few ranks, each message to the next
    rank."""
    return (
        m.algorithm == "ring"
        and m.collective in TIMES
        and m.world_size <= MOST
        and all(x.receiver == (x.sender + 1) % m.world_size for x in m.messages)
    )


def outer(ranks: int) -> float:
    """px of a full petal, from the middle of its rank."""
    chord = sin(pi / ranks)
    return min(LONGEST, (_end(ranks) * chord - BETWEEN / 2) / (1 + chord))


def _end(ranks):
    """px from the middle of the ring to the end of a full petal; slices stand beyond."""
    return min(SIDE / 2 - 9, SIDE / 2 + 31 - 5 * ranks)


def radius(ranks: int) -> float:
    """px of the circle of ranks: with their petals they fill the picture."""
    return _end(ranks) - outer(ranks)


def says(m: "Microscope", number: int) -> str:
    """A step in a sentence, and the end."""
    n, total = m.world_size, TIMES[m.collective]
    if number == len(m.steps):
        factor = f"{'2 ' * (total == 2)}(n-1)/n"
        done = "the sum of its own slice" if m.collective == "reduce_scatter" else "every slice"
        return f"Every rank has {done}. Each sent {factor} = {m.bus_factor:.4g} gradients."
    if m.steps[number][0].phase == "reduce":
        return (
            "Reduce-scatter: a slice arrives and is added, its petal grows by one. After "
            f"{n - 1} steps each rank has one full petal."
        )
    return "All-gather: full petals are copied on. Nothing is added any more."


def pictures(
    m: "Microscope", frames: list[Any], steps: list[Any], sent: list[int]
) -> dict[str, Any]:
    """{"width", "height", "top", "common", "frames", "aside"}: what all steps share, and each of
    them, as SVG; aside : the curve at each step. frames, steps : as of `microscope.pictures`;
    sent : `microscope.sent_before`."""
    n = m.world_size
    circle = (
        f"<circle cx='{WIDE / 2}' cy='{SIDE / 2}' r='{radius(n):.1f}' class='s-muted' fill='none'/>"
        + "".join(_arrow(rank, n) for rank in range(n))
    )
    drawn = []
    for number, frame in enumerate(frames):
        messages = steps[number] if number < len(steps) else []
        flowers = "".join(_flower(rank, n, cells) for rank, cells in enumerate(frame))
        tokens = "".join(_token(message, n, number + 1) for message in messages)
        drawn.append(flowers + _middle(m, number) + tokens)
    return {
        "width": WIDE,
        "height": SIDE,
        "top": 0,
        "common": pattern_defs() + circle,
        "frames": drawn,
        "aside": [_curve(m, done / m.payload) for done in sent],
        "aside_size": list(CURVE),
    }


def _at(rank: float, n: int, away: float = 0) -> tuple[float, float]:
    """px of a place on the ring, or so far from its middle; rank 0 on top, clockwise."""
    angle, away = 2 * pi * rank / n - pi / 2, away or radius(n)
    return WIDE / 2 + away * cos(angle), SIDE / 2 + away * sin(angle)


def _arrow(rank, n) -> str:
    """On the circle, from where a slice arrives at the next rank."""
    edge = (outer(n) + EDGE + 7) / radius(n) * n / (2 * pi)
    x, y = _at(rank + 1 - edge, n)
    place = f"translate({x:.1f},{y:.1f})rotate({360 * (rank + 1 - edge) / n:.1f})"
    return f"<path d='M-7,-5l9,5l-9,5z' class='f-muted' transform='{place}'/>"


def _petal(x, y, n, place, length):
    """The path of a petal around (x, y)."""
    start, end = (2 * pi * (place + part) / n - pi / 2 for part in (GAP / 2, 1 - GAP / 2))
    large = int(end - start > pi)

    def point(radius, angle):
        return f"{x + radius * cos(angle):.1f} {y + radius * sin(angle):.1f}"

    return (
        f"M{point(INNER, start)}L{point(length, start)}A{length:.1f} {length:.1f} 0 {large} 1 "
        f"{point(length, end)}L{point(INNER, end)}A{INNER} {INNER} 0 {large} 0 "
        f"{point(INNER, start)}Z"
    )


def _flower(rank, n, cells) -> str:
    """A rank and its petals."""
    x, y = _at(rank, n)
    ground = f"cx='{x:.1f}' cy='{y:.1f}' r='{outer(n) + EDGE:.1f}'"
    out = f"<circle {ground} class='f-ground s-rule'/>"
    out += "".join(_slice(x, y, n, place, cell) for place, cell in enumerate(cells) if cell)
    return f"<g data-rank='{rank}'>{out}{text(x, y + 4.5, rank, anchor='middle', weight=650)}</g>"


def _slice(x, y, n, place, cell):
    length = (INNER**2 + (outer(n) ** 2 - INNER**2) * cell["full"]) ** 0.5
    path = _petal(x, y, n, place, length)
    new = " s-fg' stroke-width='2" if cell["new"] else ""
    sum_of = f" = {cell['terms']}" if "+" in cell["terms"] else ""
    ranks = ", ".join(map(str, cell["ranks"]))
    said = escape(f"slice {cell['chunk']}: {cell['value']}{sum_of}, of ranks {ranks}")
    return f"<path d='{path}' class='f-{cell['key']}{new}'><title>{said}</title></path>"


def _middle(m, number) -> str:
    """The number of the step and its phase, in the middle of the ring."""
    count, x, y = len(m.steps), WIDE / 2, SIDE / 2
    large, small = ("done", "") if number == count else (number + 1, f"of {count} steps")
    out = text(x, y + 10, large, size=TYPE["big"], anchor="middle", weight=650)
    phase = "" if number == count else PHASES[m.steps[number][0].phase]
    return out + lines(x, y + 32, [small, phase], 19, "muted", anchor="middle")


def _ends(message: Any, n: int) -> Iterator[tuple[float, float]]:
    """Where a slice leaves its rank, and where it arrives: the middles of the two petals."""
    places = (message["sender"], message["place"]), (message["receiver"], message["slot"])
    for rank, place in places:
        x, y = _at(rank, n)
        angle = 2 * pi * (place + 0.5) / n - pi / 2
        far = (INNER + outer(n)) / 2
        yield x + far * cos(angle), y + far * sin(angle)


def _token(message, n, step) -> str:
    """A slice on its way, with how many ranks' gradients are in its sum: drawn around (0, 0),
    placed on its path, along which a page moves it."""
    (x0, y0), (x1, y1) = _ends(message, n)
    x, y = _at(message["sender"] + 0.5, n, min(radius(n) + AWAY[0], AWAY[1]))
    by = 2 * x - (x0 + x1) / 2, 2 * y - (y0 + y1) / 2  # so that it comes by there
    path = [round(v, 1) for v in (x0, y0, *by, x1, y1)]
    words = f"sum of {step}" if message["phase"] == "reduce" else "copy"
    name = "-".join(str(message[what]) for what in ("sender", "receiver", "chunk"))
    wide = 14 + 7.4 * len(words)
    return (
        f"<g data-message='{name}' data-path='{path}' data-lag='0' "
        f"transform='translate({x:.1f},{y:.1f})'><title>{escape(message['words'])}</title>"
        + rect(-wide / 2, -12, wide, 24, f"{message['key']} s-bg", "rx='12' stroke-width='2'")
        + text(0, 4.5, words, f"halo-{message['key']}", anchor="middle", weight=650)
        + "</g>"
    )


def _curve(m: "Microscope", done: float) -> str:
    """Gradients that a rank sends on a ring of 2 to `FAR` ranks, and, where this ring is, ``done``
    of them."""
    total = TIMES[m.collective]

    def px(ranks, sent):
        return (
            f"{LEFT + (ranks - 2) / (FAR - 2) * (RIGHT - LEFT):.1f}",
            f"{FOOT - sent / total * (FOOT - TOP):.1f}",
        )

    line = "L".join(" ".join(px(n, wire_bytes(m.collective, 1, n))) for n in range(2, FAR + 1))
    (x, y), (_, now) = (px(m.world_size, sent) for sent in (m.bus_factor, done))
    limit = f"{total} gradient{'s' * (total > 1)}: the limit"
    return (
        f"<path d='M{LEFT} {TOP}H{RIGHT}' class='s-muted' stroke-dasharray='3 4'/>"
        f"<path d='M{LEFT} {FOOT}H{RIGHT}' class='s-rule'/>"
        f"<path d='M{line}' class='s-axis0' fill='none' stroke-width='3'/>"
        f"<path d='M{x} {FOOT}V{now}' class='s-axis0' stroke-width='6'/>"
        f"<circle cx='{x}' cy='{y}' r='6' class='f-axis0'/>"
        + text(float(x) + 11, float(y) + 17, f"{m.bus_factor:.4g}", weight=650)
        + text(LEFT, 14, "sent by each rank, in gradients", "muted")
        + text(RIGHT, TOP - 7, limit, "muted", anchor="end")
        + text(max(float(x), LEFT + 4), FOOT + 18, m.world_size, anchor="middle", weight=650)
        + text(RIGHT, FOOT + 18, f"{FAR} ranks", "muted", anchor="end")
    )

"""What the formula says of one step, as a picture: its time in parts, and a rank's memory.

>>> parts_svg({"compute": 0.2, "latency": 0.1}, "predicted").startswith("<svg")
True
"""

import math
from collections.abc import Mapping

from tpviz.figures.comparison import INK_OF_PART
from tpviz.figures.palette import INKS, MEMORY_KINDS, svg_style
from tpviz.figures.svg import amount, document, pattern_defs, rect, seconds, text, ticks

WIDTH, LEFT, RIGHT, BAR = 470, 10, 460, 26


def parts_svg(
    parts: Mapping[str, float], badge: str, slow_motion: float = 1, theme: str = "page"
) -> str:
    """One stacked bar of the parts of a step, drawn to a time axis, and each part in figures.

    parts : {name: seconds}, in the inks of the comparison; badge : where the numbers come from;
    slow_motion : what these seconds are stretched by. Drawn is the step at full speed, so that
    configurations in different slow motion can be told apart. Raises ValueError where the parts are
    no times.
    """
    parts = {name: time / slow_motion for name, time in parts.items()}
    if not all(math.isfinite(t) and t >= 0 for t in parts.values()) or not sum(parts.values()):
        raise ValueError(f"parts={parts} are not the times of a step")
    total = sum(parts.values())
    scale = (RIGHT - LEFT) / _ceiling(total)
    slowly = f"{seconds(total * slow_motion)} in {slow_motion:,g} x slow motion"
    words = f"step time {seconds(total)}"
    body, x = [pattern_defs(), *_head(badge, words, slowly if slow_motion != 1 else "")], LEFT
    for name, time in parts.items():
        body.append(_bar(x, 36, time * scale, BAR, *INK_OF_PART[name]))
        if time * scale > 44:
            share = f"{100 * time / total:.0f} %"
            halo, middle = f"halo-{INK_OF_PART[name][0]}", x + time * scale / 2
            body.append(text(middle, 36 + BAR / 2 + 4, share, halo, 11, "middle", 600))
        x += time * scale
    for t in ticks(0, (RIGHT - LEFT) / scale, 6):
        at = LEFT + t * scale
        body.append(f"<path d='M{at:.1f},{36 + BAR}v5' class='s-muted' fill='none'/>")
        anchor = "start" if t == 0 else "end" if at > RIGHT - 15 else "middle"
        body.append(text(at, 36 + BAR + 16, seconds(t), "muted", 10, anchor))
    y = 36 + BAR + 36
    for i, (name, time) in enumerate(parts.items()):
        left, top = LEFT + (i % 2) * 196, y + (i // 2) * 18
        body.append(_bar(left, top - 9, 14, 11, *INK_OF_PART[name]))
        figures = f"{seconds(time)} ({_per_cent(time / total)})"
        body.append(text(left + 20, top, f"{name} {figures}", size=11))
    height = y + 18 * ((len(parts) - 1) // 2) + 10
    label = f"{badge}: " + ", ".join(f"{name} {seconds(time)}" for name, time in parts.items())
    return document(WIDTH, height, "".join(body), label, svg_style(theme), theme)


def memory_svg(
    memory: Mapping[str, float], capacity: float, device: str, theme: str = "page"
) -> str:
    """A rank's memory by kind, against what its device has. memory : {kind: bytes}."""
    total = sum(memory.values())
    enlarged = total < capacity / 50
    room = RIGHT - LEFT - 56 * enlarged
    scale = room / (max(total, 1) if enlarged else max(total, capacity))
    share = f"{amount(total)} of the {amount(capacity)} of {device}, {_per_cent(total / capacity)}"
    title = text(LEFT, 12, "memory of a rank", weight=600)
    words = text(LEFT + 118, 12, share)
    body, x = [pattern_defs(), title, words], LEFT
    for kind, size in memory.items():
        body.append(_bar(x, 20, size * scale, 14, *_ink(kind)))
        x += size * scale
    if enlarged:
        body.append(text(RIGHT, 31, "enlarged", "muted", 10, "end"))
    else:
        ink = "exposed" if total > capacity else "fg"
        end = LEFT + capacity * scale
        body.append(f"<path d='M{end:.1f},16v22' class='s-{ink}' stroke-width='2' fill='none'/>")
    x = LEFT
    for kind, size in memory.items():
        body.append(_bar(x, 44, 11, 10, *_ink(kind)))
        words = f"{kind} {amount(size)}"
        body.append(text(x + 15, 53, words, size=10))
        x += 26 + 5.4 * len(words)
    return document(WIDTH, 60, "".join(body), f"memory of a rank {share}", svg_style(theme), theme)


def _head(badge, words, more):
    size = 6.3 * len(badge) + 16
    return [
        rect(LEFT, 6, size, 19, "", "rx='9.5' fill='none' class='s-fg' stroke-width='1.2'"),
        text(LEFT + size / 2, 19.5, badge, anchor="middle", weight=600),
        text(LEFT + size + 12, 21, words, size=14, weight=650),
        text(RIGHT, 21, more, "muted", 11, "end"),
    ]


def _bar(x, y, width, height, key, pattern):
    over = f"fill='url(#tpv-{pattern})'"
    edge = f"<path d='M{x + width:.2f},{y}v{height}' class='s-bg' fill='none'/>"
    return rect(x, y, width, height, key) + (
        edge if pattern == "solid" else rect(x, y, width, height, "", over) + edge
    )


def _ink(kind):
    key = MEMORY_KINDS[kind]
    return key, INKS[key].pattern


def _per_cent(fraction):
    """48 %, 3.9 %, 0.00048 %, 130 %."""
    return f"{100 * fraction:.0f} %" if fraction >= 0.0995 else f"{100 * fraction:.2g} %"


def _ceiling(value):
    """The end of the time axis: the next of 1, 1.5, 2, 3, 5, 7 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(value))
    return power * next((m for m in (1, 1.5, 2, 3, 5, 7, 10) if value <= m * power * 1.0001), 10)

"""Loads of ranks with experts by step -> SVG: a line a step, a bar a rank, the mean ticked."""

from typing import TYPE_CHECKING

import numpy as np

from .experts import many
from .legend import legend
from .svg import LINE, VIEW, badge, document, image, lines, rect, text

if TYPE_CHECKING:
    from tpviz.verbs.expert_loads import ExpertLoads

__all__ = ["image", "loads_svg"]
STEPS, RANKS = 12, 8
"""The last steps, and the ranks that were ever the busiest, of more."""
LEFT, RIGHT, HEAD, PITCH, BAR = 62, 130, 66, 46, 18  # px


def loads_svg(loads: "ExpertLoads", theme: str = "auto") -> str:
    """The loads of all layers. theme "light", "dark" or "auto"."""
    rows, times = loads.rows.sum(1)[-STEPS:], loads.times[-STEPS:]
    shown = np.sort(np.argsort(-times.max(0), kind="stable")[:RANKS])
    wide = (VIEW - LEFT - RIGHT) / len(shown)
    scale = (wide - 10) / rows.max()
    frame, width = badge(10, 8, loads.badge)
    several = f", the {len(shown)} busiest of {len(loads.ranks)}"
    title = "rows of experts by rank" + several * (len(shown) < len(loads.ranks))
    body = [frame, text(width + 20, 22, title, "muted")]
    body += [
        text(LEFT + n * wide, HEAD - 14, f"rank {loads.ranks[at]}") for n, at in enumerate(shown)
    ]
    body.append(text(VIEW - RIGHT + 4, HEAD - 14, "busiest / mean"))
    for line, step in enumerate(loads.steps[-STEPS:]):
        y, most = HEAD + line * PITCH, times[line].max()
        body.append(text(10, y + 20, f"step {step}"))
        for number, at in enumerate(shown):
            x, here = LEFT + number * wide, rows[line, at]
            busiest = loads.ranks[at] == loads.busiest[-len(times) :][line]
            body.append(text(x, y + 12, many(here), weight=700 if busiest else ""))
            body.append(rect(x, y + 17, here * scale, BAR, "forward"))
            if here:
                mean = x + here / times[line, at] * scale
                body.append(f"<path d='M{mean:.1f},{y + 15}v{BAR + 4}' class='s-fg'/>")
        words = f"rank {loads.busiest[-len(times) :][line]}: {most:.2f}"
        body.append(text(VIEW - RIGHT + 4, y + 20, words))
    foot = HEAD + len(times) * PITCH + 14
    body.append(legend([("mean", "mean of the ranks")], 10, foot - 10, VIEW)[0])
    body.append(lines(10, foot + LINE + 4, [loads.cannot or _hot(loads)], LINE, "muted"))
    return document(VIEW, foot + LINE + 16, body, title, theme, loads.describe())


def _hot(loads):
    """The hot expert of the last step."""
    expert, share = loads.hot[-1]
    return (
        f"Step {loads.steps[-1]}: rank {loads.busiest[-1]} has expert {expert}, which "
        f"{100 * share:.0f} % of the tokens choose."
    )

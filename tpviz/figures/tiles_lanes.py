"""The lanes of the tile view: GPU 0's slots, memory queue, tracker and link over time."""

from collections.abc import Sequence

import numpy as np

from . import tiles_layout as figure
from .palette import PATTERNS
from .svg import amount, rect, seconds, text
from .tiles_states import fused

NAMES = {
    "computing": "tiles computing",
    "memory": "memory queue",
    "tracker": "tracker, records",
    "link": "link, share",
}
NEAR = 135
"""px between two ends that are named together."""


def lanes(acts: Sequence[figure.Panel], number: int, layout: figure.Layout) -> list[str]:
    """An act's lanes and what ends when, as pieces of SVG. Acts share each lane's scale."""
    act, y = acts[number], layout.lanes[number]
    out = [
        text(12, y - 7, f"{act.name}, GPU 0 ({act.run.mode})", size=12, weight=700),
        *_ends(act, layout, y),
    ]
    for what in figure.LANES:
        out.append(
            rect(
                figure.LEFT,
                y,
                layout.duration * layout.scale,
                figure.LANE,
                "rule",
                "fill-opacity='.35'",
            )
        )
        out.append(
            text(figure.LEFT - 8, y + figure.LANE / 2 + 4, NAMES[what], size=11, anchor="end")
        )
        top, parts, says = _drawn(acts, act, what)
        out += _stack(act.series["time"], parts, top, y, layout, what)
        x = figure.WIDTH - figure.RIGHT + 12
        if len(parts) > 1:  # a chip for each, before its line
            out += [
                area(f"M{x},{y + 4 + 14 * i}h10v10h-10z", ink, pattern)
                for i, (ink, pattern, _) in enumerate(parts[::-1])
            ]
            x += 15
        out += [text(x, y + 13 + 14 * i, line, "muted", 10.5) for i, line in enumerate(says)]
        y += figure.LANE + figure.GAP
    return out


def _drawn(acts, act, what):
    """(the value at a lane's top, [(ink, pattern, values)] from below, lines at its right)."""
    run, series = act.run, act.series
    if what == "computing":
        slots = run.machine.slots
        return slots, [("forward", "solid", act.computing)], [f"{slots} slots: a stage"]
    if what == "memory":
        parts = [
            ("forward", "solid", series["gemm_queue"]),
            ("axis0", "diagonal", series["comm_queue"]),
        ]
        top = max(_most(a.series["gemm_queue"] + a.series["comm_queue"]) for a in acts)
        return (
            top,
            parts,
            [
                f"communication (above) ≤ {amount(_most(series['comm_queue']))}",
                f"GEMM (below) ≤ {amount(_most(series['gemm_queue']))}",
            ],
        )
    if what == "tracker":
        top = max(max(a.run.tracker.peak for a in acts), 1)
        if not fused(run):
            return top, [], ["not used"]
        waited = run.tracker.stalls
        return (
            top,
            [("axis1", "back", series["tracker"])],
            [
                f"at most {run.tracker.peak} of {run.tracker.capacity}",
                f"{waited} update{'s' * (waited != 1)} waited",
            ],
        )
    return (
        1.0,
        [("axis0", "lines", np.minimum(series["link"], 1.0))],
        [f"{amount(run.link_bytes)} sent", f"busy {100 * series['link'].mean():.0f} % of the time"],
    )


def _most(values):
    return float(values.max(initial=0.0))


def _stack(time, parts, top, y, layout, what):
    """Areas on top of each other, each in its ink and pattern."""
    x, below = layout.x(time), np.zeros(len(time))
    for ink, pattern, values in parts:
        above = below + values
        up, low = (
            y + figure.LANE * (1 - np.minimum(v / (top or 1.0), 1.0)) for v in (above, below)
        )
        path = (
            "M"
            + "L".join(f"{a:.1f},{b:.1f}" for a, b in zip([*x, *x[::-1]], [*up, *low[::-1]]))
            + "z"
        )
        yield area(path, ink, pattern, f"data-lane='{what}' data-key='{ink}'")
        below = above


def area(path: str, ink: str, pattern: str, extra: str = "") -> str:
    """A shape in an ink, and a pattern over it: one of `PATTERNS`, or "" for none."""
    over = f"<path d='{path}' fill='url(#tpv-{pattern})'/>" * bool(PATTERNS.get(pattern))
    return f"<path d='{path}' class='f-{ink}' {extra}/>{over}"


def _ends(act, layout, y):
    """A line where the GEMM, the reduce-scatter and all end, and which it is."""
    run, high = act.run, len(figure.LANES) * (figure.LANE + figure.GAP) - figure.GAP
    ends = [
        (run.gemm_end, f"GEMM {seconds(run.gemm_end)}"),
        (run.rs_end, f"reduce-scatter {seconds(run.rs_end)}"),
        (run.ag_end, f"all-gather {seconds(run.ag_end)}"),
    ]
    for time, _ in ends:
        yield (
            f"<path d='M{layout.x(time):.1f},{y - 4}v{high + 4}' class='s-fg' "
            "stroke-dasharray='3 3'/>"
        )
    if abs(run.rs_end - run.gemm_end) * layout.scale < NEAR:
        time = max(run.gemm_end, run.rs_end)
        ends[:2] = [(time, f"{ends[0][1]}, {ends[1][1]}")]
    for time, words in ends:
        x = max(layout.x(time) - 3, 200 + 5.4 * len(words))
        yield text(x, y - 7, words, "muted", 10.5, "end")

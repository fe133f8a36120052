"""The pictures of the planner: step time within its band, throughput, communication by axis."""

from collections.abc import Mapping

from tpviz.core.inks import axis_keys
from tpviz.core.mesh import Mesh
from tpviz.core.workload import GPT
from tpviz.evidence.published.bands import IDEAL, Band
from tpviz.schemes.strategy import Strategy
from tpviz.verbs.predict import Prediction
from tpviz.verbs.room import room
from tpviz.verbs.why import foreign
from tpviz.views.figures.svg import (
    badge,
    document,
    lines,
    outline,
    pattern_defs,
    rect,
    scrolled,
    seconds,
    swatch,
    text,
    wrapped,
)

from .pictures import (
    LEFT,
    RIGHT,
    WIDTH,
    axes_html,
    memory_svg,
    message,
    parts_svg,
    per_cent,
    short_badge,
    short_of_memory,
)

LETTERS = 64
"""Of a line."""
UNKNOWN = (
    "Its error is not known: too few published runs of this framework ship to compare with, or the "
    "devices are not those of a published run."
)


def plan_svgs(p: Prediction, band: Band | None, theme: str) -> list[str]:
    """The pictures of a plan: `numbers_svg`, its step in parts, `axes_svg`, and a rank's
    memory against the device's."""
    device, size = p.cluster.device, room(p.cluster, p.training)
    drawn = [numbers_svg(p, band, theme), parts_svg(p.parts, short_badge(p), theme=theme)]
    sizes = {axis: n for axis, n in p.strategy.axes.items() if n > 1}
    if sizes:
        drawn.append(axes_svg(sizes, p.exposed, p.hidden, p.step_time, theme))
    return [*drawn, memory_svg(p.memory(), size, device.name, theme)]


def plan_html(p: Prediction, band: Band | None, ranks: int) -> tuple[str, str]:
    """(`plan_svgs` with what is wrong or odd about the plan, the table of its axes), as HTML.
    ranks : how many there are to use."""
    idle = ranks - p.strategy.world_size
    words = [f"{idle:,} of {ranks:,} GPUs are idle."] * (idle > 0)
    words += filter(None, [foreign(p.strategy, p.cluster)])
    drawn = "".join(map(scrolled, plan_svgs(p, band, "page"))) + "".join(map(message, words))
    return short_of_memory(p) + drawn, axes_html(p, Mesh(p.strategy.axes))


def plan_words(name: str, w: GPT, on: str, framework: str, strategy: Strategy) -> str:
    """A plan in a sentence. name : of the model; on : the number of GPUs, and which."""
    by = "ideal" if framework == IDEAL else f"as run by {framework}"
    return (
        f"{name} ({w.num_parameters / 1e9:,.3g} billion parameters), {w.batch * w.seq:,} tokens a "
        f"step, on {on}, {by}: {strategy.caption}"
    )


def figures(p: Prediction) -> list[str]:
    """Throughput in words: tokens/s of all, of a GPU, and MFU."""
    rate = p.tokens_per_second
    return [
        f"{rate:,.0f} tokens/s",
        f"{rate / p.strategy.world_size:,.0f} tokens/s a GPU",
        f"{100 * p.mfu:.1f} % of peak (MFU)",
    ]


def numbers_svg(p: Prediction, band: Band | None, theme: str = "page") -> str:
    """The step in large figures, throughput, and on a time axis the `Band` around the step."""
    step, words = p.step_time, " \N{MIDDLE DOT} ".join(figures(p))
    frame, width = badge(LEFT, 6, short_badge(p))
    body = [frame, text(LEFT + width + 12, 23, f"{seconds(step)} a step", size=20, weight=700)]
    body.append(text(LEFT, 48, words))
    told = UNKNOWN
    y = 66
    if band:
        low, quarter, middle, most, high = band.around(step)
        left, right = min(low, step), max(high, step)
        scale = (RIGHT - LEFT - 20) / ((right - left) or step)

        def at(value):
            return LEFT + 10 + (value - left) * scale

        body.append(outline(at(low), y, at(high) - at(low), 14, "muted"))
        body.append(rect(at(quarter), y, at(most) - at(quarter), 14, "sync"))
        body.append(f"<path d='M{at(step):.1f},{y - 5}v24' class='s-fg' stroke-width='3'/>")
        y += 32
        body.append(text(at(low), y, seconds(low), "muted"))
        body.append(text(at(high), y, seconds(high), "muted", anchor="end"))
        y += 18
        told = (
            f"The line is the prediction. With the errors of published runs, half of such runs "
            f"would take {seconds(quarter)} to {seconds(most)} (filled), nine tenths "
            f"{seconds(low)} to {seconds(high)} (frame), the middle one {seconds(middle)}. From "
            f"the scoreboard: {band.words}."
        )
    rows = wrapped(told, LETTERS)
    if p.outside:
        rows += wrapped(f"{p.badge[0].upper()}{p.badge[1:]}.", LETTERS)
    body.append(lines(LEFT, y, rows, 15, "muted"))
    label = f"{p.badge}: {seconds(step)} a step, {', '.join(figures(p))}. {told}"
    return document(WIDTH, y + 15 * len(rows) - 4, body, label, theme)


def axes_svg(
    sizes: Mapping[str, int],
    exposed: Mapping[str, float],
    hidden: Mapping[str, float],
    step: float,
    theme: str = "page",
) -> str:
    """A bar for each mesh axis: seconds in which kernels wait for it, and in which they do not.

    sizes : {axis: ranks}. exposed, hidden : {axis, or a part of one: seconds}; step : seconds.
    """
    names = dict.fromkeys([*sizes, *exposed, *hidden])
    inks = axis_keys(list(names))
    times = {name: (exposed.get(name, 0.0), hidden.get(name, 0.0)) for name in names}
    longest = max(map(sum, times.values())) or 1.0
    scale = (RIGHT - LEFT) / longest
    title = "communication by axis: exposed (hatched), hidden (frame)"
    body, y = [pattern_defs(), text(LEFT, 12, title, weight=600)], 24
    told = []
    for name, (waits, under) in times.items():
        size = f" {sizes[name]}" if name in sizes else ""
        words = (
            f"{name}{size}: exposed {seconds(waits)} ({per_cent(waits / step)} of a step), "
            f"hidden {seconds(under)}"
        )
        if name == "pp" and not waits and not under:
            words = f"pp{size}: waiting for messages between stages is part of the bubble"
        told.append(words)
        body.append(text(LEFT, y + 8, words))
        body.append(swatch(LEFT, y + 14, waits * scale, 12, inks[name], "exposed"))
        if under:
            body.append(outline(LEFT + waits * scale, y + 14.5, under * scale, 11, inks[name]))
        y += 36
    return document(WIDTH, y, body, f"{title}. {'; '.join(told)}", theme)

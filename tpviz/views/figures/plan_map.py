"""The map of plans: memory of a GPU to the right, speed up, the device's memory as a wall.

Every plan is a dot, by its kind; one is chosen. What stands right of the wall does not fit, however
fast it would be. The bar through the chosen one is the error of such predictions.

>>> plans = [PlanDot("a", "data", 2.0, 6e10), PlanDot("b", "pipeline", 1.0, 2e11)]
>>> scene = plan_map_scene(plans, 8e10, chosen=0)
>>> scene["best"], scene["captions"]
(0, ['2 plans; 1 fits in 80 GB, 1 does not'])
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, NamedTuple

from .legend import legend
from .scales import Scale, scale_of
from .svg import alone, amount, pattern_defs, rect, seconds, text, ticks

WIDTH, HEIGHT = 740, 510
LEFT, RIGHT, TOP, FOOT = 74, 722, 62, 446
KINDS = {
    "data": ("forward", "circle", "data parallel alone"),
    "tensor": ("axis0", "diamond", "with tensor parallelism"),
    "pipeline": ("optimizer_state", "square", "with a pipeline"),
    "context": ("axis3", "triangle", "with sequences over GPUs"),
    "experts": ("axis2", "star", "with experts over GPUs"),
}
"""{kind of plan: its ink, its shape, its words}."""
SHAPES = {
    "circle": "M-{0},0a{0},{0} 0 1,0 {1},0a{0},{0} 0 1,0 -{1},0z",
    "square": "M-{0},-{0}h{1}v{1}h-{1}z",
    "diamond": "M0,-{0}L{0},0L0,{0}L-{0},0z",
    "triangle": "M0,-{0}L{0},{0}H-{0}z",
    "star": "M0,-{0}L{2},-{2}L{0},0L{2},{2}L0,{0}L-{2},{2}L-{0},0L-{2},-{2}z",
}
DOT, CHOSEN = 5.5, 11
RUNS = "where 9 of 10 runs of such a plan lie"


class PlanDot(NamedTuple):
    """A plan on the map: its name, its kind (of `KINDS`), seconds of a step, bytes of a GPU."""

    name: str
    kind: str
    step: float
    memory: float


def plan_map_scene(
    plans: Sequence[PlanDot],
    capacity: float,
    chosen: int = -1,
    band: Sequence[float] | None = None,
    badge: str = "predicted",
    title: str = "",
) -> dict[str, Any]:
    """The scene of a map, ready for JSON; as a film of one step.

    capacity : bytes that a GPU has for a plan. chosen : a plan's place, -1 for none. band : seconds
    from which to which runs like the chosen one took. Raises ``ValueError`` without plans.
    """
    if not plans:
        raise ValueError("a map of plans needs at least one plan")
    fit = [i for i, plan in enumerate(plans) if plan.memory <= capacity]
    best = min(fit, key=lambda i: plans[i].step, default=-1)
    across, up = _scales(plans, capacity, band)
    wall = across.at(capacity)
    parts = [pattern_defs(), _ground(across, up, wall, capacity)]
    order = sorted(range(len(plans)), key=lambda i: i in (chosen, best))
    parts += [_dot(plans[i], i, across, up, i in fit) for i in order if i != chosen]
    if best >= 0 and best != chosen:
        parts.append(_named(plans[best], across, up, "fastest shown that fits"))
    if chosen >= 0:
        parts.append(_chosen(plans[chosen], across, up, band, chosen == best))
    items = [(_mark(k), KINDS[k][2]) for k in KINDS if any(p.kind == k for p in plans)]
    items += [(_whisker, RUNS)] * bool(band and chosen >= 0)
    marks, _ = legend(items, LEFT, 30, WIDTH)
    many = f"{len(plans)} plan{'s' * (len(plans) > 1)}"
    does, left = "fits" if len(fit) == 1 else "fit", len(plans) - len(fit)
    more = f", {left} do{'es' * (left == 1)} not" if left else ""
    return {
        "title": title,
        "badge": badge,
        "width": WIDTH,
        "height": HEIGHT,
        "captions": [f"{many}; {len(fit)} {does} in {amount(capacity)}{more}"],
        "common": "".join([*parts, marks]),
        "best": best,
    }


def plan_map_svg(scene: dict[str, Any], theme: str = "auto") -> str:
    """The map as a whole SVG; theme "light", "dark", "auto" or "page"."""
    return alone(scene, scene["captions"][0], scene["common"], theme)


def _scales(plans, capacity, band):
    """(memory to the right, seconds down: up is faster), both logarithmic."""
    sizes = [plan.memory for plan in plans] + [capacity]
    times = [plan.step for plan in plans] + [t for t in band or () if t > 0]
    log = {"type": "log"}
    return scale_of(log, sizes, LEFT, RIGHT), scale_of(log, times, TOP, FOOT)


def _round(scale: Scale) -> Iterable[float]:
    """Round numbers on a logarithmic axis, far enough apart."""
    low, high = 10**scale.low, 10**scale.high
    if high < 4 * low:
        return ticks(low, high, 5)
    powers, many = range(int(scale.low) - 1, int(scale.high) + 2), (1, 2, 3, 4, 5, 6, 8)
    every = [m * 10.0**p for p in powers for m in ((1, 2, 5) if high > 40 * low else many)]
    return [value for value in every if low <= value <= high]


def _ground(across, up, wall, capacity):
    """The field, its axes, and the wall."""
    out = rect(wall, TOP, RIGHT - wall, FOOT - TOP, "rule", "fill-opacity='.55'")
    for time in _round(up):
        y = up.at(time)
        out += f"<path d='M{LEFT},{y:.1f}H{RIGHT}' class='s-rule'/>"
        out += text(LEFT - 8, y + 4.5, seconds(time), "muted", anchor="end")
    last, label = -100.0, min(wall, WIDTH - 74)  # its words end in the picture
    for size in _round(across):
        x = across.at(size)
        if x - last < 62 or abs(x - label) < 100:
            continue
        last = x
        out += f"<path d='M{x:.1f},{FOOT}v5' class='s-muted'/>"
        out += text(x, FOOT + 20, amount(size), "muted", anchor="middle")
    out += f"<path d='M{wall:.1f},{TOP}V{FOOT}' class='s-exposed' stroke-width='2'/>"
    has = f"a GPU has {amount(capacity)}"
    out += text(label, FOOT + 20, has, "exposed", anchor="middle", weight=650)
    side, anchor, more = (8, "start", "") if wall < RIGHT - 110 else (-8, "end", " →")
    out += text(wall + side, TOP + 17, "does not fit" + more, "exposed", anchor=anchor, weight=650)
    out += text(LEFT, 18, "Each dot is a plan: one way to split the training over the GPUs.")
    turn, middle = f"transform='rotate(-90 18 {(TOP + FOOT) / 2})'", (LEFT + RIGHT) / 2
    out += text(18, (TOP + FOOT) / 2, "time of a step: faster →", anchor="middle", extra=turn)
    return out + text(middle, FOOT + 46, "memory that each GPU needs: more →", anchor="middle")


def _shape(kind, half):
    return SHAPES[KINDS[kind][1]].format(half, 2 * half, round(0.35 * half, 1))


def _mark(kind):
    """A dot in the legend."""
    path, ink = _shape(kind, 5), KINDS[kind][0]
    return lambda x, y: f"<path d='{path}' transform='translate({x + 7} {y + 6})' class='f-{ink}'/>"


def _whisker(x, y):
    """The error of a prediction, in the legend."""
    return f"<path d='M{x + 7},{y - 1}v14m-4,0h8m0,-14h-8' class='s-fg' fill='none'/>"


def _dot(plan, place, across, up, fits):
    said = escape(f"{plan.name}: {seconds(plan.step)} a step, {amount(plan.memory)} a GPU")
    faint = "" if fits else "fill-opacity='.35'"
    at = f"translate({across.at(plan.memory):.1f} {up.at(plan.step):.1f})"
    return (
        f"<g data-plan='{place}' style='cursor:pointer'><title>{said}</title><path d='"
        f"{_shape(plan.kind, DOT)}' transform='{at}' class='f-{KINDS[plan.kind][0]}' {faint}/></g>"
    )


def _named(plan, across, up, words):
    """Words beside a dot, on the side where there is room."""
    x, y = across.at(plan.memory), up.at(plan.step)
    anchor, by = ("end", -16) if x > (LEFT + RIGHT) / 2 else ("start", 16)
    edge, words = "stroke-width='4' paint-order='stroke'", f"{words}: {seconds(plan.step)}"
    return text(x + by, y - 9, words, "fg s-bg", anchor=anchor, weight=650, extra=edge)


def _chosen(plan, across, up, band, best):
    """The chosen plan, large, with the error of such predictions."""
    x, y = across.at(plan.memory), up.at(plan.step)
    looks = f"class='f-{KINDS[plan.kind][0]} s-fg' stroke-width='2.5'"
    out = f"<path d='{_shape(plan.kind, CHOSEN)}' transform='translate({x:.1f} {y:.1f})' {looks}/>"
    if band:  # above the mark, which would hide a short one
        ends = [max(TOP, min(FOOT, up.at(t))) for t in (band[0], band[-1]) if t > 0]
        bar = f"M{x:.1f},{ends[0]:.1f}V{ends[-1]:.1f}"
        bar += "".join(f"M{x - 6:.1f},{end:.1f}h12" for end in ends)
        out += f"<path d='{bar}' class='s-bg' stroke-width='5'/>"
        out += f"<path d='{bar}' class='s-fg' stroke-width='2'/>"
    return out + _named(plan, across, up, "fastest shown that fits" if best else "this plan")


def kind_of(axes: dict[str, int]) -> str:
    """The kind of a plan, by the axes of its mesh that have more than one rank."""
    many = {name for name, size in axes.items() if size > 1}
    axis_of = {"experts": "ep", "context": "cp", "pipeline": "pp"}
    found = [kind for kind, axis in axis_of.items() if axis in many]
    return [*found, "tensor" if many & {"tp", "d1", "d2", "x", "y"} else "data"][0]

"""Trace -> timeline scene: a plain JSON dict that both the static SVG and the browser view draw.

Every rank has one lane: operations coloured by phase, and at its foot a thin strip for each axis
that communicates, and for copies. Where nothing is computed meanwhile, communication is exposed:
red, hatched and as high as computation. What is left is idle: grey, and named. Below, one bar has
the shares of the median step; the badge names the source of the numbers. A lane for each axis is
there too, for those who want the strips apart.

In the static SVG bars of one kind on one lane become one path, and bars closer than a fraction of a
pixel are drawn as one, so a trace of any length gives a small picture.

>>> from tpviz.core.trace import Event, Trace
>>> scene = timeline_scene(Trace.from_events([Event(name="mm", phase="forward", end=1e-3)]))
>>> scene["badge"], [lane["name"] for lane in scene["lanes"]]
('origin unknown', ['compute'])
"""

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from tpviz.core.checks import number, one_of, whole_number
from tpviz.core.inks import MEMORY_KINDS, axis_keys, phase_key
from tpviz.core.trace import Trace
from tpviz.core.trace.analyses import communication
from tpviz.core.trace.columns import codes
from tpviz.core.trace.steps import median_number, median_step, step_spans

from .lanes import Axis, bars, idle_word, spans
from .legend import key_of, legend
from .spent import spent, spent_bar
from .svg import (
    LINE,
    VIEW,
    amount,
    document,
    head,
    lines,
    meanings,
    pattern_defs,
    seconds,
    shape,
    text,
    width_of,
    wrapped,
)
from .timeline_bars import Bars, at_window
from .tokens import INKS

MEMORY_SAMPLES, LEAST_SAMPLES = 1500, 50  # of all steps together; of one
COMPUTE, COMM, GAP = 22, 13, 7
"""px: of computation, also where it is a lane with strips at its foot; of another lane; between
ranks."""


def timeline_scene(trace: Trace, critical: bool = False) -> dict[str, Any]:
    """The scene of a trace, ready for JSON; see `timeline_levels`."""
    return timeline_levels(trace, critical)[0]


def timeline_levels(trace: Trace, critical: bool = False) -> tuple[dict[str, Any], Bars]:
    """(scene, `Bars`) of a trace: what to draw at first, and what gives the detail of a window.

    The scene is a dict, ready for JSON: ``badge``, ``notes`` (sentences), ``title``, ``about`` (the
    title with all options), ``ranks``, ``duration`` (s), ``events`` (their number), ``lanes``
    (rank, name, axis, ``at``: as in `placed`), ``high`` and ``gutter`` (px of all lanes and left of
    them, in both forms), ``bars`` (columns of equal length; ``lane`` and ``key`` index ``lanes``
    and ``keys``, texts index ``strings``), ``exposed`` and ``idle`` (lane, start, end), ``steps``
    ([start, end] in s), ``first`` ([start, end] in s: what to show at first, the median step of
    several), ``critical`` (positions in ``bars``), ``memory`` ({rank: samples, bytes}), ``metrics``
    ([label, value], of the median step), ``spent`` (as `spent.spent`) and ``defs``. A trace of many
    events also has ``cut``, ``note`` and ``window``, as in `Bars.level`, and, with several steps,
    ``detail``: the level of ``first``. Raises ValueError where the trace has no events to draw, or
    is none.
    """
    if not isinstance(trace, Trace):
        raise ValueError(
            f"a timeline needs a Trace, not a {type(trace).__name__}; Trace.merge(traces) makes "
            "one of the traces of all ranks"
        )
    rows = np.flatnonzero(trace["kind"] != "step")
    if not len(rows):
        raise ValueError("the trace has no compute, communication or wait events: nothing to draw")
    zero = float(trace["start"].min())
    lanes, lane = _lanes(trace, rows)
    keys, key = _keys(trace, rows, lanes, lane)
    path = [event.id for event in trace.critical_path()] if critical else []
    bars = Bars(trace, rows, lane, key, zero, path)
    bars.mark(lanes, keys)
    level, spans = bars.level(), step_spans(trace)
    steps = [[float(start - zero), float(end - zero)] for start, end in zip(*spans[1:])]
    duration = float(max(trace["end"].max() - zero, 1e-9))
    first = steps[median_number(*spans[1:])] if len(steps) > 1 else [0.0, duration]
    whole = " on ".join(trace.fact(k) for k in ("strategy", "workload") if trace.fact(k))
    one = median_step(trace)
    scene = {
        "badge": trace.badge,
        "notes": [*meanings([trace.badge]), *trace.notes],
        "title": trace.fact("title") or whole,
        "about": whole,
        "ranks": sorted({lane["rank"] for lane in lanes}),
        "duration": duration,
        "events": len(rows),
        "lanes": lanes,
        "bars": level.pop("bars"),
        "keys": keys,
        "strings": level.pop("strings"),
        "exposed": level.pop("exposed"),
        "idle": level.pop("idle"),
        "steps": steps,
        "first": first,
        "critical": level.pop("critical"),
        "memory": _memory(trace, zero),
        "memory_keys": [
            {"column": c, **key_of(ink, "memory", "" if c in MEMORY_KINDS else c)}
            for c, ink in _memory_kinds(trace).items()
        ],
        "metrics": _metrics(one, len(steps)),
        "spent": spent(one),
        **placed(lanes),
        "defs": pattern_defs(),
        **level,
    }
    if "cut" in level and len(steps) > 1:
        low, high = first
        scene["detail"] = bars.level(low, high)
    return scene, bars


def _lanes(trace, rows):
    """(lanes, lane of each row), rank by rank: compute first, then each axis that has events."""
    axes = list(trace.fact("mesh")["axes"])
    axes += [_axis(n) for n in trace.lanes if n.startswith("comm/")]
    keys = axis_keys(axes)
    kinds, lane = codes(trace["lane"][rows])
    ranks, rank = np.unique(trace["rank"][rows], return_inverse=True)
    code = rank * len(kinds) + lane
    there = np.flatnonzero(np.bincount(code))
    present = {(int(ranks[i // len(kinds)]), str(kinds[i % len(kinds)])): i for i in there.tolist()}
    names = sorted({n for _, n in present} | {"compute"}, key=lambda n: _lane_order(n, list(keys)))
    pairs = [(r, n) for r in ranks.tolist() for n in names if (r, n) in present or n == "compute"]
    place = np.zeros(len(ranks) * len(kinds), np.int64)
    for i, pair in enumerate(pairs):
        if pair in present:
            place[present[pair]] = i
    lanes = [
        {
            "rank": r,
            "lane": n,
            "name": n.removeprefix("comm/"),
            "axis": _axis(n) if n.startswith("comm/") else "",
            "key": keys.get(_axis(n), "other"),
        }
        for r, n in pairs
    ]
    return lanes, place[code]


def placed(lanes: list[dict[str, Any]]) -> dict[str, list[int]]:
    """Give each lane its places ``at``, [y, height] in px: as one lane a rank, with strips at its
    foot for what is not computation, and as a lane for each. Returns ``high``, px of all lanes in
    the two forms, and ``gutter``, px of what stands left of them."""
    groups = [list(group) for _, group in groupby(lanes, lambda lane: lane["rank"])]
    thin = [[lane for lane in group if not lane["lane"].startswith("compute")] for group in groups]
    slot, high = 6 if max(map(len, thin)) < 3 else 4, [0, 0]
    for group, strips in zip(groups, thin):
        for lane in group:
            own, foot = COMPUTE if lane["lane"] == "compute" else COMM, high[0] + COMPUTE + 1
            at = [foot + slot * strips.index(lane), slot - 1] if lane in strips else None
            lane["at"] = [at or [high[0], COMPUTE], [high[1], own]]
            high[1] += own + 2
        high = [high[0] + COMPUTE + 1 + slot * len(strips) + GAP, high[1] + GAP]
    name = width_of(f"> rank {lanes[-1]['rank']}") + 16
    wide = max(name, *(width_of(lane["name"]) + 16 for lane in lanes))
    return {"high": high, "gutter": [round(name), round(wide)]}


def _axis(lane):
    """The axis of a lane of communication, whatever device it is of."""
    return lane.removeprefix("comm/").partition(" of device ")[0]


def _lane_order(name, axes):
    """Compute first, then the axes from the innermost (the busiest) outwards, then the rest."""
    axis = _axis(name)
    return (name != "compute", -axes.index(axis) if axis in axes else 1, name)


def _keys(trace, rows, lanes, lane):
    """(legend of the colours, colour of each row)."""
    kinds, kind = codes(trace["kind"][rows])
    phases, phase = codes(trace["phase"][rows])
    code = (lane * len(kinds) + kind) * len(phases) + phase
    tokens = {}
    for i in np.flatnonzero(np.bincount(code)).tolist():
        of_lane, which = divmod(i, len(kinds) * len(phases))
        what = kinds[which // len(phases)]
        inks = {"comm": lanes[of_lane]["key"], "wait": "wait", "copy": "copy"}
        tokens[i] = inks.get(what) or phase_key(str(phases[which % len(phases)]))
    axes = {lane["key"]: lane["axis"] for lane in lanes if lane["axis"]}
    used = [key for key in INKS if key in set(tokens.values())]
    kinds = {"wait": "wait", "copy": "copy", **dict.fromkeys(axes, "comm")}
    keys = [key_of(ink, kinds.get(ink, "compute"), axes.get(ink, "")) for ink in used]
    place = np.zeros(max(tokens) + 1, np.int64)
    for i, token in tokens.items():
        place[i] = used.index(token)
    return keys, place[code]


def _memory_kinds(trace):
    """{kind: ink}: ours, or in their place what an imported trace has, such as "allocated"."""
    samples = trace.fact("memory").values()
    found = dict.fromkeys(k for kinds in samples for k in kinds if k != "time")
    others = dict.fromkeys((k for k in found if k not in MEMORY_KINDS), "activations")
    return others if others and len(others) == len(found) else {**MEMORY_KINDS, **others}


def _memory(trace, zero):
    """{rank: columns}, thinned to about MEMORY_SAMPLES samples, keeping each stretch's peak.

    Memory followed in a step of its own, after the events, is laid under every step: following
    allocations slows a step, so `tpviz.run` does it in one more.
    """
    out, last, names = {}, trace["end"].max(), _memory_kinds(trace)
    for rank, samples in trace.fact("memory").items():
        time = np.asarray(samples["time"], dtype=float)
        if not len(time):
            continue
        mine = trace.select(rank=int(rank), kind="step")
        apart = len(mine) and np.median(time) > last
        spans = list(zip(mine["start"], mine["end"])) if apart else [(time[0], time[-1])]
        kinds = np.array([samples.get(c, [0] * len(time)) for c in names], dtype=np.int64)
        total, keep = kinds.sum(axis=0), np.arange(len(time))
        if len(time) > (most := max(MEMORY_SAMPLES // len(spans), LEAST_SAMPLES)):
            keep = np.array([c[total[c].argmax()] for c in np.array_split(keep, most)])
        part = (time[keep] - time[0]) / max(time[-1] - time[0], 1e-9)
        laid = np.concatenate([start + part * (end - start) for start, end in spans])
        out[str(rank)] = {
            "time": np.round(laid - zero, 9).tolist(),
            "peak": int(total.max()),
            "note": " (measured in an extra step, stretched to fit)" if apart else "",
            **{c: row[keep].tolist() * len(spans) for c, row in zip(names, kinds)},
        }
    return out


def _metrics(one, count):
    """The measured numbers of the headline, of the median step of several, as [label, value] of
    text: its time, then what communication does."""
    rows = [["step time" + f" (median of {count})" * (count > 1), seconds(one.step_time)]]
    if (one["kind"] == "comm").any():
        (overlap, bare), (share, waits) = scopes(one), communication(one)
        rows += [[overlap, f"{100 * share:.1f} %"], [bare, seconds(waits)]]
    return rows


def scopes(trace: Trace) -> tuple[str, str]:
    """The labels of `Trace.overlap` and `Trace.exposed_communication`: of several ranks the first
    is of all, the second of the worst."""
    several = len(trace.ranks) > 1
    names = "overlap", "exposed communication"
    return (f"{names[0]} (all ranks)", f"{names[1]} (worst rank)") if several else names


HEADER = ["rank", "lane", "what", "count", "time", "bytes"]


def to_table(scene: dict[str, Any]) -> list[list[str]]:
    """Rows of strings, header first: count and time per rank, lane and kind of event; and the time
    in which each rank is idle."""
    bars, lanes, keys, idle = (scene[name] for name in ("bars", "lanes", "keys", "idle"))
    count = bars.get("count") or [1] * len(bars["id"])
    busy = bars.get("busy") or [end - start for start, end in zip(bars["start"], bars["end"])]
    sums = {}
    for lane, key, *values in zip(bars["lane"], bars["key"], count, busy, bars["bytes"]):
        row = sums.get((lane, key), (0, 0.0, 0))
        values[-1] = np.nan if values[-1] < 0 else values[-1]
        sums[lane, key] = [a + b for a, b in zip(row, values)]
    for lane, start, end in zip(idle["lane"], idle["start"], idle["end"]):
        sums.setdefault((lane, len(keys)), ["", 0.0, 0])[1] += end - start
    table = [[*HEADER]]
    for lane, key in sorted(sums):
        count, time, size = sums[lane, key]
        info = keys[key] if key < len(keys) else {"label": INKS["idle"].label, "kind": "idle"}
        size = "unknown" if np.isnan(size) else amount(size)
        size = size if info["kind"] in ("comm", "copy") else ""
        row = [str(lanes[lane]["rank"]), lanes[lane]["name"], info["label"]]
        table.append([*row, str(count), seconds(time), size])
    return table


def describe(scene: dict[str, Any]) -> str:
    """The timeline in a few sentences, for readers who do not see it."""
    ranks, axes = scene["ranks"], sorted({lane["axis"] for lane in scene["lanes"]} - {""})
    what = f"Timeline of {scene['title']}" if scene["title"] else "Timeline"
    parts = [
        f"{what} ({scene['badge']}): {len(ranks)} rank{'s' * (len(ranks) > 1)}, "
        f"{scene['events']} events over {seconds(scene['duration'])}."
    ]
    parts.append(f"Communication on axis {', '.join(axes)}." if axes else "No communication.")
    time, *others = (f"{label} {value}" for label, value in scene["metrics"])
    parts.append("; ".join(filter(None, [time, scene["spent"]["words"], ", ".join(others)])) + ".")
    low, high = scene["first"]
    spans, bare = at_window(scene, low, high)["exposed"], {}
    for lane, start, end in zip(*(spans[c] for c in ("lane", "start", "end"))):
        rank = scene["lanes"][lane]["rank"]
        bare[rank] = bare.get(rank, 0.0) + max(min(end, high) - max(start, low), 0.0)
    if bare:
        parts.append(f"Rank {max(bare, key=bare.__getitem__)} has the most exposed communication.")
    return " ".join([*parts, *scene["notes"]])


# -- the picture -----------------------------------------------------------------------------------
RIGHT, HEAD, BLOCK = 24, 20, 44
MARKS = 100  # more beginnings and ends of steps than that would hatch the picture


def timeline_svg(
    scene: dict[str, Any],
    width: float = VIEW,
    theme: str = "auto",
    rank: int | None = None,
    window: Sequence[float] | None = None,
    axes: bool = False,
) -> str:
    """Draw a timeline scene.

    width in px; theme "light", "dark" or "auto"; rank whose memory is shown (default: the first);
    window (start, end) in s (default: the scene's ``first``); axes : a lane for each axis and
    stream, in place of one for each rank. Raises ValueError on an empty window, an unknown rank, or
    a width that leaves the lanes no room.
    """
    left, bottom = (scene[name][one_of("axes", axes, (True, False))] for name in ("gutter", "high"))
    if not number("width", width, 0, 1e6) > left + RIGHT:
        raise ValueError(f"width={width} px leaves the lanes no room: use more than {left + RIGHT}")
    low, high = check_window(window or scene["first"])
    rank = scene["ranks"][0] if rank is None else rank
    if not high > low:
        raise ValueError(
            f"window=({low}, {high}) is empty; use (start, end) within 0..{scene['duration']:g} s"
        )
    if whole_number("rank", rank, None) not in scene["ranks"]:
        raise ValueError(f"rank={rank} is not in this trace; it has {scene['ranks']}")
    scene, axis = at_window(scene, low, high), Axis(left, width - RIGHT, low, high)
    above = wrapped(
        ", ".join(f"{label} {value}" for label, value in scene["metrics"]), int(width / 6.97)
    )
    down = 34 + LINE * len(above)
    body = [_steps(scene, axis, bottom), axis.rules(-4, bottom, -8)]
    body += [_name(lane, left, axes) for lane in scene["lanes"]]
    body += [lane_svg(scene, i, axis, axes) for i in reversed(range(len(scene["lanes"])))]
    body.append(_critical(scene, axis, axes))
    body.append(text(10, bottom + 19, scene["spent"]["title"], weight=600))
    y, memory = bottom + 26, scene["memory"].get(str(rank))
    body.append(spent_bar(scene["spent"]["parts"], left, axis.right, y, BLOCK))
    y += BLOCK + 34
    if memory:
        body.append(_draw_memory(scene["memory_keys"], memory, rank, y + 14, axis))
        y += BLOCK + 34
    kinds = [(f"memory {k['key']}", k["label"]) for k in scene["memory_keys"] if memory]
    drawn, y = legend(marks(scene) + kinds, 10.0, y, width)
    body.append(drawn)
    said = wrapped(" ".join([*scene["notes"], scene.get("note", "")]).strip(), int(width / 6.97))
    body.append(lines(10, y + 29.5, said, 15, "muted"))
    y += 20 * bool(said) + 15 * (len(said) - 1) + down + HEAD
    parts = [pattern_defs(), head(scene), lines(10, 44, above, LINE)]
    parts += [f"<g transform='translate(0 {down + HEAD})'>", *body, "</g>"]
    return document(width, y + 22, parts, f"Timeline, {scene['badge']}", theme)


def check_window(window: Sequence[float]) -> list[float]:
    """(start, end) as floats; ``ValueError`` for anything else."""
    if not isinstance(window, (tuple, list)) or len(window) != 2:
        raise ValueError(f"window={window!r} must be (start, end) in seconds")
    return [number("window", edge, -1e12, 1e12) for edge in window]


def _steps(scene, axis, bottom):
    marks = [t for step in scene["steps"] for t in step if axis.low <= t <= axis.high]
    return "".join(
        f"<path d='M{axis.x(t):.1f},-4V{bottom}' class='s-muted'"
        " stroke-dasharray='2 3' fill='none'/>"
        for t in (marks if len(marks) <= MARKS else ())
    )


def _name(lane, left, axes):
    """What stands left of a lane."""
    top, height = lane["at"][axes]
    if lane["lane"] == "compute":
        return text(10, top + 15.5, f"rank {lane['rank']}", weight=600)
    return text(left - 6, top + height - 2.5, lane["name"], "muted", anchor="end") if axes else ""


def lane_svg(
    scene: dict[str, Any], index: int, axis: Axis, axes: bool, draw: Callable[..., str] = bars
) -> str:
    """What happens on a lane. axes : at its place where each axis has a lane; draw : as `bars`."""
    (top, height), bar = scene["lanes"][index]["at"][axes], scene["bars"]
    free, bare = (_times(scene[name], index) for name in ("idle", "exposed"))
    out = [spans(*axis.spans(*free), top, height, "idle")]
    out.append(idle_word(axis.x(free[0]), axis.x(free[1]), top, height))
    mine = np.array(bar["lane"]) == index
    key, start, end = (np.array(bar[c])[mine] for c in ("key", "start", "end"))
    for k, info in enumerate(scene["keys"]):
        x0, x1 = axis.spans(start[key == k], end[key == k])
        if info["kind"] != "wait" and len(x0):  # it is exposed communication, or idle
            out.append(draw(x0, x1, top, height, info["key"]))
    return "".join(out) + spans(*axis.spans(*bare), top, height, "exposed")


def _times(spent, index):
    """(starts, ends) of the spans of a lane, exposed communication or idle time."""
    return np.array([spent["start"], spent["end"]])[:, np.array(spent["lane"]) == index]


def _critical(scene, axis, axes):
    path = ""
    for i in scene["critical"]:
        lane = scene["bars"]["lane"][i]
        top, height = scene["lanes"][lane]["at"][axes]
        x0, x1 = (axis.x(scene["bars"][edge][i]) for edge in ("start", "end"))
        path += f"M{x0:.2f},{top}h{x1 - x0:.2f}v{height}h{x0 - x1:.2f}z"
    return f"<path d='{path}' class='s-fg' fill='none' stroke-width='1.6'/>" if path else ""


def _draw_memory(keys, memory, rank, top, axis):
    """Stacked steps of the four kinds, scaled to the rank's peak."""
    x = axis.x(np.append(memory["time"], max(axis.high, memory["time"][-1])))
    base, peak = np.zeros(len(memory["time"])), max(memory["peak"], 1)
    words = f"memory of rank {rank}, peak {amount(memory['peak'])}{memory['note']}"
    out = [text(10, top - 7, words, weight=600)]
    for y, down, label in ((0, 10, amount(memory["peak"])), (BLOCK, 0, "0 B")):
        line = f"M{axis.left - 4},{top + y:.1f}H{axis.right}"
        out.append(f"<path d='{line}' class='s-rule' fill='none'/>")
        out.append(text(axis.left - 6, top + y + down, label, "muted", anchor="end"))
    for info in keys:
        upper = base + memory[info["column"]]
        low, high = (top + BLOCK * (1 - v / peak) for v in (base, upper))
        forward = "".join(f"L{a:.1f},{y:.1f}H{b:.1f}" for a, b, y in zip(x, x[1:], high))
        back = "".join(
            f"L{b:.1f},{y:.1f}H{a:.1f}" for a, b, y in zip(x[-2::-1], x[:0:-1], low[::-1])
        )
        out.append(shape(f"M{forward[1:]}{back}z", f"{info['key']} s-bg", info["pattern"], THIN))
        base = upper
    return "".join(out)


THIN = "stroke-width='0.5'"


def marks(scene: dict[str, Any]) -> list[tuple[str, str]]:
    """(mark, words) of what is drawn and has no name beside it."""
    return [
        (info["key"], "communication " * (info["kind"] == "comm") + info["label"])
        for info in scene["keys"]
        if info["kind"] != "wait"
    ]

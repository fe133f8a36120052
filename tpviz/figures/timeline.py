"""Trace -> timeline scene: a plain JSON dict that both the static SVG and the browser view draw.

Every rank has a compute lane (operations coloured by phase, waits hatched) and one lane per
communication axis. Communication that no computation hides is marked on the compute lane in
translucent red, after the Dask dashboard's overlay. The badge says where the numbers come from.

>>> from tpviz.trace import Event, Trace
>>> scene = timeline_scene(Trace.from_events([Event(name="mm", phase="forward", end=1e-3)]))
>>> scene["badge"], [lane["name"] for lane in scene["lanes"]]
('origin unknown', ['compute'])
"""

from typing import Any

import numpy as np

from tpviz.trace import Trace
from tpviz.trace.columns import codes
from tpviz.trace.steps import median_number, step_spans

from .palette import INKS, MEMORY_KINDS, axis_keys, phase_key
from .svg import amount, pattern_defs, seconds
from .timeline_bars import Bars

MEMORY_SAMPLES = 1500


def timeline_scene(trace: Trace, critical: bool = False) -> dict[str, Any]:
    """The scene of a trace, ready for JSON; see `timeline_levels`."""
    return timeline_levels(trace, critical)[0]


def timeline_levels(trace: Trace, critical: bool = False) -> tuple[dict[str, Any], Bars]:
    """(scene, `Bars`) of a trace: what to draw at first, and what gives the detail of a window.

    The scene is a dict, ready for JSON: ``badge``, ``title``, ``ranks``, ``duration`` (s),
    ``lanes`` (rank, name, axis), ``bars`` (columns of equal length; ``lane`` and ``key`` index
    ``lanes`` and ``keys``, texts index ``strings``), ``exposed`` (lane, start, end), ``steps``
    ([start, end] in s), ``critical`` (positions in ``bars``), ``memory`` ({rank: samples, bytes}),
    ``metrics`` ([label, value]) and ``defs``. A trace of many events also has ``cut``, ``note`` and
    ``window``, as in `Bars.level`, and, with several steps, ``detail``: the level of the median
    step. Raises ValueError where the trace has no events to draw, or is none.
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
    bars.expose(lanes, keys)
    level, spans = bars.level(), step_spans(trace)
    steps = [[float(start - zero), float(end - zero)] for start, end in zip(*spans[1:])]
    scene = {
        "badge": trace.badge,
        "title": " on ".join(trace.fact(k) for k in ("strategy", "workload") if trace.fact(k)),
        "ranks": np.unique(trace["rank"][rows]).tolist(),
        "duration": float(max(trace["end"].max() - zero, 1e-9)),
        "lanes": lanes,
        "bars": level.pop("bars"),
        "keys": keys,
        "strings": level.pop("strings"),
        "exposed": level.pop("exposed"),
        "steps": steps,
        "critical": level.pop("critical"),
        "memory": _memory(trace, zero),
        "memory_keys": [
            {"column": c, "key": k, "label": INKS[k].label, "pattern": INKS[k].pattern}
            for c, k in MEMORY_KINDS.items()
        ],
        "metrics": _metrics(trace),
        "defs": pattern_defs(),
        **level,
    }
    if "cut" in level and len(steps) > 1:
        low, high = steps[median_number(*spans[1:])]
        scene["detail"] = bars.level(low, high)
    return scene, bars


def _lanes(trace, rows):
    """(lanes, lane of each row), rank by rank: compute first, then each axis that has events."""
    axes = list(trace.fact("mesh")["axes"])
    axes += [n.removeprefix("comm/") for n in trace.lanes if n.startswith("comm/")]
    keys = axis_keys(axes)
    found, lane = codes(trace["lane"][rows])
    ranks, rank = np.unique(trace["rank"][rows], return_inverse=True)
    code = rank * len(found) + lane
    there = np.flatnonzero(np.bincount(code))
    present = {(int(ranks[i // len(found)]), str(found[i % len(found)])): i for i in there.tolist()}
    names = sorted({n for _, n in present} | {"compute"}, key=lambda n: _lane_order(n, list(keys)))
    pairs = [(r, n) for r in ranks.tolist() for n in names if (r, n) in present or n == "compute"]
    place = np.zeros(len(ranks) * len(found), np.int64)
    for i, pair in enumerate(pairs):
        if pair in present:
            place[present[pair]] = i
    lanes = [
        {
            "rank": r,
            "lane": n,
            "name": n.removeprefix("comm/"),
            "axis": n.removeprefix("comm/") if n.startswith("comm/") else "",
            "key": keys.get(n.removeprefix("comm/"), "other"),
        }
        for r, n in pairs
    ]
    return lanes, place[code]


def _lane_order(name, axes):
    """Compute first, then the axes from the innermost (the busiest) outwards, then the rest."""
    axis = name.removeprefix("comm/")
    return (name != "compute", -axes.index(axis) if axis in axes else 1, name)


def _keys(trace, rows, lanes, lane):
    """(what the colours mean, colour of each row)."""
    kinds, kind = codes(trace["kind"][rows])
    phases, phase = codes(trace["phase"][rows])
    code = (lane * len(kinds) + kind) * len(phases) + phase
    tokens = {}
    for i in np.flatnonzero(np.bincount(code)).tolist():
        of_lane, which = divmod(i, len(kinds) * len(phases))
        what = kinds[which // len(phases)]
        tokens[i] = (
            lanes[of_lane]["key"]
            if what == "comm"
            else "wait"
            if what == "wait"
            else phase_key(str(phases[which % len(phases)]))
        )
    axes = {lane["key"]: lane["axis"] for lane in lanes if lane["axis"]}
    used = [key for key in INKS if key in set(tokens.values())]
    keys = [
        {
            "key": key,
            "label": axes.get(key, INKS[key].label),
            "pattern": INKS[key].pattern,
            "kind": "comm" if key in axes else "wait" if key == "wait" else "compute",
        }
        for key in used
    ]
    place = np.zeros(max(tokens) + 1, np.int64)
    for i, token in tokens.items():
        place[i] = used.index(token)
    return keys, place[code]


def _memory(trace, zero):
    """{rank: columns}, thinned to at most MEMORY_SAMPLES samples, keeping each stretch's peak."""
    out = {}
    for rank, samples in trace.fact("memory").items():
        if not len(samples["time"]):
            continue
        time, note = _memory_time(trace, np.asarray(samples["time"], dtype=float), int(rank))
        nothing = [0] * len(time)
        kinds = np.array([samples.get(c, nothing) for c in MEMORY_KINDS], dtype=np.int64)
        total, keep = kinds.sum(axis=0), np.arange(len(time))
        if len(time) > MEMORY_SAMPLES:
            keep = np.array([c[total[c].argmax()] for c in np.array_split(keep, MEMORY_SAMPLES)])
        out[str(rank)] = {
            "time": np.round(time[keep] - zero, 9).tolist(),
            "peak": int(total.max()),
            "note": note,
            **{c: row[keep].tolist() for c, row in zip(MEMORY_KINDS, kinds)},
        }
    return out


def _memory_time(trace, time, rank):
    """(times to draw at, a note). Memory seen in a step of its own is laid under the last one.

    Following allocations slows a step, so `tpviz.run` does it in one more step, after the events.
    """
    mine = trace.select(rank=rank, kind="step")
    if not len(mine) or np.median(time) <= trace["end"].max():
        return time, ""
    start, end = mine["start"][-1], mine["end"][-1]
    span = max(float(time[-1] - time[0]), 1e-9)
    return start + (time - time[0]) / span * (
        end - start
    ), " (seen in one more step, stretched to fit)"


def _metrics(trace):
    """The measured numbers of the headline, as [label, value] of text."""
    rows = [["step time", seconds(trace.step_time)]]
    if (trace["kind"] == "comm").any():
        steps = max(len(trace.steps), 1)
        rows += [
            ["overlap", f"{100 * trace.overlap():.1f} %"],
            ["exposed communication per step", seconds(trace.exposed_communication() / steps)],
        ]
    return rows


def to_table(scene: dict[str, Any]) -> list[list[str]]:
    """Rows of strings, header first: count and time per rank, lane and kind of event."""
    bars, lanes, keys = scene["bars"], scene["lanes"], scene["keys"]
    count = bars.get("count") or [1] * len(bars["id"])
    busy = bars.get("busy") or [end - start for start, end in zip(bars["start"], bars["end"])]
    sums = {}
    for lane, key, *values in zip(bars["lane"], bars["key"], count, busy, bars["bytes"]):
        row = sums.get((lane, key), (0, 0.0, 0))
        sums[lane, key] = [a + b for a, b in zip(row, values)]
    table = [["rank", "lane", "what", "count", "time", "bytes"]]
    for lane, key in sorted(sums):
        count, time, size = sums[lane, key]
        table.append(
            [
                str(lanes[lane]["rank"]),
                lanes[lane]["name"],
                keys[key]["label"],
                str(count),
                seconds(time),
                amount(size) if keys[key]["kind"] == "comm" else "",
            ]
        )
    return table


def event_count(scene: dict[str, Any]) -> int:
    """The events that a scene stands for, drawn one by one or merged."""
    return sum(scene["bars"].get("count") or [1] * len(scene["bars"]["id"]))


def describe(scene: dict[str, Any]) -> str:
    """The timeline in a few sentences, for readers who do not see it."""
    ranks, axes = scene["ranks"], sorted({lane["axis"] for lane in scene["lanes"]} - {""})
    what = f"Timeline of {scene['title']}" if scene["title"] else "Timeline"
    parts = [
        f"{what} ({scene['badge']}): {len(ranks)} rank{'s' * (len(ranks) > 1)}, "
        f"{event_count(scene)} events over {seconds(scene['duration'])}."
    ]
    parts.append("Communication on axis " + ", ".join(axes) + "." if axes else "No communication.")
    parts.append(", ".join(f"{label} {value}" for label, value in scene["metrics"]) + ".")
    bare = {}
    for lane, start, end in zip(*(scene["exposed"][c] for c in ("lane", "start", "end"))):
        rank = scene["lanes"][lane]["rank"]
        bare[rank] = bare.get(rank, 0.0) + end - start
    if bare:
        worst = max(bare, key=bare.__getitem__)
        parts.append(
            f"Rank {worst} has the most exposed communication, {seconds(bare[worst])} in all."
        )
    return " ".join(parts)

"""Trace -> timeline scene: a plain JSON dict that both the static SVG and the browser view draw.

Every rank has a compute lane (operations coloured by phase, waits hatched) and one lane per
communication axis. Communication that no computation hides is marked on the compute lane in
translucent red, after the Dask dashboard's overlay. The badge says where the numbers come from.

>>> from tpviz.trace import Event, Trace
>>> scene = timeline_scene(Trace.from_events([Event(name="mm", phase="forward", end=1e-3)]))
>>> scene["badge"], [lane["name"] for lane in scene["lanes"]]
('origin unknown', ['compute'])
"""

import numpy as np

from tpviz.trace import Trace
from tpviz.trace.analyses import merge

from .palette import INKS, MEMORY_KINDS, axis_keys, phase_key
from .svg import amount, pattern_defs, seconds

TEXT_COLUMNS = ("name", "phase", "layer", "members")
INT_COLUMNS = ("id", "flops", "bytes", "microbatch", "chunk", "step", "waits_for")
MEMORY_SAMPLES = 1500


def timeline_scene(trace, critical=False):
    """The scene of a trace, ready for JSON.

    Returns a dict: ``badge``, ``title``, ``ranks``, ``duration`` (s), ``lanes`` (rank, name, axis),
    ``bars`` (columns of equal length; ``lane`` and ``key`` index ``lanes`` and ``keys``, texts
    index ``strings``), ``exposed`` (lane, start, end), ``steps`` ([start, end] in s), ``critical``
    (positions in ``bars``), ``memory`` ({rank: samples, bytes}), ``metrics`` ([label, value]) and
    ``patterns``. Raises ValueError where the trace has no events to draw, or is none.
    """
    if not isinstance(trace, Trace):
        raise ValueError(
            f"a timeline needs a Trace, not a {type(trace).__name__}; Trace.merge(traces) makes "
            "one of the traces of all ranks"
        )
    drawn = trace.where(trace["kind"] != "step")
    if not len(drawn):
        raise ValueError("the trace has no compute, communication or wait events: nothing to draw")
    zero = float(trace["start"].min())
    lanes = _lanes(drawn)
    bars, keys, strings = _bars(drawn, lanes, zero)
    return {
        "badge": trace.badge,
        "title": " on ".join(
            trace.fact(k) for k in ("strategy", "workload") if trace.fact(k)
        ),
        "ranks": drawn.ranks,
        "duration": float(max(trace["end"].max() - zero, 1e-9)),
        "lanes": lanes,
        "bars": bars,
        "keys": keys,
        "strings": strings,
        "exposed": _exposed(bars, lanes, keys),
        "steps": _steps(trace, zero),
        "critical": _critical(trace, bars) if critical else [],
        "memory": _memory(trace, zero),
        "memory_keys": [
            {"column": c, "key": k, "label": INKS[k].label, "pattern": INKS[k].pattern}
            for c, k in MEMORY_KINDS.items()
        ],
        "metrics": _metrics(trace),
        "defs": pattern_defs(),
    }


def _lanes(trace):
    """Rank by rank: compute first, then each axis; an axis lane exists only where it has events."""
    axes = list(trace.fact("mesh")["axes"])
    axes += [n.removeprefix("comm/") for n in trace.lanes if n.startswith("comm/")]
    keys = axis_keys(axes)
    present = set(zip(trace["rank"].tolist(), trace["lane"].tolist()))
    names = sorted({n for _, n in present} | {"compute"}, key=lambda n: _lane_order(n, list(keys)))
    return [
        {
            "rank": r,
            "lane": n,
            "name": n.removeprefix("comm/"),
            "axis": n.removeprefix("comm/") if n.startswith("comm/") else "",
            "key": keys.get(n.removeprefix("comm/"), "other"),
        }
        for r in trace.ranks
        for n in names
        if (r, n) in present or n == "compute"
    ]


def _lane_order(name, axes):
    """Compute first, then the axes from the innermost (the busiest) outwards, then the rest."""
    axis = name.removeprefix("comm/")
    return (name != "compute", -axes.index(axis) if axis in axes else 1, name)


def _bars(trace, lanes, zero):
    """Columns of plain lists, sorted by lane and start; texts as indices into one string table."""
    lane_of = {(lane["rank"], lane["lane"]): i for i, lane in enumerate(lanes)}
    where = np.array([lane_of[k] for k in zip(trace["rank"].tolist(), trace["lane"].tolist())])
    order = np.lexsort((-trace["end"], trace["start"], where))
    kinds, phases = trace["kind"].tolist(), trace["phase"].tolist()
    tokens = [
        lanes[i]["key"] if kind == "comm" else "wait" if kind == "wait" else phase_key(phase)
        for i, kind, phase in zip(where.tolist(), kinds, phases)
    ]
    axes = {lane["key"]: lane["axis"] for lane in lanes if lane["axis"]}
    used = [key for key in INKS if key in set(tokens)]
    keys = [
        {
            "key": key,
            "label": axes.get(key, INKS[key].label),
            "pattern": INKS[key].pattern,
            "kind": "comm" if key in axes else "wait" if key == "wait" else "compute",
        }
        for key in used
    ]
    strings = {"": 0}
    bars = {
        name: [strings.setdefault(v, len(strings)) for v in trace[name][order].tolist()]
        for name in TEXT_COLUMNS
    }
    bars |= {name: trace[name][order].tolist() for name in INT_COLUMNS}
    place = {key: i for i, key in enumerate(used)}
    bars |= {
        "lane": where[order].tolist(),
        "key": [place[tokens[i]] for i in order.tolist()],
        "start": np.round(trace["start"][order] - zero, 9).tolist(),
        "end": np.round(trace["end"][order] - zero, 9).tolist(),
    }
    return bars, keys, list(strings)


def _exposed(bars, lanes, keys):
    """Per rank: communication outside every computation, as intervals on its compute lane."""
    lane, key = np.array(bars["lane"]), np.array(bars["key"])
    start, end = np.array(bars["start"]), np.array(bars["end"])
    kind = np.array([k["kind"] for k in keys])[key]
    rank = np.array([lane["rank"] for lane in lanes])[lane]
    out = {"lane": [], "start": [], "end": []}
    for i, row in enumerate(lanes):
        if row["lane"] != "compute":
            continue
        comm, work = (rank == row["rank"]) & (kind == "comm"), (lane == i) & (kind == "compute")
        bare = subtract(merge(start[comm], end[comm]), merge(start[work], end[work]))
        out["lane"] += [i] * len(bare[0])
        out["start"] += bare[0].tolist()
        out["end"] += bare[1].tolist()
    return out


def subtract(a, b):
    """The part of ``a`` outside ``b``; both, and the result, are merged (starts, ends)."""
    edges = np.concatenate([a[0], a[1], b[0], b[1]])
    change = np.repeat([1, -1, -2, 2], [len(a[0]), len(a[1]), len(b[0]), len(b[1])])
    order = np.argsort(edges, kind="stable")
    edges, inside = edges[order], np.cumsum(change[order])[:-1] == 1
    return merge(edges[:-1][inside], edges[1:][inside])


def _steps(trace, zero):
    spans = [trace.select(kind="step", step=s) for s in trace.steps]
    return [[float(s["start"].min() - zero), float(s["end"].max() - zero)] for s in spans]


def _critical(trace, bars):
    place = {event: i for i, event in enumerate(bars["id"])}
    return [place[e.id] for e in trace.critical_path() if e.id in place]


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


def to_table(scene):
    """Rows of strings, header first: count and time per rank, lane and kind of event."""
    bars, lanes, keys = scene["bars"], scene["lanes"], scene["keys"]
    sums = {}
    for lane, key, start, end, size in zip(
        bars["lane"], bars["key"], bars["start"], bars["end"], bars["bytes"]
    ):
        row = sums.setdefault((lane, key), [0, 0.0, 0])
        row[0], row[1], row[2] = row[0] + 1, row[1] + end - start, row[2] + size
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


def describe(scene):
    """The timeline in a few sentences, for readers who do not see it."""
    ranks, axes = scene["ranks"], sorted({lane["axis"] for lane in scene["lanes"]} - {""})
    what = f"Timeline of {scene['title']}" if scene["title"] else "Timeline"
    parts = [
        f"{what} ({scene['badge']}): {len(ranks)} rank{'s' * (len(ranks) > 1)}, "
        f"{len(scene['bars']['id'])} events over {seconds(scene['duration'])}."
    ]
    parts.append("Communication on axis " + ", ".join(axes) + "." if axes else "No communication.")
    parts.append(", ".join(f"{label} {value}" for label, value in scene["metrics"]) + ".")
    bare = {}
    for lane, start, end in zip(*(scene["exposed"][c] for c in ("lane", "start", "end"))):
        rank = scene["lanes"][lane]["rank"]
        bare[rank] = bare.get(rank, 0.0) + end - start
    if bare:
        worst = max(bare, key=bare.get)
        parts.append(
            f"Rank {worst} has the most exposed communication, {seconds(bare[worst])} in all."
        )
    return " ".join(parts)

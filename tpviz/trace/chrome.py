"""Chrome trace JSON for Perfetto (https://ui.perfetto.dev) and chrome://tracing, read back exactly.

A process is a rank, a thread is a lane. Every event of the table is a complete event ("X") in
microseconds, rounded to whole nanoseconds as Perfetto keeps them; its ``args`` hold the table's own
row, with the exact seconds. Arrows run from the issue of a collective through it to the wait it
ends; memory is a counter track. `Trace.meta` and the version of this layout lie under the key
"tpviz".

>>> load_trace(to_chrome(trace, "step.json.gz"))          # doctest: +SKIP
<Trace 4 ranks, 812 events, this machine, gloo>
"""

import math
from bisect import bisect_right
from itertools import count

import numpy as np

from .files import write_json
from .load import FORMAT, ISSUE, load_trace
from .shapes import SURROGATES, Nested, fitting
from .table import Event

__all__ = ["load_trace", "to_chrome"]

_DEFAULTS = Event()._asdict()


def to_chrome(trace, path):
    """Write ``trace`` to ``path`` (*.json or *.json.gz) and return the path.

    Raises ValueError for another suffix, for times that are not finite, and for a meta that JSON
    cannot hold.
    """
    if not (np.isfinite(trace["start"]).all() and np.isfinite(trace["end"]).all()):
        raise ValueError(f"{path}: the trace holds times that are not finite numbers")
    lanes = _Tracks(trace)
    rows = list(trace)
    events = _names(trace, lanes)
    events += [_slice(e, lanes.index[track]) for e, track in zip(rows, lanes.of_row)]
    events += _arrows(rows, lanes)
    events += _counters(trace)
    header = {"format": FORMAT, "meta": _plain(fitting(Nested(), trace.meta, f"{path}: meta: "))}
    return write_json(path, {"tpviz": header, "displayTimeUnit": "ms", "traceEvents": events})


class _Tracks:
    """Thread numbers. Events of one lane that overlap get own threads, as viewers need nesting.

    ``of_row``: (lane, turn) of rows; ``index``: {(lane, turn): thread number}, in drawing order.
    """

    def __init__(self, trace):
        self.of_row = [None] * len(trace)
        free = {}
        order = np.lexsort((trace["end"], trace["start"])).tolist()
        start, end = trace["start"].tolist(), trace["end"].tolist()
        lane, rank = trace["lane"].tolist(), trace["rank"].tolist()
        for row in order:
            ends = free.setdefault((rank[row], lane[row]), [])
            turn = next((i for i, until in enumerate(ends) if until <= start[row]), len(ends))
            ends[turn : turn + 1] = [end[row]]
            self.of_row[row] = (lane[row], turn)
        used = sorted({*self.of_row, ("compute", 0)}, key=_place)
        self.index = {track: i for i, track in enumerate(used, start=used[0][0] != "step")}


def _place(track):
    """Sorting key: steps on top, then compute, then the other lanes by name."""
    lane, turn = track
    return lane != "step", lane != "compute", lane, turn


def _names(trace, lanes):
    """Metadata events: names and order of ranks and lanes."""
    tracks = set(zip(trace["rank"].tolist(), lanes.of_row))
    tracks |= {(rank, ("compute", 0)) for rank in trace.ranks}
    events = []
    for rank in trace.ranks:
        events += _label("process", rank, 0, f"rank {rank}", rank)
    for rank, (lane, turn) in sorted(tracks):
        thread = lanes.index[lane, turn]
        events += _label("thread", rank, thread, f"{lane} ({turn + 1})" if turn else lane, thread)
    return events


def _label(what, rank, thread, name, order):
    place = {"ph": "M", "pid": rank, "tid": thread}
    return [
        {**place, "name": f"{what}_name", "args": {"name": name}},
        {**place, "name": f"{what}_sort_index", "args": {"sort_index": order}},
    ]


def _nanoseconds(seconds):
    return round(seconds * 1e9)


def _slice(event, thread):
    start = _nanoseconds(event.start)
    args = {
        k: v
        for k, v in event._asdict().items()
        if v != _DEFAULTS[k] and k not in ("name", "kind", "rank")
    }
    return {
        "ph": "X",
        "name": event.name,
        "cat": event.kind,
        "pid": event.rank,
        "tid": thread,
        "ts": start / 1e3,
        "dur": (_nanoseconds(event.end) - start) / 1e3,
        "args": args,
    }


def _arrows(rows, lanes):
    """Flow events, and the slices they start from: viewers drop arrows that start outside one."""
    by_id = {e.id: (e, track) for e, track in zip(rows, lanes.of_row)}
    marks = _marks(rows)
    compute, events, number = lanes.index["compute", 0], [], count(1)
    for wait in rows:
        if wait.kind != "wait" or wait.waits_for not in by_id:
            continue
        source, track = by_id[wait.waits_for]
        issue = _nanoseconds(source.start)
        length = _room(marks[source.rank], issue)
        arrive = min(max(_nanoseconds(wait.start), issue + length), _nanoseconds(wait.end))
        there = {"pid": source.rank, "ts": issue / 1e3}
        flow = {"name": source.name, "cat": "waits for", "id": next(number)}
        slice_ = {"name": f"issue {source.name}", "cat": ISSUE, "dur": length / 1e3}
        events += [
            {"ph": "X", "tid": compute, **there, **slice_},
            {"ph": "s", "tid": compute, **there, **flow},
            {"ph": "t", "tid": lanes.index[track], **there, **flow},
            {"ph": "f", "bp": "e", "tid": compute, "pid": wait.rank, "ts": arrive / 1e3, **flow},
        ]
    return events


def _marks(rows):
    """{rank: sorted nanoseconds} of issues, and of starts and ends on the compute lane."""
    marks = {}
    for e in rows:
        of_rank = marks.setdefault(e.rank, [])
        of_rank.append(_nanoseconds(e.start))
        if e.kind in ("compute", "wait"):
            of_rank.append(_nanoseconds(e.end))
    return {rank: sorted(times) for rank, times in marks.items()}


def _room(marks, issue):
    """Nanoseconds an issue slice may last: up to 1 us, and well before the next mark, to nest."""
    following = bisect_right(marks, issue)
    gap = marks[following] - issue if following < len(marks) else 2000
    return max(1, min(1000, gap // 2))


def _counters(trace):
    for rank, samples in trace.fact("memory").items():
        kinds = [kind for kind in samples if kind != "time"]
        for i, time in enumerate(samples["time"]):
            yield {
                "ph": "C",
                "name": "memory (bytes)",
                "pid": int(rank),
                "tid": 0,
                "ts": _nanoseconds(time) / 1e3,
                "args": {kind: int(samples[kind][i]) for kind in kinds},
            }


def _plain(value):
    """``value`` as strict JSON: NumPy values as Python's, NaN as {"float": "nan"}."""
    if isinstance(value, dict):
        return {_plain(str(k)): _plain(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v) for v in value]
    if isinstance(value, (np.ndarray, np.generic)):
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}
    if isinstance(value, str):
        return SURROGATES.sub("\ufffd", value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise ValueError(
        f"the trace's meta holds a {type(value).__name__}, which JSON cannot hold: {value!r}"
    )

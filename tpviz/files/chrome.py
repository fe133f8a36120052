"""Chrome trace JSON for Perfetto (https://ui.perfetto.dev) and chrome://tracing, read back exactly.

A process is a rank, a thread is a lane. Every event of the table is a complete event ("X") in
microseconds, rounded to whole nanoseconds as Perfetto keeps them; its ``args`` hold the table's own
row, with the exact seconds. Arrows run from the issue of a collective through it to the wait it
ends; memory is a counter track. `Trace.meta` and the version of this layout lie under the key
"tpviz".

>>> load_trace(to_chrome(trace, "step.json.gz"))          # doctest: +SKIP
<Trace 4 ranks, 812 events, this machine, gloo>
"""

import json
import math
from functools import lru_cache
from itertools import chain, count
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tpviz.core.trace.columns import Event, codes
from tpviz.core.trace.critical import rows_of
from tpviz.core.trace.shapes import SURROGATES, Nested, fitting

from .files import BATCH, FORMAT, ISSUE, as_texts, write_events

if TYPE_CHECKING:
    from tpviz.core.trace.table import Trace

_DEFAULTS = Event()._asdict()
OWN = "id", "start", "end", "step", "seq", "waits_for"
SHARED = tuple(name for name in _DEFAULTS if name not in ("rank", "kind", "name", *OWN))
"""The columns that many rows have in common."""


def to_chrome(trace: "Trace", path: str | PathLike[str]) -> Path:
    """Write ``trace`` to ``path`` (*.json or *.json.gz) and return the path.

    Raises ValueError for another suffix, for times that are not finite, and for a meta that JSON
    cannot hold.
    """
    nanoseconds = [np.rint(trace[name] * 1e9) for name in ("start", "end")]
    if not all(np.isfinite(times).all() for times in nanoseconds):
        raise ValueError(f"{path}: the trace holds times that are not finite numbers")
    header = {"format": FORMAT, "meta": _plain(fitting(Nested(), trace.meta, f"{path}: meta: "))}
    lanes = _Tracks(trace)
    texts = chain(
        as_texts(_names(trace, lanes)),
        _slices(trace, lanes.thread, *nanoseconds),
        _arrows(trace, lanes, *nanoseconds),
        as_texts(_counters(trace)),
    )
    return write_events(path, {"tpviz": header, "displayTimeUnit": "ms"}, texts)


class _Tracks:
    """Thread numbers. Events of one lane that overlap get own threads, as viewers need nesting.

    ``thread``: number of each row; ``index``: {(lane, turn): thread number}, in drawing order.
    """

    def __init__(self, trace):
        lanes, lane = codes(trace["lane"])
        group = np.unique(trace["rank"], return_inverse=True)[1] * len(lanes) + lane
        turn = _turns(group, trace["start"], trace["end"])
        width = int(turn.max(initial=0)) + 1
        pairs, pair = np.unique(lane * width + turn, return_inverse=True)
        tracks = [(str(lanes[i // width]), i % width) for i in pairs.tolist()]
        used = sorted({*tracks, ("compute", 0)}, key=_place)
        self.index = {track: i for i, track in enumerate(used, start=used[0][0] != "step")}
        self.thread = np.array([self.index[track] for track in tracks], np.int64)[pair]


def _turns(group, start, end):
    """For each row the first of its group's threads that is free when it starts."""
    turn, order = np.zeros(len(group), np.int64), np.lexsort((end, start, group))
    again = order[1:][(np.diff(group[order]) == 0) & (start[order][1:] < end[order][:-1])]
    crowded = order[np.isin(group[order], group[again])]
    free, before = [], -1
    for row, of, begin, until in zip(
        *(column.tolist() for column in (crowded, *(c[crowded] for c in (group, start, end))))
    ):
        if of != before:
            free, before = [], of
        first = next((i for i, t in enumerate(free) if t <= begin), len(free))
        free[first : first + 1] = [until]
        turn[row] = first
    return turn


def _place(track):
    """Sorting key: steps on top, then compute, then the other lanes by name."""
    lane, turn = track
    return lane != "step", lane != "compute", lane, turn


def _names(trace, lanes):
    """Metadata events: names and order of ranks and lanes."""
    track = {thread: track for track, thread in lanes.index.items()}
    tracks = set()
    for rank in trace.ranks:
        threads = np.unique(lanes.thread[trace["rank"] == rank]).tolist()
        tracks |= {(rank, track[thread]) for thread in threads}
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


def _slices(trace, thread, start, end):
    """The table's rows. What rows have in common is made into text once."""
    heads = {}
    for first in range(0, len(trace), BATCH):
        part, texts = slice(first, first + BATCH), []
        shared = (*(trace[name][part] for name in ("name", "kind", "rank", *SHARED)), thread[part])
        times = start[part] / 1e3, (end[part] - start[part]) / 1e3
        own = (*times, *(trace[name][part] for name in OWN))
        rows = zip(zip(*(c.tolist() for c in shared)), zip(*(c.tolist() for c in own)))
        for key, (ts, duration, number, begin, until, step, seq, source) in rows:
            head = heads.get(key)
            if head is None:
                if len(heads) >= BATCH:
                    heads.clear()
                head = heads[key] = _head(*key)
            more = f', "step": {step}' if step != -1 else ""
            if seq != -1:
                more += f', "seq": {seq}'
            if source != -1:
                more += f', "waits_for": {source}'
            texts.append(
                f'{head}"id": {number}, "start": {begin!r}, "end": {until!r}{more}}}, '
                f'"ts": {ts:.3f}, "dur": {duration:.3f}}}'
            )
        yield ", ".join(texts)


def _head(name, kind, rank, *rest):
    """The text of an event up to the columns that are its own."""
    *values, thread = rest
    args = {k: v for k, v in zip(SHARED, values) if v != _DEFAULTS[k]}
    event = {"ph": "X", "name": name, "cat": kind, "pid": rank, "tid": thread, "args": args}
    return json.dumps(event, allow_nan=False)[:-2] + (", " if args else "")


def _arrows(trace, lanes, start, end):
    """Flow events, and the slices they start from: viewers drop arrows that start outside one."""
    waits = np.flatnonzero(trace["kind"] == "wait")
    source = rows_of(trace, trace["waits_for"][waits])
    waits, source = waits[source >= 0], source[source >= 0]
    length = _rooms(trace, source, start, end)
    arrive = np.minimum(np.maximum(start[waits], start[source] + length), end[waits])
    columns = (
        lanes.thread[source],
        trace["rank"][source],
        trace["rank"][waits],
        start[source] / 1e3,
        length / 1e3,
        arrive / 1e3,
        trace["name"][source],
    )
    tid, number = lanes.index["compute", 0], count(1)
    for first in range(0, len(waits), BATCH):
        rows = zip(*(c[first : first + BATCH].tolist() for c in columns), number)
        yield ", ".join(_arrow(tid, *row) for row in rows)


def _arrow(tid, thread, rank, to, issue, length, arrive, name, number):
    there = f'"pid": {rank}, "ts": {issue:.3f}'
    slice_ = f'"name": {_text(f"issue {name}")}, "cat": "{ISSUE}", "dur": {length:.3f}'
    flow = f'"name": {_text(name)}, "cat": "waits for", "id": {number}'
    return (
        f'{{"ph": "X", "tid": {tid}, {there}, {slice_}}}, '
        f'{{"ph": "s", "tid": {tid}, {there}, {flow}}}, '
        f'{{"ph": "t", "tid": {thread}, {there}, {flow}}}, '
        f'{{"ph": "f", "bp": "e", "tid": {tid}, "pid": {to}, "ts": {arrive:.3f}, {flow}}}'
    )


_text = lru_cache(BATCH)(json.dumps)


def _rooms(trace, rows, start, end):
    """Nanoseconds an issue slice may last: up to 1 µs, and well before the rank's next issue, or
    start or end on the compute lane, to nest."""
    issue, room = start[rows], np.full(len(rows), 2000.0)
    ends = np.isin(trace["kind"], ["compute", "wait"])
    for rank in np.unique(trace["rank"][rows]):
        mine, of_rank = trace["rank"][rows] == rank, trace["rank"] == rank
        marks = np.sort(np.concatenate([start[of_rank], end[of_rank & ends], [np.inf]]))
        following = marks[np.searchsorted(marks, issue[mine], "right")]
        room[mine] = np.minimum(following - issue[mine], 2000.0)
    return np.maximum(1.0, room // 2)


def _counters(trace):
    for rank, samples in trace.fact("memory").items():
        kinds = [kind for kind in samples if kind != "time"]
        for i, time in enumerate(samples["time"]):
            yield {
                "ph": "C",
                "name": "memory (bytes)",
                "pid": int(rank),
                "tid": 0,
                "ts": round(time * 1e9) / 1e3,
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

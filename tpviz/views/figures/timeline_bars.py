"""Which events a picture of a time range draws one by one, and which it merges.

Up to `BARS` events are drawn as they are. Of more, the shortest are merged: those of one lane and
kind that begin in the same short interval become one bar, as long as their sum, with their number.
Nothing here loops over events, so that a million take a second.
"""

import itertools
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from tpviz.core.trace import Trace
from tpviz.core.trace.analyses import idle_spans, merge, subtract

from .svg import seconds

BARS = 20_000
TEXT_COLUMNS = ("name", "phase", "layer", "members")
INT_COLUMNS = ("id", "flops", "bytes", "microbatch", "chunk", "step", "waits_for")
SUMS = ("flops", "bytes")


class Bars:
    """The events of a trace as bars, for any stretch of time.

    rows : positions in the trace of the events to draw; lane, key : of each, as integers; zero :
    the time at which the picture begins (s); critical : ids of the events to outline.
    """

    def __init__(
        self,
        trace: Trace,
        rows: np.ndarray,
        lane: np.ndarray,
        key: np.ndarray,
        zero: float,
        critical: Sequence[int] = (),
    ):
        start, end = trace["start"][rows], trace["end"][rows]
        order = np.lexsort((-end, start, lane))
        self.trace, self.rows, self.lane, self.key = trace, rows[order], lane[order], key[order]
        self.start, self.end = np.round(start[order] - zero, 9), np.round(end[order] - zero, 9)
        self.until = float(trace["end"].max() - zero)
        self.critical = _places(trace["id"][self.rows], critical)
        self.zero, self.spans = zero, {}

    def __len__(self):
        return len(self.rows)

    def mark(self, lanes: list[dict[str, Any]], keys: list[dict[str, Any]]) -> None:
        """Find, for the compute lane of each rank, the communication outside every computation,
        and the time of the steps in which the rank is idle (`tpviz.core.trace.analyses.idle`)."""
        kinds = np.array([k["kind"] for k in keys])
        rank = np.array([lane["rank"] for lane in lanes])[self.lane]  # in order, as lanes are
        does = [(kinds == k)[self.key] for k in ("comm", "compute")]
        idle, spans = idle_spans(self.trace), {"exposed": [], "idle": []}
        for i, lane in enumerate(lanes):
            if lane["lane"] == "compute":
                mine = slice(*np.searchsorted(rank, [lane["rank"], lane["rank"] + 1]))
                times = self.start[mine], self.end[mine]
                bare = subtract(*(merge(*(t[m[mine]] for t in times)) for m in does))
                free = (np.round(t - self.zero, 9) for t in idle[lane["rank"]])
                for name, (start, end) in (("exposed", bare), ("idle", free)):
                    spans[name].append((np.full(len(start), i), start, end))
        self.spans = {
            name: tuple(map(np.concatenate, zip(*found))) for name, found in spans.items()
        }

    def level(self, low: float = -np.inf, high: float = np.inf, most: int = BARS) -> dict[str, Any]:
        """What a picture of the time from low to high (s) draws, in at most about ``most`` bars.

        A dict with a scene's ``bars``, ``strings``, ``exposed``, ``idle`` and ``critical``. Unless
        that is every event there is, it has ``note``, which says so; ``window`` [low, high]; and
        ``cut``: events shorter than that (s) are merged, 0 for none. Then ``bars`` has two more
        columns, ``count``, the events of a bar, and ``busy``, their seconds together.
        """
        inside = np.flatnonzero((self.end >= low) & (self.start <= high))
        low, high = max(low, 0.0), min(high, self.until)
        lane, start, end = (column[inside] for column in (self.lane, self.start, self.end))
        code = lane * (int(self.key.max()) + 1) + self.key[inside]
        bar, cut = _merged(code, start, end, low, high, most)
        first, count, busy, start, end = _drawn(lane, start, end, bar, low, cut)
        order = np.lexsort((-end, start, lane[first])) if cut else bar
        columns, strings = self._columns(inside, bar, first[order], count[order], order)
        columns |= {"start": start[order].tolist(), "end": end[order].tolist()}
        spans = {name: self._spans(name, low, high, most // 4) for name in self.spans}
        level = {"bars": columns, "strings": strings, **spans}
        at = np.searchsorted(inside, self.critical)
        at = at[inside[np.minimum(at, len(inside) - 1)] == self.critical] if len(inside) else at[:0]
        level["critical"] = list(dict.fromkeys(np.argsort(order)[bar[at]].tolist()))
        if not cut and len(inside) == len(self):
            return level
        if cut:
            columns |= {"count": count[order].tolist(), "busy": busy[order].tolist()}
        note = self._note(len(inside), int((count == 1).sum()), cut)
        return {**level, "window": [low, high], "cut": cut, "note": note}

    def _columns(self, inside, bar, first, count, order):
        """The columns of the bars but their times, and the texts they refer to."""
        strings = defaultdict(itertools.count(1).__next__, {"": 0})
        here, alone, columns = inside[first], count == 1, {}
        rows = self.rows[here]
        for name in TEXT_COLUMNS:
            texts = self.trace[name][rows]
            texts = texts if alone.all() else np.where(alone, texts, "")
            columns[name] = [*map(strings.__getitem__, texts.tolist())]
        for name in INT_COLUMNS:
            values = np.where(alone, self.trace[name][rows], -1)
            if name in SUMS and not alone.all():
                own, values = self.trace[name][self.rows[inside]], np.zeros(len(first), np.int64)
                np.add.at(values, bar, own)
                values[bar[own < 0]] = -1  # of unknown ones no sum is known
                values = values[order]
            columns[name] = values.tolist()
        return columns | {"lane": self.lane[here].tolist(), "key": self.key[here].tolist()}, list(
            strings
        )

    def _spans(self, name, low, high, most):
        """The exposed communication or the idle time of a level: its lanes, starts and ends."""
        near = (self.spans[name][2] > low) & (self.spans[name][1] < high)
        lane, start, end = (column[near] for column in self.spans[name])
        bar, cut = _merged(lane, start, end, low, high, most)
        first, _, _, start, end = _drawn(lane, start, end, bar, low, cut)
        return {"lane": lane[first].tolist(), "start": start.tolist(), "end": end.tolist()}

    def _note(self, count, alone, cut):
        where = "" if count == len(self) else " of this range"
        if not cut:
            return f"All {count:,} events{where} are drawn; the trace has {len(self):,}."
        return (
            f"{alone:,} of the {count:,} events{where} are drawn one by one; those shorter than "
            f"{seconds(cut)} and close together are merged. The numbers cover all events."
        )


def at_window(scene: dict[str, Any], low: float, high: float) -> dict[str, Any]:
    """The scene with its ``detail`` in place of its bars, where that has all of the window."""
    detail, slack = scene.get("detail"), 1e-9 * scene["duration"]
    if detail and detail["window"][0] - slack <= low and high <= detail["window"][1] + slack:
        return {**scene, **detail}
    return scene


def _places(ids, wanted):
    """Where the events with the ids wanted stand in ``ids``; those that are not there are left
    out."""
    wanted = np.asarray(wanted, np.int64)
    order = np.argsort(ids, kind="stable")
    at = np.searchsorted(ids[order], wanted, "right") - 1
    return order[at][ids[order][at] == wanted] if len(wanted) else wanted


def _merged(code, start, end, low, high, most):
    """(number of the bar of each row, the length below which rows are merged).

    Rows of one code are in order of start. Those shorter than an interval share a bar with the
    others of their code and interval; the intervals are as short as ``most`` bars allow.
    """
    if len(code) <= most:
        return np.arange(len(code)), 0.0
    order = np.argsort(code, kind="stable")
    code, start, length, pieces = code[order], start[order], (end - start)[order], most
    while True:
        cut = (high - low) / pieces
        short = length < cut
        piece = _piece(start[short], low, cut)
        opens = np.ones(len(piece), bool)
        opens[1:] = (np.diff(piece) != 0) | (np.diff(code[short]) != 0)
        bars = len(code) - len(piece) + opens.sum()
        if bars <= most or pieces == 1:
            break
        pieces = max(1, int(pieces * max(0.25, 0.95 * most / bars)))
    number, bar = np.empty(len(code), np.int64), np.empty(len(code), np.int64)
    number[short] = np.cumsum(opens) - 1
    number[~short] = opens.sum() + np.arange(len(code) - len(piece))
    bar[order] = number
    return bar, cut


def _piece(start, low, cut):
    return np.maximum((start - low) / cut, 0).astype(np.int64)


def _drawn(lane, start, end, bar, low, cut):
    """(first row, number of rows, seconds, start, end) of each bar.

    Merged bars of one lane and interval are laid side by side within the time they cover.
    """
    if not cut:
        return bar, np.ones_like(bar), end - start, start, end
    count = np.bincount(bar)
    first = np.full(len(count), len(bar))
    np.minimum.at(first, bar, np.arange(len(bar)))
    busy, starts, ends = np.bincount(bar, end - start), start[first], end[first]
    many = np.flatnonzero(count > 1)
    if not len(many):
        return first, count, busy, starts, ends
    np.maximum.at(ends, bar, end)
    piece, of_lane = _piece(starts[many], low, cut), lane[first[many]]
    order = np.lexsort((starts[many], piece, of_lane))
    many, opens = many[order], np.ones(len(many), bool)
    opens[1:] = (np.diff(piece[order]) != 0) | (np.diff(of_lane[order]) != 0)
    group, begins = np.cumsum(opens) - 1, np.flatnonzero(opens)
    begin, room = starts[many][begins], np.maximum.reduceat(ends[many], begins)
    together, before = np.bincount(group, busy[many]), np.cumsum(busy[many]) - busy[many]
    scale = np.minimum(1.0, (room - begin) / np.maximum(together, 1e-12))[group]
    at = begin[group] + (before - before[begins][group]) * scale
    starts[many], ends[many] = np.round(at, 9), np.round(at + busy[many] * scale, 9)
    return first, count, np.round(busy, 9), starts, ends

"""What follows from all ranks' profiles together: steps in GPU time, which collectives match across
ranks, and sentences on what no file tells.

All functions take the rows of the table as dicts, in order of start; some by rank.
"""

from collections import Counter, defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from tpviz.core.trace.columns import UNKNOWN, Event
from tpviz.core.trace.rows import table_of
from tpviz.core.trace.table import Trace

Rows = list[dict[str, Any]]
_TOGETHER = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no rank leaves before every other one has come."""
_ROOM = 1 << 20
"""Characters of names that any trace may take, however long one of them is."""


def by_gpu_time(rows: dict[int, Rows]) -> list[str]:
    """Set steps to the GPUs' own time if one of them is still at work on a step when its host has
    ended it. A step is then from the first computation that it launched until that of the next
    step (the last one until the last of its work ends); those that launched nothing are left out.
    """
    if not any(_behind(of_rank) for of_rank in rows.values()):
        return []
    empty = 0
    for of_rank in rows.values():
        steps = {f["step"]: f for f in of_rank if f["kind"] == "step"}
        begins, ends = _spans(of_rank)
        for number, step in steps.items():
            if number in begins:
                step["start"], step["end"] = begins[number], ends[number]
        of_rank[:] = [f for f in of_rank if f["kind"] != "step" or f["step"] in begins]
        empty += len(steps.keys() - begins.keys())
    left = f"; {_count(empty, 'step')} launched nothing and left out" if empty else ""
    return [f"steps by the GPUs' own time, as they run behind their hosts{left}"]


def _behind(rows):
    """Whether work goes on when the step that launched it has ended on the host."""
    until = {f["step"]: f["end"] for f in rows if f["kind"] == "step"}
    return any(f["end"] > until[f["step"]] for f in rows if f["step"] in until)


def _spans(rows):
    """({step: begin}, {step: end}) by the work that each launched. Begins are on one stream, as
    a copy ahead of its step would draw that step out."""
    begins, ends = {}, {}
    for f in rows:
        if f["step"] >= 0 and f["kind"] != "step":
            ends[f["step"]] = max(ends.get(f["step"], f["end"]), f["end"])
            if f.get("lane") == "compute":
                begins.setdefault(f["step"], f["start"])
    for a, b in pairwise(sorted(begins)):
        if b == a + 1:
            ends[a] = max(begins[b], begins[a])
    return begins, ends


def traced(rows: dict[int, Rows], owner: dict[int, Path], meta: dict[str, Any]) -> Trace:
    """The `Trace` of these rows by rank. owner : the file of each rank, which errors name."""
    found = [f for of_rank in rows.values() for f in of_rank]
    events = [Event(**{k: f[k] for k in Event._fields if k in f}) for f in found]
    table = table_of(events, lambda row: f"{owner[events[row].rank]}: {events[row].name!r}: ")
    return Trace(table, {"badge": "imported", **meta}).rebased()


def said(rows: dict[int, Rows]) -> list[str]:
    """All that is to be said of the rows, which are numbered and shortened."""
    found = [f for of_rank in rows.values() for f in of_rank]
    return [*in_order(rows), *notes_of(found), *shortened(found)]


def in_order(rows: dict[int, Rows]) -> list[str]:
    """Number the collectives of unknown groups ("seq"), stream by stream, where all ranks have the
    same sequences of them and no rank left one before another came: then the n-th of each belong
    together, as far as anyone can tell."""
    ranks = {rank: _sequences(of_rank) for rank, of_rank in rows.items()}
    first = next(iter(ranks.values()))
    names = [[[f["name"] for f in s] for s in of_rank] for of_rank in ranks.values()]
    if len(ranks) < 2 or not first:
        return []
    what = f"collectives of unknown groups of {len(ranks)} ranks"
    if any(other != names[0] for other in names):
        return [f"{what} not matched: their sequences differ"]
    together = [list(zip(*streams)) for streams in zip(*ranks.values())]
    matched = [members for stream in together for members in stream]
    for members in matched:
        late = max(f["start"] for f in members)
        if members[0]["name"] in _TOGETHER and min(f["end"] for f in members) < late:
            return [f"{what} not matched: one ends before another rank begins it"]
    for number, members in enumerate(matched):
        for f in members:
            f["seq"] = number
    return [f"{what} matched by their order, which is the same on all: assumed to be one group"]


def _sequences(rows):
    """The collectives of unknown groups, a list for each lane and stream."""
    streams = defaultdict(list)
    for f in rows:
        if f["kind"] == "comm" and f["axis"] == UNKNOWN and not f["members"]:
            streams[f["lane"], str(f.get("stream"))].append(f)
    return [streams[key] for key in sorted(streams)]


def shortened(rows: Rows) -> list[str]:
    """Cut names that are so long that room for them in every row, as the table has it, would take
    many times the room of the names themselves."""
    total = sum(len(f["name"]) for f in rows)
    width = max(64, (4 * total + _ROOM) // max(len(rows), 1))
    long = {f["name"] for f in rows if len(f["name"]) > width}
    for f in rows:
        if f["name"] in long:
            f["name"] = f["name"][: width - 1] + "\u2026"
    return [f"{_count(len(long), 'name')} of over {width} characters cut"] if long else []


def notes_of(rows: Rows) -> list[str]:
    """Sentences on what the trace files do not tell about these rows."""
    comm = [f for f in rows if f["kind"] == "comm"]
    work = [f for f in rows if f["kind"] != "step"]
    alone = [f for f in work if not f.get("launched", True)]
    by_name = Counter(f["name"] for f in comm if f.get("by_name"))
    lanes = {f.get("lane", "") for f in rows}
    devices = {lane.rpartition(" of device ")[2] for lane in lanes if " of device " in lane}
    found = {
        "group unknown": [f for f in comm if f["axis"] == UNKNOWN],
        "members unknown": [f for f in comm if f["axis"] != UNKNOWN and not f["members"]],
        "bytes unknown": [f for f in comm if f["bytes"] < 0],
    }
    notes = [
        f"{what}: {_count(len(which), 'collective')}" for what, which in found.items() if which
    ]
    if by_name:
        listed = ", ".join(f"{n} {name}" for name, n in by_name.most_common(4))
        notes.append(f"recognised as communication by name, not NCCL's: {listed}")
    if alone:
        notes.append(
            f"launched before the profile, or by a call that is not in it: {len(alone)} of "
            f"{len(work)} kernels and copies, in no step"
        )
    if devices:
        notes.append(f"{1 + len(devices)} devices in one rank: busy where any of them is")
    return notes


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'s' * (number != 1)}"

"""Import of Chrome traces of any program: JAX's profiles, and whatever else writes the format.

A process is a rank and a thread a lane. A thread does one thing at a time: the event begun last; so
events that nest are cut into pieces, and no time counts twice. What communicates is told by its
name, as kernels are (`tpviz.files.names.COMM_KERNELS`), with all that lies inside it; its group and
bytes are unknown. Where processes are devices ("/device:GPU:0", of JAX), those of the host are left
out, as are threads that say the same again in other words ("XLA Modules").
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

from tpviz.core.trace.columns import UNKNOWN
from tpviz.core.trace.table import Trace

from .files import place
from .kineto import checked_events
from .kineto_across import said, traced
from .kineto_events import comm_fields
from .names import communication

_DEVICE = "/device:"
_STEPS = "Steps"
_AGAIN = (
    *("XLA Modules", "XLA TraceMe", "Source", "Source code", "Launch Stats"),
    *(f"{by} {what}" for by in ("Framework", "TensorFlow") for what in ("Ops", "Name Scope")),
)


def from_programs(files: Sequence[tuple[Path, dict[str, Any], int | None]]) -> Trace:
    """One `Trace` of (path, loaded JSON object, rank or None) triples; the rank counts for files of
    one process. Raises ValueError, with the path, for damaged events and for files without any
    event that lasts."""
    rows, names, owner, unpaired = {}, [], {}, 0
    for path, data, rank in files:
        events, left = paired(path, data["traceEvents"])
        unpaired += left
        processes = _processes(checked_events(path, events), _Names(events))
        if not processes:
            raise ValueError(
                f"{path}: a Chrome trace, but with no event that lasts (ph 'X', or 'B' and 'E')"
            )
        for process, threads in processes.items():
            number = rank if rank is not None and len(processes) == 1 else len(rows)
            owner[number] = path
            rows[number] = sorted(_rows(number, threads), key=lambda f: f["start"])
            names.append(f"{number} is {process}")
    notes = [f"processes taken as ranks: {', '.join(names[:4])}"]
    notes += [f"{unpaired} events that begin or end only: left out"] if unpaired else []
    notes += said(rows)
    meta = {"source": "Chrome", "files": [path.name for path, *_ in files]}
    return traced(rows, owner, {**meta, "world_size": len(rows), "notes": notes})


def paired(path: Path, events: list[Any]) -> tuple[list[Any], int]:
    """(events, number unmatched). Each begin "B" and its end "E" become one complete event ("X") in
    the place of the begin."""
    found, begun, alone = list(events), defaultdict(list), 0
    for number, e in enumerate(events):
        if not isinstance(e, dict) or e.get("ph") not in ("B", "E"):
            continue
        if not isinstance(e.get("ts"), (int, float)):
            raise ValueError(f"{place(path, number)}ts is {e.get('ts')!r}, not a number")
        stack = begun[str(e.get("pid")), str(e.get("tid"))]
        if e["ph"] == "B":
            stack.append(number)
        elif stack:
            first = stack.pop()
            begin = events[first]
            found[first] = {**begin, "ph": "X", "dur": max(e["ts"] - begin["ts"], 0)}
        else:
            alone += 1
    return found, alone + sum(map(len, begun.values()))


class _Names:
    """What the file calls its processes and threads."""

    def __init__(self, events):
        self.names = {}
        for e in events:
            if isinstance(e, dict) and e.get("ph") == "M" and isinstance(e.get("args"), dict):
                key = e.get("name"), str(e.get("pid")), str(e.get("tid"))
                self.names[key[:2] if key[0] == "process_name" else key] = e["args"].get("name")

    def process(self, event):
        return str(self.names.get(("process_name", str(event["pid"]))) or f"process {event['pid']}")

    def thread(self, event):
        key = "thread_name", str(event["pid"]), str(event["tid"])
        return str(self.names.get(key) or f"thread {event['tid']}")


def _processes(events, names):
    """{name of the process: {name of the thread: events}} of what is to be shown, in order."""
    found = defaultdict(lambda: defaultdict(list))
    for e in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        if e["dur"] > 0:
            e = {**e, "pid": e.get("pid"), "tid": e.get("tid")}
            found[names.process(e)][names.thread(e)].append(e)
    devices = [name for name in found if name.startswith(_DEVICE)]
    return {
        name: {thread: of for thread, of in found[name].items() if thread not in _AGAIN}
        for name in sorted(devices or found)
    }


def _rows(rank, threads):
    """The table's rows of one process, as dicts."""
    steps = threads.pop(_STEPS, [])
    spans = [(e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6) for e in steps]
    numbers = [int(e["name"]) if e["name"].isdecimal() else i for i, e in enumerate(steps)]
    found = {thread: list(_pieces(events)) for thread, events in threads.items()}
    busy = {
        thread: sum(end - start for start, end, _, comm in pieces if not comm)
        for thread, pieces in found.items()
    }
    main = max(busy, key=busy.__getitem__, default="")
    for (start, end), number in zip(spans, numbers):
        row = {"kind": "step", "lane": "step", "name": f"step {number}", "step": number}
        yield {**row, "rank": rank, "start": start, "end": end}
    for thread, pieces in found.items():
        lane = "compute" if thread == main else f"compute/{thread}"
        for start, end, name, comm in pieces:
            row = {"kind": "compute", "name": name, "lane": lane}
            row = comm_fields(comm, rank, UNKNOWN, [], -1) if comm else row
            step = [n for n, (low, high) in zip(numbers, spans) if low <= start < high]
            more = {"step": step[0] if step else -1, "stream": thread}
            yield {**row, **more, "rank": rank, "start": start, "end": end}


def _pieces(events) -> Iterator[tuple[float, float, str, str | None]]:
    """(start, end, name, what it communicates or None) of a thread: at any time the event begun
    last. Events come in order of start, outer before inner."""
    stack, at, communicates = [], -inf, -inf
    for e in [*events, None]:
        begin, ends = (e["ts"], e["ts"] + e["dur"]) if e else (inf, inf)
        if ends <= communicates:
            continue  # a part of that communication
        while stack and at < begin:
            name, comm, end = stack[-1]
            if end > at:
                until = min(end, begin)
                yield at * 1e-6, until * 1e-6, name, comm
                at = until
            if end <= at:
                stack.pop()
        at = max(at, begin)
        if e:
            stack.append((e["name"], communication(e["name"]), ends))
            communicates = ends if stack[-1][1] else communicates

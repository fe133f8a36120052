"""Import of Kineto traces, the files of ``torch.profiler``'s ``export_chrome_trace``.

With GPU kernels in the file, a kernel is a computation, or a communication where its name says so
(`tpviz.files.names.COMM_KERNELS`), and copies and memsets (HTA's "memory" kernels) are copies.
Without, the computations are the *outermost* operators that are not autograd's wrappers and issue
no collective, so that no time counts twice. gloo's communications are its annotations ``gloo:*``,
on its own threads. Kineto does not record who waits for what, so there are no wait events.

Axes and members of groups come from the collective's own arguments, or from those of the call
around its launch. torch 2.13 records none for gloo, and many GPU profiles have none; they are then
known only where the file's ``pg_config`` has one group to choose from, and "unknown" elsewhere.
``meta["notes"]`` says what is unknown, assumed, or in no step.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tpviz.core.trace.shapes import (
    Fields,
    FiniteNumber,
    List,
    Misfit,
    Plain,
    Rank,
    Text,
    WholeNumber,
    check_all,
    fitting,
)
from tpviz.core.trace.table import Trace

from .files import claim, complete_events, place
from .kineto_across import by_gpu_time, said, traced
from .kineto_events import ELEMENTS, cpu_events, gloo_events, gpu_events, spans_at

# What releases before torch 1.12 call the categories, and what Meta's MTIA does.
_OTHER_CATEGORIES = {
    "mtia_ccp_events": "kernel",
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
}
_WORK = {*_OTHER_CATEGORIES.keys() - {"Runtime"}, *_OTHER_CATEGORIES.values()} - {"cuda_runtime"}
_PHASES = ("forward", "backward", "sync", "recompute", "optimizer")


def is_profile(data: dict[str, Any]) -> bool:
    """Whether a loaded file holds what torch.profiler records: operators, kernels, collectives."""
    return any(
        isinstance(e, dict)
        and (str(e.get("cat")) in _WORK or str(e.get("name")).startswith("gloo:"))
        for e in data["traceEvents"]
    )


def from_kineto(files: Sequence[tuple[Path, dict[str, Any], int | None]]) -> Trace:
    """One `Trace` of (path, loaded JSON object, rank or None where the file itself says it), one
    per rank, on one clock starting at zero.

    Raises ValueError, with the path, for ranks that clash and for damaged events.
    """
    profiles = sorted((_Profile(*file) for file in files), key=lambda p: p.rank)
    owner = {}
    for p in profiles:
        claim(owner, p.path, [p.rank])
    origin = min(p.begin_ns for p in profiles)
    rows, notes = {}, []
    for p in profiles:
        rows[p.rank] = _rows(p, (p.begin_ns - origin) * 1e-9)
    if any(p.on_gpu for p in profiles):
        notes += by_gpu_time(rows)
    notes += said(rows)
    for of_rank in rows.values():
        _number(of_rank)
    return traced(rows, owner, _meta(profiles, notes, origin))


def _meta(profiles, notes, origin):
    first = profiles[0].data
    devices = first.get("deviceProperties") or []
    memory = {p.rank: p.memory((p.begin_ns - origin) * 1e-9) for p in profiles}
    meta = {
        "source": "Kineto",
        "files": [p.path.name for p in profiles],
        "world_size": profiles[0].info.get("world_size") or len(profiles),
        "device": devices[0].get("name") or "cuda" if devices else "cpu",
        "memory": {rank: samples for rank, samples in memory.items() if samples["time"]},
        "notes": notes,
    }
    return {key: value for key, value in meta.items() if value or key != "memory"}


class _Profile:
    """One rank's file: its complete events with times in seconds since the first of them."""

    def __init__(self, path, data, rank):
        self.path, self.data = path, information(path, data)
        self.info = self.data.get("distributedInfo") or {}
        self.rank = (self.info.get("rank") or 0) if rank is None else rank
        self.groups = {str(g.get("pg_name")): g for g in self.info.get("pg_config") or []}
        self.events = self._complete(data["traceEvents"])
        self.begin = min(e["ts"] for e in self.events)
        for e in self.events:
            since = e["ts"] - self.begin  # before the duration, which 1970 would round
            e["start"], e["end"] = since * 1e-6, (since + e["dur"]) * 1e-6
        # Whole nanoseconds: seconds since 1970 in floating point are good to a microsecond only.
        self.begin_ns = (self.data.get("baseTimeNanoseconds") or 0) + round(self.begin * 1000)
        self.on_gpu = any(e["cat"] == "kernel" for e in self.events)

    def memory(self, offset: float) -> dict[str, list[float]]:
        """Bytes allocated on the GPUs (on the CPU where there are none) at each change."""
        times, totals, last, kind = [], [], {}, int(self.on_gpu)
        samples = [e for e in self.data["traceEvents"] if e.get("name") == "[memory]"]
        for e in sorted(checked_memory(self.path, samples), key=lambda e: e["ts"]):
            args = e["args"]
            if args.get("Device Type", kind) == kind:
                last[args.get("Device Id", 0)] = args["Total Allocated"]
                times.append((e["ts"] - self.begin) * 1e-6 + offset)
                totals.append(sum(last.values()))
        return {"time": times, "allocated": totals}

    def _complete(self, events):
        """Complete events in order of start, outer before inner."""
        found = checked_events(self.path, events)
        for e in found:
            if e["cat"] == "mtia_ccp_events" and e["name"].startswith("dma"):
                e["cat"], e["args"] = "gpu_memcpy", {"bytes": e["args"].get("size"), **e["args"]}
            e["cat"] = _OTHER_CATEGORIES.get(e["cat"], e["cat"])
            e["tid"] = (e.get("pid"), e.get("tid"))
        return sorted(found, key=lambda e: (e["ts"], -e["dur"]))


def _rows(profile, offset) -> list[dict[str, Any]]:
    """The table's rows of one rank as dicts, ``offset`` seconds after the first rank's begin, in
    order of start; "issued" is done with, and "order" is that of a collective's issue."""
    phases = spans_at(
        profile.events,
        lambda e: _phase(e["name"]) if e["cat"] in ("user_annotation", "cpu_op") else "",
    )
    steps = [
        (e["start"], e["end"], int(e["name"].partition("#")[2]))
        for e in profile.events
        if re.fullmatch(r"ProfilerStep#\d{1,18}", e["name"]) and e["cat"] == "user_annotation"
    ]

    def phase_at(thread, time):
        return phases(thread, time) or ""

    work = gpu_events if profile.on_gpu else cpu_events
    found = [*work(profile, phase_at), *gloo_events(profile, phase_at)]
    found.sort(key=lambda f: f["start"])
    found += [
        {"kind": "step", "lane": "step", "name": f"step {n}", "start": start, "end": end}
        for start, end, n in steps
    ]
    for fields in found:
        issued = fields.pop("issued", fields["start"])  # a GPU is behind its host
        index = -1 if issued is None else bisect_right(steps, issued, key=lambda s: s[0]) - 1
        inside = index >= 0 and issued <= steps[index][1]
        fields |= {"rank": profile.rank, "step": steps[index][2] if inside else -1}
        fields |= {"launched": issued is not None}
        for time in ("start", "end"):
            fields[time] += offset
    return found


def _number(found):
    """Fill in seq, counting in order of issue ("order") in each group; the file's own stays."""
    turn = Counter()
    for fields in sorted(found, key=lambda f: f.get("order", f["start"])):
        message = fields.get("name") in ("send", "recv")
        # Who the messages of a larger group go to is not recorded.
        if fields.get("members") and not (message and fields["members"].count(",") != 1):
            key = (fields["members"], message)
            fields.setdefault("seq", turn[key])
            turn[key] += 1


def _phase(name):
    if name.startswith("autograd::engine::evaluate_function"):
        return "backward"
    if name.startswith("Optimizer.step"):
        return "optimizer"
    return name if name in _PHASES else ""


# -- what a file may hold in the fields that are read here; all others may be anything -------------
# Numbers that Kineto writes as numbers pass as text, too, where they stand for a whole number.
_LONG_AGO = 1e17
"""Microseconds before and after 1970 that are a time: 3000 years."""


class _Object:
    """An object; None passes for an empty one."""

    def check(self, value):
        """A dict."""
        if value is not None and not isinstance(value, dict):
            raise Misfit(value, "an object")
        return value or {}

    def column(self, values):
        """The values, if all are objects."""
        return values if {dict}.issuperset(map(type, values)) else None


class _Ranks(Text):
    """Ranks as in "[0, 1]", a list of them, or a list cut short with "..."."""

    pattern = re.compile(r"\s*\[?\s*(\d{1,9}(\s*,\s*\d{1,9})*)?\s*\]?\s*")

    def check(self, value):
        """A text."""
        text = str(value) if isinstance(value, list) else value
        if not isinstance(text, str) or not ("..." in text or self.pattern.fullmatch(text)):
            raise Misfit(value, "a list of ranks such as '[0, 1]'")
        return text


EVENT = {
    **dict.fromkeys(("pid", "tid"), Plain()),
    **dict.fromkeys(("name", "cat"), Text()),
    "ts": FiniteNumber(-_LONG_AGO, _LONG_AGO),
    "dur": FiniteNumber(0, _LONG_AGO),
    "args": _Object(),
}
NEEDED = ("name", "ts", "dur")
ARGS = {
    **dict.fromkeys(
        ("correlation", "External id", "external id", "stream", "Process Group Name"), Plain()
    ),
    **dict.fromkeys(("Collective name", "Process Group Description", "dtype"), Text()),
    "Process Group Ranks": _Ranks(),
    "Group size": Rank(1, digits=True),
    **dict.fromkeys(("Global rank start", "Global rank stride"), WholeNumber(-1, digits=True)),
    "device": Plain(),
    **dict.fromkeys(("bytes", "size"), WholeNumber(-1, digits=True)),
    **dict.fromkeys(("In msg nelems", "Out msg nelems"), WholeNumber(-1, ELEMENTS, digits=True)),
    "Seq": WholeNumber(-1, digits=True),
}
INFO = Fields(
    {
        "distributedInfo": Fields(
            {
                "rank": Rank(0, digits=True),
                "world_size": Rank(1, digits=True),
                "pg_config": List(
                    Fields({"pg_name": Plain(), "pg_desc": Text(), "ranks": List(Rank(0))})
                ),
            }
        ),
        "deviceProperties": List(Fields({"name": Text()})),
        "baseTimeNanoseconds": WholeNumber(digits=True),
    }
)


_SAMPLE = Fields(
    {
        "ts": EVENT["ts"],
        "args": Fields(
            dict.fromkeys(("Total Allocated", "Device Type", "Device Id"), WholeNumber(digits=True))
        ),
    },
    ("ts", "args"),
)


def checked_events(path: Path, events: list[Any]) -> list[dict[str, Any]]:
    """Copies of the complete events ("X"), with the fields here checked and ``args`` in each.

    Raises ``ValueError`` that names the file, the event and the field.
    """
    found, numbers = [], []
    for number, event in complete_events(path, events, NEEDED):
        found.append({"cat": "", "args": {}, **event})
        numbers.append(number)
    check_all(EVENT, found, lambda row: place(path, numbers[row]))
    arguments = [event["args"] for event in found]
    check_all(ARGS, arguments, lambda row: place(path, numbers[row]) + "args.")
    return found


def checked_memory(path: Path, events: list[Any]) -> list[dict[str, Any]]:
    """The samples of memory among ``events``, checked."""
    found = [fitting(_SAMPLE, e, f"{path}: a sample of memory: ") for e in events]
    return [e for e in found if "Total Allocated" in e["args"]]


def information(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The object ``data`` of a file with what it says about the run checked; ``ValueError``."""
    return fitting(INFO, data, f"{path}: ")

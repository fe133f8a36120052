"""Import of Kineto traces, the files of ``torch.profiler``'s ``export_chrome_trace``.

With GPU kernels in the file, a kernel is a computation and an NCCL kernel a communication; copies
and memsets (HTA's "memory" kernels) are left out, and counted in ``meta["left_out"]``. Without, the
computations are the *outermost* operators that are not autograd's wrappers and issue no collective,
so that no time counts twice. gloo's communications are its annotations ``gloo:*``, on its own
threads. Kineto does not record who waits for what, so there are no wait events.

Axes and members of groups come from the collective's own arguments. torch 2.13 records none for
gloo; they are then known only where the file's ``pg_config`` has one group to choose from.
"""

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .columns import Event
from .files import complete_events, place
from .kineto_events import ELEMENTS, cpu_events, gloo_events, gpu_events
from .rows import table_of
from .shapes import Fields, List, Misfit, Number, Plain, Rank, Text, Whole, check_all, fitting
from .table import Trace

_MEMORY = ("gpu_memcpy", "gpu_memset")
# What releases before torch 1.12 call the categories.
_OLD_CATEGORIES = {
    "Kernel": "kernel",
    "Memcpy": "gpu_memcpy",
    "Memset": "gpu_memset",
    "Operator": "cpu_op",
    "Runtime": "cuda_runtime",
}
_PHASES = ("forward", "backward", "sync", "recompute", "optimizer")


def from_kineto(files: Sequence[tuple[Path, dict[str, Any]]]) -> Trace:
    """One `Trace` of (path, loaded JSON object) pairs, one per rank, on one clock starting at zero.

    Raises ValueError, with the path, for files without a rank (if there are several), for ranks
    that clash, for damaged events, and where there is neither an operator nor a kernel nor a
    collective.
    """
    profiles = [_Profile(path, data, alone=len(files) == 1) for path, data in files]
    owner = {}
    for p in profiles:
        if p.rank in owner:
            raise ValueError(
                f"{p.path.parent}: {owner[p.rank].name} and {p.path.name} both say rank {p.rank}; "
                "a folder is one run, with one file per rank"
            )
        owner[p.rank] = p.path
    origin = min(p.begin_ns for p in profiles)
    events, left_out = [], Counter()
    for p in sorted(profiles, key=lambda p: p.rank):
        events += _events(p, (p.begin_ns - origin) * 1e-9)
        left_out.update(e["cat"] for e in p.events if e["cat"] in _MEMORY)
    table = table_of(events, lambda row: f"{owner[events[row].rank]}: {events[row].name!r}: ")
    return Trace(table, _meta(profiles, left_out)).rebased()


def _meta(profiles, left_out):
    first = profiles[0].data
    devices = first.get("deviceProperties") or []
    meta = {
        "badge": "imported",
        "source": "Kineto",
        "files": [p.path.name for p in profiles],
        "world_size": profiles[0].info.get("world_size") or len(profiles),
        "device": devices[0].get("name") or "cuda" if devices else "cpu",
    }
    return {**meta, "left_out": dict(left_out)} if left_out else meta


class _Profile:
    """One rank's file: its complete events with times in seconds since the first of them."""

    def __init__(self, path, data, alone):
        self.path, self.data = path, information(path, data)
        self.info = self.data.get("distributedInfo") or {}
        self.rank = self._rank(self.info.get("rank"), alone)
        self.groups = {str(g.get("pg_name")): g for g in self.info.get("pg_config") or []}
        self.events = self._complete(data["traceEvents"])
        begin = min(e["ts"] for e in self.events)
        for e in self.events:
            e["start"], e["end"] = (e["ts"] - begin) * 1e-6, (e["ts"] + e["dur"] - begin) * 1e-6
        # Whole nanoseconds: seconds since 1970 in floating point are good to a microsecond only.
        self.begin_ns = (self.data.get("baseTimeNanoseconds") or 0) + round(begin * 1000)
        self.on_gpu = any(e["cat"] == "kernel" for e in self.events)

    def _rank(self, rank, alone):
        in_name = re.search(r"rank[_-]?(\d+)", self.path.name)
        if rank is None and in_name:
            rank = in_name[1]
        if rank is None and not alone:
            raise ValueError(
                f"{self.path}: names no rank, neither in distributedInfo nor in its name; name "
                "the files of a run rank0.json, rank1.json, ..."
            )
        return fitting(Rank(digits=True), rank or 0, f"{self.path}: rank: ")

    def _complete(self, events):
        """Complete events in order of start, outer before inner."""
        found = checked_events(self.path, events)
        for e in found:
            e["cat"] = _OLD_CATEGORIES.get(e["cat"], e["cat"])
            e["tid"] = (e.get("pid"), e.get("tid"))
        if not any(
            e["cat"] in ("kernel", "cpu_op") or e["name"].startswith("gloo:") for e in found
        ):
            raise ValueError(
                f"{self.path}: a Chrome trace, but with no operator (cat 'cpu_op'), GPU kernel "
                "(cat 'kernel') or gloo collective in it; is it by torch.profiler?"
            )
        return sorted(found, key=lambda e: (e["ts"], -e["dur"]))


def _events(profile, offset):
    """The table's rows of one rank, ``offset`` seconds after the first rank's begin."""
    phase_at = _phases(profile.events)
    steps = [
        (e["start"], e["end"], int(e["name"].partition("#")[2]))
        for e in profile.events
        if re.fullmatch(r"ProfilerStep#\d{1,18}", e["name"]) and e["cat"] == "user_annotation"
    ]
    compute = gpu_events if profile.on_gpu else cpu_events
    found = [*compute(profile, phase_at), *gloo_events(profile, phase_at)]
    found = sorted(_numbered(found), key=lambda f: f["start"])
    found += [
        {"kind": "step", "lane": "step", "name": f"step {n}", "start": start, "end": end}
        for start, end, n in steps
    ]
    for fields in found:
        issued = fields.pop("issued", fields["start"])  # a GPU is behind its host
        index = bisect_right(steps, issued, key=lambda s: s[0]) - 1
        inside = index >= 0 and issued <= steps[index][1]
        yield Event(
            **{
                **fields,
                "rank": profile.rank,
                "step": steps[index][2] if inside else -1,
                "start": fields["start"] + offset,
                "end": fields["end"] + offset,
            }
        )


def _numbered(found):
    """Fill in seq, counting in order of issue ("order") in each group; the file's own stays."""
    turn = Counter()
    for fields in sorted(found, key=lambda f: f.get("order", f["start"])):
        fields.pop("order", None)
        message = fields.get("name") in ("send", "recv")
        # Who the messages of a larger group go to is not recorded.
        if fields.get("members") and not (message and fields["members"].count(",") != 1):
            key = (fields["members"], message)
            fields.setdefault("seq", turn[key])
            turn[key] += 1
        yield fields


def _phases(events):
    """A function (thread, time) -> phase, from annotations and autograd's wrappers."""
    spans = defaultdict(list)
    for e in events:
        phase = _phase(e["name"]) if e["cat"] in ("user_annotation", "cpu_op") else ""
        # Only the outermost: within one thread these nest.
        if phase and not (spans[e["tid"]] and e["start"] < spans[e["tid"]][-1][1]):
            spans[e["tid"]].append((e["start"], e["end"], phase))

    def phase_at(thread, time):
        index = bisect_right(spans[thread], time, key=lambda s: s[0]) - 1
        return spans[thread][index][2] if index >= 0 and time < spans[thread][index][1] else ""

    return phase_at


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
    "ts": Number(-_LONG_AGO, _LONG_AGO),
    "dur": Number(0, _LONG_AGO),
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
    **dict.fromkeys(("Global rank start", "Global rank stride"), Whole(-1, digits=True)),
    **dict.fromkeys(("In msg nelems", "Out msg nelems"), Whole(-1, ELEMENTS, digits=True)),
    "Seq": Whole(-1, digits=True),
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
        "baseTimeNanoseconds": Whole(digits=True),
    }
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


def information(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The object ``data`` of a file with what it says about the run checked; ``ValueError``."""
    return fitting(INFO, data, f"{path}: ")

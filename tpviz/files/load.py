"""Reading traces: our own Chrome files exactly, those of other programs as well as they can tell.

>>> load_trace("out/demo")          # doctest: +SKIP
<Trace 4 ranks, 3120 events, imported>
"""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

from tpviz.core import limits
from tpviz.core.trace.columns import Event
from tpviz.core.trace.meta import checked
from tpviz.core.trace.ranks import ranks_of
from tpviz.core.trace.rows import Runs
from tpviz.core.trace.shapes import Nested, fitting, short
from tpviz.core.trace.table import Trace

from .files import (
    EXPORT,
    FLIGHT_RECORDER,
    FORMAT,
    ISSUE,
    TraceFile,
    claim,
    complete_events,
    path_of,
    place,
    trace_files,
)
from .foreign import from_programs
from .kineto import from_kineto, is_profile

_OWN = {"name": "name", "kind": "cat", "rank": "pid"}  # columns, and their keys in an event
_DEFAULTS = Event()._asdict()
_NEEDED = ("name", "cat", "pid")


def load_trace(path: str | PathLike[str], rank: str | None = None) -> Trace:
    """The `Trace` in a file, or in a folder of rank files (.json or .json.gz), or in its folders.

    Files by `to_chrome` come back exactly (meta too, but for tuples, which JSON makes lists); files
    by torch.profiler (Kineto; gloo or NCCL) and by `to_hta`, and Chrome traces of any program, come
    back with the badge "imported", all ranks on one clock, and with what is unknown or assumed in
    ``meta["notes"]``. Kernels that communicate are told by `tpviz.COMM_KERNELS`.

    rank : where the rank of a file stands in its path within the folder, as a regular expression
    with one group; by default it is what the file says, or the number after "rank" in its path,
    or the order of TensorBoard's names.

    Raises FileNotFoundError where there is nothing, and ValueError, with the file and the place,
    for a file that is cut off, not JSON, no trace or of another format version, for ranks that two
    files claim or none names, and for a folder without traces or with several kinds of them.
    """
    files, root = trace_files(path), path_of(path)
    loaded = [(file, _read(file)) for file in files]
    ours = ["tpviz" in data for _, data in loaded]
    notes = [f"{file.name}: {note}" for file, data in loaded for note in data.pop("notes", ())]
    if all(ours):
        traces = [from_chrome(data) for _, data in loaded]
        owner = {}
        for file, trace in zip(files, traces):
            claim(owner, file, trace.ranks)
        trace = traces[0] if len(traces) == 1 else Trace.merge(traces)
    else:
        kinds = [_OURS if own else _kind(data) for own, (_, data) in zip(ours, loaded)]
        _check_kinds(path, files, kinds)
        ranks, said = ranks_of(root, loaded, rank)
        whole = [(file, data, of) for (file, data), of in zip(loaded, ranks)]
        trace = from_kineto(whole) if kinds[0] == _PROFILE else from_programs(whole)
        notes += said
    return Trace(
        trace.columns, {**trace.meta, "notes": notes + trace.fact("notes")} if notes else trace.meta
    )


_OURS, _PROFILE, _OTHER = "a tpviz trace", "a profile by torch.profiler", "another Chrome trace"


def _kind(data: dict[str, Any]):
    return _PROFILE if is_profile(data) else _OTHER


def _check_kinds(path: str | PathLike[str], files: Sequence[Path], kinds: Sequence[str]):
    if len(set(kinds)) > 1:
        other = next(i for i, kind in enumerate(kinds) if kind != kinds[0])
        raise ValueError(
            f"{path}: {files[0].name} is {kinds[0]} and {files[other].name} is {kinds[other]}; "
            "their clocks differ: load them one by one"
        )


def _read(file: Path) -> dict[str, Any]:
    """The object in a file. Of our own files the events become columns as they are read:
    "traceEvents" is then the `Runs` of them, else a list of events."""
    read, events, table = TraceFile(file), [], Runs()
    for first, run in read.runs():
        if first == 0:  # also where the file, or its list, is read again
            events, table = [], Runs()
        limits.check(f"{file}: it has events:", first + len(run), "EVENTS", or_more=True)
        if isinstance(read.head, dict) and "tpviz" in read.head:
            _check_format(file, read.head)
            table.add(*_values(file, first, run))
        else:
            events += run
    data = _checked(file, read.head)
    if "tpviz" not in data:
        return {**data, "traceEvents": events, "notes": read.notes}
    header = _check_format(file, data)
    if events:  # the header came after the events
        table.add(*_values(file, 0, events))
    found = {"tpviz": {**header, "meta": _meta(file, header)}, "traceEvents": table}
    return {**found, "notes": read.notes}


def _checked(file: Path, data: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        if isinstance(data, dict) and isinstance(data.get("entries"), list):
            raise ValueError(
                f"{file}: {FLIGHT_RECORDER}, with {len(data['entries'])} entries, and not a trace, "
                f"which has times of work; {EXPORT}"
            )
        found = (
            f"an object with the keys {sorted(data)[:6]}"
            if isinstance(data, dict)
            else f"a {type(data).__name__}"
        )
        raise ValueError(
            f"{file}: JSON, but not a trace: it should be an object with a list 'traceEvents', "
            f"or a list of events, and is {found}; {EXPORT}"
        )
    return data


def _check_format(file: Path, data: Any) -> dict[str, Any]:
    """What our header says; ValueError unless it is of this version's format."""
    header = data["tpviz"] if isinstance(data["tpviz"], dict) else {}
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{file}: written in format {header.get('format')!r} by another version of tpviz; "
            f"this one reads format {FORMAT}: export it again with this version"
        )
    return header


def from_chrome(data: dict[str, Any]) -> Trace:
    """The `Trace` in a file of `to_chrome`, as `_read` gives it."""
    return Trace(data["traceEvents"].columns(), data["tpviz"]["meta"])


def _values(file: Path, first: int, events: list[Any]):
    """{column: values} of a run of events, and the words that begin an error about a row of them;
    ``first`` is the number of the first event."""
    try:
        rows = [e for e in events if e["ph"] == "X" and e["cat"] != ISSUE]
        args = [e["args"] for e in rows]
        own = {column: [e[key] for e in rows] for column, key in _OWN.items()}
        values = {
            column: own[column] if column in own else [a.get(column, default) for a in args]
            for column, default in _DEFAULTS.items()
        }
    except (KeyError, TypeError, AttributeError):
        for number, event in complete_events(file, events, _NEEDED, first):
            if event["cat"] != ISSUE and not isinstance(event.get("args"), dict):
                raise ValueError(
                    f"{place(file, number)}args is {short(event.get('args'))}, not an object"
                ) from None
        raise

    def where(row: int):
        table = [n for n, e in enumerate(events, first) if e["ph"] == "X" and e["cat"] != ISSUE]
        return place(file, table[row])

    return values, where


def _meta(file: Path, header: Mapping[str, Any]):
    where = f"{file}: the meta of the trace is damaged: "
    return checked(_restored(fitting(Nested(), header.get("meta", {}), where)), where)


def _restored(value: Any) -> Any:
    """Undo what `to_chrome` does to meta: {"float": "nan"} is a number JSON does not know."""
    if isinstance(value, dict):
        if value.keys() == {"float"} and value["float"] in ("nan", "inf", "-inf"):
            return float(value["float"])
        return {k: _restored(v) for k, v in value.items()}
    return [_restored(v) for v in value] if isinstance(value, list) else value

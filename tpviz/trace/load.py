"""Reading traces: our own Chrome files exactly, PyTorch's Kineto files as well as they can tell.

>>> load_trace("out/demo")          # doctest: +SKIP
<Trace 4 ranks, 3120 events, imported>
"""

import numpy as np

from .files import trace_files
from .kineto import from_kineto
from .stream import TraceFile
from .table import COLUMNS, Event, Trace

FORMAT = 1  # version of the layout that `to_chrome` writes
ISSUE = "issue"  # category of the slices that arrows start from, which are no events of the table
_OWN = {"name": "name", "kind": "cat", "rank": "pid"}  # columns, and their keys in an event
_DEFAULTS = Event()._asdict()


def load_trace(path):
    """The `Trace` in a file, or in a folder of rank files, *.json or *.json.gz.

    Files by `to_chrome` come back exactly (meta too, but for tuples, which JSON makes lists); files
    by torch.profiler (Kineto; gloo or NCCL) and by `to_hta` come back with the badge "imported",
    all ranks on one clock. Raises FileNotFoundError where there is nothing, and ValueError, with
    the file and the place, for a file that is cut off, not JSON, no trace or of another format
    version, for ranks that two files claim, and for a folder without traces or with both kinds.
    """
    files = trace_files(path)
    loaded = [(file, _read(file)) for file in files]
    ours = ["tpviz" in data for _, data in loaded]
    if not any(ours):
        return from_kineto(loaded)
    if not all(ours):
        raise ValueError(
            f"{path}: {files[ours.index(True)].name} is a tpviz trace and "
            f"{files[ours.index(False)].name} is not; their clocks differ: load them one by one"
        )
    traces = [from_chrome(file, data) for file, data in loaded]
    _check_ranks(files, traces)
    return traces[0] if len(traces) == 1 else Trace.merge(traces)


def _read(file):
    """The object in a file. Of our own files the events become columns as they are read:
    "traceEvents" is then a list of tables, else of events."""
    read, events, tables = TraceFile(file), [], []
    for first, run in read.runs():
        if "tpviz" in read.head:
            _check_format(file, read.head)
            tables.append(_table(file, first, run))
        else:
            events += run
    data = _checked(file, read.head)
    if "tpviz" in data:
        _check_format(file, data)
        if events:  # the header came last
            tables = [_table(file, 0, events)]
        return {**data, "traceEvents": tables}
    return {**data, "traceEvents": events}


def _checked(file, data):
    if not isinstance(data, dict) or not isinstance(data.get("traceEvents"), list):
        found = (
            f"an object with the keys {sorted(data)[:6]}"
            if isinstance(data, dict)
            else f"a {type(data).__name__}"
        )
        raise ValueError(
            f"{file}: JSON, but not a trace: it should be an object with a list 'traceEvents', "
            f"and is {found}; export with trace.to_chrome or torch.profiler's export_chrome_trace"
        )
    return data


def _check_format(file, data):
    header = data["tpviz"] if isinstance(data["tpviz"], dict) else {}
    if header.get("format") != FORMAT:
        raise ValueError(
            f"{file}: written in format {header.get('format')!r} by another version of tpviz; "
            f"this one reads format {FORMAT}: export it again with this version"
        )


def from_chrome(file, data):
    """The `Trace` of the tables in a file of `to_chrome`, as `_read` gives them."""
    tables = data["traceEvents"] or [_table(file, 0, [])]
    # A column leaves the tables as it is joined, so that not all are there twice.
    columns = {name: np.concatenate([table.pop(name) for table in tables]) for name in COLUMNS}
    return Trace(columns, _meta(file, data["tpviz"]))


def _table(file, first, events):
    """The columns of a run of events; ``first`` is the number of the first of them."""
    try:
        rows = [e for e in events if e["ph"] == "X" and e["cat"] != ISSUE]
        args = [e["args"] for e in rows]
        own = {column: [e[key] for e in rows] for column, key in _OWN.items()}
        values = {
            column: own.get(column) or [a.get(column, default) for a in args]
            for column, default in _DEFAULTS.items()
        }
    except (KeyError, TypeError, AttributeError) as error:
        number, event = next((n, e) for n, e in enumerate(events, first) if _damaged(e))
        raise ValueError(
            f"{file}: event {number} of traceEvents is damaged ({error!r}): "
            f"{str(event)[:80]}; export the trace again"
        ) from error
    try:
        return {name: np.array(values[name], dtype=kind) for name, kind in COLUMNS.items()}
    except (ValueError, TypeError, OverflowError) as error:
        raise ValueError(
            f"{file}: a column of the trace has values of the wrong type ({error}); "
            "export the trace again"
        ) from error


def _damaged(event):
    """Whether an event lacks what `_table` needs."""
    try:
        if event["ph"] != "X" or event["cat"] == ISSUE:
            return False
        return not isinstance(event["args"], dict) or not event.keys() >= set(_OWN.values())
    except (KeyError, TypeError):
        return True


def _meta(file, header):
    try:
        meta = dict(_restored(header.get("meta", {})))
        if "memory" in meta:
            meta["memory"] = {int(rank): dict(samples) for rank, samples in meta["memory"].items()}
        return meta
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(
            f"{file}: the meta of the trace is damaged ({error!r}); export the trace again"
        ) from error


def _restored(value):
    """Undo what `to_chrome` does to meta: {"float": "nan"} is a number JSON does not know."""
    if isinstance(value, dict):
        if value.keys() == {"float"} and value["float"] in ("nan", "inf", "-inf"):
            return float(value["float"])
        return {k: _restored(v) for k, v in value.items()}
    return [_restored(v) for v in value] if isinstance(value, list) else value


def _check_ranks(files, traces):
    owner = {}
    for file, trace in zip(files, traces):
        for rank in trace.ranks:
            if rank in owner:
                raise ValueError(
                    f"{file.parent}: {owner[rank].name} and {file.name} both hold rank {rank}; "
                    "a folder is one run, with one file per rank"
                )
            owner[rank] = file

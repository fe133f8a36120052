"""JSON trace files, plain or gzipped: writing, reading, and errors that say where one breaks."""

import gzip
import json
import zlib
from contextlib import nullcontext
from itertools import islice
from pathlib import Path

SUFFIXES = (".json", ".json.gz")


BATCH = 20_000  # events that are text, or objects, at one time
LEVEL = 1  # of gzip: level 5 takes four times as long for a file two thirds the size


def write_events(path, head, texts):
    """Write the object ``head`` with a list "traceEvents"; gzipped if the name ends in ".gz".

    texts : JSON of one or more events each, written as they come; see `as_texts`. Returns the path.
    Nothing stays where writing fails. Raises ValueError for another suffix and for numbers that
    JSON does not know (NaN, infinities).
    """
    path = Path(path)
    if not path.name.endswith(SUFFIXES):
        raise ValueError(f"{path}: a trace file is named *.json or *.json.gz")
    between = json.dumps(head, allow_nan=False)[:-1] + ', "traceEvents": ['
    part = path.with_name(path.name + ".part")
    try:
        with part.open("wb") as raw, _packed(raw, path.suffix == ".gz") as file:
            for text in filter(None, texts):
                file.write((between + text).encode())
                between = ", "
            file.write(((between if between != ", " else "") + "]}").encode())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
    return path


def _packed(raw, gzipped):
    # No name and no time stamp, so that equal traces give equal files.
    return gzip.GzipFile("", "wb", LEVEL, raw, mtime=0) if gzipped else nullcontext(raw)


def as_texts(events):
    """The events (dicts) as texts for `write_events`, `BATCH` events each."""
    events = iter(events)
    while batch := list(islice(events, BATCH)):
        yield json.dumps(batch, allow_nan=False)[1:-1]


def read_json(path):
    """The JSON value in a plain or gzipped file (told by its first bytes, not by its name).

    Raises FileNotFoundError, or ValueError with the byte, line and column where the file breaks.
    """
    raw = Path(path).read_bytes()
    try:
        text = (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(
            f"{path}: the gzip data breaks off or is damaged within its {len(raw)} bytes "
            f"({error}); copy or export the file again"
        ) from error
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not JSON, byte {error.start} is not UTF-8 text; "
            "a trace is a *.json or *.json.gz file"
        ) from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(_broken(path, text, error)) from error
    except RecursionError as error:
        raise ValueError(f"{path}: lists in lists deeper than any trace has them") from error


def _broken(path, text, error):
    place = f"line {error.lineno}, column {error.colno} (byte {len(text[: error.pos].encode())})"
    if not text.strip():
        return f"{path}: the file is empty; export the trace again"
    if not text.lstrip().startswith(("{", "[")):
        return f"{path}: not JSON, it breaks at {place}; a trace is a *.json or *.json.gz file"
    # A cut string is reported where it begins, so look at how the text ends instead.
    cut = not text.rstrip().endswith(("}", "]")) or error.pos >= len(text.rstrip())
    advice = "the file is cut off" if cut else f"the JSON is wrong there: {error.msg}"
    size = len(text.encode())
    return f"{path}: breaks at {place} of {size} bytes; {advice}; copy or export it again"


def trace_files(path):
    """The files to read: ``path`` itself, or the trace files in it if it is a folder, by name.

    Raises FileNotFoundError if there is nothing there, ValueError for a folder without trace files.
    """
    path = Path(path)
    if not path.exists():
        near = sorted(p.name for p in path.parent.glob("*") if p.name.endswith(SUFFIXES))[:5]
        hint = f"; beside it are {', '.join(near)}" if near else ""
        raise FileNotFoundError(
            f"no trace at {path}: give a *.json or *.json.gz file, or a folder of them{hint}"
        )
    if not path.is_dir():
        return [path]
    files = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES))
    if not files:
        raise ValueError(
            f"{path}: an empty folder for us, it holds no *.json or *.json.gz file; "
            "export one file per rank into it"
        )
    return files

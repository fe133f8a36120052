"""JSON trace files, plain or gzipped: writing, reading, and errors that say where one breaks."""

import gzip
import json
import zlib
from os import PathLike
from pathlib import Path

from tpviz import limits

from .shapes import short

SUFFIXES = (".json", ".json.gz")


def write_json(path, data):
    """Write ``data`` to ``path``, gzipped if the name ends in ".gz"; returns the path.

    Raises ValueError for another suffix and for numbers that JSON does not know (NaN, infinities).
    """
    path = path_of(path)
    if not path.name.endswith(SUFFIXES):
        raise ValueError(f"{path}: a trace file is named *.json or *.json.gz")
    text = json.dumps(data, allow_nan=False).encode()
    # No time stamp, so that equal traces give equal files.
    path.write_bytes(
        gzip.compress(text, compresslevel=5, mtime=0) if path.suffix == ".gz" else text
    )
    return path


def path_of(path):
    """``path`` as a Path; ValueError for anything that is none."""
    if not isinstance(path, (str, PathLike)) or "\0" in str(path):
        raise ValueError(f"{path!r} is no path of a file or a folder")
    return Path(path)


def read_json(path):
    """The JSON value in a plain or gzipped file (told by its first bytes, not by its name).

    Raises FileNotFoundError, or ValueError with the byte, line and column where the file breaks,
    and for more bytes than `tpviz.limits.FILE_BYTES`.
    """
    path = Path(path)
    try:
        text = _content(path).decode("utf-8-sig")
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        size = path.stat().st_size
        raise ValueError(
            f"{path}: the gzip data breaks off or is damaged within its {size} bytes "
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
    except ValueError as error:  # Python reads no numbers of thousands of digits
        raise ValueError(f"{path}: it holds a number that is none of a trace: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: lists in lists deeper than any trace has them") from error


def _content(path):
    """The bytes of a file, decompressed if they are gzip's: never more than is allowed."""
    most, opened = limits.FILE_BYTES, open
    with path.open("rb") as file:
        if file.read(2) == b"\x1f\x8b":
            opened = gzip.open
    with opened(path, "rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"{path}: it holds more than {most} bytes, once decompressed: "
                         "set tpviz.limits.FILE_BYTES to read larger files")
    return content


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
    path = path_of(path)
    try:
        there = path.exists()
    except OSError as error:  # a name that is too long, a folder that may not be read
        raise ValueError(f"{str(path)[:200]}: {error.strerror}") from error
    if not there:
        near = sorted(p.name for p in path.parent.glob("*") if p.name.endswith(SUFFIXES))[:5]
        hint = f"; beside it are {', '.join(near)}" if near else ""
        raise FileNotFoundError(
            f"no trace at {path}: give a *.json or *.json.gz file, or a folder of them{hint}"
        )
    if path.is_file():
        return [path]
    if not path.is_dir():  # reading a pipe or a device may never end
        raise ValueError(f"{path}: neither a file nor a folder of files")
    files = sorted(p for p in path.iterdir() if p.name.endswith(SUFFIXES) and p.is_file())
    if not files:
        raise ValueError(
            f"{path}: an empty folder for us, it holds no *.json or *.json.gz file; "
            "export one file per rank into it"
        )
    return files


def complete_events(file, events, needed):
    """(number, event) of the complete events ("X") of a list ``traceEvents``.

    Raises ValueError, with the file and the event, for one that is no object with a field "ph",
    and for a complete one without the fields ``needed``.
    """
    needed = {"ph", *needed}
    for number, event in enumerate(events):
        known = event.keys() if isinstance(event, dict) else {}.keys()
        if "ph" in known and event["ph"] != "X":
            continue
        if not needed <= known:
            missing = min(needed - known, key=lambda name: (name != "ph", name))
            raise ValueError(f"{place(file, number)}it has no {missing!r}: {short(event)}; "
                             "export the trace again")
        yield number, event


def place(file, number):
    """The words that begin an error about an event of a file."""
    return f"{file}: event {number} of traceEvents is damaged: "

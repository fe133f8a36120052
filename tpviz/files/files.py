"""JSON trace files, plain or gzipped: writing, reading, and errors that say where one breaks."""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from tpviz.core import limits
from tpviz.core.trace.shapes import short

SUFFIXES = (".json", ".json.gz")


EXPORT = "export with trace.to_chrome or torch.profiler's export_chrome_trace"
FLIGHT_RECORDER = "a dump of PyTorch's Flight Recorder (the last collectives of a process group)"
FORMAT = 1  # version of the layout that `to_chrome` writes
ISSUE = "issue"  # category of the slices that arrows start from, which are no events of the table
BATCH = 20_000  # events that are text, or objects, at one time
LEVEL = 1  # of gzip: level 5 takes four times as long for a file two thirds the size


def write_events(path: str | PathLike[str], head: dict[str, Any], texts: Iterable[str]) -> Path:
    """Write the object ``head`` with a list "traceEvents"; gzipped if the name ends in ".gz".

    texts : JSON of one or more events each, written as they come; see `as_texts`. Returns the path.
    Nothing stays where writing fails. Raises ValueError for another suffix and for numbers that
    JSON does not know (NaN, infinities).
    """
    path = path_of(path)
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


def as_texts(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    """The events (dicts) as texts for `write_events`, `BATCH` events each."""
    events = iter(events)
    while batch := list(islice(events, BATCH)):
        yield json.dumps(batch, allow_nan=False)[1:-1]


def path_of(path: str | PathLike[str]) -> Path:
    """``path`` as a Path; ValueError for anything that is none."""
    if not isinstance(path, (str, PathLike)) or "\0" in str(path):
        raise ValueError(f"{path!r} is no path of a file or a folder")
    return Path(path)


def read_json(path: str | PathLike[str], notes: list[str] | None = None) -> Any:
    """The JSON value in a plain or gzipped file (told by its first bytes, not by its name).

    notes : where to say what was replaced, of text that is in another encoding or has control
    characters in it. Raises FileNotFoundError, or ValueError with the byte, line and column where
    the file breaks, and for more bytes than `tpviz.limits.FILE_BYTES`.
    """
    path, notes = Path(path), [] if notes is None else notes
    try:
        with path.open("rb") as raw:
            data = Unpacked(path, raw).read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        size = path.stat().st_size
        raise ValueError(
            f"{path}: the gzip data breaks off or is damaged within its {size} bytes "
            f"({error}); copy or export the file again"
        ) from error
    text = _text(path, data, notes)
    try:
        return _parsed(text, notes)
    except json.JSONDecodeError as error:
        raise ValueError(_broken(path, text, error)) from error
    except ValueError as error:  # Python reads no numbers of thousands of digits
        raise ValueError(f"{path}: it holds a number that is none of a trace: {error}") from error
    except RecursionError as error:
        raise ValueError(f"{path}: lists in lists deeper than any trace has them") from error


def _text(path, data, notes):
    """The text of a file; bytes that are no UTF-8 become the replacement character."""
    if data[:1] == b"\x80" and b"." in data[-2:]:
        what = (
            f"{FLIGHT_RECORDER}, pickled"
            if b"collective_seq_id" in data
            else "a pickle, such as PyTorch's snapshots of memory"
        )
        raise ValueError(f"{path}: {what}, and not a trace; {EXPORT}")
    try:
        if data[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE):
            return data.decode("utf-16")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = data.decode("utf-8-sig", "replace")
        if not text.lstrip().startswith(("{", "[")) or "\0" in text:
            raise ValueError(
                f"{path}: not JSON, byte {error.start} is not UTF-8 text; "
                "a trace is a *.json or *.json.gz file"
            ) from error
        replaced = text.count("\ufffd") - data.count("\ufffd".encode())
        notes.append(f"{replaced} bytes that are not UTF-8 replaced (the first is {error.start})")
        return text


_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")


def _parsed(text, notes):
    """The JSON value; also with control characters in its texts, or a list that is not closed, as
    the format of Chrome's lists allows."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        if error.msg.startswith("Invalid control character"):
            text, replaced = _CONTROL.subn("\ufffd", text)
            notes.append(f"{replaced} control characters in texts replaced")
            return json.loads(text, strict=False)
        if text.startswith("[") and error.pos >= len(text.rstrip()):
            found = json.loads(text.rstrip().rstrip(",") + "]")
            notes.append("the list of events is not closed: the end may be missing")
            return found
        raise


class Unpacked:
    """The bytes of a file open for reading, decompressed if they are gzip's.

    Raises ``ValueError`` when more than `tpviz.limits.FILE_BYTES` are there: they are ``too_long``.
    """

    def __init__(self, path: Path, raw: BinaryIO):
        gzipped = raw.read(2) == b"\x1f\x8b"
        raw.seek(0)
        self.path, self.most, self.left = path, limits.FILE_BYTES, limits.FILE_BYTES
        self.file = gzip.GzipFile(fileobj=raw) if gzipped else raw

    @property
    def too_long(self) -> bool:
        """Whether the file has more bytes than the limit."""
        return self.left < 0

    def read(self, size: int | None = None) -> bytes:
        """At most ``size`` bytes more, by default all; none at the end."""
        size = self.left + 1 if size is None else min(size, self.left + 1)
        found = self.file.read(size)
        self.left -= len(found)
        if self.too_long:
            raise ValueError(
                f"{self.path}: it holds more than {self.most} bytes, once decompressed: "
                "set tpviz.limits.FILE_BYTES to read larger files"
            )
        return found


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


def trace_files(path: str | PathLike[str]) -> list[Path]:
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
        hint = f"; next to it are {', '.join(near)}" if near else ""
        raise FileNotFoundError(
            f"no trace at {path}: give a *.json or *.json.gz file, or a folder of them{hint}"
        )
    if path.is_file():
        return [path]
    if not path.is_dir():  # reading a pipe or a device may never end
        raise ValueError(f"{path}: neither a file nor a folder of files")
    files = _within(path)
    if not files:
        raise ValueError(
            f"{path}: neither the folder nor any in it holds a *.json or *.json.gz file; "
            "export one file per rank into it"
        )
    return files


DEEPEST, MOST_ENTRIES = 6, 10_000  # of folders in a folder


def _within(folder):
    """The trace files of a folder, or if there are none those of the folders in it, by path."""
    level, seen = [folder], 0
    for _ in range(DEEPEST):
        entries = [p for there in level for p in sorted(there.iterdir())]
        files = [p for p in entries if p.name.endswith(SUFFIXES) and p.is_file()]
        level, seen = [p for p in entries if p.is_dir() and not p.is_symlink()], seen + len(entries)
        if files or seen > MOST_ENTRIES:
            return files
    return []


def complete_events(
    file: Path, events: Iterable[Any], needed: Iterable[str], first: int = 0
) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number, event) of the complete events ("X") of a list ``traceEvents``, from ``first`` on.

    Raises ValueError, with the file and the event, for one that is no object with a field "ph",
    and for a complete one without the fields ``needed``.
    """
    needed = {"ph", *needed}
    for number, event in enumerate(events, first):
        known = event.keys() if isinstance(event, dict) else {}.keys()
        if "ph" in known and event["ph"] != "X":
            continue
        if not needed <= known:
            missing = min(needed - known, key=lambda name: (name != "ph", name))
            raise ValueError(
                f"{place(file, number)}it has no {missing!r}: {short(event)}; "
                "export the trace again"
            )
        yield number, event


def claim(owner: dict[int, Path], file: Path, ranks: Iterable[int]) -> None:
    """Note the file of these ranks; ``ValueError`` where another one has one of them already."""
    for rank in ranks:
        if rank in owner:
            raise ValueError(
                f"{file.parent}: {owner[rank].name} and {file.name} both hold rank {rank}; "
                "a folder is one run, with one file per rank"
            )
        owner[rank] = file


def place(file: Path, number: int) -> str:
    """The beginning of an error message about event ``number`` of a file."""
    return f"{file}: event {number} of traceEvents is damaged: "


# -- reading in parts: events are parsed in runs, never all at once --------------------------------
CHUNK = 1 << 20  # bytes
_SPACE = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_BETWEEN = re.compile(r"\}[ \t\n\r]*,[ \t\n\r]*\{")
_decode = json.JSONDecoder().raw_decode


class TraceFile:
    """One trace file, plain or gzipped.

    ``head``: the object's keys met so far but for the events: all of them once `runs` is at its
    end; of a file that is a list of events, an object with that list. ``notes``: what had to be
    replaced. Where the file breaks, or is neither, `read_json` says so, with the place.
    """

    def __init__(self, path: str | PathLike[str]):
        self.path, self.head, self.notes = Path(path), {}, []

    def runs(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield (number of the first, events) for up to `BATCH` events of "traceEvents" at a time.

        Afterwards ``head["traceEvents"]`` is [], or the file's value if that is no list.
        """
        try:
            with self.path.open("rb") as raw:
                unpacked = Unpacked(self.path, raw)
                self._text = _Text(unpacked)
                yield from self._object()
        except (ValueError, RecursionError, EOFError, zlib.error, gzip.BadGzipFile):
            if unpacked.too_long:
                raise
            self.notes = []
            self.head = read_json(self.path, self.notes)
            if isinstance(self.head, list) and any(isinstance(e, dict) for e in self.head):
                self.head = {"traceEvents": self.head}
            if isinstance(self.head, dict) and isinstance(self.head.get("traceEvents"), list):
                yield 0, self.head.pop("traceEvents")
                self.head["traceEvents"] = []

    def _object(self):
        text = self._text
        text.expect("{")
        while not text.take("}"):
            if self.head:
                text.expect(",")
            key = text.value()
            text.expect(":")
            if key == "traceEvents" and text.take("["):
                yield from self._events()
            self.head[key] = [] if key == "traceEvents" else text.value()
        text.finish()

    def _events(self):
        text, first, run = self._text, 0, []
        if text.take("]"):
            return
        while True:
            run += text.values()
            run.append(text.value())
            more = text.comma()
            if len(run) >= BATCH or not more:
                yield first, run
                first, run = first + len(run), []
            if not more:
                return text.expect("]")


class _Text:
    """The text of a file from a place on, which moves along."""

    def __init__(self, file):
        self.file, self.decoder = file, codecs.getincrementaldecoder("utf-8-sig")()
        self.text, self.at, self.ended, self.tried = "", 0, False, False

    def more(self):
        """Read on, twice as much each time for one that is not enough; False at the end."""
        if self.ended:
            return False
        data = self.file.read(max(CHUNK, len(self.text) - self.at))
        self.ended = not data
        self.text = self.text[self.at :] + self.decoder.decode(data, final=self.ended)
        self.at, self.tried = 0, False
        return True

    def value(self):
        """The JSON value here."""
        while True:
            self._skip()
            try:
                found, end = _decode(self.text, self.at)
            except json.JSONDecodeError:
                if not self.more():
                    raise
                continue
            if end < len(self.text) or not self.more():  # else a number may be cut off
                self.at = end
                return found

    def values(self):
        """The objects of a list that are whole in the text read so far, if they are many: one by
        one takes twice as long. Their last comma is behind us."""
        if self.tried or len(self.text) - self.at < CHUNK // 2:
            return []
        self.tried = True
        tail = max(self.at, len(self.text) - CHUNK // 16)
        ends = [match.start() + 1 for match in _BETWEEN.finditer(self.text, tail)]
        try:  # a text that ends within an object, or a string, is no list
            found = json.loads(f"[{self.text[self.at : ends[-1]]}]") if ends else []
        except json.JSONDecodeError:
            return []
        if found:
            self.at = _COMMA.match(self.text, ends[-1]).end()  # pyright: ignore[reportOptionalMemberAccess]
        return found

    def take(self, character):
        """Whether this comes next; if so, it is behind us."""
        self._skip()
        found = self.text.startswith(character, self.at)
        self.at += found
        return found

    def comma(self):
        """Whether a comma comes next; if so, it is behind us."""
        match = _COMMA.match(self.text, self.at)
        if match and match.end() < len(self.text):
            self.at = match.end()
            return True
        return self.take(",")

    def expect(self, character):
        if not self.take(character):
            raise json.JSONDecodeError(f"Expecting {character!r}", self.text, self.at)

    def finish(self):
        self._skip()
        if self.at < len(self.text):
            raise json.JSONDecodeError("Extra data", self.text, self.at)

    def _skip(self):
        self.at = _SPACE.match(self.text, self.at).end()  # pyright: ignore[reportOptionalMemberAccess]
        while self.at == len(self.text) and self.more():
            self.at = _SPACE.match(self.text, self.at).end()  # pyright: ignore[reportOptionalMemberAccess]

"""Reading a JSON trace file in parts: events are parsed in runs, never all at once."""

import codecs
import gzip
import json
import re
import zlib
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from .files import BATCH, Unpacked, read_json

CHUNK = 1 << 20  # bytes
_SPACE = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_BETWEEN = re.compile(r"\}[ \t\n\r]*,[ \t\n\r]*\{")
_decode = json.JSONDecoder().raw_decode


class TraceFile:
    """One trace file, plain or gzipped.

    ``head``: the object's keys met so far but for the events: all of them once `runs` is at its
    end. Where the file breaks, or is no object, `read_json` says so, with the place.
    """

    def __init__(self, path: str | PathLike[str]):
        self.path, self.head = Path(path), {}

    def runs(self) -> Iterator[tuple[int, list[Any]]]:
        """Yield (number of the first, events) for up to `BATCH` events of "traceEvents" at a time.

        ``head["traceEvents"]`` is then [], or what else the file has there.
        """
        try:
            with self.path.open("rb") as raw:
                unpacked = Unpacked(self.path, raw)
                self._text = _Text(unpacked)
                yield from self._object()
        except (ValueError, RecursionError, EOFError, zlib.error, gzip.BadGzipFile):
            if unpacked.too_long:
                raise
            self.head = read_json(self.path)
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
            if end < len(self.text) or not self.more():  # else a number might go on
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

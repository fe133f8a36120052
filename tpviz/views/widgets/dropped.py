"""Files dropped onto a view in a notebook: the browser sends their bytes, a chunk at a time."""

from collections.abc import Callable, Generator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tpviz.core import limits

CHUNK = 1 << 20


class Dropped:
    """Receives what is dropped, in answers to messages of the view's page.

    The page sends {"dropped": [[name, bytes], ...]}. It is asked for {"want": [file, start, end]},
    at most `CHUNK` bytes, and sends {"chunk": the same} with these, until all are here. Then
    ``done`` is called with the path of the file, or of a folder of several, for as long as it
    takes. send : of the view.
    """

    def __init__(self, send: Callable[[dict[str, Any]], Any], done: Callable[[Path], Any]):
        self._send, self._done = send, done
        self._coming: Generator[list[int], bytes | None, None] | None = None
        self._want: list[int] | None = None

    def hear(self, message: Mapping[str, Any], buffers: Sequence[Any]) -> None:
        """Answer a message of the page; others are left alone.

        Raises ``ValueError`` for files larger than `tpviz.limits.DROPPED_BYTES` together, and what
        ``done`` raises.
        """
        if "dropped" in message:
            files = [(Path(str(name)).name, int(size)) for name, size in message["dropped"]]
            words = "tv.Timeline(path) opens files of any size; bytes dropped:"
            limits.check(words, sum(size for _, size in files), "DROPPED_BYTES")
            self._coming = self._receive(files)
            self._next(None)
        elif self._coming and message.get("chunk") == self._want:
            self._next(bytes(buffers[0]))

    def _next(self, received):
        try:
            self._want = self._coming.send(received)  # pyright: ignore[reportOptionalMemberAccess]
        except StopIteration:
            self._coming = None
        else:
            self._send({"want": self._want})

    def _receive(self, files):
        """Asks for [file, start, end], is sent the bytes, and has them read in the end."""
        with TemporaryDirectory(prefix="tpviz-") as folder:
            for number, (name, size) in enumerate(files):
                with (Path(folder) / name).open("wb") as file:
                    for start in range(0, size, CHUNK):
                        file.write((yield [number, start, min(start + CHUNK, size)]))
            try:
                self._done(Path(folder, files[0][0]) if len(files) == 1 else Path(folder))
            except ValueError as error:
                raise ValueError(str(error).replace(f"{folder}/", "")) from error

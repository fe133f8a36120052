"""What ranks print: each rank writes to its own file, the caller shows it line by line.

Only the standard library is imported here: ranks need it before torch loads.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_CHUNK = 1 << 20
_MOST = 1 << 20  # characters shown of one rank in one job: a notebook keeps all that it shows
_OF_GLOO = b"[Gloo] Rank "  # torch 2.9 and 2.10 print such a line for each group they connect


class Tail:
    """Follows one rank's output file and gives its complete lines as ``[rank 2] ...``.

    path : the file. name : of the rank, such as ``rank 2``.
    """

    def __init__(self, path: str | os.PathLike[str], name: str):
        self._fd = os.open(path, os.O_RDONLY | os.O_CREAT, 0o600)
        self._label = f"[{name}] "
        self._rest = b""
        self._shown = 0

    def pump(self, everything: bool = False) -> str:
        """The lines that are new; with ``everything`` also a last line without its end."""
        said = ""
        while data := os.read(self._fd, _CHUNK):
            *lines, self._rest = (self._rest + data).split(b"\n")
            said += self._labelled(lines)
            if not everything:
                break  # a rank that never stops printing must not hide its time-out
        if everything and self._rest:
            said += self._labelled([self._rest])
            self._rest = b""
        return said

    def _labelled(self, lines):
        lines = [line for line in lines if not line.startswith(_OF_GLOO)]
        if not lines or self._shown > _MOST:
            return ""
        # A progress bar rewrites its line after "\r": keep what a terminal would end up showing.
        texts = (line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace") for line in lines)
        said = "".join(f"{self._label}{text}\n" for text in texts)
        left, self._shown = _MOST - self._shown, self._shown + len(said)
        if self._shown > _MOST:
            word = "[tpviz] cut after 1 MB of output; let the rank write more to a file of yours"
            said = f"{said[:left]}\n{self._label}{word}\n"
        return said

    def rewind(self) -> None:
        """Empty a file that has grown large, and count anew; call it when the rank is idle."""
        self._shown = 0
        if os.fstat(self._fd).st_size > _CHUNK:
            os.truncate(f"/proc/self/fd/{self._fd}", 0)
            os.lseek(self._fd, 0, os.SEEK_SET)

    def finish(self) -> str:
        """What is left; closes the file."""
        said = self.pump(everything=True)
        os.close(self._fd)
        return said


_tabs: Any = None  # the `tabs.RankTabs` of the launch that is going on, if it has them


@contextmanager
def in_tabs(tabs: Any) -> Iterator[None]:
    """Inside, `show` gives lines to a `tabs.RankTabs`; to none where it is None."""
    global _tabs
    _tabs = tabs
    try:
        yield
    finally:
        _tabs = None
        if tabs:
            tabs.close()


def show(said: str) -> None:
    """Print lines of ranks on the caller's ``sys.stdout``, looked up at each print, so that a
    notebook shows them under the cell that is running; or show them in tabs."""
    if _tabs:
        _tabs.add(said)
    elif said and sys.stdout is not None:  # closed
        sys.stdout.write(said)
        sys.stdout.flush()


# -- a rank's standard output and error ------------------------------------------------------------
def text_stream(descriptor: int) -> TextIO:
    """A descriptor's text stream, that writes line by line."""
    return open(descriptor, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def flush_output() -> None:
    """Pass on what was printed; a stream that the rank's function closed is opened again."""
    for name, descriptor in (("stdout", 1), ("stderr", 2)):
        try:
            getattr(sys, name).flush()
        except (ValueError, AttributeError):
            setattr(sys, name, text_stream(descriptor))

"""Showing how far a job is: a bar in a notebook, one line on a terminal, else nothing."""

import sys
from collections.abc import Callable
from html import escape
from typing import Any

from tpviz.core.tables import in_notebook

_WIDTH = 30
_NOTHING = ".jp-OutputArea-child:has(.tpv-progress-done){display:none}"


def viewer(
    progress: "Callable[[int, int, str], Any] | ProgressView | bool | None",
) -> "ProgressView":
    """A function ``(done, total, text)`` that shows progress, with a ``close()`` attribute.

    ``progress`` is None (whatever suits this place), False (nothing), the function to call, or
    a `ProgressView` of one's own.
    Raises ``ValueError`` on anything else.
    """
    if progress is None or progress is True:
        return _Output() if in_notebook() else _Line(sys.stderr)
    if progress is False:
        return ProgressView()
    if isinstance(progress, ProgressView):
        return progress
    if callable(progress):
        return ProgressView(progress)
    raise ValueError(f"progress={progress!r}; use None, False or a function (done, total, text)")


class ProgressView:
    """A progress display that passes all on to a function, by default to nobody; subclasses show
    something, and `close` ends them."""

    def __init__(self, function: Callable[[int, int, str], Any] = lambda done, total, text: None):
        self._function = function

    def __call__(self, done: int, total: int, text: str) -> None:
        self._function(done, total, text)

    def found(self, result: Any) -> None:
        """Show what was found so far: its HTML is made only where there is a place for it."""

    def close(self) -> None:
        pass


class _Line(ProgressView):
    """One line that is rewritten; silent when the stream is not a terminal."""

    def __init__(self, stream):
        self._stream = stream
        self._shown = False
        self._on = hasattr(stream, "isatty") and stream.isatty()

    def __call__(self, done: int, total: int, text: str) -> None:
        if self._on:
            filled = round(_WIDTH * min(1, done / total)) if total else 0
            bar = "#" * filled + "." * (_WIDTH - filled)
            self._stream.write(f"\r\x1b[K[{bar}] {done}/{total} {text}")
            self._stream.flush()
            self._shown = True

    def close(self) -> None:
        if self._shown:
            self._stream.write("\n")


class _Output(ProgressView):
    """A bar in the output of a cell, made at the first report; a job that reports nothing shows
    nothing. No widget, of which a saved notebook would keep an error: at the end nothing is left.
    """

    _handle, _bar, _found = None, "", ""

    def __call__(self, done: int, total: int, text: str) -> None:
        at = f"value='{done}' max='{max(total, 1)}' aria-label='{escape(text, quote=True)}'"
        words = escape(f"{done}/{total} {text}")
        self._bar = f"<div class='tpv-progress'><progress {at}></progress> {words}</div>"
        self._show(self._bar + self._found)

    def found(self, result: Any) -> None:
        self._found = result._repr_html_()
        self._show(self._bar + self._found)

    def close(self) -> None:
        if self._handle:
            self._show(f"<style>{_NOTHING}</style><span class='tpv-progress-done'></span>")

    def _show(self, html):
        from IPython.display import display

        bundle = {"text/html": html}
        if self._handle:
            self._handle.update(bundle, raw=True)
        else:
            self._handle = display(bundle, raw=True, display_id=True)

"""Showing how far a job is: a widget in a notebook, one line on a terminal, else nothing."""

import sys
from collections.abc import Callable
from typing import Any

_WIDTH = 30


def viewer(progress: Callable[[int, int, str], Any] | bool | None) -> "View":
    """A function ``(done, total, text)`` that shows progress, with a ``close()`` attribute.

    ``progress`` is None (whatever suits this place), False (nothing) or the function to call.
    Raises ``ValueError`` on anything else.
    """
    if progress is None or progress is True:
        return _Widget() if _in_kernel() else _Line(sys.stderr)
    if progress is False:
        return View()
    if callable(progress):
        return _Call(progress)
    raise ValueError(f"progress={progress!r}; use None, False or a function (done, total, text)")


class View:
    """Shows nothing; others show progress, and `close` ends them."""

    def __call__(self, done: int, total: int, text: str) -> None:
        pass

    def close(self) -> None:
        pass


class _Call(View):
    def __init__(self, function):
        self._function = function

    def __call__(self, done: int, total: int, text: str) -> None:
        self._function(done, total, text)


class _Line(View):
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


class _Widget(View):
    """An ipywidgets bar, made at the first report; a job that reports nothing shows nothing."""

    _bar = None

    def __call__(self, done: int, total: int, text: str) -> None:
        if self._bar is None:
            self._bar = self._make()
        self._bar.max, self._bar.value, self._bar.description = total, done, f"{done}/{total}"
        self._label.value = text

    def _make(self):
        from IPython.display import display
        from ipywidgets import HBox, IntProgress, Label

        bar, self._label = IntProgress(), Label()
        self._box = HBox([bar, self._label])
        display(self._box)
        return bar

    def close(self) -> None:
        if self._bar is not None:
            for widget in (self._box, self._bar, self._label):
                widget.close()


def _in_kernel():
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None

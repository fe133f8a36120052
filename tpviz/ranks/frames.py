"""What a rank that raised had in its variables, as text: objects themselves may be large, or not
travel."""

import math
import reprlib
import types
from collections.abc import Iterable
from time import monotonic
from typing import Any, NamedTuple

from . import sources

_FRAMES = 12  # innermost
_VARIABLES = 40  # of a frame
_CHARACTERS = 300  # of a value
_SECONDS = 1.0  # for all: a large object may take long to say what it is
_ELEMENTS = 20  # of a tensor or array whose values are shown


class RankFrame(NamedTuple):
    """One function that was going on when a rank raised."""

    file: str
    line: int
    function: str
    variables: dict[str, str]  # name -> repr, cut to 300 characters

    def __str__(self) -> str:
        head = f'File "{self.file}", line {self.line}, in {self.function}'
        return "\n".join([head, *(f"    {n} = {text}" for n, text in self.variables.items())])


class RankFailure(NamedTuple):
    """How one rank failed: its error, and its functions, outermost first (12 at most)."""

    type: str
    message: str
    traceback: str
    frames: tuple[RankFrame, ...] = ()

    @property
    def variables(self) -> dict[str, str]:
        """name -> repr of the local variables of the innermost function of the user's own."""
        own = [frame for frame in self.frames if sources.of_user(frame.file)] or self.frames
        return dict(own[-1].variables) if own else {}

    def __str__(self) -> str:
        return "\n".join([*map(str, self.frames), f"{self.type}: {self.message}"])


def frames_of(error: BaseException) -> tuple[RankFrame, ...]:
    """The innermost functions of an exception's traceback, with their variables."""
    until, found, at = monotonic() + _SECONDS, [], error.__traceback__
    while at:
        found.append((at.tb_frame, at.tb_lineno))
        at = at.tb_next
    frames = [
        RankFrame(
            frame.f_code.co_filename,
            line,
            frame.f_code.co_name,
            _said(frame.f_locals.items(), until),
        )
        for frame, line in reversed(found[-_FRAMES:])  # those that matter most before time is up
    ]
    return tuple(reversed(frames))


def _said(variables: Iterable[tuple[str, Any]], until: float) -> dict[str, str]:
    shown = [
        (name, value)
        for name, value in variables
        if not name.startswith("__") and not isinstance(value, types.ModuleType)
    ]
    said = {
        name: _repr(value) if monotonic() < until else f"<{type(value).__name__}>"
        for name, value in shown[:_VARIABLES]
    }
    more = len(shown) - len(said)
    return said | ({"...": f"{more} more"} if more else {})


class _Repr(reprlib.Repr):
    """Tensors and arrays by their sizes, and by their values where these are few."""

    def repr_instance(self, x: Any, level: int) -> str:
        return repr(x)  # also of an object whose repr raises, as `_repr` says

    def repr1(self, x: Any, level: int) -> str:
        if not (hasattr(x, "shape") and hasattr(x, "dtype")):
            return super().repr1(x, level)
        kind = f"{type(x).__name__} {tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"
        device = f" on {x.device}" if str(getattr(x, "device", "cpu")) != "cpu" else ""
        few = not device and math.prod(x.shape) <= _ELEMENTS  # a device is not waited for
        return f"{kind}{device}" + (f" {x.tolist()}" if few else "")


_REPR = _Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = _CHARACTERS


def _repr(value: Any) -> str:
    try:
        text = _REPR.repr(value)
    except Exception as error:
        text = f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"
    return text if len(text) <= _CHARACTERS else f"{text[:_CHARACTERS]}..."

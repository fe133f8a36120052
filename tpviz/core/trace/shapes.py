"""A small language for the shape of JSON data: what each field of a file may be, as a table.

A shape checks a value and returns it in plain Python; the first value that does not fit is named
with its place. Files, events made by hand and `Trace.meta` are all checked by tables of shapes.

>>> table = Fields({"rank": WholeNumber(0, 7), "sizes": List(FiniteNumber())})
>>> fitting(table, {"sizes": [1, "x"]}, "a.json: ")
Traceback (most recent call last):
ValueError: a.json: sizes[1] is 'x', not a finite number
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tpviz.core import limits

if TYPE_CHECKING:

    class _Shape(Protocol):
        def check(self, value: Any) -> Any: ...

    class _Column(_Shape, Protocol):
        def column(self, values: list[Any]) -> Sequence[Any] | np.ndarray | None: ...


MOST = 2**62  # sums of two still fit NumPy's int64
SURROGATES = re.compile("[\ud800-\udfff]")


class Misfit(Exception):
    """A value does not fit its shape. ``place``: the keys and indices that lead to it."""

    def __init__(self, value: Any, wanted: str):
        self.words, self.place = f"is {short(value)}, not {wanted}", ""

    def within(self, key: Any) -> "Misfit":
        """The same error, one container further out: ``key`` is put in front of ``place``."""
        key = f"[{key}]" if isinstance(key, int) else str(key)[:80]
        dot = "." if self.place and not self.place.startswith("[") else ""
        self.place = key + dot + self.place
        return self

    def __str__(self):
        return f"{self.place or 'it'} {self.words}"


def fitting(shape: "_Shape", value: Any, where: str) -> Any:
    """``value`` as the shape converts it; ``ValueError`` beginning with ``where`` if it misfits."""
    try:
        return shape.check(value)
    except Misfit as misfit:
        raise ValueError(f"{where}{misfit}") from None


def short(value: Any) -> str:
    """A value in an error: at most some 60 characters."""
    if isinstance(value, Integral) and not -MOST <= value <= MOST:  # pyright: ignore[reportOperatorIssue]
        return f"a number of {len(hex(value)) * 6 // 5} digits"  # text of a huge one takes for ever
    text = (
        repr(value)
        if not isinstance(value, (dict, list))
        else repr(
            type(value)(dict(list(value.items())[:4]) if isinstance(value, dict) else value[:4])
        )
    )
    return text if len(text) <= 60 else f"{text[:57]}..."


class WholeNumber:
    """An integer from ``low`` to ``high``; with ``digits`` also as a text, which is converted."""

    kinds, dtype = frozenset([int]), np.int64

    def __init__(self, low: float = -MOST, high: float = MOST, digits: bool = False):
        self.low, self.high, self.digits = low, high, digits

    def bounds(self) -> tuple[float, float]:
        """(lowest, highest)."""
        return self.low, self.high

    def check(self, value: Any) -> int:
        """An int."""
        if self.digits and isinstance(value, str) and re.fullmatch(r"-?\d{1,18}", value):
            value = int(value)
        low, high = self.bounds()
        if type(value) is bool or not isinstance(value, Integral) or not low <= value <= high:  # pyright: ignore[reportOperatorIssue]
            raise Misfit(value, f"a whole number from {low} to {high}")
        return int(value)

    def column(self, values: Sequence[Any]) -> np.ndarray | None:
        """An array of a list of values that are all as `check` returns them, else None: quick."""
        if not self.kinds.issuperset(map(type, values)):
            return None
        low, high = self.bounds()
        try:
            array = np.array(values, self.dtype)
        except OverflowError:
            return None
        return array if ((low <= array) & (array <= high)).all() else None


class Rank(WholeNumber):
    """The number of a rank, below `limits.RANKS`."""

    def bounds(self) -> tuple[float, float]:
        """(lowest, highest)."""
        return self.low, limits.RANKS - 1 + (self.low > 0)


class FiniteNumber(WholeNumber):
    """A finite number within bounds; with ``finite=False`` also NaN and the infinities."""

    kinds, dtype = frozenset([int, float]), np.float64

    def __init__(self, low: float = -1e300, high: float = 1e300, finite: bool = True):
        super().__init__(low, high)
        self.finite = finite

    def check(self, value: Any) -> float:
        """A float."""
        if isinstance(value, Real) and not isinstance(value, (bool, np.bool_)):
            if self.low <= value <= self.high:  # pyright: ignore[reportOperatorIssue]
                return float(value)
            if not self.finite and not math.isfinite(value):
                return float(value)
        bounds = f" from {self.low:g} to {self.high:g}" if self.low > -1e300 else ""
        raise Misfit(value, f"a {'finite ' * self.finite}number{bounds}")


class Text:
    """A text of at most `limits.TEXT` characters. Lone surrogates, which no UTF-8 file can hold,
    become the replacement character."""

    dtype = np.str_

    def check(self, value: Any) -> str:
        """A str."""
        if not isinstance(value, str):
            raise Misfit(value, "a text")
        if len(value) > limits.TEXT:
            raise Misfit(value, f"a text of at most {limits.TEXT} characters (tpviz.limits.TEXT)")
        return SURROGATES.sub("\ufffd", value)

    def column(self, values: Sequence[Any]) -> np.ndarray | None:
        """An array of a list of values that are all as `check` returns them, else None: quick."""
        return np.array(values, self.dtype) if self.fits(values) else None

    def fits(self, values: Sequence[Any]) -> bool:
        """Whether a list has values that are all as `check` returns them: quick."""
        if not {str}.issuperset(map(type, values)):
            return False
        try:
            return all(self.check(text) == text for text in set(values))
        except Misfit:
            return False


class Plain(Text):
    """A number, a text or None, such as a name or a number used as one."""

    def check(self, value: Any) -> Real | str | None:
        """The value."""
        if value is None or isinstance(value, Real):
            return value
        if not isinstance(value, str):
            raise Misfit(value, "a number or a text")
        return super().check(value)


class OneText(Text):
    """One text out of a fixed set of texts."""

    def __init__(self, *texts: str):
        self.texts = frozenset(texts)
        self.wanted = "one of " + ", ".join(map(repr, texts))

    def check(self, value: Any) -> str:
        """``value`` if it is in the set; raises `Misfit` otherwise."""
        if not isinstance(value, str) or value not in self.texts:
            raise Misfit(value, self.wanted)
        return str(value)


@dataclass(frozen=True)
class List:
    """A list of values of one shape; a tuple or an array passes for one."""

    of: "_Shape"

    def check(self, value: Any) -> list[Any]:
        """A list."""
        if isinstance(value, np.ndarray):
            value = value.tolist()
        if not isinstance(value, (list, tuple)):
            raise Misfit(value, "a list")
        if hasattr(self.of, "column") and self.of.column(value) is not None:  # pyright: ignore[reportAttributeAccessIssue]
            return list(value)
        return [_at(i, self.of, item) for i, item in enumerate(value)]


@dataclass(frozen=True)
class MapOf:
    """A JSON object; all its keys have one shape, and all its values another."""

    keys: "_Shape"
    of: "_Shape"

    def check(self, value: Any) -> dict[Any, Any]:
        """``value`` as a dict with checked keys and values; raises `Misfit`."""
        if not isinstance(value, dict):
            raise Misfit(value, "an object")
        return {
            _at(f"the key {short(k)}", self.keys, k): _at(k, self.of, v) for k, v in value.items()
        }


@dataclass(frozen=True)
class Fields:
    """An object with these fields; those in ``needed`` are required, and None counts as absent.

    Other fields are checked by the shape ``rest``, or kept unchecked without one.
    """

    of: "Mapping[str, _Shape]"
    needed: tuple[str, ...] = ()
    rest: "_Shape | None" = None

    def check(self, value: Any) -> dict[str, Any]:
        """A dict."""
        if not isinstance(value, dict):
            raise Misfit(value, "an object")
        missing = [name for name in self.needed if value.get(name) is None]
        if missing:
            raise Misfit(value, f"an object with a field {missing[0]!r}")
        known = {
            name: _at(name, self.of[name], value[name])
            for name in self.of.keys() & value
            if value[name] is not None
        }
        if self.rest is None:
            return {**value, **known}
        others = {k: v for k, v in value.items() if k not in self.of}
        return {**MapOf(Text(), self.rest).check(others), **known}


@dataclass(frozen=True)
class Nested:
    """Any JSON value, nested at most ``depth`` levels (default: `limits.DEPTH`)."""

    depth: int | None = None

    def check(self, value: Any) -> Any:
        """The value, with its texts fit for UTF-8."""
        depth = limits.DEPTH if self.depth is None else self.depth
        if isinstance(value, str):
            return Text().check(value)
        if isinstance(value, (dict, list, tuple)):
            if depth <= 0:
                raise Misfit("...", f"at most {limits.DEPTH} deep (tpviz.limits.DEPTH)")
            inner = Nested(depth - 1)
            if isinstance(value, dict):
                return {
                    SURROGATES.sub("\ufffd", k) if isinstance(k, str) else k: _at(k, inner, v)
                    for k, v in value.items()
                }
            return [_at(i, inner, item) for i, item in enumerate(value)]
        return value


def check_all(
    shapes: "Mapping[str, _Column]", rows: Sequence[dict[str, Any]], where: Callable[[int], str]
) -> None:
    """Check the fields of many objects in place, a field at a time for speed.

    shapes : {field: shape}; fields may be absent. where : index of a row -> the words that begin
    an error about it, a ``ValueError``.
    """
    for name, shape in shapes.items():
        there = [i for i, row in enumerate(rows) if name in row]
        values = [rows[i][name] for i in there]
        # Not `column` for texts: room for the longest in every row can be a thousand times theirs.
        if not shape.fits(values) if isinstance(shape, Text) else shape.column(values) is None:
            for i in there:
                try:
                    rows[i][name] = _at(name, shape, rows[i][name])
                except Misfit as misfit:
                    raise ValueError(f"{where(i)}{misfit}") from None


def _at(key, shape, value):
    try:
        return shape.check(value)
    except Misfit as misfit:
        raise misfit.within(key) from None

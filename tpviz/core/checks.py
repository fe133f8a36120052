"""Checks of sizes that name the numbers that clash and the nearest values that work.

>>> divides("heads", 6, "tp", 4)
Traceback (most recent call last):
ValueError: heads=6 does not split evenly over tp=4: use tp=3 or 6, or heads=4 or 8
"""

from collections.abc import Callable, Collection, Mapping, Set
from dataclasses import dataclass, replace
from itertools import islice
from math import gcd, isqrt, lcm
from numbers import Real
from operator import index
from typing import Any, TypeVar

import numpy as np

_Value = TypeVar("_Value")
MOST = 10**18
"""The largest whole number that any argument may be: NumPy's int64 holds it."""
NEAR = 64
"""How many multiples on each side are offered; of them the nearest that work are named."""


@dataclass(frozen=True)
class Clash:
    """``size`` does not split over ``parts``. near_parts, near_sizes : what does, by what is said
    of it: (ever smaller, ever larger). shared : (axis, ranks) over which a larger ``size`` was
    split before. instead : what else helps, as code."""

    size_name: str
    size: int
    parts_name: str
    parts: int
    near_parts: tuple[list[int], ...]
    near_sizes: tuple[list[int], ...]
    shared: tuple[()] | tuple[str, int] = ()
    instead: str = ""

    def __str__(self):
        size, over = f"{self.size_name}={self.size}", ""
        if self.shared:
            axis, ranks = self.shared
            size, over = f"{self.size_name}={self.size * ranks}", f" over {axis}={ranks}"
            over += f" leaves {self.size}, which"
        advice = ", or ".join(
            f"{name}={_either(values)}"
            for name, values in (
                (self.parts_name, _first(self.near_parts)),
                (self.size_name, _first(self.near_sizes)),
            )
            if values
        )
        use = "; or ".join(filter(None, (advice, self.instead)))
        said = f"{size}{over} does not split evenly over {self.parts_name}={self.parts}"
        return f"{said}: use {use}" if use else said

    def error(self) -> ValueError:
        """The ``ValueError`` that says so, with this as its ``clash``."""
        error = ValueError(str(self))
        error.clash = self  # pyright: ignore[reportAttributeAccessIssue]
        return error

    def outside(self, axis: str, ranks: int) -> "Clash":
        """The same clash for the whole size, which ``ranks`` of ``axis`` share."""
        return replace(
            self,
            shared=(axis, ranks),
            near_sizes=tuple([size * ranks for size in side] for side in self.near_sizes),
        )

    def where(
        self, parts_work: Callable[[int], bool], size_works: Callable[[int], bool]
    ) -> "Clash":
        """The same clash, suggesting only values for which these predicates hold."""
        return replace(
            self,
            near_parts=_nearest(self.near_parts, parts_work),
            near_sizes=_nearest(self.near_sizes, size_works),
        )


def divides(
    size_name: str,
    size: int,
    parts_name: str,
    parts: int,
    also: int = 0,
    step: int = 1,
    within: int = 0,
    each: int = 1,
) -> None:
    """Raise ``ValueError`` unless ``parts`` divides ``size``; says which values near by do. Its
    attribute ``clash`` is a `Clash`.

    Offered is only what the caller can use: ``parts`` that divide ``also`` too, multiples of
    ``each``; sizes that are multiples of ``step`` and divide ``within``, any if that is 0.
    """
    if size % parts == 0:
        return
    step = lcm(parts, step)
    if within:
        sizes = _around(size, [s for s in divisors(within) if s % step == 0])
    else:
        below = size // step * step
        sizes = (
            [s for k in range(NEAR) if (s := below - k * step) > 0],
            [below + (k + 1) * step for k in range(NEAR)],
        )
    near = _around(parts, [n for n in divisors(gcd(size, also)) if n % each == 0])
    raise Clash(size_name, size, parts_name, parts, near, sizes).error()


def whole_number(name: str, value: Any, low: int | None = 1, high: int | None = None) -> int:
    """``value`` as an int; ``ValueError`` unless it is whole, no bool, and in ``low``..``high``."""
    try:
        whole = index(None if isinstance(value, bool) else value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None
    if abs(whole) > MOST:  # in words: Python writes no numbers of thousands of digits
        raise ValueError(
            f"{name} is a number of {whole.bit_length()} bits, which is too "
            f"{'small' if whole < 0 else 'large'}: the most that works is "
            f"{MOST if high is None else high}"
        )
    if low is not None and whole < low:
        raise ValueError(f"{name}={whole} is too small: the least that works is {low}")
    if high is not None and whole > high:
        raise ValueError(f"{name}={whole} is too large: the most that works is {high}")
    return whole


def whole_numbers(name: str, value: Any, what: str, low: int = 1) -> tuple[int, ...]:
    """``value``, an ordered collection, as ints; ``ValueError`` with ``what`` it must be."""
    try:
        if isinstance(value, (str, bytes, Mapping, Set)) or any(type(n) is float for n in value):
            raise TypeError
        return tuple(whole_number(name, n, low) for n in value)
    except TypeError:
        raise ValueError(f"{name} must be {what}, not {value!r}") from None


def number(name: str, value: Any, low: float, high: float) -> float:
    """``value`` as a float; ``ValueError`` unless it is a number between ``low`` and ``high``."""
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        raise ValueError(f"{name} must be a number from {low} to {high}, not {value!r}")
    if not low <= value <= high:  # pyright: ignore[reportOperatorIssue]
        raise ValueError(
            f"{name}={value} is not between {low} and {high}: "
            f"the nearest that works is {low if value < low else high}"
        )
    return float(value)


def one_of(name: str, value: _Value, choices: Collection[Any]) -> _Value:
    """``value`` if it is one of ``choices``, else ``ValueError``; 1 does not pass for True."""
    value = value.item() if isinstance(value, np.generic) else value  # pyright: ignore[reportAssignmentType]
    for choice in choices:
        if type(value) is type(choice) and value == choice:
            return value
    raise ValueError(f"{name}={value!r} is not possible: use {_either(map(repr, choices))}")


def some_of(name: str, value: Any, choices: Collection[Any]) -> tuple[Any, ...]:
    """The tuple of those ``choices`` that are in ``value``, a list of them or one alone."""
    several = isinstance(value, (tuple, list, set, frozenset))
    chosen = [one_of(name, v, choices) for v in (value if several else (value,))]
    return tuple(choice for choice in choices if choice in chosen)


def text(name: str, value: Any) -> str:
    """``value`` if it is a str; ``ValueError`` otherwise."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, not {value!r}")
    return value


def divisors(number: int, most: int = 10**6) -> list[int]:
    """All divisors of ``number``, in order. Above ``most`` squared: those up to ``most``, and their
    cofactors.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [d for d in range(1, min(isqrt(number), most) + 1) if number % d == 0]
    return sorted({*low, *(number // d for d in low)})


def settle(owner: Any, name: str, check: Callable[..., Any], *bounds: Any, where: str = "") -> None:
    """Check a field of a frozen dataclass, and keep it as a plain Python value. where : what stands
    behind its name in errors."""
    object.__setattr__(owner, name, check(name + where, getattr(owner, name), *bounds))


def _around(value, valid):
    """The valid values (below, from the next one on; above, from the next one on)."""
    return [v for v in reversed(valid) if v < value], [v for v in valid if v > value]


def _nearest(sides, works):
    """The first value of each side that works, alone in its place."""
    return tuple(list(islice(filter(works, side), 1)) for side in sides)


def _first(sides):
    return [value for side in sides for value in side[:1]]


def _either(values):
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last

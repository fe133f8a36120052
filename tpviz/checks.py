"""Checks of sizes that name the numbers that clash and the nearest values that work.

>>> divides("heads", 6, "tp", 4)
Traceback (most recent call last):
ValueError: heads=6 does not split evenly over tp=4: use tp=3 or 6, or heads=4 or 8
"""

from math import gcd, isqrt, lcm
from numbers import Real
from operator import index

import numpy as np

MOST = 10**18
"""The largest whole number that any argument may be: NumPy's int64 holds it."""


def divides(size_name, size, parts_name, parts, also=0, step=1, within=0):
    """Raise ``ValueError`` unless ``parts`` divides ``size``; says which values near by do.

    Offered is only what the caller can use: ``parts`` that divide ``also`` too; sizes that are
    multiples of ``step`` and divide ``within``, any if that is 0. There may be no such size.
    """
    if size % parts == 0:
        return
    common, step = gcd(size, also), lcm(parts, step)
    parts_near = _around(parts, divisors(common))
    sizes_near = [s for s in (size // step * step, -(-size // step) * step) if s > 0]
    if within:
        sizes_near = _around(size, [s for s in divisors(within) if s % step == 0])
    instead = f", or {size_name}={_either(sizes_near)}" if sizes_near else ""
    raise ValueError(f"{size_name}={size} does not split evenly over {parts_name}={parts}: use "
                     f"{parts_name}={_either(parts_near)}{instead}")


def whole_number(name, value, low=1, high=None):
    """``value`` as an int; ``ValueError`` unless it is whole, no bool, and in ``low``..``high``."""
    try:
        whole = index(None if isinstance(value, bool) else value)
    except TypeError:
        raise ValueError(f"{name} must be a whole number, not {value!r}") from None
    if abs(whole) > MOST:  # in words: Python writes no numbers of thousands of digits
        raise ValueError(f"{name} is a number of {whole.bit_length()} bits, which is too "
                         f"{'small' if whole < 0 else 'large'}: the most that works is "
                         f"{MOST if high is None else high}")
    if low is not None and whole < low:
        raise ValueError(f"{name}={whole} is too small: the least that works is {low}")
    if high is not None and whole > high:
        raise ValueError(f"{name}={whole} is too large: the most that works is {high}")
    return whole


def number(name, value, low, high):
    """``value`` as a float; ``ValueError`` unless it is a number between ``low`` and ``high``."""
    if isinstance(value, bool) or not isinstance(value, Real) or value != value:
        raise ValueError(f"{name} must be a number from {low} to {high}, not {value!r}")
    if not low <= value <= high:
        raise ValueError(f"{name}={value} is not between {low} and {high}: "
                         f"the nearest that works is {low if value < low else high}")
    return float(value)


def one_of(name, value, choices):
    """``value`` if it is one of ``choices``, else ``ValueError``; 1 does not pass for True."""
    value = value.item() if isinstance(value, np.generic) else value
    if not any(type(value) is type(c) and value == c for c in choices):
        raise ValueError(f"{name}={value!r} is not possible: use {_either(map(repr, choices))}")
    return value


def some_of(name, value, choices):
    """The tuple of those ``choices`` that are in ``value``, a list of them or one alone."""
    several = isinstance(value, (tuple, list, set, frozenset))
    chosen = [one_of(name, v, choices) for v in (value if several else (value,))]
    return tuple(choice for choice in choices if choice in chosen)


def text(name, value):
    """``value``, a str; ``ValueError`` for anything else."""
    if not isinstance(value, str):
        raise ValueError(f"{name} must be a text, not {value!r}")
    return value


def divisors(number):
    """All of them, from 1 up.

    >>> divisors(12)
    [1, 2, 3, 4, 6, 12]
    """
    low = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return low + [number // d for d in reversed(low) if d * d != number]


def settle(owner, name, check, *bounds):
    """Check a field of a frozen dataclass, and keep it as a plain Python value."""
    object.__setattr__(owner, name, check(name, getattr(owner, name), *bounds))


def _around(value, valid):
    """The valid values next below and next above."""
    below, above = [v for v in valid if v < value], [v for v in valid if v > value]
    return below[-1:] + above[:1]


def _either(values):
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last

"""What a learner's function of numbers answers, on whatever process it runs."""

from collections.abc import Callable, Sequence
from numbers import Rational
from typing import Any

from .formula import NoAnswer


def answers(fn: Callable[..., Any], arguments: Sequence[Sequence[Any]]) -> list[Any]:
    """The answers of ``fn`` to each of these arguments, made `bare`."""
    return [bare(fn(*several)) for several in arguments]


def bare(value: Any) -> Any:
    """Numbers, names, and tuples of numbers unchanged; of anything else, a `NoAnswer`."""
    dims = getattr(value, "ndim", None) if hasattr(value, "item") else None  # array or tensor
    if dims or isinstance(value, (tuple, list, range, set)):
        return tuple(map(bare, value))
    if dims == 0:
        return value.item()
    if isinstance(value, Rational) and not isinstance(value, int):
        return float(value)
    known = isinstance(value, (int, float, str)) and not isinstance(value, bool)
    return value if known else NoAnswer(type(value).__name__)

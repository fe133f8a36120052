"""Checks of sizes that name the numbers that clash and the nearest values that work.

>>> divides("heads", 6, "tp", 4)
Traceback (most recent call last):
ValueError: heads=6 does not split evenly over tp=4: use tp=3 or 6, or heads=4 or 8
"""


def divides(size_name, size, parts_name, parts):
    """Raise ``ValueError`` unless ``parts`` divides ``size``; says which values near by do."""
    if size % parts == 0:
        return
    parts_near = _around(parts, [d for d in range(1, size + 1) if size % d == 0])
    sizes_near = [s for s in (size // parts * parts, -(-size // parts) * parts) if s > 0]
    raise ValueError(f"{size_name}={size} does not split evenly over {parts_name}={parts}: use "
                     f"{parts_name}={_either(parts_near)}, or {size_name}={_either(sizes_near)}")


def whole_number(name, value, low=1, high=None):
    """Raise ``ValueError`` unless ``value`` is an int (not a bool) between ``low`` and ``high``."""
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise ValueError(f"{name} must be a whole number, not {value!r}")
    if value < low:
        raise ValueError(f"{name}={value} is too small: the least that works is {low}")
    if high is not None and value > high:
        raise ValueError(f"{name}={value} is too large: the most that works is {high}")


def number(name, value, low, high):
    """Raise ``ValueError`` unless ``value`` is a finite number between ``low`` and ``high``."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        nearest = low if isinstance(value, (int, float)) and value < low else high
        raise ValueError(f"{name}={value!r} is not between {low} and {high}: "
                         f"the nearest that works is {nearest}")


def one_of(name, value, choices):
    """Raise ``ValueError`` unless ``value`` is one of ``choices``; 1 does not pass for True."""
    if not any(value == c and type(value) is type(c) for c in choices):
        raise ValueError(f"{name}={value!r} is not possible: use {_either(map(repr, choices))}")


def _around(value, valid):
    """The valid values next below and next above."""
    below, above = [v for v in valid if v < value], [v for v in valid if v > value]
    return below[-1:] + above[:1]


def _either(values):
    *first, last = map(str, values)
    return f"{', '.join(first)} or {last}" if first else last

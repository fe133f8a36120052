"""Functions travel by value (cloudpickle), so one defined in a notebook cell can run in a rank.

Not everything can travel: open files, locks, generators. The error then names the culprit.
"""

import types
from collections.abc import Callable
from typing import Any

import cloudpickle


def ship(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bytes:
    """The call as bytes. Raises ``ValueError`` naming what cannot be sent to another process."""
    try:
        return cloudpickle.dumps((function, args, kwargs))
    except Exception as error:
        culprit = _find(function, args, kwargs)
        name = getattr(function, "__name__", repr(function))
        raise ValueError(
            f"{name} cannot be sent to the ranks: {culprit} cannot be pickled "
            f"({type(error).__name__}: {error}). Make it inside the function instead."
        ) from error


def _find(function, args, kwargs):
    for position, value in enumerate(args):
        if not _travels(value):
            return f"positional argument {position}, of type {_kind(value)},"
    for key, value in kwargs.items():
        if not _travels(value):
            return f"argument {key!r}, of type {_kind(value)},"
    return _find_used(function, set()) or f"the function itself, of type {_kind(function)},"


def _find_used(function, seen):
    """Look through what a function uses, and through functions it uses, for the culprit."""
    function = getattr(function, "__func__", getattr(function, "func", function))
    if not isinstance(function, types.FunctionType) or id(function) in seen:
        return None
    seen.add(id(function))
    for name, value in _used(function):
        if _travels(value):
            continue
        here = f"variable {name!r}, of type {_kind(value)}, used by {function.__name__}(),"
        return _find_used(value, seen) or here
    return None


def _used(function):
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or ()):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a cell that is still empty
            continue
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for index, value in enumerate(function.__defaults__ or ()):
        yield f"default {index}", value


def _travels(value):
    try:
        cloudpickle.dumps(value)
        return True
    except Exception:
        return False


def _kind(value):
    return f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")

"""Advice that works: an error suggests only values that the whole check accepts.

A check that names one size that clashes cannot know what all its other checks ask for, nor what a
strategy around it has divided before. So every value that it offers is tried.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, replace
from functools import wraps
from math import prod
from typing import TYPE_CHECKING, Any, TypeVar

from .knobs import check_offload

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from tpviz.core.workload import GPT

    from .strategy import Strategy

_Owner = TypeVar("_Owner", bound="DataclassInstance")
_wanted = ContextVar("wanted", default=True)


@contextmanager
def unadvised() -> Iterator[None]:
    """While inside, errors of checks name the first clash without advice: quick, for trying
    many."""
    before = _wanted.set(False)
    try:
        yield
    finally:
        _wanted.reset(before)


def fits(strategy: "Strategy", workload: "GPT") -> bool:
    """Whether the strategy's check accepts the workload."""
    try:
        with unadvised():
            strategy.check(workload)
    except ValueError:
        return False
    return True


def with_advice(check: "Callable[[Any, GPT], None]") -> "Callable[[Any, GPT], None]":
    """A strategy's ``check`` whose errors of sizes that clash offer only what works.

    Where nothing would be accepted, since something else is wrong too, it offers what at least is
    not refused for the same reason.
    """

    @wraps(check)
    def checked(strategy, workload):
        _advised(check, strategy, workload)
        check_offload(strategy, workload)

    return checked


def _advised(check, strategy, workload):
    # Not inside of `checked`, which travels by value with a strategy of a notebook's cell.
    try:
        return check(strategy, workload)
    except ValueError as error:
        if not (hasattr(error, "clash") and _wanted.get()):
            raise
        clash = error.clash  # pyright: ignore[reportAttributeAccessIssue]
    with unadvised():
        clash = _tried(check, strategy, workload, clash)
    raise clash.error()


def _tried(check, strategy, workload, clash):
    """The `tpviz.core.checks.Clash` with only such values as work."""

    def verdict(variants):
        """ "works", "helps" or "" of the best of some (strategy, workload) not made yet."""
        found = {_verdict(check, variant, clash.size_name) for variant in variants}
        return next((word for word in ("works", "helps") if word in found), "")

    def of_parts(words):
        return lambda value: (
            verdict(
                (lambda v=v: (v(), workload)) for v in strategy.variants(clash.parts_name, value)
            )
            in words
        )

    def of_size(words):
        return lambda value: (
            verdict(
                (lambda v=v: (strategy, v())) for v in changed(workload, clash.size_name, value)
            )
            in words
        )

    found = clash.where(of_parts({"works"}), of_size({"works"}))
    if any((*found.near_parts, *found.near_sizes)):
        return found
    return clash.where(of_parts({"works", "helps"}), of_size({"works", "helps"}))


def _verdict(check, make, size_name):
    try:
        made = make()
    except ValueError:  # a knob's own bounds
        return ""
    try:
        check(*made)
    except ValueError as error:
        same = getattr(getattr(error, "clash", None), "size_name", "") == size_name
        return "" if same else "helps"
    return "works"


def changed(owner: _Owner, name: str, value: int) -> list[Callable[[], _Owner]]:
    """Makers of ``owner``, a dataclass, with one of its fields changed so that the product that
    ``name`` says, as in "dp*microbatches" or "2*cp", is ``value``; none where that is no product of
    its fields."""
    words = [word.strip() for word in name.split("*")]
    names = [word for word in words if not word.isdigit()]
    number = prod(int(word) for word in words if word.isdigit())
    if not {*names} <= {field.name for field in fields(owner)}:
        return []
    found = []
    for one in names:
        others = number * prod(getattr(owner, other) for other in names if other != one)
        if value % others == 0:
            found.append(lambda one=one, others=others: replace(owner, **{one: value // others}))
    return found

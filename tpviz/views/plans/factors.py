"""The factors of a plan that have knobs: a strategy, one around it, and those between."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tpviz.schemes import strategies
from tpviz.schemes.apart import apart
from tpviz.schemes.context.strategy import Context
from tpviz.schemes.experts.strategy import Experts
from tpviz.schemes.grid.around import Around
from tpviz.schemes.merak.strategy import as_merak
from tpviz.schemes.strategy import Strategy

from .fields import knob_fields

BETWEEN: tuple[type[Around], ...] = (Experts, Context)
"""Factors that have knobs of their own beside those of a strategy, innermost first."""


def offered() -> list[str]:
    """The names in the menu: of the classes that `search` tries where nobody says which."""
    return sorted((name for name, cls in strategies().items() if cls.searched), key=place)


def place(name: str) -> tuple[bool, int, str]:
    """A strategy's place in the menu: fewest knobs first, those that hold another one last."""
    cls = strategies()[name]
    return composes(cls), len(knob_fields(cls)), name


def parts(
    strategy: Strategy | None,
) -> tuple[Strategy | None, Strategy | None, tuple[Strategy, ...], str]:
    """(the strategy inside, the one around it or None, those `BETWEEN`, the order of its axes where
    it is not their own). Raises ValueError on what is none. A product that is one of Merak's is
    that."""
    if strategy is None:
        return None, None, (), ""
    if not isinstance(strategy, Strategy):
        raise ValueError(f"strategy={strategy!r} is no strategy: give one such as tv.ATP()")
    without, between = strategy, ()
    for kind in reversed(BETWEEN):
        without, found = apart(without, kind)
        between = (found, *between) if found else between
    placement = getattr(strategy, "placement", "")
    given: Any = as_merak(replace(without, placement="") if placement else without)  # pyright: ignore[reportCallIssue]
    inner = getattr(given, "inner", None)
    if not {type(given).__name__, type(inner or given).__name__} <= {*offered()}:
        raise ValueError(
            f"{given.short} is in no menu and has no knobs to turn: use "
            "tv.compare(strategy, workload, cluster), tv.run or tv.verify"
        )
    outer = replace(given, inner=None) if inner else None
    return inner or given, outer, between, placement


def composes(cls: "Callable[..., Any]") -> bool:
    """Whether a strategy class can hold another one inside."""
    return "inner" in cls.__dataclass_fields__  # pyright: ignore[reportFunctionMemberAccess]

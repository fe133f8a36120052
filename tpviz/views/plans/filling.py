"""The knob of a plan that takes the ranks that others leave: replicas."""

from collections.abc import Mapping
from typing import Any

from tpviz.core.checks import divisors
from tpviz.schemes import strategies

from .factors import composes
from .fitting import Fitting


def filling(strategy: str, inside: bool) -> str:
    """Its name. strategy : of the class inside, or alone; inside : of data parallelism."""
    cls = strategies()[strategy]
    return "dp" if inside or composes(cls) else cls.shares_batch


def settle(fitting: Fitting, moved: Mapping[str, Any], name: str) -> dict[str, tuple[Any, Any]]:
    """Move knobs, the last one last; knob ``name`` then takes all ranks that are left, unless it
    was moved: {name: (before, after)} of those that gave way."""
    before = fitting.values
    if name in moved:
        return fitting.move(moved)
    gave = fitting.move({name: _filled(fitting, {**before, **moved}, name), **moved})
    after = fitting.values[name]
    return gave | ({name: (before[name], after)} if after != before[name] else {})


def _filled(fitting, values, name):
    """How many replicas there may be."""
    try:
        others = fitting.made({**values, name: 1, "shard": 0})[0].world_size
    except ValueError:
        return values[name]
    return max((n for n in divisors(fitting.ranks) if n * others <= fitting.ranks), default=1)

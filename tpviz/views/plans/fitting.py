"""Knobs that bind each other: at which values each may stop, and which give way when one moves.

>>> from tpviz import DataParallel, Megatron
>>> fitting = Fitting(GPT(), Megatron(), DataParallel(dp=1), ranks=8)
>>> fitting.stops["tp"]
[1, 2, 4]
>>> fitting.move({"dp": 4})  # 4 x 4 ranks are more than 8
{'tp': (4, 2)}
"""

from collections.abc import Collection, Mapping
from dataclasses import Field, dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Any

from tpviz.core.workload import GPT
from tpviz.schemes.advice import fits
from tpviz.schemes.grid.around import Around
from tpviz.schemes.grid.tensor import WholeBlocks
from tpviz.schemes.knobs import knob
from tpviz.schemes.strategy import Strategy

from .fields import is_pair, knob_fields, pairs

MOST, RANKS = 8, 16
"""Whole numbers are all offered up to the first, then multiples; meshes up to the second."""
SHARED = "cp", "ep"
"""Axes whose ranks, as replicas, may share states, with one replica of their own too."""
FACTORS = (1 / 8, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1, 3 / 2, 2, 3, 4, 6, 8)
"""Sizes of the model to choose from, as parts and multiples of those given."""


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a `tpviz.core.workload.GPT` that are knobs."""

    layers: int = knob(2, help="transformer blocks")
    hidden: int = knob(64, help="width of the hidden activations")
    heads: int = knob(4, help="attention heads: they divide the hidden size")
    seq: int = knob(32, help="tokens of a sequence")
    batch: int = knob(4, help="sequences of a step, over all ranks")
    vocab: int = knob(256, help="tokens of the vocabulary")


class Fitting:
    """The knobs of a workload, a strategy, data parallelism around it (or None), and factors
    between the two: `Experts`, `Context`.

    A knob stops where the sizes of the model allow it, were the other knobs of the strategies at
    their least. Where knobs then bind each other, by the number of ranks say, the last one moved
    keeps its value and the others take the nearest one that fits.

    ``values`` : {name: value}, which fit together; ``choices`` : {name: all that there are};
    ``stops`` : of every knob that may give way. ranks : at most; heeded at the next move. more :
    whole numbers to choose from besides. placement : of products, as of `Strategy.with_order`.
    """

    def __init__(
        self,
        workload: GPT,
        inner: Strategy,
        outer: Strategy | None,
        ranks: int,
        more: Collection[int] = (),
        between: Collection[Strategy] = (),
        placement: str = "",
    ):
        self._workload, self._inner, self.ranks = workload, inner, ranks
        self._placement = placement
        self._around = [factor for factor in (*between, outer) if factor]
        sizes = {name: getattr(workload, name) for name in size_names()}
        self.values = dict(sizes)
        self.choices = {name: _multiples(size) for name, size in sizes.items()}
        self._ranges = dict[str, range]()
        for strategy in (inner, *self._around):
            for f in own_fields(type(strategy)):
                value = getattr(strategy, f.name)  # of a knob that two have, the one that was set
                if f.name not in self.values or value != f.default:
                    self.values[f.name] = value
                if values := _choices(f, self.values[f.name], more):
                    self.choices[f.name] = values
                low, high = f.metadata["low"], f.metadata["high"]
                if type(f.default) is int and low is not None and high is not None:
                    self._ranges[f.name] = range(low, high + 1)
        knobs = {name: values for name, values in self.choices.items() if name not in sizes}
        menus = {name: values for name, values in knobs.items() if isinstance(values[0], str)}
        least = {n: v[0] is True or min(v, key=_size) for n, v in knobs.items() if n not in menus}
        usual = {name: self.values[name] for name in menus}
        self._least = [{"heads": workload.kv_heads or 1, **least, **usual}]
        self._least += [{**self._least[0], n: v} for n, values in menus.items() for v in values]
        self._moved, self._known = [], {}
        self.move({})

    @property
    def strategy(self) -> Strategy:
        """The strategy of the values; a dp of 1 adds nothing."""
        return self.made(self.values)[0]

    @property
    def workload(self) -> GPT:
        """The workload of the values."""
        return self.made(self.values)[1]

    def move(self, moved: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Knobs were moved, the last one last: {name: (before, after)} of those that gave way."""
        self._moved = [*reversed([*moved]), *(n for n in self._moved if n not in moved)]
        wanted = {**self.values, **moved}
        self.values = wanted if self._works(wanted) else self._settled(wanted)
        self.__dict__.pop("stops", None)
        return {n: (wanted[n], v) for n, v in self.values.items() if v != wanted[n]}

    @cached_property
    def stops(self) -> dict[str, list[Any]]:
        """{knob: the values to choose from}; until the next move. Most of a move's time is theirs,
        so they are found when somebody asks."""
        return {n: self._stops(n, self.values[n]) for n in self.choices}

    def also(self, name: str, text: str) -> list[Any]:
        """All that a knob may be, from here on with the whole number that a text says, where the
        knob's range has it."""
        if text.isdecimal() and (number := int(text)) in self._ranges.get(name, ()):
            self.choices[name] = sorted({*self.choices[name], number})
        return self.choices[name]

    def _settled(self, wanted):
        """Others at their least; then one by one, the last moved first, as near as they fit."""
        order = [name for name in self._moved if name in self._least[0]]
        found = {}
        for least in self._least:
            found = {**wanted, **least}
            self._restore(found, wanted, "heads")
            if not order or self._works({**found, order[0]: wanted[order[0]]}):
                break
        for name in dict.fromkeys((*order, *self._least[0])):
            self._restore(found, wanted, name)
        return found

    def _restore(self, found, wanted, name):
        nearest = _nearest(self.choices[name], wanted[name])
        works = (v for v in nearest if self._works({**found, name: v}))
        found[name] = next(works, found[name])

    def _stops(self, name, value):
        """With the value itself, which a schedule of one's own needs: it fits no other sizes. Found
        once for each size of the model, number of ranks and value of knobs that never give
        way, on which alone they depend."""
        fixed = (value for knob, value in self.values.items() if knob not in self.choices)
        key = name, self.ranks, *(self.values[size] for size in size_names()), *fixed
        if key not in self._known:
            heads = {} if name == "hidden" else {"heads": self.values["heads"]}
            others = [{**self.values, **least, **heads} for least in self._least]
            self._known[key] = [
                value
                for value in self.choices[name]
                if any(self._works({**other, name: value}) for other in others)
            ]
        known = self._known[key]
        return known if value in known else [*known, value]

    def _works(self, values):
        try:
            strategy, workload = self.made(values)
        except ValueError:
            return False
        return strategy.world_size <= self.ranks and fits(strategy, workload)

    def made(self, values: Mapping[str, Any]) -> tuple[Strategy, GPT]:
        """The strategy and the workload of values, whether they fit together or not. Raises
        ``ValueError`` on those that either refuses by itself."""
        workload = _with(self._workload, *((name, values[name]) for name in size_names()))
        strategy = _with(self._inner, *((n, values[n]) for n in _names(type(self._inner))))
        for factor in self._around:
            made = _with(factor, *((n, values[n]) for n in _names(type(factor))))
            shared = not isinstance(made, Around) and not strategy.axes.keys().isdisjoint(SHARED)
            if made.world_size > 1 or shared:
                strategy *= made
        if self._placement and hasattr(strategy, "placement"):
            strategy = strategy.with_order(self._placement)
        return strategy, workload


def own_fields(cls: type) -> list[Field[Any]]:
    """The knobs of a class; of `Context` and `Experts` those that factors inside do not have."""
    without = WholeBlocks.__dataclass_fields__ if issubclass(cls, Around) else ()
    return [f for f in knob_fields(cls) if f.name not in without]


def size_names() -> list[str]:
    """The names of the knobs of `ModelSizes`."""
    return _names(ModelSizes)


@lru_cache
def _names(cls):
    return [f.name for f in own_fields(cls)]


@lru_cache(maxsize=4096)  # making one, with all its checks, is most of the time of a move
def _with(owner, *values):
    return replace(owner, **dict(values))


def _multiples(size):
    return sorted({max(1, round(size * factor)) for factor in FACTORS} | {size})


def _choices(f, value, more):
    """The values among which a knob of a strategy chooses, none where it binds no other knob."""
    low, high, several = (f.metadata[key] for key in ("low", "high", "choices"))
    if several is not None:
        return [] if isinstance(f.default, tuple) else list(dict.fromkeys((*several, value)))
    if isinstance(f.default, bool):
        return [False, True]
    if is_pair(f.default):
        return sorted({*pairs(RANKS), value}, key=lambda shape: (prod(shape), -shape[0]))
    if isinstance(f.default, int) and low is not None and high is not None:
        few = range(low, min(high, MOST) + 1)
        return sorted({*few, value, *(n for n in (*_multiples(MOST), *more) if MOST < n <= high)})
    return []


def _size(value):
    return prod(value) if isinstance(value, tuple) else value


def _nearest(values, wanted):
    """The values, nearest first; those that are no numbers as they come."""
    if isinstance(wanted, str):
        return sorted(values, key=lambda v: v != wanted)
    return sorted(values, key=lambda v: (v != wanted, abs(_size(v) - _size(wanted))))

"""Right programs of all ranks at once, run again with one mistake, or two, to know results by them.

An exercise writes its `Program` once, by the operations of `Steps`: what each rank computes, and
the collectives. Every operation knows the mistakes that can be made in it: a collective left out,
over another axis, on another tensor; a term left out, a function at another place.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from tpviz.core.mesh import Mesh

Values = Sequence[Any]
"""What each rank has."""
MOST = 1500
"""At most so many pairs of mistakes are tried: some ten milliseconds for each hundred."""


class Steps:
    """The operations of a program, which makes the ``mistakes``: {number of operation: name}.

    After a run: made, the (number of operation, name, words) of all mistakes that could be made;
    sent, the (axis, collective, 1, payload bytes) of its collectives.
    """

    def __init__(self, axes: dict[str, int], mistakes: dict[int, str] | None = None):
        self._mesh, self._mistakes = Mesh(axes), mistakes or {}
        self._count, self.made, self.sent = 0, [], []
        self._axes = {axis: self._over(axis) for axis, size in axes.items() if size > 1}
        if len(self._axes) > 1:
            self._axes["all"] = [[*range(self._mesh.size)]] * self._mesh.size

    def _over(self, axis):
        return [list(self._mesh.group(rank, axis)) for rank in range(self._mesh.size)]

    def _groups(self, axis):
        return self._axes.get(axis) or [[rank] for rank in range(self._mesh.size)]

    def _total(self, values, axis, share=1):
        """The sum over the ranks along an axis, or 1/share of it."""
        return [sum(values[r] for r in group) / share for group in self._groups(axis)]

    def _step(self, name, known: dict[str, str]):
        """The mistake to make in this operation, of those ``known``: {mistake: words}."""
        number = self._count
        self._count += 1
        self.made += [(number, key, words.format(name)) for key, words in known.items()]
        return self._mistakes.get(number, "")

    def _where(self, axis):
        if axis == "all":
            return "all ranks"
        return "the ranks" if axis == "world" else f"axis {axis}"

    def _elsewhere(self, what, axis):
        """The mistakes of a collective over another axis."""
        words = f"{{}} is {what} over {{}}, not over {self._where(axis)}"
        others = (other for other in self._axes if other != axis)
        return {f"over {other}": words.format("{}", self._where(other)) for other in others}

    def value(self, name: str, values: Values) -> Values:
        """A tensor that is no term of a sum over ranks."""
        known = {
            f"{how} {axis}": f"{{}} is {words} over {self._where(axis)}, but ranks have no terms "
            "of one sum there"
            for axis in self._axes
            for how, words in (("sum", "added"), ("mean", "averaged"))
        }
        how, _, axis = self._step(name, known).partition(" ")
        share = self._mesh.size if axis == "all" else self._mesh.axes.get(axis, 1)
        return self._total(values, axis, share if how == "mean" else 1) if how else values

    def each(self, name: str, compute: Callable[..., Any], *values: Values) -> Values:
        """What each rank computes of its own values."""
        return self.value(name, [compute(*own) for own in zip(*values)])

    def relu(self, name: str, values: Values) -> Values:
        """The positive parts."""
        return values if self._step(name, {"no": "relu of {} is missing"}) else _relu(values)

    def mask(self, name: str, values: Values, inner: Values) -> Values:
        """relu's gradient, where ``inner``, called ``name``, is what relu returned."""
        if self._step(name, {"no": "relu's gradient is missing: where {} is 0 nothing passes"}):
            return values
        return [one * (h > 0) for one, h in zip(values, inner)]

    def add(self, name: str, values: Values, more: Values) -> Values:
        """The sum with another tensor of the rank, called ``name``."""
        how = self._step(name, {"no": "{} is left out", "twice": "{} is added twice"})
        times = {"no": 0, "twice": 2}.get(how, 1)
        return [one + times * other for one, other in zip(values, more)]

    def sum(self, name: str, values: Values, axis: str) -> Values:
        """An all-reduce."""
        where = self._where(axis)
        self.sent.append((axis, "all_reduce", 1, values[0].nbytes))
        known = {
            "no": f"{{}} is not added over {where}",
            "mean": f"{{}} is averaged over {where}: its terms are added",
            "relu": f"relu is taken of each term of {{}}, before the sum over {where}",
        }
        known |= self._elsewhere("added", axis)
        how = self._step(name, known)
        if how == "no":
            return values
        if how == "mean":
            return self._total(values, axis, len(self._groups(axis)[0]))
        return self._total(
            _relu(values) if how == "relu" else values,
            how.removeprefix("over ") if how.startswith("over") else axis,
        )

    def gather(self, name: str, values: Values, axis: str, dim: int = 0) -> Values:
        """An all-gather of parts along a dim."""
        where = self._where(axis)
        self.sent.append((axis, "all_gather", 1, values[0].nbytes * self._mesh.axes[axis]))
        known = {
            "own": f"every part of {{}} is that of the rank itself: {where} has the others",
            "reverse": f"the parts of {{}} along {where} are joined in the reverse order",
            "interleaved": "the parts of {} are interleaved number by number: they stand one after "
            "another",
        }
        known |= {
            f"dim {other}": f"the parts of {{}} are joined along dim {other}; they are parts of "
            f"dim {dim}"
            for other in range(values[0].ndim)
            if other != dim
        }
        known |= self._elsewhere("gathered", axis)
        how = self._step(name, known)
        over = how.removeprefix("over ") if how.startswith("over") else axis
        found = []
        for rank, group in enumerate(self._groups(over)):
            parts = [values[rank if how == "own" else r] for r in group]
            along = int(how.removeprefix("dim ")) if how.startswith("dim") else dim
            found.append(_joined(parts[::-1] if how == "reverse" else parts, along, how))
        return found

    def scatter(self, name: str, values: Values, axis: str) -> Values:
        """A reduce-scatter of parts along dim 0."""
        where = self._where(axis)
        self.sent.append((axis, "reduce_scatter", 1, values[0].nbytes))
        known = {
            "no": f"{{}} is not added over {where}: each rank has its part of its own term",
            "mean": f"{{}} is averaged over {where}: its terms are added",
            "next": "a rank has the next rank's part of {}",
            "first": "every rank has the first part of {}",
        }
        known |= self._elsewhere("added", axis)
        how, groups = self._step(name, known), self._groups(axis)
        over = how.removeprefix("over ") if how.startswith("over") else axis
        total = values if how == "no" else self._total(values, over)
        found = []
        for rank, group in enumerate(groups):
            place = group.index(rank) + (how == "next")
            part = 0 if how == "first" else place % len(group)
            whole = np.split(total[rank], len(group))[part]
            found.append(whole / len(group) if how == "mean" else whole)
        return found


Program = Callable[[Steps], Values]
"""The right program: what each rank returns."""


def _relu(values):
    return [np.maximum(one, 0) for one in values]


def _joined(parts, dim, how):
    if how == "interleaved":
        return np.stack(parts, dim + 1).reshape(np.concatenate(parts, dim).shape)
    return np.concatenate(parts, dim)


def mutants(program: Program, axes: dict[str, int], together: int) -> Iterator[tuple[str, Values]]:
    """(the mistakes in words, what each rank returns) with so many mistakes at once."""
    right = Steps(axes)
    program(right)
    tried = 0
    for chosen in combinations(right.made, together):
        numbers = [number for number, _, _ in chosen]
        if len(set(numbers)) < together or (tried := tried + 1) > MOST:
            continue
        try:
            found = program(Steps(axes, {number: key for number, key, _ in chosen}))
        except ValueError:  # shapes that do not match
            continue
        yield "; and ".join(words for _, _, words in chosen), found

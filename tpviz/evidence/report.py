"""Results of labs: numbers with a chart, a table and a description."""

import copy
import sys
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

from tpviz.core.checks import one_of, whole_number
from tpviz.core.show import Charted
from tpviz.core.tables import Columns, table

from .facts import filled, notes


class Report(Charted):
    """A result of a lab, or of `tpviz.study`; a notebook shows its chart. Subclasses define chart,
    sentences, and the table: its columns, and lines, of ``rows`` by default.
    ``badges`` : sources of the numbers."""

    badges: Any
    rows: Any
    _options: Mapping[str, Any] = MappingProxyType({})

    def drawing(self) -> dict[str, Any]:
        """``title``, ``panels`` and layout of the chart: what `tpviz.core.charts` has in a
        scene beside badges, notes and the text for those who cannot see it."""
        raise NotImplementedError

    def words(self) -> list[str]:
        """The numbers in sentences."""
        raise NotImplementedError

    def notes(self) -> list[str]:
        """Remarks that belong to the numbers: sources, warnings, omissions, a sentence or two
        each."""
        raise NotImplementedError

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first."""
        return table(self._columns(), self._lines())

    def _columns(self) -> Columns:
        raise NotImplementedError

    def _lines(self) -> Iterable[tuple[Any, ...]]:
        """What the columns get of each line of the table."""
        return ((row,) for row in self.rows)

    def say(self, heading: str, /, **facts: Any) -> str:
        """The text of this heading in the ``notes.md`` beside the lab, filled in with facts; ``it``
        is the report."""
        lab = sys.modules[type(self).__module__].__file__
        return filled(notes(str(lab))[heading], it=self, **facts)

    def __repr__(self):
        """What stands in ``notes.md`` under the name of the class."""
        return f"<{self.say(type(self).__name__)}>"

    def scene(self, **options: Any) -> dict[str, Any]:
        """The chart as data, ready for JSON: see `tpviz.core.charts`. options : of
        ``drawing``."""
        return {
            "badges": list(self.badges),
            "notes": self.notes(),
            "alt": self.describe(),
            **self.drawing(**{**self._options, **options}),
        }

    def show(self, **options: Any) -> Self:
        """The same result, whose chart is drawn with these options of ``drawing``. Raises as that
        does."""
        other = copy.copy(self)
        object.__setattr__(other, "_options", {**self._options, **options})
        other.drawing(**other._options)
        return other

    def describe(self) -> str:
        """Numbers and notes in words."""
        return " ".join([*self.words(), *self.notes()])


def too_late(names: Sequence[str], separator: str = ", ", noun: str = "") -> list[str]:
    """The note on emulated runs that were not faithful; none where there are none."""
    words = f"{separator.join(names)}{noun}. More slow motion helps."
    return [f"Not faithful, events too short for this machine: {words}"] * bool(names)


def listed(name: str, values: Any, what: str, example: tuple[int, ...]) -> tuple[Any, ...]:
    """``values`` as a tuple. Raises ``ValueError`` unless they are some, in a list."""
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ValueError(f"{name}={values!r}: give numbers of {what} in a list, as in {example}")
    if not (values := tuple(values)):
        raise ValueError(f"no {name}: give numbers of {what} in a list, as in {example}")
    return values


def some(kind: str, values: Iterable[Any], choices: tuple[Any, ...], name: str) -> tuple[Any, ...]:
    """Those of ``choices`` that are in ``values``, none twice, in their order. Raises
    ``ValueError`` on another, and where there is none; ``name`` is the argument's."""
    if not (chosen := tuple(dict.fromkeys(one_of(kind, value, choices) for value in values))):
        raise ValueError(f"{name} is empty: give some of {', '.join(map(str, choices))}")
    return chosen


def whole_numbers(name: str, values: Iterable[Any], low: int = 1) -> list[int]:
    """Whole numbers of ``low`` or more, smallest first, none twice."""
    return sorted({whole_number(name, value, low) for value in values})


def named(argument: str, given: Any, kind: type, label: str) -> dict[Any, Any]:
    """{name: thing} of such a dict, of several things of a ``kind``, or of one; things without a
    name are called by their ``label``. Raises ``ValueError`` on what is none of these, on nothing,
    and on two of one name."""
    noun = kind.__name__.lower()
    wanted = f"give {argument} in a list, or {{name: {noun}}}"
    given = [given] if isinstance(given, kind) else given
    if isinstance(given, str) or not isinstance(given, Iterable) or not given:
        raise ValueError(f"{argument}={given!r}: {wanted}")
    if not isinstance(given, Mapping):
        pairs = [(getattr(one, label, ""), one) for one in given]
    else:
        pairs = list(given.items())
    for number, (name, one) in enumerate(pairs):
        if not isinstance(one, kind):
            raise ValueError(f"{argument} has {one!r}, which is no {noun}: {wanted}")
        if name in dict(pairs[:number]):
            raise ValueError(
                f"two {argument} are named {name!r}: give other names, as in {{name: {noun}}}"
            )
    return dict(pairs)


def not_knobs(knobs: dict[str, Any], names: Iterable[str], why: str) -> None:
    """Raise ``ValueError`` where one of ``names`` is among the knobs: the lab sets it."""
    taken = next((name for name in names if name in knobs), None)
    if taken:
        raise ValueError(f"{taken}={knobs[taken]!r}: {why.format(taken)}")

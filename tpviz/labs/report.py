"""Results of labs: numbers with a figure, a table and a description."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpviz.checks import one_of, whole_number
from tpviz.figures.charts import chart
from tpviz.figures.page import swept, write_view
from tpviz.tables import html_table

if TYPE_CHECKING:
    from plotly.graph_objects import Figure

Columns = Sequence[tuple[str, Callable[..., str]]]
"""(header, function from a row's items to the cell) of each column of a table."""


class Report:
    """A result of a lab, or of `tpviz.study`. Subclasses define its figure, table and sentences;
    ``badges`` name the sources of the numbers."""

    badges: Any

    def drawing(self) -> dict[str, Any]:
        """``title``, ``panels`` and layout of the picture: what `tpviz.figures.charts` has in a
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
        raise NotImplementedError

    def scene(self, **options: Any) -> dict[str, Any]:
        """The picture as data, ready for JSON: see `tpviz.figures.charts`. options : of
        ``drawing``."""
        return {
            "badges": list(self.badges),
            "notes": self.notes(),
            "alt": self.describe(),
            **self.drawing(**options),
        }

    def figure(self, theme: str = "light", **options: Any) -> "Figure":
        """The picture as a plotly ``Figure``; theme "light" or "dark". options : of ``drawing``."""
        return chart(self.scene(**options), theme)

    def to_html(
        self,
        path: str | PathLike[str],
        sweep: Mapping[str, Iterable[Any]] | None = None,
        *,
        title: str = "",
    ) -> Path:
        """Write the picture as one HTML file that needs no network; returns the path.

        sweep : {option of ``drawing``: values}, a slider for each. title : of the page, the
        picture's own by default. Raises as ``drawing`` does, and ``ValueError`` on an option
        without values.
        """
        view = swept("chart", sweep, self._state)
        return write_view(path, title or self.scene()["title"], view, self._repr_html_())

    def _state(self, **options):
        """What `chart.js` draws."""
        themes = {
            theme: self.figure(theme, **options).to_plotly_json() for theme in ("light", "dark")
        }
        return {"scene": {"title": self.scene(**options)["title"], "themes": themes}}

    def describe(self) -> str:
        """Numbers and notes in words."""
        return " ".join([*self.words(), *self.notes()])

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


def table(columns: Columns, rows: Iterable[tuple[Any, ...]]) -> list[list[str]]:
    """Rows of strings, header first.

    >>> table([("n", str), ("square", lambda n: f"{n * n}")], [(2,), (3,)])
    [['n', 'square'], ['2', '4'], ['3', '9']]
    """
    cells = [cell for _, cell in columns]
    return [[head for head, _ in columns], *([cell(*row) for cell in cells] for row in rows)]


def too_late(names: Sequence[str], separator: str = ", ", noun: str = "") -> list[str]:
    """The note on emulated runs that were not faithful; none where there are none."""
    words = f"{separator.join(names)}{noun}. Slower motion helps."
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

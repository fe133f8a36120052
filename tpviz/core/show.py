"""How a result is shown. It says what there is to see: rows, a scene, words; it knows no picture.
The package says from above, in `tpviz/__init__.py`, which module draws it, and that loads when a
picture is asked for. The mixins here make of both what a notebook shows and a file holds.

>>> import tpviz
>>> figure_of(tpviz.clusters.laptop(2)).__name__
'tpviz.views.figures.cluster'
"""

from collections.abc import Collection, Iterable, Mapping
from html import escape
from importlib import import_module
from os import PathLike
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol

from .tables import html_table, text_table

if TYPE_CHECKING:
    from pathlib import Path

    from plotly.graph_objects import Figure

_drawn_by: dict[str, str] = {}
_written_by: dict[str, str] = {}


class Shown(Protocol):
    """A picture that a notebook shows: its SVG, its words, and both as HTML."""

    @property
    def svg(self) -> str:
        """One SVG."""
        ...

    @property
    def words(self) -> str:
        """For those who cannot see it."""
        ...

    @property
    def html(self) -> str:
        """The picture as HTML, which has the words."""
        ...


def drawn_by(figures: Mapping[str, str]) -> None:
    """figures : {class, as "module.Name": the module that draws it}."""
    _drawn_by.update(figures)


def figure_of(noun: object) -> ModuleType:
    """The module that draws a noun. Raises ``TypeError`` where none does."""
    for cls in type(noun).__mro__:
        module = _drawn_by.get(f"{cls.__module__}.{cls.__name__}")
        if module:
            return import_module(module)
    raise TypeError(f"no figure draws a {type(noun).__name__}")


def formats(writers: Mapping[str, str]) -> None:
    """writers : {format of a trace's file: the module that writes it}."""
    _written_by.update(writers)


def written_by(format: str) -> ModuleType:
    """The module that writes traces in a format."""
    return import_module(_written_by[format])


class Tabular:
    """Mixin of a result that prints as its table, and in a notebook as an HTML table.

    A class gives ``to_table``, and may give ``_above`` and ``_below``, sentences around it.
    ``_look``: the CSS class of the table. ``_right``: columns whose text is at the right.
    """

    _look = "tpviz-lab"
    _right: Collection[int] = ()

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first."""
        raise NotImplementedError

    def _printed(self) -> list[list[str]]:
        """The rows that are printed: all, unless a class leaves some of a long table out."""
        return self.to_table()

    def _above(self) -> str:
        return ""

    def _below(self) -> str:
        return ""

    def __repr__(self):
        above, below = ([words] * bool(words) for words in (self._above(), self._below()))
        return "\n".join([*above, *text_table(self._printed(), right=self._right), *below])

    def _repr_html_(self):
        above, below = (f"<p>{escape(w)}</p>" if w else "" for w in (self._above(), self._below()))
        return above + html_table(self._printed(), f"class='{self._look}'") + below


class Drawn:
    """Mixin of a result that a notebook shows as a picture. A class gives ``to_svg`` and
    ``describe``, the words for those who cannot see it."""

    if TYPE_CHECKING:
        to_svg: Any
        describe: Any

    def _image(self, **options: Any) -> str:
        """The picture as HTML. Where its module says so, ``LEGIBLE``, it stays so many px wide."""
        figure = figure_of(self)
        least = getattr(figure, "LEGIBLE", 0)
        return figure.image(self.to_svg(**options), self.describe(), least)

    def _repr_html_(self):
        return self._image()


class Tabled(Drawn):
    """Mixin of a picture with the table of its numbers folded below. A class gives ``to_table``."""

    if TYPE_CHECKING:

        def to_table(self) -> list[list[str]]:
            """Rows of strings, header first."""
            ...

    def _table(self) -> str:
        """The table as HTML, folded."""
        table = html_table(self.to_table(), "class='tpviz-lab'")
        return f"<details><summary>as a table</summary>{table}</details>"

    def _repr_html_(self):
        return self._image() + self._table()


class Charted(Tabled):
    """Mixin of a result whose picture is a chart (`tpviz.core.charts`); a class gives ``scene``."""

    if TYPE_CHECKING:

        def scene(self, **options: Any) -> dict[str, Any]:
            """The chart as data, ready for JSON."""
            ...

    def to_svg(self, theme: str = "auto", **options: Any) -> str:
        """The chart as one static SVG; theme "light", "dark", "auto" or "page". options : of
        ``scene``."""
        return figure_of(self).chart_svg(self.scene(**options), theme)

    def figure(self, theme: str = "light", **options: Any) -> "Figure":
        """The chart as a plotly ``Figure`` to work on; theme "light" or "dark". options : of
        ``scene``."""
        return figure_of(self).plotly_figure(self.scene(**options), theme)

    def to_html(
        self,
        path: str | PathLike[str],
        sweep: Mapping[str, Iterable[Any]] | None = None,
        *,
        title: str = "",
    ) -> "Path":
        """Write the chart as one HTML file that needs no network; returns the path.

        sweep : {option of ``scene``: values}, a slider for each. title : above the chart, which
        shows its own. Raises as ``scene`` does, and ``ValueError`` on an option without values.
        """
        page, still = figure_of(self), self._in_page()
        view = page.swept("picture", sweep, lambda **o: {"scene": {"svg": self._in_page(**o)}})
        return page.write_view(path, self.scene()["title"], view + self._table(), still, title)

    def _in_page(self, **options):
        """What a page shows of the chart: an SVG that grows with its column."""
        return figure_of(self).fitted(self.to_svg("page", **options))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None):
        return {
            "text/html": self._repr_html_(),
            "image/svg+xml": self.to_svg(),
            "text/plain": repr(self),
        }

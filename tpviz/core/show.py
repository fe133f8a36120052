"""Who draws what. A noun or a result knows no picture: the package says from above, in
`tpviz/__init__.py`, which module draws it, and that loads when a picture is asked for.

>>> import tpviz
>>> figure_of(tpviz.clusters.laptop(2)).__name__
'tpviz.views.figures.cluster'
"""

from collections.abc import Mapping
from importlib import import_module
from types import ModuleType
from typing import Protocol

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

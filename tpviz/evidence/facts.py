"""Facts about the world, in ``facts.json``, and texts of labs, in ``notes.md``, beside the code.

>>> from tpviz.evidence import merak
>>> facts(merak.__file__).models["1.5B"]
[48, 1600, 16]
"""

import json
from functools import lru_cache
from pathlib import Path
from string import Formatter
from types import SimpleNamespace
from typing import Any

from tpviz.core.tables import show_bytes, show_seconds


def facts(module: str, name: str = "facts") -> SimpleNamespace:
    """What ``name``.json has beside a module, whose ``__file__`` is given: {fact: its value}.

    Each entry there also says what it is, and its source: a paper, a program, or how sure it is.
    """
    entries = json.loads(Path(module).with_name(f"{name}.json").read_text())
    return SimpleNamespace(**{name: e["value"] for name, e in entries.items() if name != "about"})


def records(rows: list[list[Any]]) -> list[dict[str, Any]]:
    """{column: cell} of each row of a table whose first row has the columns."""
    head, *body = rows
    cell = lambda value: tuple(value) if isinstance(value, list) else value
    return [dict(zip(head, map(cell, row))) for row in body]


@lru_cache
def notes(module: str) -> dict[str, str]:
    """{heading: text} of the ``notes.md`` beside a module; what stands in braces is to be filled
    in, by `filled`."""
    _, *parts = Path(module).with_name("notes.md").read_text().split("\n## ")
    found = (part.partition("\n\n") for part in parts)
    return {heading: text.strip() for heading, _, text in found}


class _Filling(Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        if format_spec in ("seconds", "bytes"):
            return (show_seconds if format_spec == "seconds" else show_bytes)(value)
        if format_spec.endswith(" %"):
            return f"{format(100 * value, format_spec[:-2])} %"
        return super().format_field(value, format_spec)


def filled(text: str, **what: Any) -> str:
    """A text with what stands in its braces, as ``str.format``; there ``seconds`` and ``bytes`` are
    formats as well, and a share is shown in per cent by what ends in `` %``.

    >>> filled("{step:seconds}, {gain:+.1f %}", step=1.5e-3, gain=0.25)
    '1.5 ms, +25.0 %'
    """
    return _Filling().vformat(text, (), what)

"""Facts about the world, in ``facts.json``, and remarks of labs, in ``notes.md``, beside the code.

>>> from tpviz.evidence import merak
>>> facts(merak.__file__).models["1.5B"]
[48, 1600, 16]
"""

import json
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any


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
    """{heading: remark} of the ``notes.md`` beside a module; what stands in braces is to be filled
    in, by ``str.format``."""
    _, *parts = Path(module).with_name("notes.md").read_text().split("\n## ")
    found = (part.partition("\n\n") for part in parts)
    return {heading: remark.strip() for heading, _, remark in found}

"""What a Kineto file may hold in the fields that are read here; all others may be anything.

Numbers that Kineto writes as numbers pass as text, too, where they stand for a whole number.
"""

import re
from pathlib import Path
from typing import Any

from .files import complete_events, place
from .shapes import Fields, List, Misfit, Number, Plain, Rank, Text, Whole, check_all, fitting

_LONG_AGO = 1e17
"""Microseconds before and after 1970 that are a time: 3000 years."""
ELEMENTS = 2**56
"""Most elements of a message: their bytes still fit an int64."""


class _Object:
    """An object; None passes for an empty one."""

    def check(self, value):
        """A dict."""
        if value is not None and not isinstance(value, dict):
            raise Misfit(value, "an object")
        return value or {}

    def column(self, values):
        """The values, if all are objects."""
        return values if {dict}.issuperset(map(type, values)) else None


class _Ranks(Text):
    """Ranks as in "[0, 1]", a list of them, or a list cut short with "..."."""

    pattern = re.compile(r"\s*\[?\s*(\d{1,9}(\s*,\s*\d{1,9})*)?\s*\]?\s*")

    def check(self, value):
        """A text."""
        text = str(value) if isinstance(value, list) else value
        if not isinstance(text, str) or not ("..." in text or self.pattern.fullmatch(text)):
            raise Misfit(value, "a list of ranks such as '[0, 1]'")
        return text


EVENT = {
    **dict.fromkeys(("pid", "tid"), Plain()),
    **dict.fromkeys(("name", "cat"), Text()),
    "ts": Number(-_LONG_AGO, _LONG_AGO),
    "dur": Number(0, _LONG_AGO),
    "args": _Object(),
}
NEEDED = ("name", "ts", "dur")
ARGS = {
    **dict.fromkeys(
        ("correlation", "External id", "external id", "stream", "Process Group Name"), Plain()
    ),
    **dict.fromkeys(("Collective name", "Process Group Description", "dtype"), Text()),
    "Process Group Ranks": _Ranks(),
    "Group size": Rank(1, digits=True),
    **dict.fromkeys(("Global rank start", "Global rank stride"), Whole(-1, digits=True)),
    **dict.fromkeys(("In msg nelems", "Out msg nelems"), Whole(-1, ELEMENTS, digits=True)),
    "Seq": Whole(-1, digits=True),
}
INFO = Fields(
    {
        "distributedInfo": Fields(
            {
                "rank": Rank(0, digits=True),
                "world_size": Rank(1, digits=True),
                "pg_config": List(
                    Fields({"pg_name": Plain(), "pg_desc": Text(), "ranks": List(Rank(0))})
                ),
            }
        ),
        "deviceProperties": List(Fields({"name": Text()})),
        "baseTimeNanoseconds": Whole(digits=True),
    }
)


def checked_events(path: Path, events: list[Any]) -> list[dict[str, Any]]:
    """Copies of the complete events ("X"), with the fields here checked and ``args`` in each.

    Raises ``ValueError`` that names the file, the event and the field.
    """
    found, numbers = [], []
    for number, event in complete_events(path, events, NEEDED):
        found.append({"cat": "", "args": {}, **event})
        numbers.append(number)
    check_all(EVENT, found, lambda row: place(path, numbers[row]))
    arguments = [event["args"] for event in found]
    check_all(ARGS, arguments, lambda row: place(path, numbers[row]) + "args.")
    return found


def information(path: Path, data: dict[str, Any]) -> dict[str, Any]:
    """The object ``data`` of a file with what it says about the run checked; ``ValueError``."""
    return fitting(INFO, data, f"{path}: ")

"""What the columns of a trace may hold, for events made by hand and events of files alike.

>>> columns({"rank": [0, -3]}, where=lambda row: f"event {row}: ")
Traceback (most recent call last):
ValueError: event 1: rank is -3, not a whole number from 0 to 131071
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tpviz.core import limits

from .columns import COLUMNS
from .members import members_list
from .shapes import FiniteNumber, Misfit, OneText, Rank, Text, WholeNumber, short

if TYPE_CHECKING:
    from .columns import Event

_Kind = TypeVar("_Kind")
LONGEST = 1e11
"""Seconds before and after zero, some 3000 years: what is left of a nanosecond's place is none."""


class Members(Text):
    """The ranks of a group as `members_text` writes them."""

    def check(self, value: Any) -> str:
        """The text."""
        try:
            members_list(value if isinstance(value, str) else "no text")
        except ValueError:
            most = f"below {limits.RANKS} (tpviz.limits.RANKS)"
            raise Misfit(value, f"ranks such as '0,2' or '0..1016:8', {most}") from None
        return str(value)


ROW = {
    **dict.fromkeys(("id", "waits_for", "microbatch", "chunk", "step", "seq"), WholeNumber(-1)),
    "flops": WholeNumber(0),
    "bytes": WholeNumber(-1),
    **dict.fromkeys(("lane", "name", "phase", "layer", "axis", "dtype", "terms"), Text()),
    **dict.fromkeys(("start", "end"), FiniteNumber(-LONGEST, LONGEST)),
    "rank": Rank(0),
    "kind": OneText("compute", "comm", "copy", "wait", "step"),
    "wire_bytes": FiniteNumber(-1, 1e30),
    "members": Members(),
}


class Runs:
    """A table that grows by runs of rows; the limits hold for the whole of it, at any time."""

    def __init__(self):
        self.parts, self.rows, self.widths, self.groups = [], 0, {}, {}

    def add(
        self, values: Mapping[str, Sequence[Any]], where: Callable[[int], str] = "event {}: ".format
    ) -> None:
        """Append {name: list or tuple of equal length}, one for each column.

        where : row -> the words that begin an error about it. Raises ``ValueError`` for a value
        that is not what the column holds, for an end before its start, and above `limits`.
        """
        self.rows += len(values["id"])
        self._check_room(values)
        self.parts.append(columns(values, where))
        new = set(values["members"]) - self.groups.keys()
        self.groups |= {text: len(members_list(text)) for text in new}
        limits.check(
            "the groups of the trace have members, together,",
            sum(self.groups.values()),
            "MEMBERS",
            or_more=True,
        )

    def _check_room(self, values):
        """Refuse a text so long that room for it in every row takes too much memory."""
        for name, dtype in COLUMNS.items():
            if dtype is np.str_:
                self.widths[name] = max(_longest(values[name]), self.widths.get(name, 0))
        limits.check(
            "the trace's columns of texts, as wide as their longest text, take bytes:",
            4 * self.rows * sum(self.widths.values()),
            "TABLE_BYTES",
            or_more=True,
        )

    def columns(self) -> dict[str, np.ndarray]:
        """{name: array}; rows with id -1 are numbered in the order given. Empties the table."""
        parts = self.parts or [columns({name: [] for name in COLUMNS}, str)]
        # Each column is freed from the runs once joined, so memory never holds all of them twice.
        made = {name: np.concatenate([part.pop(name) for part in parts]) for name in COLUMNS}
        made["id"] = np.where(made["id"] < 0, np.arange(self.rows), made["id"])
        self.__init__()
        return made


def table_of(
    rows: "Sequence[Event]", where: Callable[[int], str] = "event {}: ".format
) -> dict[str, np.ndarray]:
    """The columns of rows, each an `Event`; those with id -1 are numbered in the order given."""
    table, by_column = Runs(), zip(*rows) if rows else [[]] * len(COLUMNS)
    table.add(dict(zip(COLUMNS, by_column)), where)
    return table.columns()


def columns(
    values: Mapping[str, Sequence[Any]], where: Callable[[int], str]
) -> dict[str, np.ndarray]:
    """{name: array} of {name: list or tuple of equal length}, each value as its column holds it."""
    made = {name: _column(name, values[name], where) for name in values}
    if "start" in made and "end" in made:
        early = np.flatnonzero(made["end"] < made["start"])
        if len(early):
            row = int(early[0])
            raise ValueError(
                f"{where(row)}end is {made['end'][row]!s}, before its start, {made['start'][row]!s}"
            )
    return made


def _column(name, values, where):
    shape = ROW[name]
    array = shape.column(values)
    if array is not None:
        return array
    clean = []
    for row, value in enumerate(values):
        try:
            clean.append(shape.check(value))
        except Misfit as misfit:
            raise ValueError(f"{where(row)}{misfit.within(name)}") from None
    return np.array(clean, shape.dtype)


def _longest(values):
    try:
        return max(map(len, set(values)), default=0)
    except TypeError:  # not all are texts, and so refused when looked at one by one
        return 0


def check_table(columns: dict[str, np.ndarray], meta: dict[str, Any]) -> None:
    """Raise ``ValueError`` unless these are columns of one length, all there, and a dict."""
    if not isinstance(columns, dict) or not isinstance(meta, dict):
        raise ValueError(
            "a trace is made of two dicts, columns and meta, not of "
            f"{short(columns)} and {short(meta)}"
        )
    missing = COLUMNS.keys() - columns.keys()
    odd = [name for name, c in columns.items() if not isinstance(c, np.ndarray) or c.ndim != 1]
    lengths = set() if odd else {len(c) for c in columns.values()}
    kinds = {np.str_: "U", np.int64: "iu", np.float64: "fiu"}
    odd += [
        name
        for name, dtype in COLUMNS.items()
        if not (missing or odd) and columns[name].dtype.kind not in kinds[dtype]
    ]
    if missing or odd or len(lengths) > 1:
        raise ValueError(
            f"a trace needs columns {sorted(COLUMNS)}, arrays of one length; "
            f"missing {sorted(missing)}, arrays of another kind {odd}, lengths {sorted(lengths)}"
        )


def each(kind: type[_Kind], what: str, values: Iterable[_Kind]) -> list[_Kind]:
    """``values`` as a list; ``ValueError`` unless all are instances of the class ``kind``."""
    try:
        values = iter(values)
    except TypeError:
        raise ValueError(f"{what} come in a list, not as {short(values)}") from None
    found = []
    for value in values:
        if not isinstance(value, kind):
            raise ValueError(
                f"{what} are a list of {kind.__name__}s: number {len(found)} is {short(value)}"
            )
        found.append(value)
    return found

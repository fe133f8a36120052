"""``leaderboard``: the graded plans of a class in one file, a JSON object a line.

board = tv.leaderboard("class.jsonl").add("Ada", tv.check("capstone_cluster", capstone_cluster))
board, board.skipped
"""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

from tpviz.core import limits
from tpviz.core.checks import number, one_of, text
from tpviz.core.tables import html_table, listed, show_bytes, show_seconds, text_table

from .catalogue import EXERCISES
from .grade import Result
from .locks import lock
from .marks import PlanExercise, share

LONGEST = 64
"""Characters of a name, and of what stands in a message for a line."""
PLANS = [name for name, exercise in EXERCISES.items() if isinstance(exercise, PlanExercise)]
FIGURES = {"predicted": show_seconds, "exposed": share, "memory": show_bytes}
"""Columns of a table -> the figure in words."""


class Entry(NamedTuple):
    """One submission. regret : a share, None where the plan has no step. plan : in short. figures :
    {name: number}, SI units."""

    name: str
    exercise: str
    points: float
    regret: float | None
    plan: str
    figures: dict[str, float]

    @property
    def order(self) -> tuple[float, float]:
        """Key of the best first: most points, then least regret."""
        return -self.points, float("inf") if self.regret is None else self.regret


@dataclass(frozen=True, repr=False)
class Leaderboard:
    """What a file holds: ``entries`` in the order of the file; ``skipped``, a note on each line
    that holds none."""

    path: Path
    entries: tuple[Entry, ...] = ()
    skipped: tuple[str, ...] = ()

    def add(self, name: str, result: Result) -> "Leaderboard":
        """Append one line for the result of `tpviz.check`; returns the file as it then is.

        Raises ``ValueError`` for a name that is empty, longer than `LONGEST` or not printable, and
        for a result without points; ``OSError`` where the file cannot be written.
        """
        name = _printable("name", name)
        if not isinstance(result, Result) or result.marks is None:
            raise ValueError(
                f"only results with points count: give that of tv.check of {' or '.join(PLANS)} "
                f"on a dict, not {result!r:.{LONGEST}}"
            )
        marks = result.marks
        entry = Entry(name, result.name, marks.points, marks.regret, marks.plan, marks.figures)
        line = json.dumps(entry._asdict())
        with _locked(self.path, "ab+") as file:
            if file.tell():
                file.seek(-1, 2)
                if file.read(1) != b"\n":  # somebody stopped in the middle of a line
                    line = "\n" + line
            file.write(line.encode() + b"\n")
        return leaderboard(self.path)

    @property
    def best(self) -> list[Entry]:
        """The best entry of each name in each exercise, most points first."""
        found: dict[tuple[str, str], Entry] = {}
        for entry in sorted(self.entries, key=lambda entry: entry.order):
            found.setdefault((entry.exercise, entry.name), entry)
        return list(found.values())

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: the ``best``, without their plans."""
        rows = [["name", "exercise", "points", "regret", *FIGURES, "tries"]]
        for one in self.best:
            tries = sum(entry[:2] == one[:2] for entry in self.entries)
            figures = [
                show(one.figures[name]) if name in one.figures else ""
                for name, show in FIGURES.items()
            ]
            regret = "" if one.regret is None else share(one.regret)
            rows.append([one.name, one.exercise, f"{one.points:g}", regret, *figures, f"{tries}"])
        return rows

    @property
    def note(self) -> str:
        """A sentence on the lines that were skipped; "" where there are none."""
        lines = "line was" if len(self.skipped) == 1 else "lines were"
        told = listed(self.skipped, "; ", 4)
        return f"{len(self.skipped)} {lines} skipped: {told}." if self.skipped else ""

    def __repr__(self):
        table = text_table(self.to_table(), right=range(2, 8))
        return "\n".join(filter(None, [*table, self.note]))

    def _repr_html_(self):
        note = html_table([[self.note]], "") if self.note else ""
        return html_table(self.to_table(), "class='tpviz-lab'") + note


def leaderboard(path: str | PathLike[str]) -> Leaderboard:
    """The `Leaderboard` in a file, which need not exist yet.

    Whoever can write the file can enter any score: it is for a class whose members trust each
    other. Lines that are no submission are skipped, each with a note. Raises ``ValueError`` for
    what is no file or is larger than `tpviz.limits.FILE_BYTES`, ``OSError`` where it cannot be
    read.
    """
    path = Path(path)
    if not path.exists():
        return Leaderboard(path)
    entries, skipped = [], []
    with _locked(path, "rb", shared=True) as file:
        for index, line in enumerate(_lines(file), 1):
            try:
                entries.append(_entry(line))
            except (ValueError, RecursionError) as error:
                skipped.append(f"line {index}: {str(error)[:LONGEST]}")
    return Leaderboard(path, tuple(entries), tuple(skipped))


@contextmanager
def _locked(path: Path, mode: str, shared: bool = False) -> Generator[IO[Any], None, None]:
    """The file, locked against other processes until the end."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no file: give the path of a file of lines, as class.jsonl")
    with open(path, mode) as file:
        lock(file, shared)
        limits.check(f"bytes of {path}:", path.stat().st_size, "FILE_BYTES")
        yield file  # closing it writes what is left, then unlocks


def _lines(file: IO[bytes]) -> Iterator[bytes]:
    """Lines that are not blank; of a longer one than `limits.TEXT` its beginning."""
    while line := file.readline(limits.TEXT + 1):
        whole = line
        while whole and not whole.endswith(b"\n"):
            whole = file.readline(limits.TEXT + 1)
        if line.strip():
            yield line


def _entry(line: bytes) -> Entry:
    """The submission of a line. Raises ``ValueError`` where it is none."""
    if len(line) > limits.TEXT:
        raise ValueError(f"more than {limits.TEXT} bytes")
    found = json.loads(line.decode())
    if not isinstance(found, dict):
        raise ValueError("no JSON object")
    if missing := [name for name in Entry._fields if name not in found]:
        raise ValueError(f"lacks {', '.join(missing)}")
    figures, regret = found["figures"], found["regret"]
    if not isinstance(figures, dict):
        raise ValueError("figures must be an object")
    return Entry(
        _printable("name", found["name"]),
        one_of("exercise", found["exercise"], PLANS),
        number("points", found["points"], 0, 100),
        None if regret is None else number("regret", regret, 0, 1e9),
        text("plan", found["plan"]),
        {name: number(name, figures[name], -1e18, 1e18) for name in FIGURES if name in figures},
    )


def _printable(what: str, name: Any) -> str:
    """A text of 1 to `LONGEST` printable characters."""
    name = text(what, name).strip()
    if not name or len(name) > LONGEST or not name.isprintable():
        raise ValueError(f"{what} must have 1 to {LONGEST} printable characters: {name!r:.20}")
    return name

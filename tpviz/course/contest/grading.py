"""Grades of entries: each in a process of its own, with an end, so that none hangs or takes others
along."""

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from os import killpg
from pathlib import Path
from signal import SIGKILL
from typing import NoReturn

from .entries import Entrant, Task, entry, scored, task, verified

DAYS = 30
"""How old a new entry's date may be."""


@dataclass(frozen=True)
class Grade:
    """What an entry is worth. score : the least is first; None where there is none, then ``why``
    says so. words : the score in words."""

    path: Path
    score: float | None
    why: str = ""
    words: str = ""

    def __str__(self):
        return f"{self.path}: {self.words if self.score is not None else f'no score: {self.why}'}"


def grade(path: Path, tasks: Path, new: bool = False) -> Grade:
    """The grade of an entry's file, after the task of its folder's name in the folder ``tasks``.

    A new process computes the score, and compares the entry with one process on real ranks; it
    ends, with its ranks, after the seconds of the task. new : see `grade_all`.
    """
    try:
        of = task(tasks / path.absolute().parent.name)
    except ValueError as error:
        return Grade(path, None, str(error))
    code = f"from {__name__} import _alone; _alone()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, path.absolute(), tasks.absolute(), str(int(new))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        said, error = child.communicate(timeout=of.seconds)
    except subprocess.TimeoutExpired:
        return Grade(path, None, f"it was not graded within {of.seconds:g} s")
    finally:
        with suppress(ProcessLookupError):
            killpg(child.pid, SIGKILL)
        child.communicate()
    if child.returncode:
        last = error.strip().splitlines()[-1:] or [f"the grade ended with code {child.returncode}"]
        return Grade(path, None, last[0])
    found = json.loads(said.splitlines()[-1])
    return Grade(path, found["score"], found["why"], found["words"])


def _alone() -> NoReturn:
    """Grades one entry in this process; prints a line of JSON."""
    path, tasks, new = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "1"
    of, score, why = task(tasks / path.parent.name), None, ""
    try:
        one = entry(path, of)
        why = same(one, of, tasks) or (recent(one, date.today()) if new else "")
        score = None if why else scored(one, of)
        why = why or verified(one, of)
    except (ValueError, TypeError, NotImplementedError, RuntimeError) as error:
        why = str(error)
    score = None if why else score
    words = "" if score is None else of.show(score)
    print(json.dumps({"score": score, "why": why, "words": words}))
    sys.exit(0)


def same(one: Entrant, of: Task, tasks: Path) -> str:
    """Which entry of another name is the same and not younger; "" if there is none."""
    for name, other in entries(of, tasks):
        if name != one.name and other.made == one.made and other.date <= one.date:
            return f"it is the same as {name} of {other.date}, by {other.author}"
    return ""


def entries(of: Task, tasks: Path) -> Iterator[tuple[str, Entrant]]:
    """(name, entry) of each file of a task, in the order of their names."""
    for path in sorted((tasks / of.name).glob("*.toml")):
        if path.name != "task.toml":
            yield path.stem, entry(path, of)


def grade_all(files: Iterable[Path], tasks: Path, new: bool = False) -> int:
    """Print the grade of each file, by default of all entries; 0 if all have scores, else 1.

    new : refuse dates that are not of these days, since equal scores go by their dates.
    """
    paths = [*files] or [p for p in sorted(tasks.glob("*/*.toml")) if p.name != "task.toml"]
    if not paths:
        raise ValueError(f"{tasks} has no entries: give the folder of tasks, --tasks")
    grades = [grade(path, tasks, new) for path in paths]
    print(*grades, sep="\n")
    return int(any(one.score is None for one in grades))


def recent(one: Entrant, today: date) -> str:
    """Why a new entry's date cannot be; "" if it can."""
    early, late = (date.fromordinal(today.toordinal() + days) for days in (-DAYS, 1))
    if early <= one.date <= late:
        return ""
    return f"date={one.date} is not between {early} and {late}: write that of the pull request"


def ranked(of: Task, tasks: Path) -> list[tuple[float, Entrant]]:
    """(score, entry) of a task's files, best first, of equal ones the older; without ranks."""
    found: Iterable[tuple[float, Entrant]] = [(scored(e, of), e) for _, e in entries(of, tasks)]
    return sorted(found, key=lambda row: (row[0], row[1].date, row[1].name))

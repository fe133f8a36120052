"""Tasks and entries of the public leaderboard, read from files of data, and an entry's score.

An entry is a file in its task's folder, ``all-reduce/a-ring.toml`` beside
``all-reduce/task.toml``. No code of it runs, and its model, cluster and score are the task's.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpviz.core.checks import number, one_of, text, whole_number
from tpviz.core.tables import show_bytes, show_seconds
from tpviz.verbs import written
from tpviz.verbs.room import need
from tpviz.verbs.simulate import simulate

from .messages import ByMessages, read, wrong

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy

KINDS = {"sum": (show_seconds, "s"), "step": (show_seconds, "s"), "memory": (show_bytes, "bytes")}
"""What a task asks for -> its score in words, and its unit: seconds of a sum of gradients, seconds
of a step, or bytes of the rank that needs most. The least is first."""
DIGITS = 6
"""Significant digits of a score: what differs behind them is rounding, and no better entry."""
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
WHO = re.compile(r"[\w][\w .,'@+-]{0,63}")
BYTES = 1 << 18
"""Bytes of a file."""
LEGEND, MARKS = 200, {*"<>[]|`*_\\&"}
"""Characters of an entry's ``how``, and those that a page would not show as they are."""


@dataclass(frozen=True)
class Task:
    """A task. ranks : at most so many. small : the model that real ranks compare with one process.
    seconds : of a grade, at most. slowest : seconds of a step that a plan may take, or 0."""

    name: str
    kind: str
    title: str
    question: str
    model: str
    small: str
    cluster: str
    ranks: int
    seconds: float
    slowest: float = 0.0

    @property
    def place(self) -> "tuple[GPT, Cluster]":
        """(model, cluster) of the score."""
        return written.workload(self.model), written.cluster(self.cluster)

    def show(self, score: float) -> str:
        """A score in words, and all its digits."""
        words, unit = KINDS[self.kind]
        return f"{words(score)} ({score:.{DIGITS}g} {unit})"


@dataclass(frozen=True)
class Entrant:
    """One entry. baseline : whether it is ours, to compare others with. how : a line of its author
    on how it was found."""

    name: str
    author: str
    date: date
    how: str
    baseline: bool
    strategy: "Strategy"

    @property
    def made(self) -> Any:
        """What two entries that are the same have in common."""
        found = self.strategy
        return found.steps if isinstance(found, ByMessages) else found


def task(folder: Path) -> Task:
    """The task of a folder. Raises ``ValueError`` where it has none, or a damaged one."""
    if not (folder / "task.toml").is_file():
        there = sorted(path.parent.name for path in folder.parent.glob("*/task.toml"))
        raise ValueError(f"{folder.name!r} is no task; there are {', '.join(there) or 'none'}")
    found = _table(folder / "task.toml", {f.name for f in fields(Task)} - {"name"})
    made = Task(folder.name, **found)
    one_of("kind", made.kind, [*KINDS])
    return made


def entry(path: Path, of: Task) -> Entrant:
    """The entry in a file. Raises ``ValueError`` for what the task does not take."""
    if not NAME.fullmatch(path.stem) or path.suffix != ".toml":
        raise ValueError(
            f"{path.name!r:.60}: name it such as my-ring.toml, up to 40 of a-z, 0-9, -"
        )
    own = {"chunks", "steps"} if of.kind == "sum" else {"plan"}
    found = _table(path, {"author", "date", "how", "baseline"} | own)
    if missing := sorted(({"author", "date", "how"} | own) - found.keys()):
        raise ValueError(f"lacks {', '.join(missing)}")
    author, how = text("author", found["author"]), text("how", found["how"])
    if not WHO.fullmatch(author):
        raise ValueError(f"author={author!r:.80}: use up to 64 letters, digits, and .,'@+-")
    if not how.isprintable() or not 0 < len(how) <= LEGEND or {*how} & MARKS:
        raise ValueError(
            f"how must be one line of 1 to {LEGEND} characters, without {' '.join(sorted(MARKS))}"
        )
    if type(found["date"]) is not date:
        raise ValueError(f"date={found['date']!r:.40}: write a date without quotes, 2026-11-30")
    baseline = one_of("baseline", found.get("baseline", False), (True, False))
    return Entrant(path.stem, author, found["date"], how, baseline, _strategy(found, of))


def _strategy(found: Mapping[str, Any], of: Task) -> "Strategy":
    if of.kind == "sum":
        steps = read(found["steps"], of.ranks, found["chunks"])
        return ByMessages(steps, of.ranks, found["chunks"])
    plan = written.strategy(text("plan", found["plan"]))
    whole_number("ranks of the plan", plan.world_size, 1, of.ranks)
    return plan


def _table(path: Path, known: set[str]) -> dict[str, Any]:
    """The table in a file, of these keys at most."""
    if not path.is_file() or path.is_symlink():
        raise ValueError(f"{path} is no file")
    if (size := path.stat().st_size) > BYTES:
        raise ValueError(f"{path.name} has {size} bytes: at most {BYTES} work")
    try:
        found = tomllib.loads(path.read_bytes().decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path.name} is no TOML: {error}") from None
    if more := sorted(found.keys() - known):
        raise ValueError(f"{more[0]!r:.40} is no key here; there are {', '.join(sorted(known))}")
    return found


# -- what an entry is worth ------------------------------------------------------------------------
def scored(one: Entrant, of: Task) -> float:
    """The score: of sizes and messages alone, so the same on any machine, and without ranks. Raises
    ``ValueError`` for a plan that does not fit, or is another training."""
    model, cluster = of.place
    if isinstance(one.strategy, ByMessages):
        if why := wrong(one.strategy.steps, of.ranks, one.strategy.number):
            raise ValueError(why)
        sent = simulate(one.strategy, model, cluster).select(kind="comm")
        return _rounded(max(e.end for e in sent) - min(e.start for e in sent))
    if hasattr(one.strategy, "reference"):
        raise ValueError(
            f"{one.strategy.short} is another training: it is compared with a reference of its own"
        )
    memory = need(one.strategy, model, cluster).total  # without a formula nothing says that it fits
    seconds = simulate(one.strategy, model, cluster).step_time
    if of.slowest and seconds > of.slowest:
        raise ValueError(
            f"its step takes {show_seconds(seconds)}, simulated: at most "
            f"{show_seconds(of.slowest)} count"
        )
    return _rounded(memory if of.kind == "memory" else seconds)


def _rounded(score: float) -> float:
    return float(f"{number('the score', score, 0, 1e18):.{DIGITS}g}")


def verified(one: Entrant, of: Task) -> str:
    """What is wrong with the entry on real ranks, in float64, on the small model; "" if nothing:
    outputs, gradients, parameters, and each rank's bytes."""
    from tpviz.verbs.verify import verify  # with torch

    found = verify(one.strategy, written.workload(of.small), timeout=of.seconds)
    return "" if found.ok else f"{found}"

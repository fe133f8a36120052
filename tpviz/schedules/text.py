"""Reading schedules that people write, one line a rank."""

from collections.abc import Callable, Iterable
from itertools import chain
from re import compile as pattern
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .actions import Action

WORD = pattern(r"(\d*)(RB|[FBRIW])(\d+)")
LABEL = pattern(r"\s*[sr](\d+)\s*:")
ALLOWED = (
    "F0 (forward of microbatch 0), B0, RB0, R0, I0 or W0; with the stage before it (2F0) "
    "where a rank has several; 2F1+5B0 for an overlapped pair"
)


def parse(
    text: str,
    make: "Callable[[str, int, int], Action]",
    rank_of: Iterable[int] | None = None,
    recomputes: Iterable[bool] | None = None,
    microbatches: int | None = None,
) -> dict[str, Any]:
    """The fields of a `Schedule` but its name; make(kind, stage, microbatch) is an action.

    See `Schedule.parse`. Blank lines are skipped.
    """
    lines = [_line(rank, line) for rank, line in enumerate(filter(str.strip, text.splitlines()))]
    if not lines:
        raise ValueError("an empty schedule: write a line for each rank, as in 's0: F0 F1 B0 B1'")
    named = {bool(word[0]) for _, word in chain.from_iterable(lines)}
    if named == {True, False}:
        raise ValueError(
            "some actions name their stage (2F0) and some do not (F0): name it "
            "before all, or, where each rank has one stage, before none"
        )
    rows = [
        [make(kind, int(stage or rank), int(microbatch)) for _, (stage, kind, microbatch) in line]
        for rank, line in enumerate(lines)
    ]
    pairs = frozenset(
        (rank, index)
        for rank, line in enumerate(lines)
        for index, (paired, _) in enumerate(line)
        if paired
    )
    found = list(chain.from_iterable(rows))
    if rank_of is None:
        rank_of = _home(rows) if True in named else range(len(rows))
    rank_of = tuple(rank_of)
    if recomputes is None:
        does = {a.stage for a in found if a.kind in ("R", "RB")}
        recomputes = tuple(s in does for s in range(len(rank_of)))
    if microbatches is None:
        microbatches = max((a.microbatch for a in found), default=-1) + 1
    return dict(
        ranks=len(rows),
        stages=len(rank_of),
        microbatches=microbatches,
        rank_of=rank_of,
        actions=tuple(map(tuple, rows)),
        recomputes=tuple(recomputes),
        pairs=pairs,
    )


def _line(rank, line):
    """[(whether the next overlaps it, (stage, kind, microbatch) as text)] of one line."""
    label = LABEL.match(line)
    if label and int(label[1]) != rank:
        raise ValueError(
            f"line {rank + 1} begins with {label[0].strip()!r}, but it is that of "
            f"rank {rank}: write the ranks in order, each on one line"
        )
    found = []
    for words in line[label.end() if label else 0 :].split():
        parts = words.split("+")
        read = [WORD.fullmatch(part) for part in parts]
        if not all(read) or len(parts) > 2:
            raise ValueError(f"line {rank + 1}: {words!r} is no action: use {ALLOWED}")
        found += [(place + 1 < len(parts), match.groups()) for place, match in enumerate(read)]  # pyright: ignore[reportOptionalMemberAccess]
    return found


def _home(rows):
    """rank_of : every stage on the rank whose line first names it."""
    seen = {}
    for rank, row in enumerate(rows):
        for action in row:
            seen.setdefault(action.stage, rank)
    lost = min(set(range(max(seen) + 1)) - set(seen), default=None)
    if lost is not None:
        raise ValueError(
            f"stage {lost} is on no line, but stage {max(seen)} is: number the stages "
            f"0 to {len(seen) - 1}"
        )
    return tuple(seen[s] for s in sorted(seen))

"""Schedules as data: what every rank of a pipeline does, and in which order.

>>> mine = Schedule.parse("s0: F0 F1 B0 B1  \\n s1: F0 B0 F1 B1", name="mine")
>>> mine.of(1)[1], mine
(Action(kind='B', stage=1, microbatch=0), <Schedule mine: 2 ranks, 2 stages, 2 microbatches>)
>>> print(mine)
s0: F0 F1 B0 B1
s1: F0 B0 F1 B1
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, chain
from operator import le
from re import compile as pattern
from typing import TYPE_CHECKING, Self

from .actions import GROWS, Action
from .validity import validate

if TYPE_CHECKING:
    from .order import Step


@dataclass(frozen=True)
class Schedule:
    """Every rank's actions, in order. Nothing is checked here: see `schedule_errors` and
    `validate`.

    rank_of : stage -> rank. actions : per rank a tuple of `Action`. recomputes : per stage, whether
    its forward keeps checkpoints only. pairs : (rank, index) of a forward that runs overlapped with
    the backward after it (DualPipeV); both stay actions of their own.
    """

    name: str
    ranks: int
    stages: int
    microbatches: int
    rank_of: tuple[int, ...]
    actions: tuple[tuple[Action, ...], ...]
    recomputes: tuple[bool, ...]
    pairs: frozenset[tuple[int, int]] = frozenset()

    @classmethod
    def parse(
        cls,
        text: str,
        name: str = "own",
        rank_of: Iterable[int] | None = None,
        recomputes: Iterable[bool] | None = None,
        microbatches: int | None = None,
    ) -> Self:
        """A schedule from lines as `str` prints them, one for each rank.

        If ranks have several stages, each action begins with its stage ("2F0"); "2F1+5B0" is an
        overlapped pair. rank_of : stage -> rank; default: the rank whose line first names the
        stage. recomputes : bool per stage; default: the stages with an R or RB. microbatches :
        default: as many as occur. Blank lines are skipped.
        Raises ``ValueError`` with the line and word that cannot be read.
        """
        lines = _lines(text)
        rows = [
            [Action(kind, int(stage or rank), int(batch)) for _, (stage, kind, batch) in line]
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
            rank_of = _home(rows) if lines[0] and lines[0][0][1][0] else range(len(rows))
        rank_of = tuple(rank_of)
        if recomputes is None:
            does = {a.stage for a in found if a.kind in ("R", "RB")}
            recomputes = tuple(s in does for s in range(len(rank_of)))
        if microbatches is None:
            microbatches = max((a.microbatch for a in found), default=-1) + 1
        return cls(
            name,
            ranks=len(rows),
            stages=len(rank_of),
            microbatches=microbatches,
            rank_of=rank_of,
            actions=tuple(map(tuple, rows)),
            recomputes=tuple(recomputes),
            pairs=pairs,
        )

    def of(self, rank: int) -> tuple[Action, ...]:
        """The actions of a rank, in order."""
        return self.actions[rank]

    def forwards(self) -> Self:
        """The same with its forward passes alone, in their order: for evaluation."""
        rows = tuple(tuple(a for a in row if a.kind == "F") for row in self.actions)
        return replace(self, actions=rows, recomputes=(False,) * self.stages, pairs=frozenset())

    def splits(self, rank: int) -> bool:
        """Whether a rank computes gradients of weights in actions of their own (W)."""
        return any(action.kind == "W" for action in self.actions[rank])

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """The virtual stages on a rank, first to last."""
        return tuple(s for s, r in enumerate(self.rank_of) if r == rank)

    def most_in_flight(self, rank: int, stage: int | None = None) -> int:
        """The most activations, one per microbatch and stage, that a rank holds at once. This
        follows from the order alone, not from durations. stage : count only this one."""
        changes = (
            GROWS.get(action.kind, 0)
            for action in self.actions[rank]
            if stage in (None, action.stage)
        )
        return max(accumulate(changes), default=0)

    @property
    def is_plain(self) -> bool:
        """Whether rank r has stage r and no other, so that actions need not name it."""
        return self.rank_of == tuple(range(self.ranks))

    def word(self, action: Action) -> str:
        """An action as it is printed here: "F0", or "2F0" where ranks have several stages."""
        return f"{action.kind}{action.microbatch}" if self.is_plain else str(action)

    def words(self, rank: int) -> list[str]:
        """The rank's line as a list of words; overlapped pairs are one: "2F1+5B0"."""
        found = []
        for index, action in enumerate(self.actions[rank]):
            if (rank, index - 1) in self.pairs:
                found[-1] += f"+{self.word(action)}"
            else:
                found.append(self.word(action))
        return found

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each rank, its stages and its actions."""
        return [["rank", "stages", "actions"]] + [
            [str(r), ", ".join(map(str, self.stages_of(r))), " ".join(self.words(r))]
            for r in range(self.ranks)
        ]

    @cached_property
    def moments(
        self,
    ) -> tuple[dict[tuple[str, int, bool], list[tuple[tuple[int, int, int], ...]]], ...]:
        """Per rank, the states of highest memory: {(kind, stage, whether a backward of the stage
        came before): [((stage, microbatches held, number of them recomputed), ...)]}. A forward or
        a recomputation counts after it adds its own, other kinds before they free theirs. States
        that hold no more than another one are left out."""
        return tuple(map(self._moments, range(self.ranks)))

    def _moments(self, rank):
        found, begun = {}, set()
        held = {stage: [0, 0] for stage in self.stages_of(rank)}
        for kind, stage, _ in self.actions[rank]:
            mine = held[stage]
            mine[0] += kind == "F"
            mine[1] += kind in ("R", "RB")
            most = found.setdefault((kind, stage, stage in begun), [])
            now = [n for both in held.values() for n in both]
            if now not in most and not any(all(map(le, now, other)) for other in most):
                most[:] = [other for other in most if not all(map(le, other, now))] + [now]
            if kind in ("B", "RB"):
                begun.add(stage)
            if kind in ("B", "RB", "W"):
                mine[0] -= 1
                mine[1] -= self.recomputes[stage]
        return {
            key: [tuple(zip(held, now[::2], now[1::2])) for now in most]
            for key, most in found.items()
        }

    @cached_property
    def order(self) -> "tuple[Step, ...]":
        """An order in which one process could do all of it (`order.walk`); ``ValueError`` with
        all `schedule_errors` if there is none."""
        return validate(self)

    @cached_property
    def ordered(self) -> "tuple[Action, ...]":
        """The actions, in the order of `order`."""
        return tuple(self.actions[rank][index] for rank, index, *_ in self.order)

    @cached_property
    def step_of(self) -> "dict[tuple[int, int], Step]":
        """{(rank, index): its `order.Step`}."""
        return {step[:2]: step for step in self.order}

    def __str__(self):
        letter = "s" if self.is_plain else "r"
        return "\n".join(f"{letter}{r}: {' '.join(self.words(r))}" for r in range(self.ranks))

    def __repr__(self):
        return (
            f"<Schedule {self.name}: {self.ranks} ranks, {self.stages} stages, "
            f"{self.microbatches} microbatches>"
        )


# -- reading schedules that people write, one line a rank ------------------------------------------
WORD = pattern(r"(\d*)(RB|[FBRIW])(\d+)")
LABEL = pattern(r"\s*[sr](\d+)\s*:")
ALLOWED = (
    "F0 (forward of microbatch 0), B0, RB0, R0, I0 or W0; with the stage before it (2F0) "
    "where a rank has several; 2F1+5B0 for an overlapped pair"
)


def _lines(text):
    """What `_line` gives of each line."""
    lines = [_line(rank, line) for rank, line in enumerate(filter(str.strip, text.splitlines()))]
    if not lines:
        raise ValueError("an empty schedule: write a line for each rank, as in 's0: F0 F1 B0 B1'")
    if len({bool(word[0]) for _, word in chain.from_iterable(lines)}) > 1:
        raise ValueError(
            "some actions name their stage (2F0) and some do not (F0): name it "
            "before all, or, where each rank has one stage, before none"
        )
    return lines


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

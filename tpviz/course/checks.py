"""Exercises whose function runs on every rank, and their judges.

A judge checks one `Attempt` and returns the error, in a sentence or two, or None; it never asserts
and never raises. `FIRST` come before an exercise's own judges, which know the typical mistakes;
those of `GENERAL` that apply stand among or after them.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from tpviz.core.mesh import Mesh
from tpviz.core.trace import Ledger, Trace

from .mutants import Program, Steps
from .shapes import joined_otherwise
from .task import Exercise
from .told import general as said
from .variants import Terms, Variants, general


class Case(NamedTuple):
    """One random problem: ``inputs[rank]`` are the arrays that rank gets, ``expected[rank]`` what
    it must return.

    flops: one rank's share of the multiply-adds (2 per multiply-add), or None where nothing is
    multiplied. terms: what the ranks add up, if they do. program: the right one, for `mutants`.
    """

    inputs: list[tuple[np.ndarray, ...]]
    expected: list[np.ndarray]
    flops: int | None = None
    terms: Terms | None = None
    program: Program | None = None


def whole_numbers(rng: np.random.Generator, *shape: int, dtype: Any = np.float32) -> np.ndarray:
    """An array of whole numbers from -4 to 4.

    Sums and products of these are exact in float32 (far below 2**24), for any order of the ranks in
    a ring, so rounding cannot hide a wrong answer.
    """
    return rng.integers(-4, 5, size=shape).astype(dtype)


def places(axes: dict[str, int]) -> list[dict[str, int]]:
    """The coordinates of each rank of a mesh."""
    mesh = Mesh(axes)
    return [mesh.coords(rank) for rank in range(mesh.size)]


def part(
    whole: np.ndarray, axes: dict[str, int], at: dict[str, int], *axis_of_dims: str | None
) -> np.ndarray:
    """The part of an array that the rank with these coordinates has: one axis (or None) for each
    dim."""
    for dim, axis in enumerate(axis_of_dims):
        if axis:
            whole = np.split(whole, axes[axis], dim)[at[axis]]
    return whole.copy()


def parts(axes: dict[str, int], *arrays: tuple[Any, ...]) -> list[tuple[np.ndarray, ...]]:
    """For each rank its parts of the arrays, each given as (array, axis or None for each dim)."""
    return [tuple(part(whole, axes, at, *dims) for whole, *dims in arrays) for at in places(axes)]


@dataclass(frozen=True)
class Attempt:
    """The facts of one case on one world.

    outputs: per rank a NumPy array, or a description of any other value.
    ledger, flops: of the busiest rank. needed: the ledger of the best known solution.
    unwaited: names of collectives that some rank started and never waited for. groups: per rank how
    many groups it made. trace: of this case.
    """

    axes: dict[str, int]
    case: Case
    outputs: list[Any] = field(repr=False)
    ledger: Ledger
    needed: Ledger
    flops: int
    unwaited: tuple[str, ...] = ()
    groups: tuple[int, ...] = ()
    trace: Trace | None = field(default=None, repr=False)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.outputs)

    @property
    def sent(self) -> float:
        """Bytes that the busiest rank sent."""
        return self.ledger.total()[2]

    @property
    def least(self) -> float:
        """Bytes that a rank sends in the best known solution."""
        return self.needed.total()[2]

    @property
    def excess(self) -> float:
        """How many times the bytes needed were sent."""
        return self.sent / self.least

    @property
    def extra_work(self) -> float:
        """How many times its share of the multiplications the busiest rank did."""
        return self.flops / self.case.flops  # pyright: ignore[reportOperatorIssue, reportOptionalOperand]

    def matches(self, guess: Callable[[np.ndarray], np.ndarray]) -> list[int]:
        """Ranks whose wrong output equals ``guess(expected)``: identifies a mistake by its numbers.

        For some inputs a wrong formula gives the right numbers: that is no mistake.
        """
        return [
            rank
            for rank, (got, want) in enumerate(zip(self.outputs, self.case.expected))
            if rank not in self.right and _equal(got, guess(want))
        ]

    @cached_property
    def right(self) -> list[int]:
        """Ranks that returned the right numbers."""
        pairs = enumerate(zip(self.outputs, self.case.expected))
        return [rank for rank, (got, want) in pairs if _equal(got, want)]

    @property
    def all_right(self) -> bool:
        """Whether every rank returned the right numbers."""
        return len(self.right) == self.size

    def equals(self, of_rank: Callable[[int], np.ndarray]) -> bool:
        """Whether every rank returned ``of_rank(rank)`` and not all are right: names a mistake that
        all ranks made."""
        return not self.all_right and all(
            _equal(got, of_rank(rank)) for rank, got in enumerate(self.outputs)
        )

    def shows(self, wrong: Sequence[Any]) -> bool:
        """Whether each rank that is not right returned its part of ``wrong``."""
        pairs = enumerate(zip(self.outputs, wrong))
        return not self.all_right and all(
            rank in self.right or _equal(got, bad) for rank, (got, bad) in pairs
        )

    def names(self) -> set[str]:
        """Names of the collectives used."""
        return {row.collective for row in self.ledger}

    def axes_of(self, collective: str) -> set[str]:
        """Axes along which a collective ran."""
        return {row.axis for row in self.ledger if row.collective == collective}

    def count(self, collective: str, **along: str) -> int:
        """How often a collective ran; axis: along this one."""
        return self.ledger.total(collective=collective, **along)[0]

    def __str__(self):
        """The collectives used, in words."""
        return in_words(self.ledger)


def in_words(ledger: Ledger) -> str:
    """A ledger as one line: '2 x all_reduce on tp'."""
    return ", ".join(f"{r.count} x {r.collective} on {r.axis}" for r in ledger) or "no collective"


def _equal(got, want):
    """Same shape and numbers. Inputs are whole numbers, so only divisions round (by 1e-7)."""
    return (
        isinstance(got, np.ndarray)
        and got.shape == want.shape
        and np.allclose(got, want, rtol=1e-5, atol=1e-5)
    )


class Mistake(NamedTuple):
    """A judge made of a condition and the key of its message, in which ``{a}`` is the `Attempt`,
    ``{it}`` the value of the condition."""

    key: str
    made: Callable[[Attempt], Any]


def wasteful(key: str, made: Callable[[Attempt], Any]) -> Mistake:
    """The judge of right numbers for which more bytes were sent than needed."""
    return Mistake(key, lambda a: a.all_right and a.sent > a.least and made(a))


silent = Mistake("silent", lambda a: not a.ledger)
"""The judge of attempts without a collective."""


def ran_along(key: str, axis: str, collective: str) -> Mistake:
    """The judge of attempts with a collective along an axis that does not need it."""
    return Mistake(key, lambda a: axis in a.axes_of(collective))


def same_groups(attempt: Attempt) -> str | None:
    """All ranks made as many groups."""
    if len(set(attempt.groups)) > 1:
        made = [
            f"{_ranks(np.flatnonzero(np.equal(attempt.groups, number)).tolist())} made {number}"
            for number in sorted(set(attempt.groups))
        ]
        return said("groups", made=", ".join(made))


def returns_tensors(attempt: Attempt) -> str | None:
    """Every rank returned a tensor."""
    for rank, got in enumerate(attempt.outputs):
        if not isinstance(got, np.ndarray):
            paths = " Does every path of your function end in `return`?" * (got == "NoneType")
            return said("no tensor", rank=rank, got=got, paths=paths)


def waits_for_all(attempt: Attempt) -> str | None:
    """No collective was left unfinished."""
    if attempt.unwaited:
        facts = {"names": " and ".join(attempt.unwaited), "lost": _lost(attempt)}
        if {*attempt.unwaited} <= {"send", "recv"}:
            return said("unwaited messages", **facts)
        return said("unwaited", **facts)


def _lost(attempt):
    """A remark where others of these collectives are waited for: the numbers of those not."""
    for rank in range(attempt.size):
        rows = list(attempt.trace.select(rank=rank))
        waited = {e.waits_for for e in rows if e.kind == "wait"}
        started = [e for e in rows if e.kind == "comm" and e.name in attempt.unwaited]
        started.sort(key=lambda e: e.start)
        left = [str(i) for i, e in enumerate(started, 1) if e.id not in waited]
        if 0 < len(left) < len(started):
            facts = {"started": len(started), "left": ", ".join(left)}
            return " " + said("lost handle", rank=rank, **facts)
    return ""


def right_shape(attempt: Attempt) -> str | None:
    """Every rank returned the expected shape."""
    for rank, (got, want) in enumerate(zip(attempt.outputs, attempt.case.expected)):
        if got.shape != want.shape:
            why = joined_otherwise(attempt.outputs, attempt.case.expected, attempt.case.terms)
            shapes = {"got": list(got.shape), "want": list(want.shape)}
            return said("shape", rank=rank, why=why, **shapes)


def right_numbers(attempt: Attempt) -> str | None:
    """Every rank returned the numbers that one process computes; shows the first that differs."""
    right = attempt.right
    wrong = [rank for rank in range(attempt.size) if rank not in right]
    if not wrong:
        return None
    got, want = attempt.outputs[wrong[0]], attempt.case.expected[wrong[0]]
    at = tuple(int(i) for i in np.argwhere(~np.isclose(got, want, rtol=1e-5, atol=1e-5))[0])
    both = {"got": got[at], "want": want[at]}
    words = said("element", rank=wrong[0], at=list(at), attempt=attempt, **both)
    cause = Variants(general)(attempt)
    if right:
        cause = f" On {_ranks(wrong)}, {cause}" if cause else ""
        return f"{_are(right)} right, but {_are(wrong)} not.{cause} {words}"
    return f"{cause or _mixed(attempt)} {words}"


def _mixed(attempt):
    """The relation of wrong numbers on all ranks to the right ones, if no cause is known."""
    want = attempt.case.expected
    if attempt.equals(lambda rank: _in_order_of(attempt.outputs[rank], want[rank])):
        return "the right numbers are all present, in another order."
    return f"the numbers are wrong on every rank{_partly(attempt.outputs, want)}."


def _partly(outputs, want):
    """Which part of a dim is right on all ranks, in words."""
    right = [np.isclose(*both, rtol=1e-5, atol=1e-5) for both in zip(outputs, want)]
    if len({one.shape for one in right}) == 1:
        for dim in range(right[0].ndim):
            others = tuple(k for k in range(right[0].ndim) if k != dim)
            lines = np.flatnonzero(np.all([one.all(others) for one in right], axis=0)).tolist()
            if lines and lines == [*range(lines[0], lines[-1] + 1)]:
                return f", but {lines[0]} to {lines[-1]} along dim {dim} are right on all"
    return ""


def _in_order_of(got, want):
    """The numbers of ``want`` in the order of size that ``got`` has."""
    ordered = np.empty_like(want)
    ordered.flat[np.argsort(got, axis=None)] = np.sort(want, axis=None)
    return ordered


def right_axes(attempt: Attempt) -> str | None:
    """Collectives ran only on the axes that need them."""
    needed = {row.axis for row in attempt.needed}
    for row in attempt.ledger:
        if row.axis not in needed:
            alike = {n.axis for n in attempt.needed if n.collective == row.collective}
            needed = alike or needed  # those that need this collective, if any does
            where = f"axis {row.axis}" if row.axis in attempt.axes else row.axis
            where = "all ranks (the default group)" if row.axis == "world" else where
            named = " and ".join(sorted(needed))
            words = said("axis", collective=row.collective, where=where, needed=named)
            if needed <= attempt.axes_of(row.collective):
                return f"{words} {said('one too many', where=where)}"
            return f'{words} Give it the group: `group=mesh.get_group("{sorted(needed)[0]}")`.'


def fewest_bytes(attempt: Attempt) -> str | None:
    """No rank sent more bytes on the wire than the best known solution."""
    if attempt.sent > attempt.least:
        return said("bytes", a=attempt)


def fewest_collectives(attempt: Attempt) -> str | None:
    """No more collectives than the best known solution."""
    (count, _, _), (least, _, _) = attempt.ledger.total(), attempt.needed.total()
    if count > least:
        return said("collectives", count=count, attempt=attempt, least=least)


def same_ledger(attempt: Attempt) -> str | None:
    """Exactly the collectives and bytes of the best known solution, whatever their phase."""
    mine, best = (
        {row[:2]: (row.count, row.wire_bytes) for row in led}
        for led in (attempt.ledger, attempt.needed)
    )
    if mine != best:
        shown, asked = str(attempt), in_words(attempt.needed)
        if shown == asked:
            shown, asked = (
                f"{words}, {ledger.total()[2]:g} bytes sent per rank"
                for words, ledger in ((shown, attempt.ledger), (asked, attempt.needed))
            )
        return said("ledger", shown=shown, asked=asked)


def own_share_of_work(attempt: Attempt) -> str | None:
    """No rank multiplied more than its share."""
    share = attempt.case.flops
    if share is not None and attempt.flops > share:
        return said("work", a=attempt, share=share)


FIRST = (same_groups, returns_tensors, waits_for_all)
GENERAL = (
    right_axes,
    right_shape,
    right_numbers,
    fewest_bytes,
    fewest_collectives,
    own_share_of_work,
    same_ledger,
)


def _ranks(ranks):
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def _are(ranks):
    return f"{_ranks(ranks)} {'are' if len(ranks) > 1 else 'is'}"


def of_program(axes: dict[str, int], case: Case) -> list[tuple[str, str, int, int]]:
    """The collectives of a case's right program."""
    assert case.program is not None
    case.program(steps := Steps(axes))
    return steps.sent


@dataclass(frozen=True, kw_only=True, repr=False)
class RankProgram(Exercise):
    """An exercise whose function every rank runs, judged by its numbers and by the trace.

    make: (random generator, axes) -> `Case`, computed by one process. sends: (axes, case) -> the
    collectives of the best known solution, as (axis, collective, count, payload bytes); by default
    those of the case's program. judges: the first that has a message is the learner's answer.
    worlds: the meshes to grade on, each {axis name: size, outer first}; the single axis "world"
    means the default group, and the function then gets no mesh.
    """

    make: Callable[..., Case]
    judges: tuple[Mistake | Callable[[Attempt], str | None], ...]
    sends: Callable[[dict[str, int], Case], Iterable[tuple[str, str, int, int]]] = of_program
    worlds: tuple[dict[str, int], ...] = ({"world": 4}, {"world": 2})

    def needed(self, axes: dict[str, int], case: Case) -> Ledger:
        """The `Ledger` of the best known solution; a group that is none of ``axes`` has 2 ranks."""
        return Ledger.of(
            (axis, collective, "", count, payload, axes.get(axis, 2))
            for axis, collective, count, payload in self.sends(axes, case)
        )

    def judge(self, attempt: Attempt) -> str | None:
        """The error of an attempt, or None if it is right."""
        found = (self._message(judge, attempt) for judge in (*FIRST, *self.judges))
        return next(filter(None, found), None)

    def _message(self, judge, attempt):
        """What one judge says, or None."""
        if not isinstance(judge, Mistake):
            return judge(attempt)
        it = judge.made(attempt)
        return self.say(judge.key, a=attempt, it=it) if it else None

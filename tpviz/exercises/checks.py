"""Exercises whose function runs on every rank, and their judges.

A judge checks one `Attempt` and returns the error, in a sentence or two, or None; it never asserts
and never raises. `FIRST` come before an exercise's own judges, which know the typical mistakes;
those of `GENERAL` that apply stand among or after them.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..trace import Ledger
from .attempt import Attempt, Case, in_words
from .task import Exercise


class Mistake(NamedTuple):
    """A judge made of a condition and a message, in which ``{a}`` is the `Attempt`, ``{it}`` the
    value of the condition."""

    made: Callable[[Attempt], Any]
    words: str

    def __call__(self, attempt: Attempt) -> str | None:
        """The words, or None."""
        it = self.made(attempt)
        return self.words.format(a=attempt, it=it) if it else None


def silent(words: str) -> Mistake:
    """The judge of attempts without a collective."""
    return Mistake(lambda a: not a.ledger, words)


def ran_along(axis: str, collective: str, words: str) -> Mistake:
    """The judge of attempts with a collective along an axis that does not need it."""
    return Mistake(lambda a: axis in a.axes_of(collective), words)


def same_groups(attempt: Attempt) -> str | None:
    """All ranks made as many groups."""
    if len(set(attempt.groups)) > 1:
        made = [
            f"{_ranks(np.flatnonzero(np.equal(attempt.groups, number)).tolist())} made {number}"
            for number in sorted(set(attempt.groups))
        ]
        return (
            f"in one call {', '.join(made)} groups. Every rank must call `dist.new_group` for "
            "every group, whether it is a member or not: a rank that omits one names the next "
            "group differently, and ranks then wait for each other for ever."
        )


def returns_tensors(attempt: Attempt) -> str | None:
    """Every rank returned a tensor."""
    for rank, got in enumerate(attempt.outputs):
        if not isinstance(got, np.ndarray):
            paths = " Does every path of your function end in `return`?"
            return f"rank {rank} returned {got}, not a tensor of numbers." + paths * (
                got == "NoneType"
            )


def waits_for_all(attempt: Attempt) -> str | None:
    """No collective was left unfinished."""
    if attempt.unwaited:
        return (
            f"you started {' and '.join(attempt.unwaited)} without waiting for the end, so the "
            "result may not have arrived. With `async_op=True` you get a handle: call its "
            "`.wait()` before you use the data."
        )


def right_shape(attempt: Attempt) -> str | None:
    """Every rank returned the expected shape."""
    for rank, (got, want) in enumerate(zip(attempt.outputs, attempt.case.expected)):
        if got.shape != want.shape:
            return f"rank {rank} returned shape {list(got.shape)}; it should be {list(want.shape)}."


def right_numbers(attempt: Attempt) -> str | None:
    """Every rank returned the numbers that one process computes; shows the first that differs."""
    right = attempt.right
    wrong = [rank for rank in range(attempt.size) if rank not in right]
    if not wrong:
        return None
    got, want = attempt.outputs[wrong[0]], attempt.case.expected[wrong[0]]
    at = tuple(int(i) for i in np.argwhere(~np.isclose(got, want, rtol=1e-5, atol=1e-5))[0])
    words = (
        f"On rank {wrong[0]}, element {list(at)} is {got[at]:g}; one process computes "
        f"{want[at]:g}. You used {attempt}."
    )
    if right:
        return f"{_are(right)} right, but {_are(wrong)} not. {words}"
    return f"{_alike(attempt)}. {words}"


def _alike(attempt):
    """The relation of wrong numbers on all ranks to the right ones."""
    for times in sorted({2, *attempt.axes.values(), attempt.size, attempt.size**2} - {1}):
        for factor, how in ((times, f"{times} times"), (1 / times, f"1/{times} of")):
            if attempt.equals(lambda rank, by=factor: by * attempt.case.expected[rank]):
                return f"every number is {how} what it should be"
    if attempt.equals(
        lambda rank: _in_order_of(attempt.outputs[rank], attempt.case.expected[rank])
    ):
        return "the right numbers are all present, in another order"
    return "the numbers are wrong on every rank"


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
            where = (
                "all ranks (the default group)"
                if row.axis == "world"
                else f"axis {row.axis}"
                if row.axis in attempt.axes
                else row.axis
            )
            words = (
                f"your {row.collective} ran on {where}, but only ranks along axis "
                f"{' and '.join(sorted(needed))} hold parts of the same result. "
            )
            if needed <= attempt.axes_of(row.collective):
                return (
                    f"{words}The one on {where} is one too many: omit it, and the division of its "
                    "result."
                )
            return f'{words}Give it the group: `group=mesh.get_group("{sorted(needed)[0]}")`.'


def fewest_bytes(attempt: Attempt) -> str | None:
    """No rank sent more bytes on the wire than the best known solution."""
    if attempt.sent > attempt.least:
        return (
            f"the numbers are right, but each rank sent {attempt.excess:.2g}x the bytes needed: "
            f"{attempt.sent:g} instead of {attempt.least:g}, with {attempt}."
        )


def fewest_collectives(attempt: Attempt) -> str | None:
    """No more collectives than the best known solution."""
    (count, _, _), (least, _, _) = attempt.ledger.total(), attempt.needed.total()
    if count > least:
        return (
            f"numbers and bytes are right, but you used {count} collectives ({attempt}) instead "
            f"of {least}: each one makes every rank wait for the slowest."
        )


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
        return (
            f"the numbers are right, but the trace shows {shown}, "
            f"and this exercise asks for {asked}."
        )


def own_share_of_work(attempt: Attempt) -> str | None:
    """No rank multiplied more than its share."""
    share = attempt.case.flops
    if share is not None and attempt.flops > share:
        return (
            f"the numbers are right, but each rank did {attempt.extra_work:.2g}x its share "
            f"of the multiplications: {attempt.flops} FLOPs instead of {share}."
        )


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


@dataclass(frozen=True, kw_only=True, repr=False)
class RankProgram(Exercise):
    """An exercise whose function every rank runs, judged by its numbers and by the trace.

    make: (random generator, axes) -> `Case`, computed by one process. sends: (axes, case) -> the
    collectives of the best known solution, as (axis, collective, count, payload bytes). judges: the
    first that returns a message is the learner's answer. worlds: the meshes to grade on, each {axis
    name: size, outer first}; the single axis "world" means the default group, and the function then
    gets no mesh.
    """

    make: Callable[..., Case]
    sends: Callable[[dict[str, int], Case], Iterable[tuple[str, str, int, int]]]
    judges: tuple[Callable[[Attempt], str | None], ...]
    worlds: tuple[dict[str, int], ...] = ({"world": 4}, {"world": 2})

    def needed(self, axes: dict[str, int], case: Case) -> Ledger:
        """The `Ledger` of the best known solution; a group that is none of ``axes`` has 2 ranks."""
        return Ledger.of(
            (axis, collective, "", count, payload, axes.get(axis, 2))
            for axis, collective, count, payload in self.sends(axes, case)
        )

    def judge(self, attempt: Attempt) -> str | None:
        """The error of an attempt, or None if it is right."""
        return next(filter(None, (judge(attempt) for judge in (*FIRST, *self.judges))), None)

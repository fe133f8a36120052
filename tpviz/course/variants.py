"""Wrong results of ranks, known by their numbers: what each rank returns with one mistake.

An exercise gives its own (`Variants`); `general` needs only what any has: inputs, right results
and, where ranks add something up, each one's `Terms`.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from tpviz.core.mesh import Mesh

from .mutants import mutants

if TYPE_CHECKING:
    from .checks import Attempt

Variant = tuple[str, Sequence[Any]]
"""(the mistake in words, what each rank returns with it)."""


@dataclass(frozen=True)
class Terms:
    """What ranks add up: each one's term, over the ranks along the axis ``over``; finish: (rank,
    sum) -> what it returns. mean: whether that divides by their number."""

    of: Sequence[np.ndarray]
    over: str = "world"
    finish: Callable[[int, Any], Any] = lambda rank, total: total
    mean: bool = False


@dataclass(frozen=True)
class Variants:
    """The judge of results that have one of these mistakes on every rank that is wrong."""

    made: "Callable[[Attempt], Iterable[Variant]]"

    def __call__(self, attempt: "Attempt") -> str | None:
        """The words of the first mistake that shows, or None."""
        if attempt.all_right:
            return None
        found = (words for words, wrong in self.made(attempt) if attempt.shows(wrong))
        words = next(found, None)
        return words if words is None or words[-1] in ".?" else f"{words}."


def general(attempt: "Attempt") -> Iterator[Variant]:
    """Mistakes that any exercise can have, those of one step first."""
    case = attempt.case
    yield from _of_inputs(attempt)
    if case.terms:
        yield from _of_terms(attempt)
    yield from _with_inputs(attempt)
    yield from _of_factors(attempt)
    yield from _of_results(attempt)
    if case.program:
        for together in (1, 2):
            yield from mutants(case.program, attempt.axes, together)


def _of_factors(attempt):
    want, axes = attempt.case.expected, attempt.axes
    for times in sorted({2, 4, *axes.values(), attempt.size, attempt.size**2} - {1}):
        for factor, how in ((times, f"{times} times"), (1 / times, f"1/{times} of")):
            yield f"every number is {how} what it should be", [factor * one for one in want]


def _of_results(attempt):
    """Right results in the wrong place, or changed."""
    want = attempt.case.expected
    n = len(want)
    yield "every number is zero", [0 * one for one in want]
    yield "every number has the wrong sign", [-one for one in want]
    for axis in [axis for axis in attempt.axes if len(attempt.axes) > 1]:
        groups = [Mesh(attempt.axes).group(rank, axis) for rank in range(n)]
        added = [_sum(want[r] for r in group) for group in groups]
        yield f"the results are added over axis {axis}, where each is right by itself", added
        means = [total / len(group) for total, group in zip(added, groups)]
        yield f"the results are averaged over axis {axis}, where each is right by itself", means
    if not all(np.array_equal(want[0], one) for one in want[1:]):
        for by in range(1, n):
            words = f"rank r returns what rank (r + {by}) % {n} should: "
            yield f"{words}which rank has which part?", want[by:] + want[:by]
        for rank in range(n):
            yield f"every rank returns what rank {rank} should", [want[rank]] * n
        yield "rank r returns what the rank at the other end should", want[::-1]
    yield "the result is transposed", [one.T for one in want]
    for dim in range(want[0].ndim):
        yield f"dim {dim} of the result is in the reverse order", [np.flip(x, dim) for x in want]
        for by in (1, -1):
            words = f"dim {dim} of the result is shifted by {by}"
            yield words, [np.roll(one, by, dim) for one in want]
        for parts in sorted({2, *attempt.axes.values()} - {1}):
            words = f"dim {dim} of the result has its {parts} parts in another order"
            yield from ((words, wrong) for wrong in _reordered(want, dim, parts))
    yield "negative numbers are cut off: relu, where there is none", [x.clip(min=0) for x in want]


def _reordered(want, dim, parts):
    """The parts along a dim, reversed or shifted."""
    if all(one.shape[dim] % parts == 0 for one in want):
        cut = [np.split(one, parts, dim) for one in want]
        yield [np.concatenate(pieces[::-1], dim) for pieces in cut]
        for by in range(1, parts):
            yield [np.concatenate(pieces[by:] + pieces[:by], dim) for pieces in cut]


def _of_inputs(attempt):
    inputs = attempt.case.inputs
    unused = ": collectives ran, but what they brought is not in it" if attempt.ledger else ""
    for number in range(len(inputs[0])):
        mine = [own[number] for own in inputs]
        yield f"input {number + 1} is returned as it came{unused}", mine


def _with_inputs(attempt):
    """An input, a residual say, that is left out or added twice."""
    want = attempt.case.expected
    for number in range(len(attempt.case.inputs[0])):
        mine = [own[number] for own in attempt.case.inputs]
        if all(one.shape == right.shape for one, right in zip(mine, want)):
            for times, how in ((1, "is in the result once too often"), (-1, "is missing in it")):
                added = [right + times * one for one, right in zip(mine, want)]
                yield f"the result is right but for input {number + 1}, which {how}", added


def _of_terms(attempt):
    """Terms that are not added, or others that are."""
    terms, mesh = attempt.case.terms, Mesh(attempt.axes)
    ranks = range(mesh.size)

    def by(choose, over=terms.over):
        """choose: (terms of the group, place in it) -> their sum, or what stands for it."""
        found = []
        for rank in ranks:
            group = mesh.group(rank, over) if over in attempt.axes else list(ranks)
            total = choose([terms.of[r] for r in group], group.index(rank))
            found.append(terms.finish(rank, total))
        return found

    size = attempt.axes.get(terms.over, mesh.size)
    unused = " in what is returned, although collectives ran" if attempt.ledger else ""
    words = f"each rank has its own term of the sum: they are not added{unused}"
    yield words, by(lambda all_, me: all_[me])
    for name, least in (("largest", np.max), ("least", np.min)):
        words = f"you have the {name} of the ranks' numbers, not their sum: ReduceOp.SUM"
        yield words, by(lambda all_, me, least=least: least(all_, axis=0))
    yield "the ranks' numbers are multiplied, not added", by(lambda all_, me: np.prod(all_, axis=0))
    over = f"the sum is divided by {size}, the number of ranks: a sum is asked for, no mean"
    if terms.mean:
        over = f"the mean is divided by {size}, the number of ranks, once more"
        words = "you have the sum over the ranks, not the mean: divide by their number"
        yield words, by(lambda all_, me: _sum(all_) * size)
        for other in (count for count in range(2, 9) if count != size):
            words = f"the sum is divided by {other}; its mean is over {size} ranks"
            yield words, by(lambda all_, me, other=other: _sum(all_) * size / other)
    yield over, by(lambda all_, me: _sum(all_) / size)
    yield (
        f"the sum is {size} times too large: what is reduced already is added once more",
        by(lambda all_, me: _sum(all_) * (size**2 if terms.mean else size)),
    )
    for how, change in (
        ("relu is taken", lambda x: np.maximum(x, 0)),
        ("the absolute value is taken", np.abs),
        ("the square is taken", np.square),
    ):
        words = f"{how} of each rank's term, before the sum"
        yield words, by(lambda all_, me, change=change: _sum(change(one) for one in all_))
    yield "a rank's own term counts twice", by(lambda all_, me: _sum(all_) + all_[me])
    yield "a rank's own term is missing in its sum", by(lambda all_, me: _sum(all_) - all_[me])
    for place in range(size):
        yield (
            f"every rank has the term of rank {place} alone, as after a broadcast: add them",
            by(lambda all_, me, place=place: all_[place]),
        )
        for words, sign in (("is missing", -1), ("counts twice", 1)):
            wrong = by(lambda all_, me, place=place, sign=sign: _sum(all_) + sign * all_[place])
            yield f"the term of rank {place} {words} in the sum", wrong
    yield (
        "a rank's sum has the terms of the ranks up to itself alone",
        by(lambda all_, me: list(accumulate(all_))[me]),
    )
    for step, which in ((-1, "previous"), (1, "next")):
        yield (
            f"a rank has added its own term and that of the {which} rank alone",
            by(lambda all_, me, step=step: all_[me] + all_[(me + step) % len(all_)]),
        )
        yield (
            f"a rank has the term of the {which} rank",
            by(lambda all_, me, step=step: all_[(me + step) % len(all_)]),
        )
    for axis in [axis for axis in (*attempt.axes, "all") if axis != terms.over]:
        over = "all ranks" if axis == "all" else f"axis {axis}"
        if axis != "all" or len(attempt.axes) > 1:
            whole = "all ranks" if terms.over == "all" else f"axis {terms.over}"
            words = f"the terms are added over {over}, but they are of one sum over {whole}"
            yield words, by(lambda all_, me: _sum(all_), axis)


def _sum(arrays):
    return np.sum(list(arrays), axis=0)

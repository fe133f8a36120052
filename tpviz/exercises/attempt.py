"""A problem for a function that runs on every rank, and the facts of one attempt: returned values,
bytes sent, FLOPs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..mesh import Mesh
from ..trace import Ledger, Trace


class Case(NamedTuple):
    """One random problem: ``inputs[rank]`` are the arrays that rank gets, ``expected[rank]`` what
    it must return.

    flops: one rank's share of the multiply-adds (2 per multiply-add), or None where nothing is
    multiplied.
    """

    inputs: list[tuple[np.ndarray, ...]]
    expected: list[np.ndarray]
    flops: int | None = None


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

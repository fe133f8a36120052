"""One try at an exercise, as facts: what ranks returned, what they sent and multiplied."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..trace import Ledger, Trace

if TYPE_CHECKING:
    from .task import Case


@dataclass(frozen=True)
class Attempt:
    """What happened in one case on one world.

    outputs: per rank a NumPy array, or what was returned in place of one, in words.
    ledger, flops: of the busiest rank. needed: the ledger of the best known solution.
    unwaited: names of collectives that some rank started and never waited for. groups: per rank how
    many groups it made. trace: of this case.
    """

    axes: dict[str, int]
    case: "Case"
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

    def matches(self, guess: Callable[[np.ndarray], np.ndarray]) -> list[int]:
        """Ranks whose output equals ``guess(expected)``: tells a wrong answer by its numbers."""
        return [
            rank
            for rank, (got, want) in enumerate(zip(self.outputs, self.case.expected))
            if _equal(got, guess(want))
        ]

    @property
    def right(self) -> list[int]:
        """Ranks that returned the right numbers."""
        return self.matches(lambda want: want)

    @property
    def all_right(self) -> bool:
        """Whether every rank returned the right numbers."""
        return len(self.right) == self.size

    def equals(self, of_rank: Callable[[int], np.ndarray]) -> bool:
        """Whether every rank returned ``of_rank(rank)``: names a mistake that all ranks made."""
        return all(_equal(got, of_rank(rank)) for rank, got in enumerate(self.outputs))

    def names(self) -> set[str]:
        """Names of the collectives used."""
        return {row.collective for row in self.ledger}

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

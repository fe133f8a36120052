"""What an exercise is: plain data, so that tests can solve every exercise and a notebook can show
it.

The learner writes the function that every rank runs; `tpviz.exercises.grade` judges it by its
numbers and by the collectives it used. Hints go from the concept to the principle to the answer.
(The shape of a task, with graded hints and a reason for success, follows LLM Cluster Simulator;
scoring by what the code touched follows GPU-Puzzles.)
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ..trace import Ledger

HINT_KINDS = ("concept", "principle", "answer")


class Case(NamedTuple):
    """One random problem: ``inputs[rank]`` are the arrays that rank gets, ``expected[rank]`` what
    it must return.

    flops: one rank's share of the multiply-adds (2 per multiply-add), or None where nothing is
    multiplied.
    """

    inputs: list[tuple[np.ndarray, ...]]
    expected: list[np.ndarray]
    flops: int | None = None


@dataclass(frozen=True)
class Exercise:
    """One exercise.

    make: (random generator, axes) -> `Case`, computed by one process. needs: (axes, case) -> the
    `Ledger` of the best known solution. checks: functions of an `Attempt` that return what is
    wrong, or None; the first that speaks is the learner's answer. worlds: the meshes to grade on,
    each {axis name: size, outer first}; the single axis "world" means the default group, and the
    function then gets no mesh.
    """

    name: str
    title: str
    notebook: str
    prompt: str
    starter: str
    hints: tuple[str, ...]
    success: str
    make: Callable[..., Any] = field(repr=False)
    needs: "Callable[[dict[str, int], Case], Ledger] | None" = field(repr=False)
    checks: tuple[Callable[..., str | None], ...] = field(repr=False)
    worlds: tuple[dict[str, int], ...] = ({"world": 4}, {"world": 2})

    def __post_init__(self):
        if len(self.hints) != len(HINT_KINDS):
            raise ValueError(
                f"exercise {self.name!r} has {len(self.hints)} hints; it needs "
                f"{len(HINT_KINDS)}: {', '.join(HINT_KINDS)}"
            )

    def __repr__(self):
        return f"{self.title}\n\n{self.prompt}\n\n{self.starter}"

    def _repr_markdown_(self):
        return (
            f"**{self.title}**\n\n{self.prompt}\n\n"
            f'Grade it with `tv.check("{self.name}", {self.name})`; '
            f'stuck? `tv.hint("{self.name}")`.'
        )


@dataclass(frozen=True)
class Hint:
    """One hint: its number, counted from 1, and its text."""

    number: int
    text: str

    @property
    def _heading(self):
        return f"Hint {self.number} of {len(HINT_KINDS)} ({HINT_KINDS[self.number - 1]})"

    def __repr__(self):
        return f"{self._heading}: {self.text}"

    def _repr_markdown_(self):
        return f"**{self._heading}:** {self.text}"


def whole_numbers(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """A float32 array of whole numbers from -4 to 4.

    Sums and products of these are exact in float32 (far below 2**24), whatever the order of the
    ranks in a ring, so a wrong answer cannot hide behind rounding.
    """
    return rng.integers(-4, 5, size=shape).astype(np.float32)

"""What the bug zoos share: a strategy whose program gets one fault after it was built, and the
questions about such programs."""

from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from .formula import Question

if TYPE_CHECKING:
    import numpy as np
    from torch import nn

    from ..schemes.gpt.program import Program
    from ..strategy import Strategy
    from .atp_bugs import Evidence

CASES = 5
"""Programs that an exercise asks about."""


class Seeded:
    """Put before a strategy in a frozen dataclass with the fields ``cause``, ``block``, ``layer``.

    sound : the strategy. causes : {cause: what has ``spoil(program, layer's module)``}. no_layer :
    places outside of the layers.
    """

    cause: str
    block: int
    layer: str
    sound: "type[Strategy]"
    causes: dict[str, Any]
    no_layer: tuple[str, ...]
    sound, causes, no_layer = None, {}, ()  # pyright: ignore[reportAssignmentType]

    @property
    def place(self) -> str:
        """The name of the layer that is wrong, or one of ``no_layer``."""
        return self.layer if self.layer in self.no_layer else f"blocks.{self.block}.{self.layer}"

    @property
    def healthy(self) -> "Strategy":
        """The same strategy without the fault."""
        return self.sound(**{f.name: getattr(self, f.name) for f in fields(self.sound)})

    def find(self, program: "Program") -> "nn.Module | None":
        """The module that is wrong, None on a rank that does not have it."""
        return dict(program.module.named_modules()).get(self.place)

    def build(self, *args: Any, **options: Any) -> "Program":
        """The rank's program, with the fault in it."""
        program = super().build(*args, **options)  # pyright: ignore[reportAttributeAccessIssue]
        layer = self.find(program)
        if layer is not None or self.place in self.no_layer:
            self.causes[self.cause].spoil(program, layer)
        return program


def programs(
    rng: "np.random.Generator",
    causes: Iterable[str],
    variant: Callable[[str], Seeded],
    examine: "Callable[..., Evidence]",
) -> list[Question]:
    """`CASES` questions: where is the fault, and which of ``causes`` is it?

    variant(cause) : the `Seeded` strategy, drawn with ``rng`` too. examine(strategy) : the evidence
    of its step.
    """
    questions = []
    for number, cause in enumerate(rng.permutation(list(causes))[:CASES].tolist()):
        broken = variant(cause)
        known = {"causes": tuple(causes), "evidence": examine(broken)}
        questions.append(
            Question(
                {"evidence": known["evidence"]},
                (broken.place, cause),
                f"program {number + 1} of {CASES}",
                known,
            )
        )
    return questions

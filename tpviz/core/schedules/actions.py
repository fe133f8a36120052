"""The actions of a pipeline schedule.

A virtual stage is a contiguous part of the model; a rank has one (1F1B) or several (interleaved,
V-shaped). Activations go from stage s to s + 1, gradients back. An `Action` is one thing done for
one microbatch on one stage; messages are not written down, they follow from the actions.

====  ==============================================  ==========================================
kind  what it does                                    when it may
====  ==============================================  ==========================================
F     forward                                         the activation is there
R     recompute early: the forward again              after its own F
B     backward, whole                                 the gradient is there, and activations are
RB    backward that recomputes first                  the gradient is there
I     gradient of the input alone                     as B
W     gradient of the weights alone                   after its own I
====  ==============================================  ==========================================

The kinds F, RB, R and B are those of Merak's released code (derived: read there); I and W are the
split of the zero-bubble paper (arXiv 2401.10241), which writes them B and W.
"""

from typing import NamedTuple

KINDS = {
    "F": "forward",
    "B": "backward",
    "RB": "backward that recomputes first",
    "R": "recompute early",
    "I": "gradient of the input",
    "W": "gradient of the weights",
}
"""{kind: description}."""
BACKWARDS = ("B", "RB", "I")
"""The kinds that make the gradient that the stage before waits for."""

GROWS = {"F": 1, "B": -1, "RB": -1, "W": -1}
"""By how much the microbatches in flight grow with an action of a kind."""


class Action(NamedTuple):
    """One thing that a rank does: a kind of `KINDS`, for one microbatch on one virtual stage."""

    kind: str
    stage: int
    microbatch: int

    def __str__(self):
        """Stage, kind, microbatch: "2F0". `Schedule.word` leaves out a stage that is plain."""
        return f"{self.stage}{self.kind}{self.microbatch}"

"""Which messages a schedule's actions make and need, and between whom they travel (no torch)."""

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from tpviz.core.schedules.actions import BACKWARDS, Action

if TYPE_CHECKING:
    from tpviz.core.schedules import Schedule

PREFETCH = 2
"""How many messages of a queue are asked for before they are needed."""


class Message(NamedTuple):
    """An activation for ``stage`` ("forward"), or a gradient for it ("backward")."""

    phase: str
    stage: int
    microbatch: int


def needed(action: Action, stages: int) -> Message | None:
    """The `Message` that an action waits for, or None."""
    kind, stage, microbatch = action
    if kind == "F":
        return Message("forward", stage, microbatch) if stage else None
    if kind in BACKWARDS:
        return Message("backward", stage, microbatch) if stage < stages - 1 else None
    return None


def made(action: Action, stages: int) -> Message | None:
    """The `Message` that an action makes, or None: what the next stage's action needs."""
    to = action.stage + (1 if action.kind == "F" else -1)
    return needed(action._replace(stage=to), stages) if 0 <= to < stages else None


def crossings(schedule: "Schedule", place: int) -> Iterator[tuple[str, str, int]]:
    """Yield ("send" or "recv", phase, `Message.stage`) of what a rank moves for each microbatch."""
    for stage, (before, after) in enumerate(pairwise(schedule.rank_of), start=1):
        if before != after and place in (before, after):
            yield "send" if place == before else "recv", "forward", stage
            yield "recv" if place == before else "send", "backward", stage - 1


class P2PPlan:
    """Who makes and who needs each message that travels, and the queues of one rank."""

    def __init__(self, schedule: "Schedule", rank: int):
        self.made_at, self.needed_at, self.source, self.target = {}, {}, {}, {}
        self.incoming, self.rank = {}, rank
        for r in range(schedule.ranks):
            for place, action in enumerate(schedule.of(r)):
                if message := made(action, schedule.stages):
                    self.made_at[message], self.source[message] = place, r
                    self.target[message] = schedule.rank_of[message.stage]
                    if r != rank == self.target[message]:
                        self.incoming.setdefault(r, []).append(message)
                if message := needed(action, schedule.stages):
                    self.needed_at[message] = place

    def travels(self, message: Message) -> bool:
        """Whether the message goes to another rank."""
        return self.source[message] != self.target[message]

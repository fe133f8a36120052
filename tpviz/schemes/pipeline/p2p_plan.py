"""Which messages a schedule's actions make and need, and between whom they travel (no torch)."""

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
    """The `Message` that an action makes, or None."""
    kind, stage, microbatch = action
    if kind == "F":
        return Message("forward", stage + 1, microbatch) if stage < stages - 1 else None
    if kind in BACKWARDS:
        return Message("backward", stage - 1, microbatch) if stage else None
    return None


class P2PPlan:
    """Who makes and who needs each message that travels, and the queues of one rank."""

    def __init__(self, schedule: "Schedule", rank: int):
        self.made_at, self.needed_at, self.source = {}, {}, {}
        for r in range(schedule.ranks):
            for place, action in enumerate(schedule.of(r)):
                if message := made(action, schedule.stages):
                    self.made_at[message], self.source[message] = place, r
                if message := needed(action, schedule.stages):
                    self.needed_at[message] = place
        self.target = {m: schedule.rank_of[m.stage] for m in self.made_at}
        self.incoming, self.rank = {}, rank
        for r in range(schedule.ranks):
            for action in schedule.of(r):
                message = made(action, schedule.stages)
                if message and r != rank and self.target[message] == rank:
                    self.incoming.setdefault(r, []).append(message)

    def travels(self, message: Message) -> bool:
        """Whether the message goes to another rank."""
        return self.source[message] != self.target[message]

"""Carries out a schedule on one rank: each action with real tensors, messages in between.

The executor knows no schedule: it runs the actions in this rank's list, one after another.
Gradients of a stage's parameters are added up in the order of its backward actions, which in every
schedule is that of the microbatches, so all schedules give the same numbers.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tpviz.core.labels import label, repeated

from .p2p_plan import made, needed

if TYPE_CHECKING:
    import torch

    from tpviz.core.schedules import Schedule

    from .messages import Messages
    from .stage import Forward, Runner

PHASES = {
    "F": "forward",
    "B": "backward",
    "RB": "backward",
    "R": "recompute",
    "I": "backward",
    "W": "backward",
}


class Executor:
    """One rank's part of a pipeline.

    schedule : a `schedules.Schedule`. runners : {stage: `Runner`} of this rank's stages. messages :
    `Messages`. share : the factor on a microbatch's loss gradient.
    """

    def __init__(
        self,
        schedule: "Schedule",
        rank: int,
        runners: "Mapping[int, Runner | Forward]",
        messages: "Messages",
        share: float = 1.0,
    ):
        self.actions, self.stages = schedule.of(rank), schedule.stages
        self.runners, self.messages, self.share = runners, messages, share

    def step(self, inputs: Sequence[Any]) -> "dict[int, torch.Tensor]":
        """Forward and backward of all microbatches; ``inputs``: what each one gives the stages.

        Returns {microbatch: loss} where the last stage is on this rank, else {}.
        """
        self.losses = {}
        self.messages.begin()
        for action in self.actions:
            with label(phase=PHASES[action.kind], microbatch=action.microbatch):
                getattr(self, f"_{action.kind}")(action, self.runners[action.stage], inputs)
        self.messages.finish()
        return self.losses

    def _F(self, action, runner, inputs):
        message = needed(action, self.stages)
        received = self.messages.take(message) if message else ()
        sent = _repeated(runner, "forward", action, received, inputs[action.microbatch])
        if action.stage == self.stages - 1:
            self.losses[action.microbatch] = sent[0]
        else:
            self.messages.put(made(action, self.stages), sent)  # pyright: ignore[reportArgumentType]

    def _R(self, action, runner, inputs):
        _repeated(runner, "recompute", action)

    def _RB(self, action, runner, inputs):
        gradients = self._gradients(action)
        with label(phase="recompute"):
            _repeated(runner, "recompute", action)
        self._backward(action, runner, gradients)

    def _B(self, action, runner, inputs):
        self._backward(action, runner, self._gradients(action))

    def _backward(self, action, runner, gradients):
        gradients = _repeated(runner, "backward", action, gradients)
        _repeated(runner, "weights", action)
        self._give(action, gradients)

    def _I(self, action, runner, inputs):
        self._give(action, _repeated(runner, "backward", action, self._gradients(action)))

    def _W(self, action, runner, inputs):
        _repeated(runner, "weights", action)

    def _gradients(self, action):
        """Of what the stage gave: received, or the beginning of all."""
        message = needed(action, self.stages)
        if message:
            return self.messages.take(message)
        loss = self.losses[action.microbatch]
        return (loss.new_full(loss.shape, self.share),)

    def _give(self, action, gradients):
        message = made(action, self.stages)
        if message:
            self.messages.put(message, gradients)


def _repeated(runner, what, action, *args):
    """A runner's method ``what`` on a microbatch; all but the first are alike."""
    return repeated(
        (id(runner), what), action.microbatch, getattr(runner, what), action.microbatch, *args
    )

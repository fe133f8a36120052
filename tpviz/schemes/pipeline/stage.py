"""One stage of a pipeline: forward, backward and recomputation of microbatches, with real tensors.

A stage is cut in three: `begin` (an embedding), layers, `finish` (a head, a loss). Of the layers
the first few may be *dropped*: their forward keeps no graph, only the input, and they are run once
more before backward, with the random numbers of the first time. The graph is cut before and behind
them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from tpviz.schemes.operators import deferred_wgrad, make_gradients


class Stage(nn.Module):
    """What a stage computes. Override these; values and received are tuples of tensors.

    number : of the stage in the whole pipeline. receives, sends : `StageSpec` of each tensor of one
    microbatch.
    """

    number, receives, sends = 0, (), ()

    def trained(self, layer: int) -> list[bool] | None:
        """Whether a gradient comes back through each of the values before layer number ``layer``;
        None: through all that are floating-point."""

    def own(self) -> dict[str, nn.Parameter]:
        """{name: parameter} of the parameters that this stage trains."""
        return dict(self.named_parameters())

    def begin(self, received: Sequence[torch.Tensor], inputs: Any) -> Sequence[torch.Tensor]:
        """The values that the first layer takes. inputs : the model's, of this microbatch."""
        return received

    @cached_property
    def paths_of(self) -> dict[int, str]:
        """{id of a parameter: its layer's name}."""
        return {id(p): name.rpartition(".")[0] for name, p in self.own().items()}

    @property
    def layers(self) -> Sequence[Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]]:
        """Callables, values -> values."""
        return ()

    def run(
        self, values: Sequence[torch.Tensor], start: int, stop: int | None, summed: bool = True
    ) -> Sequence[torch.Tensor]:
        """Values through the layers from ``start`` to ``stop``, None for the last. summed : if not,
        the last of them may leave out what only its output needs."""
        for layer in self.layers[start:stop]:
            values = layer(values)
        return values

    def finish(self, values: Sequence[torch.Tensor], inputs: Any) -> Sequence[torch.Tensor]:
        """What the next stage receives; of the last stage a tuple of the loss alone."""
        return values

    def during(self, action: str, drop: int) -> AbstractContextManager[None]:
        """Context around a "forward", "recompute" or "backward" (action) of one microbatch; the
        first ``drop`` layers of the stage are recomputed."""
        return nullcontext()

    def forward(self, run: Callable[..., Any], *args: Any) -> Any:
        """Run one of the above as this module, so that its parts are known by their names."""
        return run(*args)


class StageSpec(NamedTuple):
    """A tensor between two stages, and whether its gradient goes back."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    trained: bool = True


class Kept:
    """What a stage keeps of a microbatch between forward and backward."""

    __slots__ = ("again", "before", "behind", "later", "leaves", "random", "sent")


class Runner:
    """Runs a `Stage`, microbatch by microbatch. drop : how many of its layers are recomputed.

    split : whether backward is in two, the input's gradient and later the weights'.
    skip_last_allreduce : whether recomputation leaves out what backward does not need, the last sum
    of what is recomputed.
    """

    def __init__(
        self, stage: Stage, drop: int = 0, split: bool = False, skip_last_allreduce: bool = False
    ):
        self.stage, self.drop, self.split = stage, drop, split
        self.skip_last_allreduce = skip_last_allreduce
        self.kept, self.later = {}, {}

    # -- forward ---------------------------------------------------------------------------------
    def forward(
        self, microbatch: int, received: Sequence[torch.Tensor], inputs: Any
    ) -> tuple[torch.Tensor, ...]:
        """The tensors for the next stage; on the last stage (loss,)."""
        kept = self.kept[microbatch] = Kept()
        flags = [spec.trained for spec in self.stage.receives]
        kept.leaves, kept.later = _leaves(received, flags), [] if self.split else None
        with deferred_wgrad(kept.later), self.stage.during("forward", self.drop):
            kept.sent = self._forward(kept, inputs)
        return tuple(t.detach() for t in kept.sent)

    def _forward(self, kept, inputs):
        values = self.stage(self.stage.begin, kept.leaves, inputs)
        if self.drop:
            kept.before, kept.again, kept.random = values, None, random_state(values)
            with torch.no_grad():
                values = self._run(values, 0, self.drop)
            values = kept.behind = _leaves(values, self.stage.trained(self.drop))
        values = self._run(values, self.drop, None)
        return self.stage(self.stage.finish, values, inputs)

    def _run(self, values, start, stop, summed=True):
        return self.stage(self.stage.run, values, start, stop, summed)

    # -- recomputation ---------------------------------------------------------------------------
    def recompute(self, microbatch: int) -> None:
        """Run the dropped layers once more, now with a graph."""
        kept = self.kept[microbatch]
        leaves = _leaves(kept.before, self.stage.trained(0))
        around, summed = self.stage.during("recompute", self.drop), not self.skip_last_allreduce
        with with_random_state(kept.random), deferred_wgrad(kept.later), around:
            kept.again = leaves, self._run(leaves, 0, self.drop, summed)

    # -- backward --------------------------------------------------------------------------------
    def backward(
        self, microbatch: int, gradients: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, ...]:
        """The gradients of what was received; those of the parameters are added to ``.grad``,
        those of linear layers, with ``split``, not before `weights`."""
        kept = self.kept.pop(microbatch)
        sends = self.stage.sends
        sent = [t for t, spec in zip(kept.sent, sends) if spec.trained] if sends else kept.sent
        with self.stage.during("backward", self.drop):
            _backward(sent, gradients)
            if self.drop:
                leaves, values = kept.again
                _backward_through(values, kept.behind)
                _backward_through(kept.before, leaves)
        if self.split:
            self.later[microbatch] = kept.later
        return _gradients(kept.leaves)

    def weights(self, microbatch: int) -> None:
        """Compute the weight gradients that `backward` deferred."""
        make_gradients(self.later.pop(microbatch, []), self.stage.paths_of)


class Forward:
    """Runs a `Stage` forward, and keeps nothing: a `Runner` for evaluation."""

    def __init__(self, stage: Stage):
        self.stage = stage

    @torch.no_grad()
    def forward(
        self, microbatch: int, received: Sequence[torch.Tensor], inputs: Any
    ) -> Sequence[torch.Tensor]:
        """The tensors for the next stage; on the last stage (loss,)."""
        stage = self.stage
        values = stage(stage.run, stage(stage.begin, received, inputs), 0, None)
        return stage(stage.finish, values, inputs)


def _leaves(tensors, trained=None):
    """The same numbers, without their past, with a gradient where ``trained`` says so."""
    trained = trained or [True] * len(tensors)
    return tuple(
        t.detach().requires_grad_(t.is_floating_point() and flag)
        for t, flag in zip(tensors, trained, strict=True)
    )


def _gradients(leaves):
    """Of those that were to have one; zeros where none came."""
    return tuple(
        t.grad if t.grad is not None else torch.zeros_like(t) for t in leaves if t.requires_grad
    )


def _backward(tensors, gradients):
    """Backward of those tensors that have a graph."""
    pairs = [(t, g) for t, g in zip(tensors, gradients, strict=True) if t.requires_grad]
    if pairs:
        torch.autograd.backward(*zip(*pairs))  # pyright: ignore[reportArgumentType]


def _backward_through(tensors, leaves):
    """Backward of tensors by the gradients of what was cut off behind them."""
    _backward([t for t, leaf in zip(tensors, leaves) if leaf.requires_grad], _gradients(leaves))


def random_state(
    values: Sequence[torch.Tensor],
) -> tuple[torch.Tensor, dict[torch.device, torch.Tensor]] | None:
    """The states of the random generators (CPU and the devices of ``values``) that dropout uses."""
    if any(isinstance(t, FakeTensor) for t in values):
        return None
    devices = {t.device for t in values if t.is_cuda}
    return torch.get_rng_state(), {d: torch.cuda.get_rng_state(d) for d in devices}


def set_random_state(state: tuple[torch.Tensor, dict[torch.device, torch.Tensor]] | None) -> None:
    """Restore a state returned by `random_state`."""
    if state is not None:
        torch.set_rng_state(state[0])
        for device, value in state[1].items():
            torch.cuda.set_rng_state(value, device)


@contextmanager
def with_random_state(
    state: tuple[torch.Tensor, dict[torch.device, torch.Tensor]] | None,
) -> Iterator[None]:
    """Inside, the random generators start from ``state``; afterwards theirs is restored."""
    present = state and (torch.get_rng_state(), {d: torch.cuda.get_rng_state(d) for d in state[1]})
    set_random_state(state)
    try:
        yield
    finally:
        set_random_state(present)

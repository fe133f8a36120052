"""When a rank's flat buffers are gathered, reduced and freed: for a whole network and for a
pipeline's stage.

A hook on each parameter copies its gradient into its bucket, and the last one of a *set* of buckets
starts their collectives, in the order of the sets, which is the same on every rank. A network's set
is one bucket, a stage's all those of a *unit*: the embedding, a block or the head. At stage 3 hooks
before and behind a unit gather its parameters, one unit ahead of their use, and free them. `step`
has the same as data.
"""

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING
from weakref import proxy

from tpviz.core.labels import label

from .buckets import gathered

if TYPE_CHECKING:
    from torch import Tensor, nn

    from .flat_param import FlatBucket


class BucketExchange:
    """The collectives of a rank's buckets. sets : of buckets, in the order in which they are
    reduced; ``late`` ones have no hooks. zero : the stage of ZeRO. reshard : whether parameters are
    freed after forward, and gathered again."""

    def __init__(
        self, sets: "Sequence[Sequence[FlatBucket]]", zero: int, reshard: bool | int = True
    ):
        self.sets, self.zero, self.reshard = sets, zero, reshard
        self.buckets = list(chain.from_iterable(sets))
        self.launched, self.held, self.last, self.phase, self.todo = 0, False, False, "", []
        self.of_unit: dict[str, list[FlatBucket]] = {}
        for bucket in self.buckets:
            self.of_unit.setdefault(bucket.unit, []).append(bucket)
            if not bucket.late:
                self._hook(bucket)

    # -- gradients, while backward goes on ---------------------------------------------------------
    def expect(self, held: bool = False, last: bool = False) -> None:
        """Mark the gradients of a microbatch as missing. held : none is reduced, since those of
        later microbatches add to them. last : shares are added up across groups."""
        self.launched, self.held, self.last = 0, held, last
        for bucket in self.buckets:
            bucket.expect()

    def _hook(self, bucket):
        # weakly: a tensor that owns a hook that owns the tensor is never collected
        self, bucket = proxy(self), proxy(bucket)

        def arrived(parameter):
            with label(phase="sync"):
                if bucket.collect(parameter):
                    self.launch()

        for parameter in bucket.slots:
            parameter.register_post_accumulate_grad_hook(arrived)

    def launch(self) -> None:
        """Reduce the full sets whose turn it is; from stage 2 on, and where other collectives come
        behind, at most one is in flight."""
        while not self.held and self.launched < len(self.sets):
            buckets = self.sets[self.launched]
            if any(bucket.missing for bucket in buckets):
                return
            if self.zero >= 2 or self.buckets[0].behind:
                self.wait()
            for bucket in buckets:
                if self.zero == 3:
                    bucket.free()
                bucket.reduce()
            self.launched += 1

    def wait(self) -> None:
        """Wait for what is being reduced, and start what comes behind; of two levels from stage 2
        on once the second of the bucket before is over, whose first one's sums are freed."""
        with label(phase="sync"):
            for bucket in self.buckets if self.zero >= 2 else ():
                if bucket.outer:
                    bucket.added()
            for bucket in self.buckets:
                bucket.reduced(self.last)

    def finish(self) -> None:
        """Wait until gradients are complete."""
        self.wait()
        with label(phase="sync"):
            while any(bucket.adding is not None for bucket in self.buckets):
                for bucket in self.buckets:
                    bucket.added()
                for bucket in self.buckets:
                    bucket.go_on()

    # -- parameters, at stage 3 --------------------------------------------------------------------
    def begin(self, phase: str, units: Sequence[str]) -> None:
        """Begin a pass through these ``units`` in this order; stage 3 gathers the first one."""
        needed = self.zero == 3 and (self.reshard or phase != "backward")
        self.phase, self.todo = phase, gathered(units, phase) if needed else []
        if self.todo:
            self.gather(self.todo[0])

    def gather(self, unit: str) -> None:
        """Start to gather a unit's parameters."""
        for bucket in self.of_unit.get(unit, ()):
            bucket.gather(self.phase)

    def hook_forward(self, unit: str, first: "nn.Module", last: "nn.Module") -> None:
        """Hook a unit, which begins with the module ``first``, ends with ``last``: stage 3."""
        if self.zero < 3:
            return
        self = proxy(self)
        first.register_forward_pre_hook(lambda *_: self.enter(unit))
        last.register_forward_hook(lambda module, args, out: self._leave(unit, out))

    def enter(self, unit: str) -> None:
        """A unit's parameters are needed now, and the next one's soon."""
        for bucket in self.of_unit.get(unit, ()):
            bucket.ready(self.phase)
        for bucket in self.of_unit.get(unit, ()):
            bucket.complete(self.phase)
        for after in self.todo[self.todo.index(unit) + 1 :][:1] if self.todo else ():
            self.gather(after)

    def _leave(self, unit, out: "Tensor"):
        for bucket in self.of_unit.get(unit, ()) if self.reshard else ():
            bucket.reshard()
        if out.requires_grad and gathered([unit], "backward"):
            self = proxy(self)  # a graph that is kept, as by `watch`, must not keep the program
            out.register_hook(lambda grad: self.enter(unit))

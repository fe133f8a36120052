"""ZeRO 2 and 3 of one pipeline stage at run time, in the order that `sharding` plans.

A hook on each parameter copies its gradient into its unit's flat buffer; the last one of a unit
starts the reduce-scatter. At stage 3 hooks before and behind each unit gather and free parameters.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from weakref import proxy

from tpviz.core.labels import current, label

from .sharding import gathered, unit_of, visits

if TYPE_CHECKING:
    from torch import nn

    from tpviz.schemes.zero.flat_param import FlatBucket


class Shards:
    """The flat buffers of a stage.

    units : names of the stage's units, first to last (see `sharding`). buckets : the `FlatBucket`s,
    each of one unit. zero : 2 or 3.
    """

    def __init__(
        self,
        units: Sequence[str],
        buckets: "Sequence[FlatBucket]",
        zero: int,
    ):
        self.units, self.zero, self.todo, self.reducing = list(units), zero, [], []
        self.buckets = {unit: [] for unit in units}
        for bucket in buckets:
            unit = unit_of(bucket.names[0])
            self.buckets[unit].append(bucket)
            self._hook(unit, bucket)

    @contextmanager
    def during(self, action: str, drop: int) -> Iterator[None]:
        """Context around the stage's "forward", "recompute" or "backward" (action): gathers,
        reduces and frees the buffers of its units. drop : number of recomputed blocks."""
        order = visits(self.units, action, drop)
        self.todo = gathered(order, action) if self.zero == 3 else []
        if self.todo:
            self._gather(self.todo[0])
        yield
        with label(phase="sync"):
            self._wait()

    # -- gradients ---------------------------------------------------------------------------------
    def _hook(self, unit, bucket):
        # weakly: a tensor that owns a hook that owns the tensor is never collected
        self, bucket = proxy(self), proxy(bucket)

        def arrived(parameter):
            with label(phase="sync"):
                bucket.collect(parameter)
                if not any(other.missing for other in self.buckets[unit]):
                    self._reduce(unit)

        for parameter in bucket.slots:
            parameter.register_post_accumulate_grad_hook(arrived)

    def _reduce(self, unit):
        self._wait()
        self.reducing = self.buckets[unit]
        for bucket in self.reducing:
            if self.zero == 3:
                bucket.free()
            bucket.expect()
            bucket.reduce()

    def _wait(self):
        """At most one unit's whole gradients are in flight."""
        for bucket in self.reducing:
            bucket.reduced()
        self.reducing = []

    # -- parameters, at stage 3 --------------------------------------------------------------------
    def hook_forward(self, unit: str, first: "nn.Module", last: "nn.Module") -> None:
        """Hook a unit, which begins with the module ``first`` and ends with ``last``."""
        self = proxy(self)
        first.register_forward_pre_hook(lambda *_: self._enter(unit))
        last.register_forward_hook(lambda module, args, out: self._leave(unit, out))

    def _enter(self, unit):
        for bucket in self.buckets[unit]:
            bucket.ready(current().phase)
        after = self.todo.index(unit) + 1
        if after < len(self.todo):
            self._gather(self.todo[after])

    def _leave(self, unit, out):
        for bucket in self.buckets[unit]:
            bucket.free()
        if out.requires_grad and gathered([unit], "backward"):
            self = proxy(self)  # a graph that is kept must not keep the program
            out.register_hook(lambda grad: self._enter(unit))

    def _gather(self, unit):
        for bucket in self.buckets[unit]:
            bucket.gather(current().phase)

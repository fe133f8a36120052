"""Lower bounds of data parallelism's step: what is inside, and the bytes that dp moves (derived).

F and B seconds of a microbatch's forward and backward, a microbatches; of P bytes of parameters r
seconds of reducing gradients (ZeRO 0: all-reduce, else reduce-scatter), g of gathering parameters,
b of gathering those of blocks (of several classes of parameters, the one that takes longest). What
is in flight ends with the microbatch, so a step takes at least

    ZeRO 0    (a - 1) (F + B) + F + max(B, r)
    ZeRO 1    the same, and g at the end, which nothing hides
    ZeRO 2    a (F + max(B, r)) + g
    ZeRO 3    a (max(F, g) + max(B, r + b))

and the inner strategy's synchronisation and the update besides. With hybrid sharding r is also no
less than the all-reduce of shares across groups.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from tpviz.cluster.clock.fast import Clock
from tpviz.core.mesh import Mesh
from tpviz.core.step import Collective
from tpviz.schemes.gpt.bounds import bytes_seconds, grown, sums
from tpviz.schemes.gpt.step import update

from .memory import inner_memory
from .step import inner_parts

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT

    from .strategy import DataParallel


PHASES = ("forward",), ("recompute", "backward"), ("sync",)


def bounds(s: "DataParallel", w: "GPT", cluster: "Cluster") -> Callable[..., float]:
    """Implements `tpviz.schemes.strategy.Strategy.bounds`."""
    mesh, local = Mesh(s.axes), s.local(w)

    @cache
    def inside(recompute, sharded):
        """(`Sums` of a microbatch's forward, backward, of what follows the last one, the clock)."""
        made = replace(s, recompute=recompute, zero=1 + sharded)
        clock = Clock.of(cluster, mesh, w.dtype, made.parent_axis, made.device(w, cluster))
        known = {}

        def within(names):
            parts = lambda thin: [p for p in inner_parts(made.inside, thin) if p.phase in names]
            return grown(local, lambda thin: sums(parts(thin), clock, known))

        return *map(within, PHASES), clock

    @cache
    def moved():
        """(numbers of P that a rank updates under ZeRO, of all, seconds of a reduce-scatter of P at
        least, of a gather, of an all-reduce, of a gather of blocks for backward, of an all-reduce
        of shares across groups); each class of parameters at the same time."""
        size, found = inner_memory(s, local)["parameters"], s.parts(w)
        share = sum(part * size / of.ranks for of, (part, _) in found.items())

        def most(kind, blocks=False, axis=""):
            payloads = {of: size * part[blocks] for of, part in found.items()}
            move = s.summing if kind == "sum" else lambda n: Collective("", kind, n)
            moves = [move(n)._replace(axis=axis or of.axis) for of, n in payloads.items()]
            return max(bytes_seconds(cluster, mesh, *one[:3]) for one in moves)

        kinds = most("reduce_scatter"), most("all_gather"), most("sum")
        again = most("all_gather", True, "reshard" if s.kept > 1 else "")
        across = (s.across.axis, "all_reduce", share)
        last = bytes_seconds(cluster, mesh, *across) if s.shard else 0.0
        return share / w.itemsize, size / w.itemsize, *kinds, again, last

    def bound(choice, closely=False):
        zero, recompute = choice.get("zero", s.zero), choice.get("recompute", s.recompute)
        try:
            forward, backward, rest, clock = inside(recompute, zero >= 2)
            share, numel, scatter, gather, reduce, blocks, across = moved()
        except (ValueError, NotImplementedError):
            return 0.0
        if not choice.get("reshard_after_forward", s.reshard_after_forward):
            blocks = 0.0
        f, b = forward.serial, backward.serial
        blocks *= zero == 3
        if s.gradients != "full" or s.within:  # fewer bytes: left out
            scatter = reduce = across = 0.0
        if s.within:
            gather = blocks = 0.0
        reduced = max(blocks, scatter) if s.kept > 1 else scatter + blocks if zero else reduce
        first = max(f, gather * (zero == 3))
        before = (s.accumulation - 1) * (first + max(b, reduced) if zero > 1 else f + b)
        last = first + max(b, reduced, across)
        after = rest.serial + clock.seconds(update(w, int(share if zero else numel)))
        busy = forward.plus(backward).plus(rest, s.accumulation).busy
        return max(before + last + after + gather * (0 < zero < 3), *busy.values(), 0.0)

    return bound

"""Lower bounds of a pipeline's step, found faster than its schedule is run (derived).

Rank r, whose lowest stage is s, begins when the first microbatch has gone through the stages before
s. Its last action, where backward is not split, is a backward of s, and then the gradient goes on
through those stages. So with F and B of a stage, R where it recomputes, and messages of l seconds:

    step >= sum over stages before s (F + l) + m (F + R + B of r's stages) + sum (B + l) + end

where the second sum counts only in schedules that leave B whole, and end is what r does behind its
last backward. With "balanced" stages, which are not known beforehand, T seconds of all stages and a
microbatch are at best spread so that all ranks come to the same bound, T / (1 - (1 - 1/m)^p).
"""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.cluster.clock.fast import Clock
from tpviz.core.mesh import Mesh
from tpviz.schemes.gpt.bounds import bytes_seconds, kernels_of, sums
from tpviz.schemes.gpt.pointwise import spread
from tpviz.schemes.gpt.step import update

from .microbatch import Microbatch
from .sharding import counted
from .split import V_SHAPED, layers_of
from .step import message_seconds

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT

    from .staged import Staged

SPLIT = ("zb_h1", "zb_v")
"""Schedules whose gradients of weights wait; in `V_SHAPED` ones too a rank may do others' last."""
AGAIN_BUT_LAST = ("last_no_recompute", "shifted_critical_path")


class MicrobatchTimes(NamedTuple):
    """Seconds of a microbatch on a rank: forward of a block, again where it is recomputed, and
    backward; forward and backward of the embedding and of the head."""

    forward: float
    again: float
    backward: float
    embed: float
    embed_back: float
    head: float
    head_back: float


def least_of_all(s: "Staged", w: "GPT", cluster: "Cluster") -> float:
    """`Strategy.least_of_all`: the work of all stages, evenly spread, and no bubble."""
    return s.microbatches * _Bounds(s, w, cluster).whole() / s.pp


def bounds(s: "Staged", w: "GPT", cluster: "Cluster") -> Callable[..., float]:
    """Implements `Strategy.bounds`."""
    return _Bounds(s, w, cluster).of


class _Bounds:
    """Of the choices of one layout and its microbatches."""

    def __init__(self, s: "Staged", w: "GPT", cluster: "Cluster"):
        self.s, self.w, self.cluster, self.mesh = s, w, cluster, Mesh(s.axes)
        self.local, self.message = s.local(w), message_seconds(s, w, cluster, Mesh(s.axes))
        self.times, self.micro = cache(self._times), cache(self._microbatch)
        self.end, self.whole = cache(self._end), cache(self._whole)
        self.classes = cache(self._classes)
        self.evenly = cache(self._evenly)
        self.numels, self.units = cache(self._numels), cache(self._units)
        kinds = ((w.like(block), block) for block in reversed(range(w.layers)))
        self.firsts = dict(kinds) if not w.alike else {w: 0}
        self.first_like = [self.firsts[w.like(block)] for block in range(w.layers)]

    def of(self, choice: dict[str, Any], closely: bool = False) -> float:
        """Seconds at least of the layout with a choice, or with all that share ZeRO's stage and
        recomputation. closely : its blocks and what it recomputes are asked for, which takes its
        schedule."""
        if "schedule" not in choice:
            zero = choice.get("zero", choice.get("data", self.s).zero)
            return self._of_any(choice["recompute"], zero * (self.s.replicas.ranks > 1))
        s, w = replace(self.s, **choice), self.w
        if closely:
            return self._of_stages(s, s.blocks(w), s.num_recomputed(w))
        if s.layout == "even":
            blocks = layers_of(w.layers, s.stages)
            every = s.recompute == "full" and s.schedule not in V_SHAPED
            dropped = [len(of) * every for of in blocks]
            dropped[-1] *= s.schedule not in AGAIN_BUT_LAST
            return self._of_stages(s, blocks, dropped)
        again = s.recompute == "full"
        evenly = 1 - (1 - 1 / s.microbatches) ** s.pp
        return self.whole(s.recompute == "selective", again) / evenly

    def _of_any(self, recompute, zero):
        """Of any schedule: the rank that does most works no less than all do in the mean."""
        s, w = self.s, self.w
        again = recompute == "full"  # but perhaps the blocks of the last stage
        but = len(layers_of(w.layers, s.pp)[-1]) * (again and s.pp > 1)
        least = self.whole(recompute == "selective", again, but)
        after, busy = self.evenly(zero)
        return max(s.microbatches * least / s.pp + after, busy)

    def _of_stages(self, s, blocks, dropped):
        last, layers = s.stages - 1, [()] * s.pp
        v_shaped = s.schedule in V_SHAPED
        ranks = [min(k, last - k) if v_shaped else k % s.pp for k in range(s.stages)]
        for of_stage, rank in zip(blocks, ranks):
            layers[rank] += tuple(of_stage)
        # those of a kind are alike: as many of each are seen once
        layers = [tuple(sorted(map(self.first_like.__getitem__, own))) for own in layers]
        of = s, blocks, dropped, ranks, layers
        return max(self._of_rank(*of, place, v_shaped) for place in {0, s.pp - 1})

    def _of_rank(self, s, blocks, dropped, ranks, layers, place, v_shaped):
        last, split, zero = s.stages - 1, s.schedule in SPLIT, s.zero_stage
        mine = [k for k, rank in enumerate(ranks) if rank == place]
        work = fill = drain = 0.0
        for stage in (*range(mine[0]), *mine):
            rank = ranks[stage]
            ends = ranks[0] == rank, ranks[last] == rank
            t = self.times(layers[rank], ends, zero > 1, s.recompute == "selective", split)
            forward, again, backward = self._passes(
                t, blocks[stage], dropped[stage], stage == 0, stage == last, zero
            )
            if rank == place:
                work += forward + again + backward
            else:
                fill += forward + self.message
                drain += backward + self.message
        late, busy = self.end(layers[place], (0 in mine, last in mine), zero)
        if place and not split and not v_shaped:  # rank 0 is the last to be done
            late = max(late, drain + self.end(layers[0], (True, last == 0), zero)[0])
        return max(fill + s.microbatches * work + late, busy)

    def _passes(self, t, blocks, dropped, first, last, zero):
        """Seconds of a stage's forward, recomputation and backward: at ZeRO 3 each begins with a
        gather, and from ZeRO 2 on backward ends with a reduce-scatter, which nothing hides."""
        ends, of = next(iter(t.values())), [(t[kind], n) for kind, n in self.w.kinds(blocks)]
        again = sum(n * t[kind].again for kind, n in self.w.kinds(blocks[:dropped]))
        forward = sum(n * one.forward for one, n in of) + ends.embed * first + ends.head * last
        backward = sum(n * one.backward for one, n in of)
        backward += ends.embed_back * first + ends.head_back * last
        gather, scatter = self.units(zero, first or last)
        n = len(blocks) + first + last
        return (
            max(forward + gather, n * gather),
            max(again + gather, dropped * gather) if dropped else 0.0,
            max(backward + gather + scatter, n * scatter),
        )

    def _units(self, zero, end):
        """Seconds of a unit's gather and reduce-scatter, of the smallest on a stage."""
        blocks, *ends = self.numels()
        size = min([*blocks.values(), *ends * end])
        kinds = (zero > 2, "all_gather"), (zero > 1, "reduce_scatter")
        return [on and self._moved(kind, size * self.w.itemsize) for on, kind in kinds]

    def _microbatch(self, again, split):
        s = self.s
        return Microbatch(s.inside, self.local, s.subpipeline, split, again)

    def _clock(self, held):
        device = self.cluster.device
        if not device.plain:
            # where there is no pipeline the host launches while the device waits
            hidden = self.s.pp == 1 and self.s.inside.world_size > 1
            device = spread(replace(device, launch=0.0) if hidden else device, held)
        return Clock.of(self.cluster, self.mesh, self.w.dtype, self.s.parent_axis, device)

    def _times(self, layers, ends, sharded, again, split):
        clock, m = (
            self._clock(self.s.held_by(self.w, layers, ends, sharded)),
            self.micro(again, split),
        )

        def seconds(parts):
            return sum(segment.seconds for segment in clock.run(self.s.inside.least_of(parts)))

        head = m.weights([], True) if split else []
        of_ends = [seconds(parts) for parts in (m.embed, m.embed_back, m.head)]
        of_ends.append(seconds(m.head_back) + seconds(head))

        def of(block):
            weights = m.weights([block], False) if split else []
            return MicrobatchTimes(
                seconds(m.forward([block])),
                seconds(m.forward([block], "recompute", True)),
                seconds(m.backward([block])) + seconds(weights),
                *of_ends,
            )

        return {kind: of(block) for kind, block in self.firsts.items()}

    def _whole(self, again=False, twice=False, but=0):
        """Seconds of a microbatch on all stages, without what is hidden perhaps. again, twice :
        attention's core, or all but the last all-reduce of every block, is recomputed; of the last
        ``but`` blocks not."""
        w, m = self.w, self.micro(again, False)
        blocks = range(w.layers)
        held = self.s.held_by(self.w, blocks, (True, True), False)._replace(shards=0)
        free = replace(self.cluster.device, launch=0.0)
        clock = Clock.of(self.cluster, self.mesh, w.dtype, device=replace(free, pointwise="free"))
        least = self.s.inside.least_of
        total = kernels_of(free, held, w.dtype)
        for kind, n in w.kinds():
            block = [self.firsts[kind]]
            both = [*m.forward(block), *m.backward(block)]
            total += n * sums(least(both), clock).waited
        for kind, n in w.kinds(blocks[: w.layers - but]) if twice else ():
            parts = m.forward([self.firsts[kind]], "recompute", True)
            total += n * sums(least(parts), clock).serial
        return total

    def _numels(self):
        """({kind of block: numbers of a rank's part of one}, of the embedding, of the head)."""
        of = lambda unit: sum(counted(self.s, self.w, unit).values())
        blocks = {kind: of(f"blocks.{block}") for kind, block in self.firsts.items()}
        return blocks, of("embed"), of("head")

    def _in_blocks(self, blocks):
        return sum(n * self.numels()[0][kind] for kind, n in self.w.kinds(blocks))

    def _end(self, layers, ends, zero):
        """(seconds of a rank behind its last backward, seconds in which dp is busy)."""
        w = self.w
        _, embed, head = self.numels()
        blocks = self._in_blocks(layers)
        numel = blocks + ends[0] * embed + ends[1] * head
        clock = self._clock(self.s.held_by(self.w, layers, ends, zero > 1))
        after = clock.seconds(update(w, numel // (self.classes()[0].ranks if zero else 1)))
        sent, busy = self._sent(numel, blocks, zero)
        return after + sent, busy

    def _evenly(self, zero):
        """The same of the mean of all ranks, without the update."""
        _, *ends = self.numels()
        blocks = self._in_blocks(range(self.w.layers))
        return self._sent((blocks + sum(ends)) / self.s.pp, blocks / self.s.pp, zero)

    def _sent(self, numel, blocks, zero):
        """(seconds of what dp sends behind a rank's last backward, of all that dp sends), of so
        many numbers, ``blocks`` of them in blocks."""
        size, moved, after = numel * self.w.itemsize, self._moved, 0.0
        if self.s.replicas.ranks == 1 or not numel:
            return 0.0, 0.0
        if not zero:
            after = moved("sum", size)
        elif zero < 3:
            after = moved("all_gather", size) + moved("reduce_scatter", size) * (zero == 1)
        if self.s.around.shard:
            shares = self.s.around.across.axis, "all_reduce", size / self.classes()[0].ranks
            after += bytes_seconds(self.cluster, self.mesh, *shares)
        each = moved("reduce_scatter", size) * (zero > 1)
        each += (zero > 2) * (
            moved("all_gather", size) + moved("all_gather", blocks * self.w.itemsize)
        )
        return after, self.s.microbatches * each

    def _classes(self):
        """The `Replicas` of all classes, the largest first."""
        return sorted(self.s.classes(self.w), key=lambda of: -of.ranks)

    def _moved(self, collective, size):
        """Seconds in which classes move so many bytes, at the same time: of one of several, that
        has no less than its part of them."""
        classes, found = self.classes(), []
        each = size / len(classes)
        if classes[-1].ranks == 1:  # it sends nothing
            return 0.0
        for of in classes:
            move = collective, each
            if collective == "sum":
                move = self.s.around.summing(each)[1:3]
            found.append(bytes_seconds(self.cluster, self.mesh, of.axis, *move))
        return min(found)

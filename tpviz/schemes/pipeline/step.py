"""A pipeline's step: parts of each stage's actions, what a rank sends, how long it takes (derived).

Inside a stage a microbatch is that of the factor inside. Between ranks goes what it has of an
activation of A = B s h elements, forward and backward for each cut; at the end the gradients of the
weight that both ends share are added up over the two ("ends"), then what the factor inside adds up
once a step, then all by their replicas; with hybrid sharding in a group, then shares across groups.

The step's time is that of the schedule (`schedules.timeline`) with each stage's own seconds, and a
message's latency between ranks; then the all-reduces at the end and the update, stage by stage.
"""

from collections import Counter
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from tpviz.cluster.clock.cost import Segment
from tpviz.cluster.clock.fast import Clock
from tpviz.core.mesh import Mesh
from tpviz.core.schedules import Schedule, ScheduleTimes, timeline
from tpviz.core.step import Collective, Issues, Part, Repeat, Wait, count, interned
from tpviz.schemes.experts.balance import balancing
from tpviz.schemes.gpt.step import update
from tpviz.schemes.replicas import Replicas

from .microbatch import Microbatch
from .p2p_plan import crossings
from .sharding import Kind, counted, padded, sharded, unit_numels, units_of
from .split import TOKENS

if TYPE_CHECKING:
    from tpviz.cluster import Cluster, Device
    from tpviz.core.trace import Ledger
    from tpviz.core.workload import GPT

    from .staged import Staged


def ledger(s: "Staged", w: "GPT", place: int) -> "Ledger":
    """The `Ledger` of one step of a rank whose index along pp is ``place``."""
    axes = s.axes
    parents = {axis: axes[parent] for axis, parent in s.parent_axis.items()}
    sizes = axes | parents | {"pp": 2, "ends": 2}  # a message has two ranks
    return count(rank_step(s, w, place), sizes)


def rank_step(s: "Staged", w: "GPT", place: int) -> list[Part | Repeat]:
    """What a rank does in one step, stage by stage, not in its order."""
    schedule, actions, payload = s.schedule_of(w), stage_parts(s, w), message_bytes(s, w)
    step: list[Part | Repeat] = [
        Repeat(actions[kind, stage], s.microbatches)
        for stage in schedule.stages_of(place)
        for kind in ("F", "RB")
    ]
    for name, phase, _ in crossings(schedule, place):
        step.append(Repeat((Part(phase, "", (Collective("pp", name, payload),)),), s.microbatches))
    return step + end_parts(s, w, place)


def shares_ends(schedule: Schedule, place: int) -> bool:
    """Whether the first and the last stage are on two ranks, one of them this."""
    ends = {schedule.rank_of[0], schedule.rank_of[-1]}
    return len(ends) == 2 and place in ends


@lru_cache(maxsize=256)
def num_local_parameters(s: "Staged", w: "GPT") -> tuple[int, ...]:
    """Number of parameters of a rank, by stage; both ends count a shared weight."""
    return _by_stage(s, w, lambda kinds: sum(kinds.values()))


@lru_cache(maxsize=256)
def num_summed_parameters(s: "Staged", w: "GPT") -> dict[str, tuple[int, ...]]:
    """{axis: (numbers by stage)} of those whose gradients the factor inside adds up over it."""

    def number(axis):
        return lambda kinds: sum(n for kind, n in kinds.items() if axis in kind.once.split("+"))

    axes = (axis for kind, _ in w.kinds() for axis in s.inside.summed(kind.one_layer))
    return {axis: _by_stage(s, w, number(axis)) for axis in dict.fromkeys(axes)}


def _by_stage(s, w, number):
    """The sum of ``number`` of each unit's kinds, by stage."""
    units = [units_at(s, w, stage) for stage in range(s.stages)]
    return tuple(sum(number(counted(s, w, unit)) for unit in of) for of in units)


@lru_cache(maxsize=64)
def stage_parts(s: "Staged", w: "GPT") -> dict[tuple[str, int], tuple[Part, ...]]:
    """{(kind of action, stage): `Part`s} of one microbatch."""
    schedule, num_recomputed = s.schedule_of(w), s.num_recomputed(w)
    made, last, parts, operations = {}, s.stages - 1, {}, {}

    def with_zero(stage, action, of):
        found = sharded(s, w, units_at(s, w, stage), action, of, num_recomputed[stage])
        return interned(s.inside.lowered(found), operations)

    selective = s.recompute == "selective"
    for stage, mine in enumerate(s.blocks(w)):
        split = schedule.splits(schedule.rank_of[stage])
        if split not in made:
            made[split] = Microbatch(s.inside, s.local(w), s.subpipeline, split, selective)
        m = made[split]
        dropped, kept = list(mine)[: num_recomputed[stage]], list(mine)[num_recomputed[stage] :]
        forward = [
            *(m.embed if stage == 0 else ()),
            *m.forward(dropped),
            *m.forward(kept),
            *(m.head if stage == last else ()),
        ]
        again = m.forward(dropped, "recompute", s.skip_last_allreduce)
        backward = [
            *(m.head_back if stage == last else ()),
            *m.backward(kept),
            *m.backward(dropped),
            *(m.embed_back if stage == 0 else ()),
        ]
        parts["F", stage] = with_zero(stage, "forward", forward)
        parts["R", stage] = with_zero(stage, "recompute", again)
        parts["I", stage] = with_zero(stage, "backward", backward)
        weights = m.weights(list(mine), stage == last) if split else []
        parts["W", stage] = interned(weights, operations)
        parts["B", stage] = (*parts["I", stage], *parts["W", stage])
        parts["RB", stage] = (*parts["R", stage], *parts["B", stage])
    return parts


def stage_segments(
    s: "Staged", w: "GPT", cluster: "Cluster", mesh: "Mesh"
) -> dict[tuple[str, int], list[Segment]]:
    """{(kind of action, stage): `Segment`s} of one microbatch."""
    devices = [s.device(w, cluster, rank) for rank in mesh.group(0, "pp")]
    clocks = {d: clock_of(s, w, cluster, mesh, d) for d in dict.fromkeys(devices)}
    of_stage = [clocks[devices[place]] for place in s.schedule_of(w).rank_of]
    parts, found = stage_parts(s, w), {}
    for stage, mine in enumerate(of_stage):
        for kind in "FRIW":  # nothing is in flight between them, so backward is their sum
            found[kind, stage] = mine.run(parts[kind, stage])
        found["B", stage] = found["I", stage] + found["W", stage]
        found["RB", stage] = found["R", stage] + found["B", stage]
    return found


def seconds_waiting(s: "Staged", w: "GPT", cluster: "Cluster", device: "Device") -> float:
    """Seconds that forward and backward of a microbatch wait for collectives, all stages on one
    rank. device : as its kernels find it."""
    clock, parts = clock_of(s, w, cluster, Mesh(s.axes), device), stage_parts(s, w)
    return sum(
        sum(segment.exposed.values())
        for stage in range(s.stages)
        for kind in "FIW"
        for segment in clock.run(parts[kind, stage])
    )


def clock_of(s: "Staged", w: "GPT", cluster: "Cluster", mesh: "Mesh", device: "Device") -> Clock:
    """The `Clock` of a rank with this device."""
    return Clock.of(cluster, mesh, w.dtype, s.parent_axis, device)


def clock(
    s: "Staged", w: "GPT", cluster: "Cluster", mesh: "Mesh"
) -> tuple[ScheduleTimes, dict[tuple[str, int], list[Segment]]]:
    """The `ScheduleTimes` of a step, and the segments of each stage's actions."""
    parts = stage_segments(s, w, cluster, mesh)

    def seconds(kind):
        return [sum(segment.seconds for segment in parts[kind, stage]) for stage in range(s.stages)]

    return timeline(
        s.schedule_of(w),
        seconds("F"),
        seconds("B"),
        recompute=seconds("R"),
        weight=seconds("W"),
        latency=message_seconds(s, w, cluster, mesh),
    ), parts


def message_seconds(s: "Staged", w: "GPT", cluster: "Cluster", mesh: "Mesh") -> float:
    """Seconds of an activation, or its gradient, from one rank of the pipeline to the next."""
    if s.pp == 1:
        return 0.0
    members = mesh.group(0, "pp")[:2]
    link = cluster.link(tuple(members), mesh.size, members[1] - members[0])
    return sum(cluster.collective_parts("send", message_bytes(s, w), 2, link))


def message_bytes(s: "Staged", w: "GPT") -> int:
    """Bytes of a rank's message to the next stage."""
    local = s.local(w)
    return local.batch * prod(s.inside.layout.stream_sizes(local)) * w.itemsize


def cost(s: "Staged", w: "GPT", cluster: "Cluster", mesh: "Mesh") -> list[Segment]:
    """The segments of one step of rank 0, the first of the pipeline: what it does and waits for,
    until the last rank is done."""
    schedule = s.schedule_of(w)
    line, parts = clock(s, w, cluster, mesh)
    found, now = [], 0.0
    for place, action in enumerate(schedule.of(0)):
        start = line.start[0][place]
        if start - now > 1e-12 * start:  # less is rounding
            found.append(Segment("", "", bubble=start - now))
        found += parts[action.kind, action.stage]
        now = line.end[0][place]
    ends = [end_segments(s, w, cluster, mesh, line, place) for place in range(s.pp)]
    done = [
        line.end[place][-1] + sum(segment.seconds for segment in end)
        for place, end in enumerate(ends)
    ]
    late = max(done) - done[0]  # in a V the last place may have more to do at the end
    return [*found, *ends[0], *([Segment("", "", bubble=late)] if late > 0 else [])]


def end_parts(s: "Staged", w: "GPT", place: int) -> list[Part]:
    """What a rank does after its last backward: gradients are summed between the two ends (shared
    weight), over the axes of the factor inside, and by replicas; then the optimizer's update, and
    what biases of routers ask for."""
    stages = s.schedule_of(w).stages_of(place)
    blocks = [block for stage in stages for block in s.blocks(w)[stage]]
    sync, update_part = _ends(s, w, place)
    biases = (move for part in balancing(s, w, blocks) for move in part.operations)
    return [sync, update_part._replace(operations=(*update_part.operations, *biases))]


def _ends(s, w, place):
    schedule, item, dp = s.schedule_of(w), w.itemsize, s.replicas.ranks
    stages = schedule.stages_of(place)
    once = {
        name: sum(numbers[stage] for stage in stages)
        for name, numbers in num_summed_parameters(s, w).items()
    }
    buckets = [bucket for stage in stages for bucket in numels(s, w, stage)]
    shares = [(kind.once.split("+"), n // kind.of.ranks) for kind, n in buckets]
    if s.zero_stage > 1:  # shares are added up
        once = {axis: sum(n for of, n in shares if axis in of) for axis in once}
    summed = []
    if w.tied and shares_ends(schedule, place):
        tied = prod(s.inside.flat_shapes(w.one_layer)[TOKENS])
        tied = padded(tied, dp) // dp if s.zero_stage > 1 else tied
        summed.append(Collective("ends", "all_reduce", tied * item))
    summed += [Collective(name, "all_reduce", n * item) for name, n in once.items() if n]
    if not buckets:  # stages without blocks
        return [Part("sync", "", tuple(summed)), Part("optimizer", "", ())]
    if not s.zero_stage:
        for of in sorted({kind.of for kind, _ in buckets if kind.of.ranks > 1}):
            size = sum(n for kind, n in buckets if kind.of == of) * item
            summed.append(s.around.summing(size)._replace(axis=of.axis))
        whole = sum(n for _, n in buckets)
        return [Part("sync", "", tuple(summed)), Part("optimizer", "", (update(w, whole),))]

    def all_of(collective):
        """Issued one after another, on queues of their own."""
        moves = [(kind.of, collective, n * item) for kind, n in buckets if kind.of.ranks > 1]
        axes = dict.fromkeys(of.axis for of, *_ in moves)
        moves = tuple(Collective(of.axis, *rest) for of, *rest in moves)
        return (Issues(moves), *map(Wait, axes)) if moves else ()

    share = sum(n for _, n in shares)
    if s.zero_stage == 1:
        summed += all_of("reduce_scatter")
    if s.around.shard:
        summed.append(Collective(s.around.across.axis, "all_reduce", share * item))
    updated = all_of("all_gather") if s.zero_stage < 3 else ()
    return [
        Part("sync", "", tuple(summed)),
        Part("optimizer", "", (update(w, share), *updated)),
    ]


def numels(s: "Staged", w: "GPT", stage: int) -> list[tuple[Kind, int]]:
    """[(kind, elements)] of the flat buffers of a stage, as in `sharding.groups`; of parameters
    without replicas, and without ZeRO of all, as if they had one."""
    units = units_at(s, w, stage)
    if s.zero_stage > 1:
        return [item for unit in units for item in unit_numels(s, w, unit).items()]
    found = Counter[Replicas]()
    for unit in units:
        for kind, numel in counted(s, w, unit).items():
            found[kind.of] += numel
    each = (of.ranks if s.zero_stage else 1 for of in sorted(found))
    return [(Kind("", of), padded(found[of], ranks)) for of, ranks in zip(sorted(found), each)]


def units_at(s: "Staged", w: "GPT", stage: int) -> list[str]:
    """The `sharding` units of a stage, in order."""
    return units_of(s.blocks(w)[stage], stage == 0, stage == s.stages - 1)


def end_segments(
    s: "Staged", w: "GPT", cluster: "Cluster", mesh: "Mesh", line: ScheduleTimes, place: int
) -> list[Segment]:
    """`end_parts` on the cluster; a rank that shares a weight waits for the other end first."""
    sync, update_part = end_parts(s, w, place)
    found, (first, *rest) = [], sync.operations or (None,)
    members = mesh.group(0, "pp")
    if isinstance(first, Collective) and first.axis == "ends":
        rank_of = s.schedule_of(w).rank_of
        ends = rank_of[0], rank_of[-1]
        late = max(line.end[end][-1] for end in ends) - line.end[place][-1]
        if late > 0:
            found.append(Segment("sync", "", bubble=late))
        link = cluster.link(tuple(sorted(members[end] for end in ends)), mesh.size)
        latency, sending = cluster.collective_parts(first.collective, first.payload, 2, link)
        found.append(Segment("sync", "", exposed={"ends": latency + sending}, latency=latency))
        sync = sync._replace(operations=tuple(rest))
    device = s.device(w, cluster, members[place])
    return found + clock_of(s, w, cluster, mesh, device).run([sync, update_part])

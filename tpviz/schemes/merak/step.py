"""Merak's step: parts of each stage's actions, what a rank sends, how long it takes (derived).

Inside a stage a microbatch is Megatron-LM's: of A = B s h elements, a block has two all-reduces
over tp forward and two backward, the embedding one forward, the head one backward, the loss gathers
two numbers a token. Between ranks goes A forward and A backward for each cut; at the end the
gradients of the weight that both ends share are added up over the two ("ends"), then all over dp.

The step's time is that of the schedule (`schedules.timeline`) with each stage's own seconds, and a
message's latency between ranks; then the all-reduces at the end and the update, stage by stage.
"""

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from tpviz.cost import Clock, Segment, transfer
from tpviz.mesh import Mesh
from tpviz.schedules import Schedule, Timeline, timeline
from tpviz.schemes.gpt.step import payloads, update
from tpviz.schemes.ownership import local_shapes
from tpviz.step import Collective, Part, Repeat, count

from .microbatch import Microbatch
from .p2p_plan import P2PPlan
from .split import TOKENS, layers_of, stage_of

if TYPE_CHECKING:
    from tpviz.cluster import Cluster, Device
    from tpviz.trace import Ledger
    from tpviz.workload import GPT

    from .strategy import Merak


def ledger(s: "Merak", w: "GPT", place: int) -> "Ledger":
    """The `Ledger` of one step of a rank whose index along pp is ``place``."""
    schedule, item, activation = s.schedule_of(w), w.itemsize, payloads(s.local(w), s.tp).activation
    actions, stages = stage_parts(s, w), schedule.stages_of(place)
    step: list[Part | Repeat] = [
        Repeat(tuple(actions[kind, stage]), s.microbatches)
        for stage in stages
        for kind in ("F", "RB")
    ]
    plan = P2PPlan(schedule, place)
    for message, source in plan.source.items():
        for name, rank in (("send", source), ("recv", plan.target[message])):
            if rank == place and plan.travels(message):
                step.append(Part(message.phase, "", (Collective("pp", name, activation),)))
    numbers = num_local_parameters(s, w)
    summed = [Collective("dp", "all_reduce", sum(numbers[stage] for stage in stages) * item)]
    if w.tied and shares_ends(schedule, place):
        summed.append(Collective("ends", "all_reduce", prod(local_shapes(s, w)[TOKENS]) * item))
    step.append(Part("sync", "", tuple(summed)))
    return count(step, s.axes | {"pp": 2, "ends": 2})  # a message has two ranks, wherever it goes


def shares_ends(schedule: Schedule, place: int) -> bool:
    """Whether the first and the last stage are on two ranks, one of them this."""
    ends = {schedule.rank_of[0], schedule.rank_of[-1]}
    return len(ends) == 2 and place in ends


@lru_cache(maxsize=256)
def num_local_parameters(s: "Merak", w: "GPT") -> tuple[int, ...]:
    """(numbers of a rank's parameters) by stage; of a shared weight both ends have a copy."""
    one = replace(w, layers=1)  # all blocks are alike
    size = {name: prod(shape) for name, shape in local_shapes(s.inside, one).items()}
    block = sum(number for name, number in size.items() if name.startswith("blocks."))
    found = [block * len(blocks) for blocks in layers_of(w.layers, s.stages)]
    for name, number in size.items():
        if not name.startswith("blocks."):
            found[stage_of(name, w, s.stages)] += number
    if w.tied:
        found[-1] += size[TOKENS]
    return tuple(found)


@lru_cache(maxsize=64)
def stage_parts(s: "Merak", w: "GPT") -> dict[tuple[str, int], list[Part]]:
    """{(kind of action, stage): `Part`s} of one microbatch."""
    schedule, num_recomputed = s.schedule_of(w), s.num_recomputed(w)
    made, last, parts = {}, s.stages - 1, {}
    for stage, mine in enumerate(layers_of(w.layers, s.stages)):
        split = schedule.splits(schedule.rank_of[stage])
        m = made.setdefault(split, Microbatch(s.local(w), s.tp, s.subpipeline, split))
        dropped, kept = list(mine)[: num_recomputed[stage]], list(mine)[num_recomputed[stage] :]
        parts["F", stage] = [
            *(m.embed if stage == 0 else ()),
            *m.forward(dropped),
            *m.forward(kept),
            *(m.head if stage == last else ()),
        ]
        parts["R", stage] = m.forward(dropped, "recompute", s.skip_last_allreduce)
        parts["I", stage] = [
            *(m.head_back if stage == last else ()),
            *m.backward(kept),
            *m.backward(dropped),
        ]
        parts["W", stage] = m.weights(list(mine), stage == last) if split else []
        parts["B", stage] = parts["I", stage] + parts["W", stage]
        parts["RB", stage] = parts["R", stage] + parts["B", stage]
    return parts


def stage_segments(
    s: "Merak", w: "GPT", cluster: "Cluster", mesh: "Mesh"
) -> dict[tuple[str, int], list[Segment]]:
    """{(kind of action, stage): `Segment`s} of one microbatch."""
    places = range(s.pp)
    devices = [s.device(w, cluster, place * s.dp * s.tp) for place in places]
    clocks = {d: Clock.of(cluster, mesh, w.dtype, device=d) for d in dict.fromkeys(devices)}
    of_stage = [clocks[devices[place]] for place in s.schedule_of(w).rank_of]
    return {
        (kind, stage): of_stage[stage].run(parts)
        for (kind, stage), parts in stage_parts(s, w).items()
    }


def seconds_waiting(s: "Merak", w: "GPT", cluster: "Cluster", device: "Device") -> float:
    """Seconds that forward and backward of a microbatch wait for collectives, all stages on one
    rank. device : as its kernels find it."""
    clock, parts = Clock.of(cluster, Mesh(s.axes), w.dtype, device=device), stage_parts(s, w)
    return sum(
        sum(segment.exposed.values())
        for stage in range(s.stages)
        for kind in ("F", "B")
        for segment in clock.run(parts[kind, stage])
    )


def clock(
    s: "Merak", w: "GPT", cluster: "Cluster", mesh: "Mesh"
) -> tuple[Timeline, dict[tuple[str, int], list[Segment]]]:
    """The `schedules.Timeline` of a step, and the segments of each stage's actions."""
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


def message_seconds(s: "Merak", w: "GPT", cluster: "Cluster", mesh: "Mesh") -> float:
    """Seconds of an activation, or its gradient, from one rank of the pipeline to the next."""
    if s.pp == 1:
        return 0.0
    payload, members = payloads(s.local(w), s.tp).activation, mesh.group(0, "pp")[:2]
    link = cluster.link(tuple(members), mesh.size, members[1] - members[0])
    return sum(cluster.collective_parts("send", payload, 2, link))


def cost(s: "Merak", w: "GPT", cluster: "Cluster", mesh: "Mesh") -> list[Segment]:
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
    ends = [_end(s, w, cluster, mesh, line, place) for place in range(s.pp)]
    done = [
        line.end[place][-1] + sum(segment.seconds for segment in end)
        for place, end in enumerate(ends)
    ]
    late = max(done) - done[0]  # in a V the last place may have more to do at the end
    return [*found, *ends[0], *([Segment("", "", bubble=late)] if late > 0 else [])]


def _end(s, w, cluster, mesh, line, place):
    """A rank from the end of its own backward: it waits for the other end, if they share a weight,
    and all-reduces its gradients."""
    schedule, item = s.schedule_of(w), w.itemsize
    numbers = sum(num_local_parameters(s, w)[stage] for stage in schedule.stages_of(place))
    found = []
    if w.tied and shares_ends(schedule, place):
        ends = schedule.rank_of[0], schedule.rank_of[-1]
        late = max(line.end[end][-1] for end in ends) - line.end[place][-1]
        if late > 0:
            found.append(Segment("sync", "", bubble=late))
        members = mesh.group(0, "pp")
        link = cluster.link(tuple(sorted(members[end] for end in ends)), mesh.size)
        latency, sending = cluster.collective_parts(
            "all_reduce", prod(local_shapes(s, w)[TOKENS]) * item, 2, link
        )
        found.append(Segment("sync", "", exposed={"ends": latency + sending}, latency=latency))
    moved = transfer(cluster, mesh, "dp", "all_reduce", numbers * item)
    if moved.seconds:
        found.append(Segment("sync", "", exposed={"dp": moved.seconds}, latency=moved.latency))
    return [*found, Segment("optimizer", "", compute=update_seconds(w, cluster, numbers))]


def update_seconds(w: "GPT", cluster: "Cluster", numel: int) -> float:
    """Seconds of the optimizer on so many parameters."""
    kernel = update(w, numel)
    return cluster.device.time(kernel.flops, kernel.bytes, w.dtype)

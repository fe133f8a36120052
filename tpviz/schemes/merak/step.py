"""What a rank of Merak's sends in a step, and how long the step takes (derived).

Inside a stage a microbatch is Megatron-LM's: of A = B s h elements, a block has two sums over tp
forward and two backward, the embedding one forward, the head one backward, the loss gathers two
numbers a token. Between ranks goes A forward and A backward for each cut; at the end the gradients
of the weight that both ends share are added up over the two ("ends"), then all over dp.

The step's time is that of the schedule (`schedules.timeline`) with each stage's own seconds, and a
message's latency between ranks; then the sums at the end and the update, stage by stage.
"""

from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import TYPE_CHECKING

from tpviz.cost import Segment, transfer
from tpviz.schedules import Schedule, Timeline, timeline
from tpviz.schemes.gpt.cost import seconds_of
from tpviz.schemes.gpt.kernels import adamw
from tpviz.schemes.megatron.cost import sizes
from tpviz.schemes.ownership import local_shapes
from tpviz.trace import Ledger

from .p2p_plan import P2PPlan
from .split import TOKENS, layers_of, stage_of
from .stretches import Stretches, halves

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.mesh import Mesh
    from tpviz.workload import GPT

    from .strategy import Merak


def ledger(s: "Merak", w: "GPT", place: int) -> Ledger:
    """The `Ledger` of one step of a rank whose index along pp is ``place``."""
    schedule, local, tp, m = s.schedule_of(w), s.local(w), s.tp, s.microbatches
    activation, loss, _ = sizes(local, tp)
    num_recomputed, blocks = s.num_recomputed(w), layers_of(w.layers, schedule.stages)
    rows = []
    for stage in schedule.stages_of(place):
        first, last = stage == 0, stage == schedule.stages - 1
        rows += [
            ("tp", "all_reduce", "forward", m * first, activation, tp),
            ("tp", "all_reduce", "backward", m * last, activation, tp),
        ]
        again = 2 * num_recomputed[stage] - (s.skip_last_allreduce and num_recomputed[stage] > 0)
        counts = {
            "forward": 2 * len(blocks[stage]),
            "recompute": again,
            "backward": 2 * len(blocks[stage]),
        }
        rows += [
            ("tp", "all_reduce", phase, m * count, activation * part // local.batch, tp)
            for phase, count in counts.items()
            for part in (halves(local.batch) if s.subpipeline else [local.batch])
        ]
        rows += [("tp", "all_gather", "forward", m * last, loss, tp)]
    p2p_plan = P2PPlan(schedule, place)
    for message, source in p2p_plan.source.items():
        for collective, rank in (("send", source), ("recv", p2p_plan.target[message])):
            if rank == place and p2p_plan.travels(message):
                rows.append(("pp", collective, message.phase, 1, activation, 2))
    shapes = held(s, w)
    if w.tied and shares_ends(schedule, place):
        ends = prod(local_shapes(s, w)[TOKENS]) * w.itemsize
        rows.append(("ends", "all_reduce", "sync", 1, ends, 2))
    total = sum(shapes[stage] for stage in schedule.stages_of(place)) * w.itemsize
    return Ledger.of([*rows, ("dp", "all_reduce", "sync", 1, total, s.dp)])


def shares_ends(schedule: Schedule, place: int) -> bool:
    """Whether the first and the last stage are on two ranks, one of them this."""
    ends = {schedule.rank_of[0], schedule.rank_of[-1]}
    return len(ends) == 2 and place in ends


@lru_cache(maxsize=256)
def held(s: "Merak", w: "GPT") -> tuple[int, ...]:
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


def stage_segments(
    s: "Merak", w: "GPT", cluster: "Cluster", mesh: "Mesh"
) -> dict[tuple[str, int], list[Segment]]:
    """{(kind of action, stage): `Segment`s} of one microbatch."""
    found, schedule, known = {}, s.schedule_of(w), {}
    num_recomputed, blocks = s.num_recomputed(w), layers_of(w.layers, s.stages)
    for stage in range(s.stages):
        split = schedule.splits(schedule.rank_of[stage])
        made = known.setdefault(split, Stretches(s.local(w), cluster, mesh, s.subpipeline, split))
        found |= _segments(
            made,
            stage,
            stage == s.stages - 1,
            list(blocks[stage]),
            num_recomputed[stage],
            s.skip_last_allreduce,
        )
    return found


def _segments(made, stage, last, mine, drop, skip_last_allreduce):
    """The same of one stage."""
    dropped, kept, found = mine[:drop], mine[drop:], {}
    found["F", stage] = [
        *(made.embed() if stage == 0 else ()),
        *made.forward(dropped),
        *made.forward(kept),
        *(made.head() if last else ()),
    ]
    found["R", stage] = made.forward(dropped, "recompute", skip_last_allreduce)
    found["I", stage] = [
        *(made.head_back() if last else ()),
        *made.backward(kept),
        *made.backward(dropped),
    ]
    found["W", stage] = made.weights(mine, last) if made.split else []
    found["B", stage] = found["I", stage] + found["W", stage]
    found["RB", stage] = found["R", stage] + found["B", stage]
    return found


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
    payload, members = sizes(s.local(w), s.tp)[0], mesh.group(0, "pp")[:2]
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
        if start > now:
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
    and sums its gradients."""
    schedule, item = s.schedule_of(w), w.itemsize
    numbers = sum(held(s, w)[stage] for stage in schedule.stages_of(place))
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
    update = seconds_of(w, cluster)(adamw(numbers * item))
    return [*found, Segment("optimizer", "", compute=update)]

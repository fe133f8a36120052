"""Microbatches in flight in a trace: counted from what ranks did, not from their schedule.

A microbatch is in flight on a stage from the first kernel of its forward to the last of its
backward, of the weights' gradients where those come later: what `clock.ScheduleTimes.in_flight`
says of a schedule. Kernels say which microbatch and phase they are of by their labels, and their
layer says which stage.
"""

from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import TYPE_CHECKING

from tpviz.core.trace.pipeline import ranks_of_places
from tpviz.core.trace.steps import median_step

if TYPE_CHECKING:
    from tpviz.core.trace import Trace


def in_flight(
    trace: "Trace", rank: int = 0, stage_of: Callable[[str], int] | None = None
) -> list[tuple[float, int]]:
    """[(time, count)]: how many activations, one per microbatch and stage, the rank holds from then
    on.

    trace : of a run, a simulation or a recorded pipeline; its median step counts, in seconds of
    the trace. stage_of : layer -> stage, needed where a rank has several stages (of a GPT
    `split.stage_of`); kernels of no known layer are then left out.
    Raises ``ValueError`` where no kernel of the rank says which microbatch it is of, and where a
    microbatch has a forward and no backward.
    """
    return _counted(median_step(trace), rank, stage_of)


def peaks_in_flight(
    trace: "Trace", stage_of: Callable[[str], int] | None = None
) -> tuple[int, ...]:
    """For each index along the axis pp, the maximum of `in_flight` on the lowest rank there.

    Raises ``ValueError`` if the trace has no axis pp, and in the cases of `in_flight`.
    """
    ranks, step = ranks_of_places(trace, "microbatches in flight"), median_step(trace)
    return tuple(max(count for _, count in _counted(step, rank, stage_of)) for rank in ranks)


def _counted(step, rank, stage_of):
    begun, done = {}, {}
    events = step.select(rank=rank, kind="compute", phase=("forward", "backward"))
    columns = [events[name].tolist() for name in ("start", "end", "phase", "layer", "microbatch")]
    for start, end, phase, layer, microbatch in zip(*columns):
        if microbatch < 0 or (stage_of and not layer):
            continue
        key = stage_of(layer) if stage_of else 0, microbatch
        if phase == "forward":
            begun[key] = min(start, begun.get(key, start))
        else:
            done[key] = max(end, done.get(key, end))
    if not begun:
        raise ValueError(
            f"rank {rank} of this trace has no kernels labelled with a microbatch: "
            "microbatches in flight need a run of tv.Merak, or labels "
            "(tpviz.core.labels.label) with phase and microbatch"
        )
    if begun.keys() != done.keys():
        which = ", ".join(str(m) for _, m in sorted(begun.keys() ^ done.keys()))
        raise ValueError(
            f"rank {rank} of this trace has forward or backward alone of microbatch "
            f"{which}: count whole steps"
        )
    changes = Counter(begun.values())
    changes.subtract(Counter(done.values()))
    times = sorted(changes)
    return list(zip(times, accumulate(changes[time] for time in times)))

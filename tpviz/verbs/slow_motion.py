"""How slow an emulated cluster must be, so that what real ranks do on it is as its model says.

>>> auto_slow_motion("all_reduce on tp", 10e-6, 3e-3).factor
1000.0
"""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tpviz.cluster import Cluster
from tpviz.core.copies import HOST
from tpviz.core.mesh import Mesh
from tpviz.core.tables import show_seconds
from tpviz.core.workload import GPT
from tpviz.schemes.strategy import Strategy

from .predict import Prediction, predict

FAITHFUL = 10e-3
"""Seconds that the shortest event should last when ranks emulate it: Python's own delays are a few
per cent of that."""
SHORTEST_STEP, LONGEST_STEP = 1.5, 4.0
"""Seconds. What is not modelled (Python, LayerNorms, GEMMs that a GPU does in no time) takes some
ten milliseconds of a step, whatever its speed; and nobody wants to wait longer for a lesson."""
NEGLIGIBLE = 0.02
"""Events that are together less than this part of a step may be as short as they like."""


class SlowMotion(NamedTuple):
    """A slow-motion factor and the reason for it."""

    factor: float
    words: str


def auto_slow_motion(name: str, shortest: float, step: float) -> SlowMotion:
    """The `SlowMotion` in which the shortest event, and the step, are long enough to be faithful.

    shortest, step : seconds of the shortest event, called ``name``, and of a step at full speed.
    A step is not stretched beyond `LONGEST_STEP`, whatever becomes of the event.
    """
    for_event, for_step = (
        _digits(least / time, math.ceil)
        for least, time in ((FAITHFUL, shortest), (SHORTEST_STEP, step))
    )
    most = _digits(LONGEST_STEP / step, math.floor)
    factor = max(1.0, min(max(for_event, for_step), most))
    event = f"{name}, the shortest event that matters ({show_seconds(shortest)} at full speed)"
    now, lasts = show_seconds(shortest * factor), show_seconds(step * factor)
    if factor < for_event:
        words = f"{event}, lasts only {now}, maybe unfaithfully short; but a step lasts {lasts}"
    elif for_event >= for_step:
        words = f"{event}, lasts {now}"
    else:
        words = f"a step lasts {lasts}, long beside the work that is not modelled; {event}, {now}"
    return SlowMotion(factor, f"{factor:,g} x: {words}")


def in_slow_motion(
    strategies: Strategy | Iterable[Strategy], workload: GPT, cluster: Cluster
) -> Cluster:
    """``cluster``, slowed down so that real ranks can emulate it faithfully, for all strategies by
    the largest `auto_slow_motion`, with no step much longer than `LONGEST_STEP`.

    A cluster already in slow motion is returned as it is, like one on which no strategy has a
    formula. Raises what `tpviz.predict` does.
    """
    strategies = [strategies] if isinstance(strategies, Strategy) else strategies
    if cluster.slow_motion != 1:
        return cluster
    found: list[tuple[str, float, float]] = []
    for strategy in strategies:
        try:
            found.append(shortest(predict(strategy, workload, cluster)))
        except NotImplementedError:
            continue
    if not found:
        return cluster
    most = max(1.0, _digits(LONGEST_STEP / max(step for *_, step in found), math.floor))
    factor = min(most, max(auto_slow_motion(*one).factor for one in found))
    return cluster.scale_model(slow_motion=factor) if factor > 1 else cluster


def shortest(prediction: Prediction) -> tuple[str, float, float]:
    """(name, seconds of the shortest event that matters, seconds of a step) of a `Prediction`.

    Events are the kernels of each segment, and collectives of their mean size.
    The shortest ones that are together less than `NEGLIGIBLE` of all are left out.
    """
    events = sorted([*_kernels(prediction), *_collectives(prediction)])
    allowed = NEGLIGIBLE * sum(time * count for time, count, _ in events)
    for time, count, name in events:
        allowed -= time * count
        if allowed < 0:
            return name, time, prediction.step_time
    raise ValueError("a step of this workload takes no time on this cluster")


def _kernels(prediction: Prediction) -> Iterator[tuple[float, int, str]]:
    """(seconds, count, name) of the kernels of each segment."""
    for segment in prediction.segments:
        if segment.compute:
            yield segment.compute, 1, f"{segment.phase} of {segment.layer or 'all parameters'}"


def _collectives(prediction: Prediction) -> Iterator[tuple[float, int, str]]:
    """(seconds, count, name) of the collectives of each row of the ledger, at their mean size."""
    strategy, cluster = prediction.strategy, prediction.cluster
    mesh = Mesh(strategy.axes)
    for row in prediction.ledger():
        if row.collective == "recv":  # its send's other end
            continue
        if row.axis in HOST:
            time = row.payload_bytes / row.count / cluster.device.host_rate
            yield time, row.count, f"{row.axis} copy"
            continue
        axis = strategy.parent_axis.get(row.axis, row.axis)
        members, link = mesh.group(0, axis), cluster.axis_link(mesh, axis)
        if row.collective == "send":
            link = cluster.link(tuple(members[:2]), mesh.size, members[1] - members[0])
        payload = row.payload_bytes / row.count
        time = cluster.collective_time(row.collective, payload, len(members), link)
        yield time, row.count, f"{row.collective} on {row.axis}"


def _digits(value: float, rounding: Callable[[float], int]) -> float:
    """Rounded up or down to two digits."""
    power = 10.0 ** (math.floor(math.log10(value)) - 1)
    return round(rounding(round(value / power, 6)) * power, 9)

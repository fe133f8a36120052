"""``simulate``: replay a strategy's own program on a virtual clock; thousands of ranks, no process.

trace = tv.simulate(tv.Megatron(tp=8) * tv.DataParallel(dp=128), tv.GPT(...), cluster)
"""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tpviz.cluster.clock.program import Capture
from tpviz.cluster.clock.replay import replay
from tpviz.core.checks import one_of, whole_number

from .checks import check_faults
from .predict import check
from .room import check_memory

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.cluster.clock.injected_faults import Faults
    from tpviz.core.trace.table import Trace
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy

DETAILS = ("kernels", "all")


def simulate(
    strategy: "Strategy",
    workload: "GPT",
    cluster: "Cluster",
    *,
    steps: int = 1,
    detail: str = "kernels",
    faults: "Faults | None" = None,
    contention: bool = True,
    capture: Capture | None = None,
) -> "Trace":
    """A `Trace` of what each rank of ``strategy`` would do on ``cluster``, badge "simulated".

    Parameters
    ----------
    steps : training steps, one after another.
    detail : "kernels" (what carries FLOPs, and fused optimizers) or "all" (every operator takes the
        time of its memory traffic).
    faults : `Faults`: stragglers, slow links, jitter.
    contention : False lets each axis have its links to itself, as `predict` does.
    capture : the program, if `tpviz.capture` has it already.

    Raises ``ValueError`` where sizes do not fit each other or the cluster, or a rank needs more
    memory than its device has (not checked with scaled hidden sizes: no one factor fits memory).
    """
    steps, detail = whole_number("steps", steps), one_of("detail", detail, DETAILS)
    contention = one_of("contention", contention, (True, False))
    check_place(strategy, workload, cluster)
    faults = check_faults(faults)
    if capture is None:
        from .capture import capture as capture_program

        capture = capture_program(strategy, workload, detail=detail)
    _check_capture(capture, strategy, workload, detail)
    seen = as_seen(cluster, detail)
    devices = {rank: strategy.device(workload, seen, rank) for rank in capture.traces}
    trace = replay(capture, cluster, steps, faults, contention, devices)
    return replace(
        trace,
        meta={
            **trace.meta,
            **capture.meta,
            "device": "simulated",
            "cluster": cluster.caption,
            "world_size": capture.world_size,
        },
    )


def check_place(strategy: "Strategy", workload: "GPT", cluster: "Cluster") -> None:
    """`predict`'s check, and that of memory, which in a scale model does not scale as one."""
    check(strategy, workload, cluster)
    if cluster.hidden_scale == 1:
        with suppress(NotImplementedError):  # PyTorch's own have no formula
            check_memory(strategy, workload, cluster)


def as_seen(cluster: "Cluster", detail: str) -> "Cluster":
    """The cluster for a trace: with all operators memory-bound ones are events, not spread."""
    if detail != "all":
        return cluster
    return replace(cluster, device=replace(cluster.device, pointwise="free"))


def _check_capture(capture: Any, strategy: "Strategy", workload: "GPT", detail: str):
    """Raise ``ValueError`` unless this is the capture of that program."""
    asked = {"strategy": repr(strategy), "workload": repr(workload), "detail": detail}
    if not isinstance(capture, Capture):
        raise ValueError(f"capture={capture!r}; use the result of tv.capture(strategy, workload)")
    for name, value in asked.items():
        if capture.meta[name] != value:
            raise ValueError(f"the capture is of {name} {capture.meta[name]}, not of {value}")

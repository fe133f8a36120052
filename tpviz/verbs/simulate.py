"""``simulate``: replay a strategy's own program on a virtual clock; thousands of ranks, no process.

    trace = tv.simulate(tv.Megatron(tp=8) * tv.DataParallel(dp=128), tv.GPT(...), cluster)
"""

from tpviz.checks import one_of, whole_number
from tpviz.cluster import Cluster
from tpviz.simulation.faults import NONE, Faults
from tpviz.simulation.replay import BADGE, replay

DETAILS = ("kernels", "all")


def simulate(strategy, workload, cluster, *, steps=1, detail="kernels", faults=None,
             contention=True, capture=None):
    """A `Trace` of what each rank of ``strategy`` would do on ``cluster``, badge "simulated".

    Parameters
    ----------
    steps : training steps, one after another.
    detail : "kernels" (what carries FLOPs, and fused optimizers) or "all" (every operator takes the
        time of its memory traffic).
    faults : `Faults`: stragglers, slow links, jitter.
    contention : False lets each axis have its links to itself, as `predict` does.
    capture : the program, if `tpviz.capture` has it already.

    Raises ``ValueError`` where sizes do not fit each other or the cluster.
    """
    steps, detail = whole_number("steps", steps), one_of("detail", detail, DETAILS)
    contention = one_of("contention", contention, (True, False))
    check_cluster(cluster)
    faults = check_faults(faults)
    if capture is None:
        from .capture import capture as capture_program

        cluster.check_world(strategy.world_size)
        capture = capture_program(strategy, workload, detail=detail)
    trace = replay(capture, cluster, steps, faults, contention)
    return type(trace)(trace.columns, {
        **trace.meta, **capture.meta, "badge": BADGE, "device": "simulated",
        "cluster": cluster.caption, "world_size": capture.world_size})


def check_cluster(cluster):
    """Raise ``ValueError`` unless this is a cluster."""
    if not isinstance(cluster, Cluster):
        raise ValueError("third comes a cluster such as tv.clusters.nvlink_pairs(), "
                         f"not {cluster!r}")


def check_faults(faults):
    """The faults, none for None. Raises ``ValueError`` on anything else."""
    if not isinstance(faults, Faults | None):
        raise ValueError(f"faults={faults!r}; use tv.Faults(stragglers={{3: 1.5}}) or None")
    return faults or NONE

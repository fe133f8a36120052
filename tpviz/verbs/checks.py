"""Checks that several verbs share: that each argument is what belongs in its place. No torch."""

from tpviz.cluster import Cluster
from tpviz.cluster.clock.injected_faults import NONE, Faults
from tpviz.core.workload import GPT
from tpviz.schemes.strategy import Strategy


def check_fit(strategy: Strategy, workload: GPT) -> None:
    """Raise ``ValueError`` unless these are a strategy and a workload whose sizes fit together."""
    if not isinstance(strategy, Strategy):
        raise ValueError(f"first comes a strategy such as tv.Megatron(tp=2), not {strategy!r}")
    check_workload(workload, "after the strategy")
    strategy.check(workload)


def check_workload(workload: GPT, place: str = "first") -> None:
    """Raise ``ValueError`` unless this is a workload; ``place`` says where the verb takes it."""
    if not isinstance(workload, GPT):
        module = f"{type(workload).__name__}: tv.parallelize takes modules"
        given = module if hasattr(workload, "named_modules") else repr(workload)
        raise ValueError(f"{place} comes a workload such as tv.GPT(), not {given}")


def check_cluster(cluster: Cluster, place: str = "third") -> None:
    """Raise ``ValueError`` unless this is a cluster; ``place`` says where the verb takes it."""
    if not isinstance(cluster, Cluster):
        raise ValueError(f"{place} comes a cluster such as tv.clusters.laptop(), not {cluster!r}")


def check_faults(faults: Faults | None) -> Faults:
    """The faults, none for None. Raises ``ValueError`` on anything else."""
    if not isinstance(faults, Faults | None):
        raise ValueError(f"faults={faults!r}; use tv.Faults(stragglers={{3: 1.5}}) or None")
    return faults or NONE

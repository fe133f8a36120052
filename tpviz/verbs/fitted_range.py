"""Whether a prediction lies in the range of runs that its cluster's numbers were fitted on.

Clusters of `tpviz.cluster.profiles.as_run_by` have fitted numbers. ``make fit`` writes, for each
framework, between what values the rows lie that they were fitted on (`traits`); a prediction
outside says so on its badge. Every other cluster is a description, of which nothing was fitted.
"""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from tpviz.cluster.profiles import coefficients, framework_of

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy

Range = list[Any]
"""[least, most] of a number; of a name all of them."""


def nominal(cluster: "Cluster") -> str:
    """A sentence for a cluster of a vendor's numbers, which no run reaches; else "".

    >>> from tpviz import clusters
    >>> nominal(clusters.as_run_by(clusters.dgx("H100-SXM-80GB", 8), "FSDP"))
    ''
    """
    said = "Its rates are nominal, and no run reaches them: clusters.as_run_by has fitted ones. "
    return said * ("nominal" in cluster.source and not cluster.device.losses)


def traits(strategy: "Strategy", workload: "GPT", cluster: "Cluster") -> dict[str, float | str]:
    """{quantity: its value}: what decides how far a prediction is from the runs fitted on.

    Tensor parallelism counts the ranks that share a matrix, replicas all that share neither matrix
    nor layers. Of a scale model hidden is that of the model it stands for.
    """
    held = strategy.held(workload)
    stages = strategy.axes.get("pp", 1)
    return {
        "GPU": cluster.device.name,
        "ranks": strategy.world_size,
        "tokens of a rank's microbatch": held.workload.batch * held.workload.seq,
        "hidden": round(workload.hidden * cluster.hidden_scale),
        "tensor parallelism": held.parts,
        "pipeline stages of ranks": stages,
        "replicas": strategy.world_size // (held.parts * stages),
    }


def joined(found: Iterable[Mapping[str, Any]]) -> dict[str, Range]:
    """{quantity: its `Range`} over several dicts of `traits`.

    >>> joined([{"hidden": 2048, "GPU": "A"}, {"hidden": 512, "GPU": "A"}])
    {'hidden': [512, 2048], 'GPU': ['A']}
    """
    values: dict[str, set[Any]] = {}
    for one in found:
        for name, value in one.items():
            values.setdefault(name, set()).add(value)
    return {
        name: sorted(own) if isinstance(min(own), str) else [min(own), max(own)]
        for name, own in values.items()
    }


def outside(strategy: "Strategy", workload: "GPT", cluster: "Cluster") -> list[str]:
    """Every quantity outside of the range fitted on, with its value and the range; none on clusters
    without fitted numbers."""
    framework = framework_of(cluster)
    ranges = coefficients().get("ranges", {}).get(framework) if framework else None
    if not ranges:
        return [f"no row of {framework} was fitted on"] if framework else []
    words = []
    for name, value in traits(strategy, workload, cluster).items():
        known = ranges[name]
        if isinstance(value, str):
            if value not in known:
                words.append(f"{name} {value}, fitted on {', '.join(known)}")
        elif not known[0] <= value <= known[1]:
            span = " to ".join(f"{end:,}" for end in dict.fromkeys(known))
            words.append(f"{name} {value:,}, fitted on {span}")
    return words

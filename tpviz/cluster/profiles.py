"""Clusters that are not ideal, as runs on them were: by numbers of `coefficients.json`.

Every number there has its source, or was fitted to the published rows that may be fitted on, at
most eight for a GPU, fabric and framework together (`tpviz.evidence.published.fit`, docs/adr/0021).

>>> from tpviz import clusters
>>> real = as_run_by(clusters.dgx("H100-SXM-80GB", 16), "Megatron-LM")
>>> real.device.pointwise, real.device.time(1e12, 1e9, "bfloat16") > 1e12 / 989.4e12
('fused', True)
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tpviz.core.checks import one_of

if TYPE_CHECKING:
    from .description import Cluster

FILE = Path(__file__).with_name("coefficients.json")
AS_RUN_BY = "; as run by "
"""In the source of a cluster of `as_run_by`, before the framework's name."""


@lru_cache(maxsize=1)
def coefficients() -> dict[str, Any]:
    """The content of `coefficients.json`."""
    return json.loads(FILE.read_text())


def fitted() -> dict[str, float]:
    """{name: value} of the coefficients that were fitted to published runs."""
    return {name: entry["value"] for name, entry in coefficients()["fitted"].items()}


def frameworks() -> tuple[str, ...]:
    """Names of frameworks that `as_run_by` accepts."""
    return tuple(coefficients()["frameworks"])


def as_run_by(
    cluster: "Cluster",
    framework: str = "Megatron-LM",
    fabric: str = "InfiniBand",
    numbers: Mapping[str, float] | None = None,
) -> "Cluster":
    """A cluster of `tpviz.clusters.dgx` as it is: what its GPUs and links reach, and what a
    framework's kernels cost.

    framework : of `frameworks`. fabric : between nodes, "InfiniBand" or "Ultra-Scale" (the AWS
    cluster of that grid of runs). numbers : in place of `fitted`. Raises ``ValueError`` for unknown
    names and for GPUs and levels of which nothing is known.
    """
    known, f = coefficients(), numbers or fitted()
    one_of("framework", framework, frameworks())
    one_of("fabric", fabric, tuple(known["fabrics"]))
    gemm = {gpu: entry["value"] for gpu, entry in known["gemm_efficiency"].items()}
    gpu = next((name for name in gemm if cluster.device.name.startswith(name)), None)
    if gpu is None:
        raise ValueError(
            f"nothing is known of what the device {cluster.device.name!r} reaches: use a cluster "
            f"of {', '.join(gemm)}, as tv.clusters.dgx makes them"
        )
    profile = known["frameworks"][framework]
    values = {name: _value(entry, f) for name, entry in profile.items() if name != "sustained"}
    sustained = profile.get("sustained", {}).get(gpu, {"fitted": "sustained"})
    device = replace(
        cluster.device,
        gemm_efficiency=gemm[gpu] * _value(sustained, f),
        memory_efficiency=f["memory_efficiency"],
        startup=known["startup"]["value"],
        **values,
    )
    curve = tuple((size, share) for size, share in known["curve"]["value"])
    levels = []
    for level in cluster.levels:
        link = known["fabrics"][fabric if level.name == "network" else "NVSwitch"]
        share = _value(link["share"], f)
        levels.append(
            replace(
                level,
                p2p=level.p2p * share,
                group=level.group * share,
                latency=_value(link["latency"], f),
                message=_value(link["message"], f) if "message" in link else 0.0,
                curve=curve,
            )
        )
    return replace(
        cluster,
        device=device,
        levels=tuple(levels),
        algorithm="auto",
        source=f"{cluster.source}{AS_RUN_BY}{framework}: tpviz/cluster/coefficients.json",
    )


def framework_of(cluster: "Cluster") -> str:
    """The framework that `as_run_by` made this cluster for; "" for any other cluster."""
    return cluster.source.partition(AS_RUN_BY)[2].partition(":")[0]


def _value(entry: Any, numbers: Mapping[str, float]):
    """The value of an entry, which may be the name of a fitted number."""
    return numbers[entry["fitted"]] if "fitted" in entry else entry["value"]

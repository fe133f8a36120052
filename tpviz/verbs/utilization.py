"""Model FLOPs utilization (MFU): Chowdhery et al. 2022 (arXiv 2204.02311)."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.workload import GPT


def utilization(workload: "GPT", cluster: "Cluster", ranks: int, seconds: float) -> float:
    """Model FLOPs of a step that takes so long, over what the peak rate of so many devices would do
    in that time."""
    return workload.step_flops / (cluster.device.flops[workload.dtype] * ranks * seconds)

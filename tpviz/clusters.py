"""Clusters to try things on; each docstring says where its numbers come from.

>>> two_nodes(gpus=8).size
16
"""

from .cluster import Cluster, Device, Level

A100_PCIE = Device({"float32": 19.5e12 / 2, "bfloat16": 250e12}, 80e9, 1.9e12, "A100 80GB PCIe")


def nvlink_pairs(pairs=4):
    """A PCIe box whose GPUs are joined in pairs by NVLink: placeholder numbers."""
    levels = (Level("NVLink", 2, 211e9, 211e9, 20e-6), Level("PCIe", pairs, 17e9, 17e9, 20e-6))
    return Cluster("NVLink-pair PCIe box", A100_PCIE, levels)


def two_nodes(gpus=8):
    """Two nodes: placeholder numbers."""
    levels = (Level("NVSwitch", gpus, 200e9, 200e9, 5e-6), Level("NIC", 2, 25e9, 25e9, 15e-6))
    return Cluster("two nodes", A100_PCIE, levels)

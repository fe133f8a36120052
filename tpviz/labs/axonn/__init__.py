"""The experiments of the AxoNN lab: overlaps, the communication model tested, scaling.

    from tpviz.labs import axonn
    found = axonn.overlaps(workload, cluster, grid=(2, 1, 2, 1))
    found.gain(), found.figure()
"""

from .overlapping import Overlaps, overlaps

__all__ = ["Overlaps", "overlaps"]

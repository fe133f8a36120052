"""The experiments of the AxoNN lab: its model against real steps, overlaps, scaling.

from tpviz.evidence import axonn
result = axonn.overlaps(workload, cluster, grid=(2, 1, 2, 1))
result.gain(), result.to_svg()
"""

from .overlapping import Overlaps, overlaps
from .scaled import GridScaling, scaling
from .validated import GridValidation, validation

__all__ = ["GridScaling", "GridValidation", "Overlaps", "overlaps", "scaling", "validation"]

"""The experiments of the AxoNN lab: its model against real steps, overlaps, scaling.

from tpviz.evidence import axonn
result = axonn.overlaps(workload, cluster, grid=(2, 1, 2, 1))
result.gain(), result.to_svg()
"""

from .overlapping import Overlaps, overlaps
from .scaled import Scaling, scaling
from .validated import Validation, validation

__all__ = ["Overlaps", "Scaling", "Validation", "overlaps", "scaling", "validation"]

"""Beat the cluster: published layouts of one model on one cluster, and who picks the fastest.

from tpviz.evidence import layouts
group = layouts.measured("llama-3B", gpus=64)
group, layouts.why(group), layouts.standing()  # a notebook shows their charts
"""

from .group import Layouts, measured
from .standing import Standing, standing
from .turn import Turn
from .why import Why, parts, why

__all__ = ["Layouts", "Standing", "Turn", "Why", "measured", "parts", "standing", "why"]

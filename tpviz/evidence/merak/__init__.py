"""The experiments of the Merak lab: schedules, memory against recomputation, sub-pipelining,
and all techniques in turn on 64 GPUs.

from tpviz.evidence import merak
result = merak.schedules(workload, cluster, pp=4, microbatches=8)
result.gain(), result.to_svg()
"""

from .halving import Halves, halves
from .headlines import techniques
from .scheduling import Schedules, schedules
from .trading import Tradeoff, tradeoff

__all__ = ["Halves", "Schedules", "Tradeoff", "halves", "schedules", "techniques", "tradeoff"]

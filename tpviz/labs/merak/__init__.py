"""The experiments of the Merak lab: schedules, recomputation against memory, halves of microbatches.

    from tpviz.labs import merak
    found = merak.schedules(workload, cluster, pp=4, microbatches=8)
    found.gain(), found.figure()
"""

from .scheduling import Schedules, schedules

__all__ = ["Schedules", "schedules"]

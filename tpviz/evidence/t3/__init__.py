"""The experiments of the T3 lab: the paper's sublayers on simulated hardware, and its numbers.

from tpviz.evidence import t3
result = t3.sublayers()
t3.against_paper(found=result), t3.end_to_end(result)
t3.movement(8), t3.paying(), t3.modes(workload, cluster)  # a notebook shows their charts
"""

from .end_to_end import Gain, end_to_end
from .modes import Modes, modes, ring
from .movement import Movement, movement
from .paper import AgainstPaper, against_paper, drawn
from .paying import Paying, paying
from .sublayers import MODELS, Sublayers, sublayers

__all__ = [
    "MODELS",
    "AgainstPaper",
    "Gain",
    "Modes",
    "Movement",
    "Paying",
    "Sublayers",
    "against_paper",
    "drawn",
    "end_to_end",
    "modes",
    "movement",
    "paying",
    "ring",
    "sublayers",
]

"""The experiments of the ATP lab: chunks, contention, interconnects, scaling.

from tpviz.evidence import atp
curve = atp.chunk_curve(workload, cluster, mesh=(4, 2))
curve.best("predicted"), curve.to_svg()
"""

from .chunking import ChunkCurve, chunk_curve
from .contended import Contention, contention
from .scaled import MeshScaling, scaling
from .winning import Winners, winners

__all__ = [
    "ChunkCurve",
    "Contention",
    "MeshScaling",
    "Winners",
    "chunk_curve",
    "contention",
    "scaling",
    "winners",
]

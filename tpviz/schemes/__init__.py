"""The schemes: one folder each, and one line of registration here.

A scheme's package holds the strategy (its knobs, its formula; no torch), and loads its torch part
when built.
"""

from . import atp, axonn, data, megatron, merak, t3

__all__ = ["atp", "axonn", "data", "megatron", "merak", "t3"]

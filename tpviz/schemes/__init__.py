"""The schemes, a folder each: strategy, layers, program, step, memory, and the paper's equations.

``strategy`` has the knobs and the formulas, without torch; the rest is loaded when it is needed.
"""

SCHEMES = ("atp", "axonn", "zero", "megatron", "merak", "t3", "pipeline")
"""In the order in which `tpviz.strategy.strategies` lists them."""

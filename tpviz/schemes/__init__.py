"""The schemes, a folder each: strategy, layers, program, step, memory, and the paper's equations.

``strategy`` has the knobs and the formulas, without torch; the rest is loaded when it is needed.
"""

from importlib import import_module

from .strategy import Strategy, registered

SCHEMES = (
    "atp",
    "axonn",
    "zero",
    "megatron",
    "merak",
    "t3",
    "context",
    "experts",
    "pipeline",
    "diloco",
)
"""In the order in which `strategies` lists them."""


def strategies() -> "dict[str, type[Strategy]]":
    """{name: class} of every registered strategy."""
    for name in SCHEMES:
        import_module(f"tpviz.schemes.{name}.strategy")
    return registered()

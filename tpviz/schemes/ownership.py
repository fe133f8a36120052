"""Which part of each parameter a rank owns, and how that is written.

W[F_tp, D] has its rows cut over the axis tp, b[3D_d1d2] is cut over d1 and each part over d2. D
hidden, F MLP width, V vocabulary, S sequence, Q queries, keys and values where queries share keys;
C and L latents, of queries, and of keys and values K. Weights are (out, in).
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .strategy import Strategy

LETTERS = {
    "token.weight": "VD",
    "position.weight": "SD",
    "head.weight": "VD",
    "qkv.weight": ("3D", "D"),
    "qkv.bias": ("3D",),
    "q.weight": "QD",
    "q_down.weight": "CD",
    "q_norm.weight": "C",
    "q_up.weight": "QC",
    "kv_down.weight": "LD",
    "kv_norm.weight": "L",
    "kv_up.weight": "KL",
    "out.weight": "DD",
    "out.bias": "D",
    "up.weight": "FD",
    "up.bias": "F",
    "down.weight": "DF",
    "down.bias": "D",
}


def ownership(strategy: "Strategy", workload: "GPT") -> list[dict[str, Any]]:
    """One dict per parameter: name, shape, splits [{"dim", "axis"}] (inner first), notation.

    Under ZeRO 3 a parameter is also a range of a flat buffer: "flat" then gives the axis and, for
    each index on it, the [start, stop) of the parameter's own elements (of a rank's part of it)
    that this index keeps. In a pipeline "at" gives the axis and the indices on it that have the
    parameter at all. Empty where a scheme does not say what it splits.
    """
    try:
        splits = strategy.splits(workload)
    except NotImplementedError:
        return []
    flat = getattr(strategy, "flat_ranges", lambda workload: {})(workload)
    homes = getattr(strategy, "homes", lambda workload: {})(workload)
    letters = dict(LETTERS)
    if workload.num_kv_heads < workload.heads:
        letters |= {"qkv.weight": ("Q", "D"), "qkv.bias": ("Q",)}
    if workload.gated:
        letters |= {"up.weight": ("2F", "D"), "up.bias": ("2F",)}
    return [
        _row(name, shape, letters, splits.get(name, ()), flat.get(name), homes.get(name))
        for name, shape in workload.parameter_shapes().items()
    ]


def local_shapes(strategy: "Strategy | None", workload: "GPT") -> dict[str, tuple[int, ...]]:
    """{name: shape} of a rank's part of every parameter under ``strategy``; None splits nothing."""
    shapes, axes = workload.parameter_shapes(), strategy.axes if strategy else {}
    for name, cuts in (strategy.splits(workload) if strategy else {}).items():
        for dim, axis in cuts:
            shape = shapes[name]
            shapes[name] = (*shape[:dim], shape[dim] // axes[axis], *shape[dim + 1 :])
    return shapes


def num_local(shapes: Mapping[str, Sequence[int]]) -> int:
    """Number of elements of tensors {name: shape}."""
    return sum(map(prod, shapes.values()))


def _row(name, shape, letters, cuts, flat, home):
    letters = letters.get(name.split(".", name.count(".") - 1)[-1], "D")
    axes = {}  # of a dim cut twice the outer axis first
    for dim, axis in cuts:
        axes[dim] = axis + axes.get(dim, "")
    parts = [
        f"{letter}_{axes[dim]}" if dim in axes else letter for dim, letter in enumerate(letters)
    ]
    row = {
        "name": name,
        "shape": list(shape),
        "splits": [{"dim": d, "axis": a} for d, a in cuts],
        "notation": f"{'W' if len(shape) > 1 else 'b'}[{', '.join(parts)}]",
    }
    if flat:
        row |= {"flat": flat, "notation": f"flat({row['notation']})_{flat['axis']}"}
    return row | {"at": home} if home else row

"""Names of inks: which meaning has which. Their colours are those of `tpviz.views.figures.tokens`.

>>> axis_keys(["dp", "tp"])
{'dp': 'axis1', 'tp': 'axis0'}
"""

from collections.abc import Collection

PHASES = ("forward", "backward", "recompute", "sync", "optimizer")
MEMORY_KINDS = {
    "parameters": "parameters",
    "gradients": "gradients",
    "optimizer": "optimizer_state",
    "activations": "activations",
}
"""Column of ``trace.meta["memory"]`` -> key of INKS, bottom of the stack first."""
_USUAL = {
    "tp": 0,
    "x": 0,
    "dp": 1,
    "data": 1,
    "pp": 2,
    "y": 2,
    "z": 3,
    "cp": 3,
    "ep": 3,
    "world": 4,
}
NUM_AXIS_INKS = 5


def axis_keys(names: Collection[str]) -> dict[str, str]:
    """{axis name: key of INKS}: usual names keep their colour, others take a free one."""
    keys = {}
    for usual in (True, False):
        for name in names:
            if name not in keys and (name in _USUAL or not usual):
                taken = set(keys.values())
                first = _USUAL.get(name, 0)
                order = [f"axis{(first + i) % NUM_AXIS_INKS}" for i in range(NUM_AXIS_INKS)]
                keys[name] = next((k for k in order if k not in taken), order[0])
    return {name: keys[name] for name in names}


def phase_key(phase: str) -> str:
    """The ink of a compute event of this phase; anything without a colour of its own is "other"."""
    return phase if phase in PHASES else "other"

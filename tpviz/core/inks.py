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
_ALIKE = "tp x", "dp data shard replicate reshard", "pp y", "z cp ep", "world"
_USUAL = {name: number for number, names in enumerate(_ALIKE) for name in names.split()}
AXIS_INKS = [f"axis{i}" for i in range(5)]
MORE = ["copy", "optimizer", "other"]  # of a sixth axis and further ones


def axis_keys(names: Collection[str]) -> dict[str, str]:
    """{axis name: key of INKS}: usual names keep their colour, others take a free one."""
    keys = {}
    for usual in (True, False):
        for name in names:
            if name not in keys and (name in _USUAL or not usual):
                taken, first = set(keys.values()), _USUAL.get(name, 0)
                order = [*AXIS_INKS[first:], *AXIS_INKS[:first], *MORE]
                keys[name] = next((k for k in order if k not in taken), order[0])
    return {name: keys[name] for name in names}


def phase_key(phase: str) -> str:
    """The ink of a compute event of this phase; anything without a colour of its own is "other"."""
    return phase if phase in PHASES else "other"

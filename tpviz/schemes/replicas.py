"""Who adds up a gradient and who shares a state: the ranks that hold the same parameter and see
other tokens.

These lie along the axes of data parallelism, dp, and along those axes of the factor inside that
share tokens, cp and ep, but for those that cut the parameter: experts are cut over ep. So a product
has *classes* of parameters, each with one group of ranks, which reduces, gathers and shares it.

>>> from tpviz import Context, DataParallel, Experts, GPT
>>> (Context(cp=2) * DataParallel(dp=4, zero=1)).replicas
Replicas(axis='dp*cp', ranks=8)
>>> plan = Experts(ep=2) * Context(cp=2) * DataParallel(dp=2)
>>> {group.axis: len(names) for group, names in plan.classes(GPT(layers=2, experts=4)).items()}
{'dp*cp*ep': 22, 'dp*cp': 4}
"""

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any, NamedTuple


class Replicas(NamedTuple):
    """The ranks that add up the gradients of the same parameters, and share them under ZeRO; with
    hybrid sharding, those that share them. axis : of the mesh, or several, "dp*cp"."""

    axis: str
    ranks: int

    @classmethod
    def along(cls, axes: Mapping[str, int]) -> "Replicas":
        """Of these {axis: ranks}."""
        return cls("*".join(axes), prod(axes.values()))


Classes = dict[Replicas, tuple[str, ...]]


def classes_of(
    names: Iterable[str],
    data: Mapping[str, int],
    sizes: Mapping[str, int],
    joins: Mapping[str, Iterable[str]],
) -> Classes:
    """{`Replicas`: parameters}, in the order of ``names``. data : {axis: ranks} of data
    parallelism, along which all are replicated. sizes : {axis: ranks} of the factor inside. joins :
    {axis: parameters}, as of `TensorParallel.joins`."""
    joining = {axis: set(of_axis) for axis, of_axis in joins.items()}
    found: dict[Any, list[str]] = {}
    for name in names:
        more = tuple(axis for axis, of_axis in joining.items() if name in of_axis)
        found.setdefault(more, []).append(name)
    return {
        Replicas.along({**data, **{axis: sizes[axis] for axis in more}}): tuple(of_class)
        for more, of_class in found.items()
    }

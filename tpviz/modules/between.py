"""Parameters between the layers of a pair, where heads are split over ranks: whole on every rank.

A rank computes with some of the heads. What all heads share, such as a norm of each, then has a
part of its gradient on each rank, and these are summed; of what has numbers for each head a rank
takes its own, and gradients are gathered. Both happen where the parameter is read, so that
gradients are complete after backward, and parameters keep their names and shapes.
"""

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import nn

from tpviz.core.checks import divides
from tpviz.schemes.collectives import Group
from tpviz.schemes.grid.operators import Cut

from .layers import SumBack

if TYPE_CHECKING:
    from tpviz.schemes.grid.layout import Layout

    from .rules import Pair

SENT = {"shared": "all_reduce", "by_head": "all_gather"}
"""What backward sends of each kind."""


class Between(NamedTuple):
    """The parameter ``name`` of the module at ``path``, of a ``kind`` in `SENT`. elements : of its
    gradient, 0 where it has none."""

    path: str
    name: str
    kind: str
    elements: int


class PartlyRead(nn.Module):
    """What the class of a module with such parameters becomes a subclass of; see `read_partly`."""


def between_of(pair: "Pair", at: "Layout", owner: str, holder: nn.Module) -> tuple[Between, ...]:
    """Those that a rule names. owner : the path of ``holder``, which they are below. Raises
    ``ValueError`` where they do not divide."""
    found = []
    for kind in SENT:
        for name in getattr(pair, kind):
            path, _, own = f"{owner}.{name}".lstrip(".").rpartition(".")
            module = holder.get_submodule(name.rpartition(".")[0])
            parameter = module._parameters.get(own)
            if parameter is None:
                continue  # another release of a known family
            if at.s > 1:
                raise ValueError(
                    f"{name} is between layers whose heads are split over two axes: use "
                    f"Megatron(tp={at.i * at.s}) or ATP(mesh=({at.i * at.s}, 1))"
                )
            if kind == "by_head":
                divides(f"{name}: heads", len(parameter), at.inside, at.i)
            elements = parameter.numel() * parameter.requires_grad
            found.append(Between(path, own, kind, elements))
    return tuple(found)


def read_partly(model: nn.Module, some: tuple[Between, ...], group: Group) -> None:
    """Have the modules read these parameters as the ranks of ``group`` need them."""
    for path in dict.fromkeys(one.path for one in some):
        module = model.get_submodule(path)
        kinds = tuple((one.name, one.kind) for one in some if one.path == path)
        module.__dict__["heads_over"] = group
        module.__class__ = _class_of(type(module), kinds)


@cache
def _class_of(kind: type[nn.Module], kinds: tuple[tuple[str, str], ...]) -> type[nn.Module]:
    of = {name: property(_reads(name, how)) for name, how in kinds}
    return type(f"Partly{kind.__name__}", (PartlyRead, kind), of)


def _reads(name, kind):
    def read(module: Any):
        whole, group = module._parameters[name], module.heads_over
        return SumBack.apply(whole, group) if kind == "shared" else Cut.apply(whole, group, 0)

    return read

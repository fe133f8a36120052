"""The biases that balance loads, over ranks: whose loads are added up, and when (derived).

A bias is no parameter: it has no gradient, and is the same on all ranks. So loads of a step are
added up over all ranks that chose for other tokens: those of every axis but pp, whose ranks have
other layers, and the axis of tensor parallelism, where its ranks choose for the same tokens. With L
layers of E experts on a rank that is one all-reduce of L E whole numbers of 8 bytes behind the
update, in which Megatron-LM has it too (its ``_update_router_expert_bias``).
"""

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tpviz.core.step import Collective, Part

from .cut import cut_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from tpviz.core.workload import GPT
    from tpviz.schemes.gpt.program import Program
    from tpviz.schemes.strategy import Strategy


def loads_axis(strategy: "Strategy", w: "GPT") -> str:
    """The axes whose ranks chose for other tokens, as "dp*ep"; "" for none."""
    inside: Any = getattr(strategy, "inside", strategy)
    cut = cut_of(inside.layout, inside.local(w))
    own = ("pp", *[inside.layout.inside] * (cut.parts == 1))
    return "*".join(a for a, ranks in strategy.axes.items() if ranks > 1 and a not in own)


def balancing(strategy: "Strategy", w: "GPT", blocks: Iterable[int] | None = None) -> list[Part]:
    """What a rank sends for the biases of these blocks, all of them unless said."""
    layers = sum(number for kind, number in w.kinds(blocks) if kind.experts)
    if not (w.bias_balance and layers and (axis := loads_axis(strategy, w))):
        return []
    return [Part("optimizer", "", (Collective(axis, "all_reduce", 8 * layers * w.experts),))]


def balance(strategy: "Strategy", w: "GPT", mesh: "DeviceMesh | None", program: "Program") -> None:
    """Have a program change the biases of its routers after each step."""
    from tpviz.core.mesh import group_along

    axis = loads_axis(strategy, w)
    group = group_along(mesh, axis) if axis and mesh is not None else None
    program.bias = import_module("tpviz.schemes.gpt.experts").LoadBias(w, program.parts, group)

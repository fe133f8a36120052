"""The bug zoo of expert parallelism: the code of its faults. See `zoo`; `bugs` describes them.

A fault is in the experts of one block, or in the sum of gradients. Each token has one expert, so
the evidence can say whose result a token has.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch

from tpviz.core.routing import Routing
from tpviz.core.workload import GPT
from tpviz.schemes.experts import layers
from tpviz.schemes.experts.strategy import OF_EXPERTS, Experts

from .zoo import Evidence, Seeded

EP = 4
WORKLOAD = GPT(
    hidden=16,
    heads=4,
    seq=16,
    batch=EP,
    vocab=32,
    dtype="float64",
    experts=8,
    top_k=1,
    routing=Routing(skew=1.0),
)


@dataclass(frozen=True)
class RowEvidence(Evidence):
    """An `Evidence` with ``tokens``: {rank: [(the token of the rank whose right result it has, None
    if it is nobody's; how many times that)]} of all ranks, where the first error is; {} where no
    number of forward is wrong."""

    tokens: dict[int, list[tuple[int | None, float]]] = field(default_factory=dict)

    def __repr__(self):
        rows = [
            f"rank {rank}: " + " ".join(_word(place, *has) for place, has in enumerate(row))
            for rank, row in self.tokens.items()
        ]
        legend = "3<-5: token 3 has the result of 5; 3*0: 0 times its own; 3?: nobody's"
        return "\n".join([super().__repr__(), *rows, *[legend] * bool(rows)])


def _word(place, whose, times):
    if whose is None:
        return f"{place}?"
    if whose != place:
        return f"{place}<-{whose}"
    return f"{place}" if abs(times - 1) < 1e-6 else f"{place}*{times:.2g}"


@dataclass(frozen=True)
class BrokenExperts(Seeded, Experts):
    """An `Experts` with a fault."""

    workload = WORKLOAD
    outside, variants, evidence = ("sync",), 4, RowEvidence
    layers = "embed", "norm1", "qkv", "attention", "norm2", "mlp", "norm", "head"
    options: ClassVar = {"block": (0, 1), "ep": (EP,)}

    def facts(self, programs: list[Any], calls: list[Any]) -> Any:
        """{a block's experts: (their output, the right one)}."""
        both = [{key[1]: parts[0][2] for key, parts in of.items()} for of in calls]
        return {name: (both[0][name], both[1][name]) for name in both[1] if name.endswith("mlp")}

    def more(self, ranks: Any, first: Any, rank: int) -> dict[str, Any]:
        """Whose result each token has."""
        if not first or first[0] != "forward" or first[1] not in ranks[0].facts:
            return {"tokens": {}}
        return {"tokens": {i: _whose(*seen.facts[first[1]]) for i, seen in enumerate(ranks)}}


def _whose(got, want):
    """Of each token (the one whose right result it has up to a factor, the factor)."""
    got, want = (x.reshape(-1, x.shape[-1]) for x in (got, want))
    times = got @ want.T / (want**2).sum(1)
    near = np.abs(got[:, None] - times[..., None] * want).max(-1) < 1e-9
    found = []
    for place, row in enumerate(near):
        whose = place if row[place] else int(row.argmax()) if row.any() else None
        found.append((whose, float(times[place, place if whose is None else whose])))
    return found


seed, variant, fault = BrokenExperts.seed, BrokenExperts.variant, BrokenExperts.fault


@fault("combine without weights", "mlp")
def _unweighed(program, layer):
    """Results are added up as they are; the router gets a gradient of 0."""
    plain = layer.router.choose

    def choose(*args):
        experts, weights, *rest = plain(*args)
        return experts, weights * 0 + 1, *rest

    layer.router.choose = choose


@fault("rows in the wrong order", "mlp")
def _out_of_order(program, layer):
    """Results stay in the order in which rows were sent."""
    plain = layer._through

    def through(x, experts):
        results = yield from plain(x, experts)
        return results[experts.argsort(stable=True)]

    layer._through = through


@fault("rows not sorted by expert", "mlp")
def _unsorted(program, layer):
    """Rows that lie rank after rank are computed as if expert after expert."""
    plain = layer._through

    def through(*args):
        as_they_came = lambda received: torch.arange(sum(map(sum, received)))
        with patch.object(layers, "by_expert", as_they_came):
            return plain(*args)

    layer._through = through


@fault("rows above the mean dropped", "mlp")
def _dropped(program, layer):
    """An expert computes as many rows as the mean one has; the results of others are 0."""
    plain, w = layer._computed, WORKLOAD
    most = w.batch * w.seq * w.top_k // w.experts

    def computed(rows, loads):
        taken = torch.cat([torch.arange(load) < most for load in loads])
        return plain(rows, loads) * taken.unsqueeze(1)

    layer._computed = computed


@fault("expert's gradient over ep", "mlp")
def _scaled(program, layer):
    """It is divided by ep once more, as if it were a sum of ep copies."""
    for stack in (layer.up, layer.down):
        stack.weight.register_hook(lambda gradient: gradient / EP)


@fault("experts added over ep", "sync")
def _added(program, layer):
    """Gradients of all experts are added up with those of others."""
    experts = [name for name in program.named if name.endswith(OF_EXPERTS)]
    program.summed = {axis: [*names, *experts] for axis, names in program.summed.items()}


@fault("router not in sync", "sync")
def _router_alone(program, layer):
    """Routers keep the gradient of the rank's own tokens."""
    program.summed = {
        axis: [name for name in names if "router" not in name]
        for axis, names in program.summed.items()
    }

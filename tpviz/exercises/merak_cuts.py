"""The exercise of notebook 05 on the partitioner: legal cuts of a graph. Graphs are traced from
modules by `tpviz.partition`, whose own legal cuts are the answer."""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from .formula import Formula, Question, listed

if TYPE_CHECKING:
    import torch
    from torch import nn


def transformer() -> "tuple[nn.Module, torch.Tensor]":
    """One pre-norm layer, between an embedding and a head."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(8), nn.LayerNorm(8)
            self.q, self.k, self.v, self.out = (nn.Linear(8, 8) for _ in range(4))
            self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

        def forward(self, x):
            n = self.norm1(x)
            x = x + self.out(F.scaled_dot_product_attention(self.q(n), self.k(n), self.v(n)))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    parts = nn.Embedding(16, 8), Layer(), nn.LayerNorm(8), nn.Linear(8, 16)
    return nn.Sequential(*parts), torch.zeros(2, 4, dtype=torch.long)


def with_skip(start: int, stop: int, length: int = 6) -> "tuple[nn.Module, torch.Tensor]":
    """Linear layers in a chain, with one connection from layer ``start`` around all to ``stop``."""
    import torch
    from torch import nn

    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(length))

        def forward(self, x):
            for number, layer in enumerate(self.layers):
                if number == start:
                    kept = x = layer(x).relu()
                else:
                    x = layer(x + kept if number == stop else x).tanh()
            return x

    return Skip(), torch.zeros(2, 4)


def two_streams() -> "tuple[nn.Module, torch.Tensor]":
    """Two residual streams that each take from the other, and become one at the end."""
    import torch
    from torch import nn

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.left, self.right, self.last = (nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            a = b = self.first(x)
            a = a + self.left(b).relu()
            b = b + self.right(a).relu()
            return self.last((a * b).tanh())

    return Two(), torch.zeros(2, 4)


def _graph(module, example):
    """(operations as (name, takes) up to the last with parameters, {name: the tensors that cross
    after it}, names after which a cut is legal)."""
    from ..partition import trace
    from ..partition.sharding import Crossing
    from ..partition.sharding import legal_cuts

    graph = trace(module, example)
    names = [node.name for node in graph.body]
    stop = max(k for k, node in enumerate(graph.body) if node.parameters) + 1
    operations = tuple((node.name, tuple(node.takes)) for node in graph.body[:stop])
    crossing = Crossing(graph)
    assert not crossing.hot, "what may cross in any number is no part of the exercise"
    crosses = dict(zip(names, map(tuple, crossing.at(range(1, stop)))))
    return operations, crosses, frozenset(names[place - 1] for place in legal_cuts(graph))


@lru_cache(maxsize=16)
def graph_of(
    kind: "Callable[..., tuple[nn.Module, torch.Tensor]]", *sizes: int
) -> tuple[tuple[tuple[str, tuple[str, ...]], ...], dict[str, tuple[str, ...]], frozenset[str]]:
    """The `_graph` of a model above; cached."""
    return _graph(*kind(*sizes))


def _draw_cuts(rng):
    start, length = int(rng.integers(0, 3)), int(rng.integers(6, 9))
    stop = int(rng.integers(start + 2, length))
    asked = ((with_skip, start, stop, length), (transformer,), (two_streams,))
    words = (
        f"a chain with a skip from layer {start} to {stop}",
        "a transformer layer",
        "two streams",
    )
    for what, called in zip(asked, words):
        operations, crosses, legal = graph_of(*what)
        known = {"crosses": crosses, "legal": legal}
        yield Question({"operations": operations}, tuple(sorted(legal)), called, known)


def _cuts_verdict(question, got):
    """The error of a list of cuts, or None."""
    crosses, legal = question.known["crosses"], question.known["legal"]
    if not listed(got, str):
        return f"for {question} your function returned {got!r}, not a list of names."
    last = question.arguments["operations"][-1][0]
    for name in got:
        if name == last:
            return f"for {question}: after the last operation, {name}, there is nothing."
        if name not in crosses:
            return f"for {question}: no operation is called {name!r}."
        if name not in legal:
            made = [f"{n}, used by {_user(question, n, name)}" for n in crosses[name]]
            return f"for {question}: after {name} {len(made)} tensors cross: {'; '.join(made)}."
    missing = [name for name in crosses if name in legal and name not in got]
    if missing:
        [crossing] = crosses[missing[0]]
        return (
            f"for {question}: a cut after {missing[0]} is missing. There only {crossing} crosses."
        )
    return None


def _user(question, name, cut):
    """The first operation after the cut that takes a tensor."""
    operations = question.arguments["operations"]
    behind = [op for op, _ in operations].index(cut) + 1
    return next(op for op, takes in operations[behind:] if name in takes)


CUTS = Formula(
    title="Where may the graph be cut?",
    prompt="The partitioner traces a model to a list of operations, and cuts it only where a "
    "single tensor crosses. `operations` is such a list, (name, takes) in the order they run; "
    "takes are the names of the operations whose results it uses (any other name is an input of "
    "the model, which each stage can load itself). Return the names of all operations right after "
    "which a cut is legal: later operations use exactly one result of earlier ones. There are "
    "three traced modules: a chain with a skip, a transformer layer, and two streams.",
    starter="""def merak_cuts(operations):
    return [name for name, takes in operations[:-1]]  # everywhere?""",
    concept="Draw the list as a line, with an arc from each result to its last use. How many arcs "
    "pass over each gap?",
    principle="Record for each name the position of the last operation that takes it. After "
    "operation k those names cross that are made at or before k and last used after it.",
    answer="`last = {t: k for k, (_, takes) in enumerate(operations) for t in takes}`; for each k "
    "but the last count `[n for n, _ in operations[:k + 1] if last.get(n, 0) > k]`, and take those "
    "with one.",
    success="In a transformer the legal cuts follow each residual add: any number of stages, and "
    "one hidden state over each cut, without a rule per model.",
    draw=_draw_cuts,
    verdict=_cuts_verdict,
)

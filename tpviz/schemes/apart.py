"""Products without a factor around the tensor parallelism, `Context` or `Experts`.

>>> from tpviz import Experts, Megatron, Pipeline
>>> made, experts = apart(Megatron(tp=2) * Experts(ep=4) * Pipeline(pp=2), Experts)
>>> made.short, experts.short
('Megatron(tp=2) * Pipeline(pp=2)', 'Experts(ep=4)')
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from .context.strategy import Context
from .experts.strategy import Experts
from .grid.around import Around
from .zero.strategy import DataParallel

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .strategy import Strategy

_Kind = TypeVar("_Kind", bound=Around)


def apart(strategy: "Strategy", kind: type[_Kind]) -> "tuple[Strategy, _Kind | None]":
    """(the product without its factor of the ``kind``, inside of data parallelism where nothing is
    around; that factor alone, or None)."""
    inside: Any = strategy if isinstance(strategy, kind) else getattr(strategy, "inner", None)
    if not isinstance(inside, kind):
        return strategy, None
    around: Any = strategy
    if strategy is inside:
        around = DataParallel(dp=1, accumulation=inside.accumulation)
    again = {"recompute": inside.recompute} if isinstance(around, DataParallel) else {}
    usual: dict[str, Any] = {"accumulation": 1, "recompute": "none", "placement": ""}
    usual["summing"] = True
    return replace(around, inner=inside.inner, **again), replace(inside, inner=None, **usual)


def uncut(strategy: Any, workload: "GPT") -> "tuple[Any, GPT]":
    """(the product without its `Context` and its `Experts`, a workload of the same tokens): parts
    of sequences are sequences, and ranks of cp and ep replicas, as gradients of what is no expert
    have it; the workload says how experts are cut. Others as they are."""
    made, of_sequences = apart(strategy, Context)
    if of_sequences is not None:
        ranks = of_sequences.cp * of_sequences.ulysses
        seq, batch = workload.seq // ranks, workload.batch * ranks
        made = _with_replicas(made, ranks)
        workload = replace(workload, seq=seq, batch=batch, documents=())
    made, experts = apart(made, Experts)
    if experts is not None:
        inside: Any = getattr(strategy, "inner", None)
        inside = strategy if isinstance(strategy, Experts) else inside
        inside = inside.inner if isinstance(inside, Context) else inside
        made, workload = _with_replicas(made, experts.ep), replace(workload, cut=inside.cut)
    return made, workload


def _with_replicas(made: Any, ranks: int) -> Any:
    """The product with so many times the replicas."""
    alone = isinstance(made, DataParallel)
    around = made if alone else made.around
    around = replace(around, dp=made.dp * ranks, shard=around.shard * ranks)
    return replace(around if alone else replace(made, data=around), placement="")

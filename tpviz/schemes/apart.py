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
    around and it shares no batch itself; that factor alone, or None)."""
    inside: Any = strategy if isinstance(strategy, kind) else getattr(strategy, "inner", None)
    if not isinstance(inside, kind):
        return strategy, None
    only = replace(inside, inner=None, accumulation=1, recompute="none", placement="", summing=True)
    if strategy is inside and inside.shares_batch:
        return inside.within, only
    whole = DataParallel(dp=1, accumulation=inside.accumulation)
    around: Any = whole if strategy is inside else strategy
    again = {"recompute": inside.recompute} if isinstance(around, DataParallel) else {}
    return replace(around, inner=inside.inner, **again), only


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
        own: Any = strategy if isinstance(strategy, Experts) else getattr(strategy, "inner", None)
        own = own.inner if isinstance(own, Context) else own
        made, workload = _with_replicas(made, experts.ep), replace(workload, cut=own.cut)
    return made, workload


def _with_replicas(made: Any, ranks: int) -> Any:
    """The product with so many times the replicas."""
    if knob := made.shares_batch:
        return replace(made, **{knob: getattr(made, knob) * ranks})
    around = getattr(made, "around", made)
    more = replace(around, dp=made.dp * ranks, shard=around.shard * ranks)
    return replace(more if made is around else replace(made, data=more), placement="")

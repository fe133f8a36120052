"""Merak: 3D parallelism, a pipeline of stages whose schedule knows of recomputation.

Lai et al. 2023 (IEEE TPDS 34(5), arXiv 2206.04959; its abstract, and its released code). A stage's
layers are split as Megatron-LM's, the batch over replicas, and each replica's part into
microbatches that go through the stages: the product Megatron * Pipeline * DataParallel, in one.
Multiplied with `Context` or `Experts` it is written as that product.

>>> Merak(pp=2, microbatches=8).check(GPT(batch=4))
Traceback (most recent call last):
ValueError: batch=4 does not split evenly over dp*microbatches=8: use dp*microbatches=4, or batch=8
"""

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields, replace
from functools import lru_cache
from itertools import product
from typing import Any

from tpviz.core.checks import divisors
from tpviz.core.workload import GPT
from tpviz.schemes.context.strategy import Context
from tpviz.schemes.experts.strategy import Experts
from tpviz.schemes.grid.tensor import WholeBlocks
from tpviz.schemes.knobs import knob, knob_of
from tpviz.schemes.megatron.strategy import Megatron
from tpviz.schemes.pipeline.split import layers_of
from tpviz.schemes.pipeline.staged import Staged, few_of
from tpviz.schemes.pipeline.strategy import Pipeline
from tpviz.schemes.strategy import Strategy, register
from tpviz.schemes.zero.strategy import DataParallel

__all__ = ["GPT", "Merak"]

ORDERS: list[dict[str, Any]] = [
    {"schedule": "1f1b", "recompute": "none"},
    {"schedule": "1f1b"},
    {"schedule": "shifted_critical_path"},
    {"schedule": "interleaved_1f1b", "recompute": "none"},
    {"schedule": "zb_h1", "recompute": "none"},
    {"schedule": "1f1b", "recompute": "none", "layout": "balanced"},
]
"""Schedules and recomputation in `Merak.space`."""


@register
class Merak(Staged):
    """Splits the layers into ``pp`` pipeline stages, through which ``microbatches`` flow by a
    schedule. Each stage is sharded over ``tp`` ranks, and there are ``dp`` replicas.

    ``recompute``: every layer keeps only its input ("full"), as many layers of each stage as its
    memory allows keep everything ("stage_aware": a part ``keep`` of the first stage's, more of
    ranks that have fewer microbatches in flight), or all ("none"). Which stages recompute at all,
    and when, the ``schedule`` says; but attention's core ("selective", see
    `tpviz.schemes.knobs.recompute_knob`) is computed again within backward, on every stage.
    ``zero`` and what it sends: `sharding`; ``sp``: as Megatron has it, of messages too.

    ``schedule``: a name, or one of your own: a `Schedule`, or a line of actions for each rank
    ("F0 F1 B0 B1"), kept as text. A stage recomputes where its line says so (R, RB) and
    ``recompute`` allows it.

    ``layout``: each stage has as many blocks ("even", the embedding and the head uncounted), as
    many as make the slowest rank fastest, the head's FLOPs counted ("balanced"), or as a layout
    says: counts, (2, 4, 4, 2), or Megatron-LM's words for it, "Ett|(t*4|)*2,ttL" (`split`).
    """

    pp: int = knob_of(Pipeline, "pp")
    tp: int = knob(1, help="ranks that share every weight matrix of a stage", low=1, high=64)
    dp: int = knob(1, help="replicas that share the batch", low=1, high=65536)
    microbatches: int = knob_of(Pipeline, "microbatches")
    schedule: Any = knob_of(Pipeline, "schedule", "shifted_critical_path")
    chunks: int = knob_of(Pipeline, "chunks")
    recompute: str = knob_of(Pipeline, "recompute", "full")
    keep: float = knob_of(Pipeline, "keep")
    skip_last_allreduce: bool = knob_of(Pipeline, "skip_last_allreduce")
    subpipeline: int = knob_of(Pipeline, "subpipeline", where=lambda knobs: knobs.tp > 1)
    zero: int = knob(
        0,
        help="ZeRO stage over dp: 1 shards optimizer states, 2 gradients, 3 parameters",
        choices=(0, 1, 2, 3),
        where=lambda knobs: knobs.dp > 1,
    )
    sp: bool = knob(
        False,
        help="split activations between the matrices, and messages, over tp by sequence",
        where=lambda knobs: knobs.tp > 1,
    )
    layout: str | tuple[int, ...] = knob_of(Pipeline, "layout")
    placement: str = ""

    @property
    def inside(self) -> Megatron:
        """The `Megatron` by which the blocks of a stage are split."""
        return _inside(self.tp, self.sp)

    @property
    def product(self) -> Pipeline:
        """The same as a product of its factors."""
        own = {f.name: getattr(self, f.name) for f in fields(Pipeline) if f.metadata}
        inner = self.inside if self.tp > 1 else None
        data = DataParallel(dp=self.dp, zero=self.zero)
        return Pipeline(**own, inner=inner, data=data, placement=self.placement)

    def takes(self, other: Strategy) -> Strategy | None:
        """With `Context` and `Experts` its `product`, that factor inside."""
        return self.product.takes(other) if isinstance(other, Context | Experts) else None

    @property
    def sequence_parallel(self) -> bool:
        """Whether there is a sequence to split: ``sp`` on more than one rank."""
        return self.sp and self.tp > 1

    @classmethod
    def space(cls, workload: GPT, world_size: int) -> "Iterator[Merak]":
        """Every (pp, tp, dp); one, two and four microbatches a stage; 1F1B without and with
        recomputation, Merak's schedule, interleaved stages and zero bubble, 1F1B also with balanced
        stages where they differ; with tp also sequence parallelism, or all-reduces during the other
        half's kernels; with dp ZeRO-1, which sends as many bytes as none."""
        for layout in cls.layouts(workload, world_size):
            for made in layout.microbatched(workload):
                if made.microbatches in few_of(made.pp):
                    for order in ORDERS[: None if made.pp > 1 else 2]:
                        with suppress(ValueError):  # the schedule may ask for more microbatches
                            one = replace(made, **order)
                            one.check(workload)
                            even = layers_of(workload.layers, one.stages)
                            if one.layout == "even" or one.blocks(workload) != even:
                                yield one

    @classmethod
    def layouts(cls, workload: GPT, world_size: int) -> "Iterator[Merak]":
        """Every (pp, tp, dp), with tp also with sequence parallelism, or with all-reduces during
        the other half's kernels."""
        for pp, tp in product(divisors(world_size), repeat=2):
            dp, rest = divmod(world_size, pp * tp)
            if rest or not (cls.allows("pp", pp) and cls.allows("tp", tp)):
                continue
            for more in ({}, {"sp": True}, {"subpipeline": 2})[: 3 if tp > 1 else 1]:
                first: dict[str, Any] = {**ORDERS[0], **more, "zero": int(dp > 1)}
                yield cls(pp=pp, tp=tp, dp=dp, microbatches=1, **first)

    def choices(self, workload: GPT) -> list[dict[str, Any]]:
        """Every schedule, with every number of chunks, each recomputation, each stage of ZeRO, and
        balanced stages under 1F1B."""
        whole = self.subpipeline > 1 and self.tp > 1
        return self._choices(workload, (0,) if self.dp == 1 else (1, 0, 2, 3)[: 4 - 2 * whole])

    def within(
        self, workload: GPT, budget: float, need: "Callable[[Merak], float] | None" = None
    ) -> "Merak":
        """This strategy with the least recomputation for ``budget`` bytes: see `budget.within`."""
        from .budget import within

        self.check(workload)
        return within(self, workload, budget, need)


def as_merak(strategy: Any) -> Any:
    """The `Merak` that a product of `Megatron`, `Pipeline` and `DataParallel` is, with the same
    ranks in the same order; anything else as it is."""
    if not isinstance(strategy, Pipeline) or not isinstance(
        strategy.inside, WholeBlocks | Megatron
    ):
        return strategy
    tp, sp = (strategy.inside.layout.i, strategy.inside.layout.sp)
    own = {f.name: getattr(strategy, f.name) for f in fields(Pipeline) if f.metadata}
    made = Merak(tp=tp, sp=sp, dp=strategy.dp, zero=strategy.zero, **own)
    same = not (strategy.placement or strategy.around.shard) and strategy.inside.layout.chunks == 1
    return made if same else strategy


@lru_cache(maxsize=256)  # a search asks hundreds of thousands of times, for few
def _inside(tp: int, sp: bool) -> Megatron:
    return Megatron(tp=tp, sp=sp)

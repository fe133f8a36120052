"""DiLoCo: workers that train by themselves for H steps, and then agree on one outer step.

Douillard et al. 2023 (arXiv 2311.08105), algorithm 1, with the paper's symbols: k workers begin a
round at theta; each takes H steps of AdamW on its own part of the data, without a message to the
others; the mean of theta - theta_i over workers is the outer gradient, and Nesterov momentum takes
one step from theta with it. Moments of AdamW stay a worker's own. With H = 1, outer_lr = 1 and no
momentum parameters are averaged after each step: local SGD (Stich 2018, arXiv 1805.09767).

>>> from tpviz import GPT
>>> count, payload, _ = DiLoCo(workers=2, sync_every=4).ledger(GPT(batch=8)).total()
>>> count, payload == 4 * GPT().num_parameters
(1, True)
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from tpviz.core.checks import divides
from tpviz.core.step import Collective, Kernel, Part, Repeat, flat
from tpviz.schemes.factor import placed
from tpviz.schemes.gpt.kernels import adamw
from tpviz.schemes.gpt.memory import of_step
from tpviz.schemes.grid.tensor import WholeBlocks
from tpviz.schemes.knobs import knob
from tpviz.schemes.strategy import Strategy, register, step_of

if TYPE_CHECKING:
    import torch

    from tpviz.cluster.clock.cost import Memory
    from tpviz.core.step import Step
    from tpviz.core.workload import GPT
    from tpviz.schemes.gpt.pointwise import Held
    from tpviz.schemes.gpt.program import Program

__all__ = ["DiLoCo"]

SGD_PASSES = 5
"""How often a step with momentum reads or writes: parameter, gradient and momentum; the first and
the last are written."""


@register
class DiLoCo(Strategy):
    """Trains ``workers`` models apart for ``sync_every`` steps, then steps from where all began
    along the mean of what they changed.

    A *step* here is such a round: it takes the rows of ``sync_every`` batches of all workers, and
    so its ledger, its time and its memory are of ``sync_every`` inner steps and the outer one. Of a
    worker's ranks, ``inner`` says what they do: any tensor parallelism, `Context`, `Experts`,
    `DataParallel`, and their products.

    ``outer_lr`` and ``outer_momentum`` are those of the outer Nesterov momentum. Each rank keeps
    where its round began, an outer gradient and a momentum of what its optimizer updates: with ZeRO
    inside, of its share. What it takes to subtract and to scale them is in no prediction.
    """

    workers: int = knob(2, help="models that train apart", low=1, high=65536)
    sync_every: int = knob(
        4, help="inner steps of a round, between two outer steps", low=1, high=10000
    )
    outer_lr: float = knob(0.7, help="learning rate of the outer step", low=0.0, high=10.0)
    outer_momentum: float = knob(0.9, help="Nesterov momentum of the outer step", low=0.0, high=1.0)
    inner: Strategy | None = None
    placement: str = ""
    searched, shares_batch, outermost = False, "workers", True

    def __post_init__(self):
        super().__post_init__()
        inner = self.inner
        if inner is None:
            return
        if not isinstance(inner, Strategy) or hasattr(inner, "stages") or isinstance(inner, DiLoCo):
            raise ValueError(
                f"{getattr(inner, 'short', inner)} inside of DiLoCo is not possible: use factors "
                "of one stage, such as Megatron(tp=2) * DataParallel(dp=2), or none"
            )

    def takes(self, other: Strategy) -> "Strategy | None":
        """The product with a strategy inside, or with one that multiplies with that."""
        if isinstance(other, DiLoCo) or hasattr(other, "stages"):
            return None
        made = other if self.inner is None else self.inner.nested(other)
        return made and replace(self, inner=made)

    @property
    def inside(self) -> Strategy:
        """The strategy of a worker; `WholeBlocks` if it is one rank."""
        return self.inner or WholeBlocks()

    @property
    def updates(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        """Inner steps of a round."""
        return self.sync_every

    @property
    def clip(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As of the strategy inside."""
        return self.inside.clip

    @property
    def alike(self) -> bool | tuple[str, ...]:
        """``alike`` of the strategy inside."""
        inside: Any = self.inside.alike
        return ("worker", *inside) if isinstance(inside, tuple) else inside

    @property
    def parent_axis(self) -> Mapping[str, str]:
        """``parent_axis`` of the strategy inside."""
        return self.inside.parent_axis

    @property
    def axes(self) -> dict[str, int]:
        return placed({"worker": self.workers} | self.inside.axes, self.placement)

    def check(self, workload: "GPT") -> None:
        parts = self.workers * self.sync_every
        divides("batch", workload.batch, "workers*sync_every", parts)
        if workload.experts and not workload.routing:
            raise ValueError(
                "a router's own choices differ by worker and inner step, which DiLoCo has no bytes "
                "for: use tv.GPT(routing=tv.Routing())"
            )
        if workload.bias_balance:
            raise ValueError(
                f"bias_balance={workload.bias_balance} asks for loads of all tokens after each "
                "step, and workers train apart: use bias_balance=0.0"
            )
        self.inside.check(self.local(workload))

    def local(self, workload: "GPT") -> "GPT":
        """The workload of one inner step of one worker."""
        return workload.with_batch(workload.batch // (self.workers * self.sync_every))

    def splits(self, workload: "GPT") -> dict[str, list[tuple[int, str]]]:
        return self.inside.splits(self.local(workload))

    def flat_ranges(self, workload: "GPT") -> dict[str, dict[str, Any]]:
        """As of the strategy inside."""
        ranges = getattr(self.inside, "flat_ranges", lambda workload: {})
        return ranges(self.local(workload))

    def step(self, workload: "GPT") -> "Step":
        """The inner steps, and with the last of them the outer one: gradients of the ranks' own
        parameters are added up over workers, and a kernel updates these."""
        inner = tuple(_unready(item) for item in step_of(self.inside, self.local(workload)))
        end = next((k for k, item in enumerate(inner) if _gathers(item)), len(inner))
        size = self.owned(workload)
        passes = SGD_PASSES * size
        outer = (
            Part("sync", "", (Collective("worker", "all_reduce", size),)),
            Part("optimizer", "", (Kernel(0, passes),)),
        )
        before = (Repeat(inner, self.sync_every - 1),) * (self.sync_every > 1)
        if self.workers == 1:
            outer = outer[1:]
        return *before, *inner[:end], *outer, *inner[end:]

    def owned(self, workload: "GPT") -> int:
        """Bytes of the parameters that a rank's optimizer updates."""
        return _owned(self.inside, self.local(workload))

    def held(self, workload: "GPT", rank: int = 0) -> "Held":
        return self.inside.held(self.local(workload), rank)

    def memory(self, workload: "GPT") -> "Memory":
        """The inner strategy's, and of the parameters that a rank updates the values at the
        round's beginning, the outer gradient, and momentum if there is any."""
        local, size = self.local(workload), self.owned(workload)
        found = of_step(self.inside.memory(local), workload, local)
        found["parameters"] += size
        found["gradients"] += size
        found["optimizer"] += size * bool(self.outer_momentum)
        return found

    def reference(self, workload: "GPT", device: "torch.device | str" = "cpu") -> "Program":
        """The same rounds in one process, one worker after another."""
        from .reference import DiLoCoReference

        return DiLoCoReference(self, workload, device)


def _unready(item: Part | Repeat) -> Part | Repeat:
    return item._replace(ready=()) if isinstance(item, Part) else item


def _gathers(item: Part | Repeat) -> bool:
    """Whether a part gathers what the optimizer updated."""
    return (
        isinstance(item, Part)
        and item.phase == "optimizer"
        and not any(isinstance(operation, Kernel) for operation in item.operations)
    )


@lru_cache(maxsize=64)
def _owned(inside: Strategy, local: "GPT") -> int:
    """By the optimizer's kernels in the step."""
    kernels = (
        operation.bytes * count
        for part, count in flat(step_of(inside, local))
        if part.phase == "optimizer"
        for operation in part.operations
        if isinstance(operation, Kernel)
    )
    return sum(kernels) // adamw(1).bytes

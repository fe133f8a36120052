"""``gradient_error``: what gradients that are sent in few bits are off by, by parameter.

tv.gradient_error(tv.DataParallel(dp=4, gradients="int8"), tv.GPT())     # a table; .within
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from tpviz.core.show import Tabular
from tpviz.ranks.launch import launch
from tpviz.schemes.gpt.program import batch_of
from tpviz.schemes.zero.sums import BITS

from .checks import check_fit
from .run import program_here

if TYPE_CHECKING:
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy
    from tpviz.schemes.zero.strategy import DataParallel


@dataclass(frozen=True, repr=False)
class GradientErrors(Tabular):
    """What `gradient_error` found; truth is ``within``.

    errors, bounds : {parameter: max |sent - exact| / max |exact|}, and the same of the most that
    block scales allow (`tpviz.schemes.zero.few_bits`). share : {parameter: max |sent - exact| /
    bound, number by number}. whole : the error of the gradient as one vector, its length over that
    of the exact one.
    """

    _right = (1, 2, 3)
    strategy: "Strategy"
    errors: dict[str, float]
    bounds: dict[str, float]
    share: dict[str, float]
    whole: float

    @property
    def within(self) -> bool:
        """Whether every number is off by no more than its bound, up to rounding."""
        return max(self.share.values()) < 1 + 1e-6

    def __bool__(self):
        return self.within

    @property
    def worst(self) -> str:
        """The parameter whose relative error is largest."""
        return max(self.errors, key=self.errors.__getitem__)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first, one a parameter."""
        found = [(n, e, self.bounds[n], self.share[n]) for n, e in self.errors.items()]
        return [list(_HEADERS), *([name, *map("{:.1e}".format, of)] for name, *of in found)]

    def _above(self):
        within = "within its bound" if self.within else "OUTSIDE of its bound"
        return (
            f"{self.strategy.short}: the gradient is off by {self.whole:.1e} of its length, every "
            f"number {within}, float64"
        )


_HEADERS = "parameter", "relative error", "bound", "error / bound"


def gradient_error(
    strategy: "Strategy", workload: "GPT", *, device: str | None = None, timeout: float = 120
) -> GradientErrors:
    """The first step's gradient as the strategy's ranks have it beside the one with all bits, on
    real ranks in float64: the difference is that of quantisation alone. device, timeout: as
    `tpviz.launch` takes them. Raises ``ValueError`` where gradients are not in few bits.
    """
    if not BITS[getattr(strategy, "gradients", "full")]:
        raise ValueError(
            f"{strategy.short} sends gradients with all their bits: use "
            'DataParallel(gradients="int8") or "int4"'
        )
    check_fit(strategy, workload)
    workload = replace(workload, dtype="float64")
    ranks = launch(
        _compare,
        strategy,
        workload,
        world_size=strategy.world_size,
        device=device,
        timeout=timeout,
    )
    return GradientErrors(strategy, *ranks[0])  # every rank has the same


def _compare(strategy: "DataParallel", workload: "GPT") -> tuple[Any, ...]:
    """One rank: errors, bounds and shares by parameter, and of the whole."""
    exact = _gradients(replace(strategy, gradients="full"), workload)[0]
    sent, bounds = _gradients(strategy, workload)
    errors, relative, share, off, size = {}, {}, {}, 0.0, 0.0
    for name, value in exact.items():
        difference, most = (sent[name] - value).abs(), bounds[name]
        scale = float(value.abs().max()) or 1.0
        errors[name], relative[name] = float(difference.max()) / scale, float(most.max()) / scale
        share[name] = float((difference / most.clamp(min=1e-300)).max())
        off, size = off + float(difference.square().sum()), size + float(value.square().sum())
    return errors, relative, share, (off / size) ** 0.5


def _gradients(
    strategy: "DataParallel", workload: "GPT"
) -> tuple[Mapping[str, torch.Tensor], Mapping[str, torch.Tensor]]:
    """(gradients, the most that these may be off by) of the first step."""
    program, device = program_here(strategy, workload)
    for bucket in program.buckets:
        bucket.sent = []
    program.step(batch_of(workload, 0, device))
    found = program.gradients()
    if strategy.gradients == "full":
        return found, {}
    bounds = {k: v for bucket in program.buckets for k, v in bucket.full_bounds().items()}
    return found, program.full(bounds)

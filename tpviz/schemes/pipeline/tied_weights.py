"""Parameters that several stages hold: copies that start equal and get the same gradient."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tpviz.schemes.collectives import sum_together

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch import nn


class Tie(NamedTuple):
    """The copies of one parameter: the name and the stage of each copy."""

    names: tuple[str, ...]
    stages: tuple[int, ...]


class TiedWeights:
    """Sums the gradients of this rank's copies of tied parameters with those of other ranks.

    stages : {stage: {name: parameter, or the share of it that has the gradient}} of this rank.
    rank_of : stage -> index along the pipeline. group_of : the group of several such indices of
    this rank's pipeline, None where this rank is not in it; called on every rank for every tie, in
    order.
    """

    def __init__(
        self,
        tied_weights: Iterable[Tie],
        stages: "Mapping[int, Mapping[str, nn.Parameter]]",
        rank_of: Sequence[int],
        group_of: "Callable[[tuple[int, ...]], dist.ProcessGroup | None]",
    ):
        self.shared = []
        for tie in tied_weights:
            own = [stages[stage][name] for name, stage in zip(*tie) if stage in stages]
            places = tuple(sorted({rank_of[stage] for stage in tie.stages}))
            group = group_of(places) if len(places) > 1 else None
            own = list({id(p): p for p in own}.values())  # a rank may have one for two stages
            if own:
                self.shared.append((own, group))

    def sum(self) -> None:
        """Add up what backward has left in each copy."""
        for own, group in self.shared:
            found = [p.grad for p in own if p.grad is not None]
            if not found and group is None:
                continue
            total = sum(found[1:], found[0]) if found else own[0].new_zeros(own[0].shape)
            if group is not None:
                (total,) = sum_together([total], group)
            for p in own:  # in place: a gradient may be a part of a flat buffer
                if p.grad is None:
                    p.grad = total.clone()
                else:
                    p.grad.copy_(total)

"""Whose rows a rank takes, by what a loss is divided, and the sum of gradients: in every product.

The batch is shared over axes of the mesh (dp, AxoNN's z and data), the sequence perhaps over
another, cp, experts over ep: the *token axes*. A parameter's gradient is added up over exactly the
token axes that do not cut the parameter: `Strategy.summed` of the factor inside, and dp, cp and ep
together, as one group of its class (`tpviz.schemes.replicas`), which ZeRO's shards are spread over.
It is divided once, by `share`: a microbatch's mean loss counts by its tokens of the whole batch.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from tpviz.schemes.collectives import own_of, sum_together

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist

    from tpviz.schemes.context.sequence import SequenceCut


def own_rows(
    batch: Sequence["torch.Tensor"],
    rows: Sequence[tuple[int, str]],
    mesh: Any,
    sequence: "SequenceCut | None" = None,
) -> list["torch.Tensor"]:
    """This rank's rows of the whole ``batch``, which is cut over the axes of ``rows``, inner one
    first; and of each row its tokens, where ``sequence`` cuts it."""
    found = list(batch)
    for _, axis in reversed(rows):
        found = [own_of(part, mesh.get_group(axis)) for part in found]
    if sequence:
        found = [sequence.part(part, mesh) for part in found]
    return found


def share(tokens: int, batch: int, microbatches: int) -> float:
    """The factor on the gradient of a microbatch's mean loss, where a rank takes ``tokens`` of the
    whole ``batch`` of tokens in equal microbatches."""
    return tokens / (batch * microbatches)


def add_up(
    parameters: Iterable["torch.Tensor"],
    group: "dist.ProcessGroup",
    start_sum: "Callable[..., dist.Work] | None" = None,
    in_place: bool = False,
) -> None:
    """Sum the gradients that there are over the group, in one message of each dtype. start_sum : as
    of `sum_together`. in_place : they stay where they are, perhaps in a flat buffer."""
    learned = [p for p in parameters if p.grad is not None]
    for dtype in dict.fromkeys(p.dtype for p in learned) if group.size() > 1 else ():
        alike = [p for p in learned if p.dtype == dtype]
        for p, total in zip(alike, sum_together([p.grad for p in alike], group, start_sum)):  # pyright: ignore[reportArgumentType]
            if in_place:
                p.grad.copy_(total)  # pyright: ignore[reportOptionalMemberAccess]
            else:
                p.grad = total

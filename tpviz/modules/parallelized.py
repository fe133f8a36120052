"""`Parallelized`: what `parallelize` returns, a model of which every rank holds its part."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils._pytree import tree_map

from tpviz.schemes.axonn.clip import norm_of, shrink
from tpviz.schemes.gpt.program import gather

from .experts import CutExperts
from .layers import HeldLinear
from .watch import ReadElsewhere

if TYPE_CHECKING:
    from .experts import ExpertShares
    from .grid import Grid
    from .layers import RankGroups
    from .report import ModuleReport
    from .sequences import Sequences


EQUAL = ("data", "dp", "cp", "ulysses")
"""Axes along which gradients that are complete are the same."""


class Parallelized(nn.Module):
    """A model of which every rank holds its part; called as the model was.

    module : the model itself, split in place; report : the `ModuleReport`; grid : with
    `tpviz.AxoNN` this rank's `tpviz.modules.grid.Grid`, with `tpviz.Context` its
    `tpviz.modules.sequences.Sequences`, with `tpviz.Experts` its
    `tpviz.modules.experts.ExpertShares`. Parameters of what is split have their old names and a
    rank's shapes (with AxoNN weights are flat shards): make optimizers after `parallelize`, and
    choose weight decay by name, not by the number of dims.
    """

    def __init__(
        self,
        module: nn.Module,
        report: "ModuleReport",
        groups: "RankGroups | None" = None,
        grid: "Grid | Sequences | ExpertShares | None" = None,
        seen: bool = True,
    ):
        super().__init__()
        self.module, self.report, self._groups, self.grid = module, report, groups, grid
        self._seen = seen  # whether a forward has shown who reads the layers' parameters
        if grid:
            held = self._held().values()
            grid.attach(module, [h.weight for h in held if isinstance(h, HeldLinear)])

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs, whole, of the rows given: the same on every rank of a plane."""
        if self._seen or torch.compiler.is_compiling():
            return self.module(*args, **kwargs)
        self._seen = True
        with ReadElsewhere(self.module, self._held().items()).of(self.module):
            return self.module(*args, **kwargs)

    # -- the batch ---------------------------------------------------------------------------------
    @property
    def shares(self) -> int:
        """Number of shares that the batch, and under Context its sequences, are split into between
        ranks; 1 except under these two."""
        return self.grid.shares if self.grid else 1

    @property
    def share(self) -> int:
        """Which share is this rank's: as ``rank`` of a ``DistributedSampler`` of so many replicas.

        AxoNN: data * z + index on z, on all ranks of a plane alike; in easy mode every rank has
        one, ((data * z + index on z) * y + index on y) * x + index on x. Under Context dp * cp +
        index on cp; samplers are to give all ranks of one dp the same rows.
        """
        return self.grid.share if self.grid else 0

    def rows(self, batch: Any) -> Any:
        """This rank's rows of a whole batch: of every tensor in it with as many rows as the first.

        Under Context of these rows its tokens, of every tensor (batch, seq, ...) with as many as
        the first. To a dict ``position_ids`` are added where the model takes them, a mask of ones
        is left out, and ``labels`` of Hugging Face's language models are shifted first, so that no
        token loses its label to another rank.

        Raises ``ValueError`` where the rows do not divide by `shares`, or tokens by cp, and for
        padding and documents.
        """
        return self.grid.rows(batch) if self.grid else batch

    def joined(self, outputs: Any) -> Any:
        """Outputs, or any tensors of this rank's rows, as those of all shares: in the order of the
        whole batch and of its sequences, scalars as their mean. Without gradients. Collective."""
        if (grid := self.grid) is None:
            return outputs
        return tree_map(lambda t: grid.joined(t) if isinstance(t, torch.Tensor) else t, outputs)

    # -- gradients ---------------------------------------------------------------------------------
    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward in here leaves gradients those of this rank's share, to be added up.

        The first backward outside makes them complete: for all microbatches but the last. As DDP's,
        but it is where *backward* runs that counts. Weights' gradients are scattered over z
        nonetheless: a rank has memory only for its shard.
        """
        if self.grid:
            before, self.grid.quiet = self.grid.quiet, True
        try:
            yield
        finally:
            if self.grid:
                self.grid.quiet = before

    def clip_grad_norm_(self, most: float) -> torch.Tensor:
        """Scale the gradients so that the norm of the whole model's is at most ``most``; the norm.

        Each number counts once, however many ranks have it. Collective; after backward.
        """
        learn = [p for p in self.module.parameters() if p.grad is not None]
        if not learn:
            return torch.zeros(())
        groups = self._groups.by_axis if self._groups else {}
        axes = {a: group for a, group in groups.items() if a not in EQUAL}
        cut = {
            id(getattr(held, name)): {axis for _, axis in held.part.splits(name)}
            | ({"z"} if held.pieces and name == "weight" else set())
            for held in self._held().values()
            for name in held._parameters
        }
        copies = [
            prod(group.size() for axis, group in axes.items() if axis not in cut.get(id(p), ()))
            for p in learn
        ]
        gradients: list[Any] = [p.grad for p in learn]
        norm = norm_of(gradients, copies, axes.values())
        shrink(gradients, norm, most)
        return norm

    # -- the whole ---------------------------------------------------------------------------------
    def full_state_dict(self) -> dict[str, torch.Tensor]:
        """{original name: whole tensor} on every rank, to load into the model as it was.

        Collective: call it on all ranks of the mesh. What is not split is not copied.
        """
        return self._whole(self.module.state_dict())

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """{original name: whole gradient} of the parameters that have one. Collective."""
        return self._whole(
            {name: p.grad for name, p in self.module.named_parameters() if p.grad is not None}
        )

    def _whole(self, tensors):
        return whole_of(tensors, self._held(), self._groups)

    def _held(self):
        return held_in(self.module)


def held_in(module: nn.Module) -> dict[str, Any]:
    """{path: `HeldLinear` or `CutExperts`} of all that is split in ``module``."""
    return {
        path: part
        for path, part in module.named_modules(remove_duplicate=False)
        if isinstance(part, (HeldLinear, CutExperts))
    }


def whole_of(
    tensors: Mapping[str, torch.Tensor], held: Mapping[str, Any], groups: "RankGroups | None"
) -> dict[str, torch.Tensor]:
    """{name: whole tensor} of {name: this rank's}; those of the modules ``held`` are split.
    Collective."""
    found = {}
    for name, tensor in tensors.items():
        path, _, kind = name.rpartition(".")
        if path not in held or kind not in held[path]._parameters:
            found[name] = tensor
            continue
        part = held[path].part
        if held[path].pieces and kind == "weight":
            over = [(0, "z")] if part.z > 1 else []
            tensor = gather(tensor, over, groups).view(part.local(kind))
        whole = gather(tensor, part.splits(kind), groups)
        found[name] = part.from_order(kind, whole)
    return found

"""The plan of AxoNN's easy mode: every linear layer that divides, each by itself."""

from typing import TYPE_CHECKING

from tpviz.checks import divides

from .cuts import Move, Part
from .linears import looks_linear, obstacle, out_dim, owners, widths
from .plan import Planned, listed

if TYPE_CHECKING:
    from torch import nn

    from tpviz.schemes.atp.layout import Layout


class Single(Part):
    """A linear layer between two data-parallel layouts; its bias is whole on every rank.

    Elements of `Move` are for each of a rank's own rows; equally many on all ranks.
    """

    role = "single"  # pyright: ignore[reportAssignmentType]

    def splits(self, name: str) -> list[tuple[int, str]]:
        """As of `Part`; of "bias" none."""
        return super().splits(name) if name == "weight" else []

    def moves(self, enters: bool | None = True, grad: bool = True, readers: int = 1) -> list[Move]:
        """As of `tpviz.parallel.easy`; only the last exchange asks whether the input needs a
        gradient."""
        x, y, found = self.at.i, self.at.s, []
        if y > 1:
            found += [
                Move("forward", "all_to_all", "y", self.ins),
                Move("forward", "reduce_scatter", "y", y * self.out),
                Move("backward", "all_gather", "y", y * self.out),
                *[Move("backward", "all_to_all", "y", self.ins)] * grad,
            ]
        if x > 1:
            found += [
                Move("forward", "all_gather", "x", x * self.ins),
                Move("forward", "all_to_all", "x", self.out),
                Move("backward", "all_to_all", "x", self.out),
                Move("backward", "all_gather", "x", x * self.ins),
                Move("backward", "reduce_scatter", "x", x * self.ins),
            ]
        return found


class Singles:
    """As `tpviz.parallel.plan.Plan`: pairs (of one layer each), left, notes."""

    def __init__(self, model: "nn.Module", layout: "Layout", z: int):
        self.at, self.z, self.notes = layout, z, []
        modules, tied = dict(model.named_modules()), owners(model)
        self.pairs, self.left = [], {}
        for path, module in modules.items():
            if not looks_linear(module):
                continue
            try:
                if reason := obstacle(path, module, modules.get(path.rpartition(".")[0]), tied):
                    raise ValueError(reason)
                self.pairs.append(Planned("linear", "easy mode", (), self._single(path, module)))
            except ValueError as error:
                shape = tuple(getattr(getattr(module, "weight", None), "shape", ()))
                self.left[path] = type(module).__name__, shape, str(error)
        if not self.pairs:
            why = [f"{path or 'it'}: {reason}" for path, (*_, reason) in self.left.items()]
            raise ValueError(
                f"nothing in {type(model).__name__} can be put on the grid: "
                + (listed(why, "; ") or "it has no linear layers")
            )

    def _single(self, path, module):
        out, ins = widths(module)
        divides("out_features", out, "x", self.at.i)
        divides("in_features", ins, "y", self.at.s)
        part = Single(
            path,
            True,
            out,
            ins,
            out_dim(module),
            getattr(module, "bias", None) is not None,
            self.at,
            z=self.z,
        )
        divides("block", part.block, "z", self.z)
        return part

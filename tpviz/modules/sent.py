"""What ranks are to send in a step: by the calls of layers that one process makes of the batch."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch

from tpviz.core.trace import Ledger
from tpviz.schemes.axonn.step import PREFETCH
from tpviz.schemes.pipeline.p2p_plan import crossings

from .cuts import LinearPart
from .grid import rows_of
from .layers import Readers
from .watch import hooked

if TYPE_CHECKING:
    from torch import nn

    from tpviz.schemes.axonn.strategy import AxoNN

    from .cuts import Move
    from .pipelined import Pipelined
    from .plan import Planned


class LayerCall(NamedTuple):
    """One call of a layer. tokens : rows of its input. enters : whether its input is cut here, for
    all first layers of the pair that read it. grad, trained : whether input and weight need a
    gradient; back : whether there is a backward at all. readers : first layers of its pair."""

    part: LinearPart
    tokens: int
    enters: bool = True
    grad: bool = True
    trained: bool = True
    back: bool = True
    readers: int = 1

    def moves(self) -> "list[Move]":
        """Every `tpviz.modules.cuts.Move` of this call."""
        found = self.part.moves(self.enters, self.grad, self.readers)
        return [move for move in found if self.back or move.phase == "forward"]

    def entries(self, itemsize: int, sizes: dict[str, int]) -> list[tuple[Any, ...]]:
        """Entries for `tpviz.Ledger.of`, one for each move. sizes : {axis: ranks}."""
        once = [move for move in self.part.once if self.back and move.elements]
        return [
            (axis, name, phase, times, elements * tokens * itemsize // times, sizes[axis])
            for tokens, moves in ((self.tokens, self.moves()), (1, once))
            for phase, name, axis, elements, times in moves
        ]


@contextmanager
def calls_of(model: torch.nn.Module, pairs: "Iterable[Planned]") -> Iterator[list[LayerCall]]:
    """While inside, every call of the unsplit layers of ``pairs`` in ``model`` is recorded. Yields
    the list of `LayerCall`s, which grows."""
    modules, calls, hooks = dict(model.named_modules()), [], []
    for pair in pairs:
        readers = Readers(len(pair.firsts))
        for part in pair.layers:
            note = _noting(calls, part, readers)
            hooks.append(modules[part.path].register_forward_pre_hook(note))
    with hooked(hooks):
        yield calls


def _noting(calls, part, readers):
    """A hook that adds the call of a layer. readers : the first layers of its pair."""

    def note(layer, args):
        x, enters = args[0], True
        if part.first and readers.count:
            enters = readers.fresh(x)
        calls.append(
            LayerCall(
                part,
                x.numel() // part.ins,
                enters,
                x.requires_grad,
                layer.weight.requires_grad,
                torch.is_grad_enabled(),
                readers.count,
            )
        )

    return note


def pipeline_ledger(model: "Pipelined", calls: Sequence[LayerCall]) -> Ledger:
    """The `Ledger` of one step of this rank of a `tpviz.modules.pipelined.Pipelined`, derived.

    calls : of one microbatch. Each microbatch sends what crosses each cut forward, and its gradient
    backward; layers that are recomputed send again what they send forward. At the end gradients of
    shared parameters are added up, then all over dp.
    """
    pipeline, partition = model.pipeline, model.report.partition
    rows, schedule, place = [], pipeline.schedule, pipeline.place
    for name, phase, stage in crossings(schedule, place):
        part, back = partition.stages[stage], phase == "backward"
        rows += [
            ("pp", name, phase, schedule.microbatches, _size(value.shape, value.dtype), 2)
            for value in (part.sends if back else part.receives)
            if value.trained or not back
        ]
    for tie in partition.tied_weights:
        places = {schedule.rank_of[stage] for stage in tie["stages"]}
        own = [name for name, stage in zip(tie["names"], tie["stages"]) if stage in pipeline.stages]
        if own and len(places) > 1:
            rows.append(
                ("ends", "all_reduce", "sync", 1, _bytes([pipeline.named[own[0]]]), len(places))
            )
    learned = [p for p in pipeline.parameters() if p.grad is not None]
    rows += [
        (
            "dp",
            "all_reduce",
            "sync",
            1,
            _bytes(p for p in learned if p.dtype == dtype),
            model.report.strategy.dp,
        )
        for dtype in {p.dtype for p in learned}
    ]
    return Ledger.of([*rows, *_split_rows(model, calls)])


def _split_rows(model, calls):
    """Of the layers that are split over tp."""
    strategy, stages = model.report.strategy, model.report.partition.stages
    for number, stage in model.pipeline.stages.items():
        own = stage.held()
        again = {
            node.path
            for piece in stages[number].pieces[: model.report.num_recomputed[number]]
            for node in piece.nodes
        }
        for call in (call for call in calls if call.part.path in own):
            for axis, collective, phase, times, size, ranks in call.entries(8, strategy.axes):
                phases = [phase] + ["recompute"] * (phase == "forward" and call.part.path in again)
                for each in phases:
                    yield axis, collective, each, strategy.microbatches * times, size, ranks


def _bytes(tensors):
    return sum(_size(t.shape, t.dtype) for t in tensors)


def _size(shape, dtype):
    return prod(shape) * dtype.itemsize


# -- collectives of AxoNN outside of the layers: weights and gradients -----------------------------
@dataclass(frozen=True)
class Totals:
    """Numbers of one rank, derived.

    whole, pieces : (elements, parameters) of what is equal along z, and of what is sharded over it;
    every trainable parameter is in one of them. asks : whether layers ask for numbers of rows.
    """

    strategy: "AxoNN"
    easy: bool
    asks: bool
    whole: tuple[int, int]
    pieces: tuple[int, int]

    @classmethod
    def of(
        cls,
        model: "nn.Module",
        strategy: "AxoNN",
        parts: "Iterable[LinearPart]",
        easy: bool = False,
        equal: bool = False,
    ) -> Self:
        """From a model that is not split yet. parts : a `LinearPart` for every layer to split."""
        modules, own = dict(model.named_modules()), {}
        for part in parts:
            own[id(modules[part.path].weight)] = part, "weight"
            if part.bias:
                own[id(modules[part.path].bias)] = part, "bias"
        whole, pieces = [], []
        for parameter in model.parameters():
            part, name = own.get(id(parameter), (None, ""))
            if not parameter.requires_grad:
                continue
            if name == "weight":
                pieces.append(part.block // part.z)
            else:
                whole.append(prod(part.local(name)) if part else parameter.numel())
        return cls(
            strategy, easy, easy and not equal, (sum(whole), len(whole)), (sum(pieces), len(pieces))
        )

    @property
    def axes(self) -> tuple[str, ...]:
        """The axes over which the batch is split, outer first."""
        return ("data", "z", "y", "x") if self.easy else ("data", "z")

    @property
    def shares(self) -> int:
        """Number of shares that the batch is split into."""
        return prod(self.strategy.axes[axis] for axis in self.axes)

    @property
    def notes(self) -> list[str]:
        """What the user is to do."""
        return [
            f"the batch is cut into {self.shares} shares: give each rank model.rows(batch) "
            "and let its loss be the mean over its rows",
            "weights of split layers are flat shards: choose weight decay by name, not by dims",
        ]

    def check(self, inputs: Any) -> None:
        """Raise ``ValueError`` where the rows of a whole batch do not divide by `shares`."""
        rows_of(inputs, 0, self.shares, " * ".join(self.axes))

    def ledger(
        self, calls: "Iterable[LayerCall]", itemsize: int, tokens: int | None = None
    ) -> Ledger:
        """The `Ledger` of `entries`; ``tokens`` are those of the calls."""
        return Ledger.of(self.entries(calls, itemsize))

    def entries(
        self, calls: "Iterable[LayerCall]", itemsize: int
    ) -> Iterator[tuple[str, str, str, int, int, int]]:
        """Of `tpviz.Ledger.of`, for `tpviz.modules.sent.LayerCall`s: weights gathered, gradients
        scattered, then means over shares, with one number more for each parameter
        (`tpviz.modules.grid.average`)."""
        s, axes = self.strategy, self.strategy.axes
        ahead = PREFETCH if "oag" in s.overlap else "z"
        for call in calls:
            block = call.part.block * itemsize
            yield ahead, "all_gather", "forward", 1, block, s.z
            yield ahead, "all_gather", "backward", int(call.back and not s.keep), block, s.z
            yield "z", "reduce_scatter", "backward", int(call.back and call.trained), block, s.z
            for axis in ("y", "x") if self.asks else ():
                yield axis, "all_reduce", "forward", 1, 8, axes[axis]
        for axis in self.axes[1:]:
            yield axis, "all_reduce", "sync", 1, sum(self.whole) * itemsize, axes[axis]
        yield "data", "all_reduce", "sync", 1, sum(self.whole + self.pieces) * itemsize, s.data

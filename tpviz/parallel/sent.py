"""What ranks are to send in a step: by the calls of layers that one process makes of the batch."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import torch

from tpviz.schemes.merak.p2p_plan import P2PPlan
from tpviz.trace import Ledger

from . import entrance
from .cuts import Part

if TYPE_CHECKING:
    from .cuts import Move
    from .pipelined import Pipelined
    from .plan import Planned


class Call(NamedTuple):
    """One call of a layer. tokens : rows of its input. enters : whether its input is cut here, for
    all first layers of the pair that read it. grad, trained : whether input and weight need a
    gradient; back : whether there is a backward at all. readers : first layers of its pair."""

    part: Part
    tokens: int
    enters: bool = True
    grad: bool = True
    trained: bool = True
    back: bool = True
    readers: int = 1

    def moves(self) -> "list[Move]":
        """Every `tpviz.parallel.cuts.Move` of this call."""
        found = self.part.moves(self.enters, self.grad, self.readers)
        return [move for move in found if self.back or move.phase == "forward"]


@contextmanager
def calls_of(model: torch.nn.Module, pairs: "Iterable[Planned]") -> Iterator[list[Call]]:
    """While inside, calls of the layers of ``pairs`` in ``model``, not split, are noted: a list of
    `Call`s that fills."""
    modules, calls, hooks = dict(model.named_modules()), [], []
    for pair in pairs:
        entered = {"seen": (None,), "left": 0}
        for part in pair.layers:
            hooks.append(
                modules[part.path].register_forward_pre_hook(
                    _noting(calls, part, len(pair.firsts), entered)
                )
            )
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


def _noting(calls, part, readers, entered):
    """A hook. entered : of a pair, what was seen when a tensor was cut last, and how many layers
    are yet to read it, as `tpviz.parallel.entrance.Entrance` counts."""

    def note(layer, args):
        x, enters = args[0], True
        if part.first and readers:
            now, seen = entrance.state(x), entered["seen"]
            enters = not (entered["left"] and seen[0] is x and seen[1:] == now[1:])
            if enters:
                entered.update(seen=now, left=readers)
            entered["left"] -= 1
            if not entered["left"]:
                entered["seen"] = (None,)  # holds nothing between steps
        calls.append(
            Call(
                part,
                x.numel() // part.ins,
                enters,
                x.requires_grad,
                layer.weight.requires_grad,
                torch.is_grad_enabled(),
                readers,
            )
        )

    return note


def pipeline_ledger(model: "Pipelined", calls: Sequence[Call]) -> Ledger:
    """The `Ledger` of one step of this rank of a `tpviz.parallel.pipelined.Pipelined`, derived.

    calls : of one microbatch. Each microbatch sends what crosses each cut forward, and its gradient
    backward; layers that are recomputed send again what they send forward. At the end gradients of
    shared parameters are added up, then all over dp.
    """
    pipeline, partition = model.pipeline, model.report.partition
    rows, schedule, place = [], pipeline.schedule, pipeline.place
    p2p_plan = P2PPlan(schedule, place)
    for message in filter(p2p_plan.travels, p2p_plan.source):
        part = partition.stages[message.stage]
        back = message.phase == "backward"
        sent = [
            value for value in (part.sends if back else part.receives) if value.trained or not back
        ]
        rows += [
            ("pp", collective, message.phase, 1, _size(value.shape, value.dtype), 2)
            for collective, ranks in (("send", p2p_plan.source), ("recv", p2p_plan.target))
            if ranks[message] == place
            for value in sent
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
            for move in call.moves():
                phases = [move.phase] + ["recompute"] * (
                    move.phase == "forward" and call.part.path in again
                )
                size = move.elements * call.tokens * 8 // move.times
                yield from (
                    (
                        move.axis,
                        move.collective,
                        phase,
                        strategy.microbatches * move.times,
                        size,
                        strategy.tp,
                    )
                    for phase in phases
                )


def _bytes(tensors):
    return sum(_size(t.shape, t.dtype) for t in tensors)


def _size(shape, dtype):
    return prod(shape) * dtype.itemsize

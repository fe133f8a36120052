"""The bug zoo of T3 in software: the code of its faults. See `zoo`; `bugs` describes them.

One layer gets its own ring, in which one component (the order, the tracker, the messages) is
replaced, or the fault is outside the ring. Faults that only cost time are left out. Each tile of a
wrong reduce-scatter is decomposed: which rank's part of which chunk is in it, and how often.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, ClassVar
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist

from tpviz.core.workload import GPT
from tpviz.schemes.t3 import operators
from tpviz.schemes.t3 import ring as rings
from tpviz.schemes.t3.program import ring_of
from tpviz.schemes.t3.strategy import T3

from .zoo import FIRST, SECOND, Evidence, Seeded, bias_everywhere, copies_not_summed

WORKLOAD = GPT(layers=2, hidden=16, heads=4, seq=20, batch=2, vocab=32, dtype="float64")
TP, TILE = 4, 4
"""Four ranks have two positions in the middle; 10 rows of a chunk are tiles of 4, 4 and 2."""
SUMS = {"forward": ("out", "down"), "backward": ("qkv", "up", "head")}
"""Layers with a reduce-scatter, by the end of their names."""


@dataclass(frozen=True)
class SumEvidence(Evidence):
    """An `Evidence` with ``sums``, where the first error is in a sum: {(chunk, tile): {(rank,
    chunk): times}}, which rank's product of which chunk went into each tile of it, as the right
    program has these products; None where it is no sum of them. Of all chunks that `rank` has.
    """

    sums: dict[tuple[int, int], dict[tuple[int, int], int] | None] = field(default_factory=dict)

    @property
    def rank(self) -> int:
        """The first rank that is wrong, whose ``got`` and ``want`` these are."""
        return next(iter(self.ranks), 0)

    def __repr__(self):
        lines = [super().__repr__(), f"all waited for: {'no' if self.unwaited else 'yes'}"]
        words = [
            (chunk, "no sum of the ranks' parts" if parts is None else in_words(parts))
            for (chunk, _), parts in self.sums.items()
        ]
        for (chunk, what), tiles in groupby(words):  # tiles of a chunk are mostly alike
            number = len(list(tiles))
            lines.append(
                f"rank {self.rank}, chunk {chunk}, {number} tile{'s' * (number > 1)}: {what}"
            )
        return "\n".join(lines)


def in_words(parts: Mapping[tuple[int, int], int]) -> str:
    """The terms of a sum: '2 x chunk 1 of rank 3 + chunk 1 of rank 1'."""
    return (
        " + ".join(
            f"{'' if times == 1 else f'{times} x '}chunk {chunk} of rank {rank}"
            for (rank, chunk), times in parts.items()
        )
        or "nothing"
    )


def taken_apart(
    strategy: "T3", rank: int, got: np.ndarray, want: np.ndarray, parts: Sequence[np.ndarray]
) -> dict[tuple[int, int], dict[tuple[int, int], int] | None]:
    """`SumEvidence.sums`; parts : per rank its product (tokens, features) of the right program."""
    size, tokens = len(parts), len(parts[0])
    rows, chunks = tokens // size, [rank] if strategy.split else range(size)
    per_chunk = [np.split(part, size) for part in parts]
    change = np.split((got - want).reshape(-1, got.shape[-1]), len(chunks))
    sums = {}
    for chunk, off in zip(chunks, change):
        total = off + sum(part[chunk] for part in per_chunk)
        for number, tile in enumerate(strategy.tiles(rows, total.shape[1])):
            parts_of = {(r, c): per_chunk[r][c][tile] for r in range(size) for c in range(size)}
            sums[chunk, number] = _combined(total[tile], parts_of)
    return sums


def _combined(total, parts):
    """{part: times} of a sum of whole multiples of ``parts``, None where it is none."""
    columns = np.stack([part.ravel() for part in parts.values()], 1)
    scale = abs(columns).max()
    times = np.linalg.lstsq(columns / scale, total.ravel() / scale, rcond=None)[0].round()
    if abs(columns @ times - total.ravel()).max() > 1e-6 * scale:
        return None
    return {key: int(n) for key, n in zip(parts, times) if n}


@dataclass(frozen=True)
class BrokenT3(Seeded, T3):
    """A `T3` with a fault in a layer, or in the all-reduce of what is replicated."""

    workload = WORKLOAD
    outside, variants, evidence = ("sync",), 2, SumEvidence
    options: ClassVar = {
        "block": (0, 0, 1, 1),  # does not go with the layer in variants
        "gather": ("after",),
        "mode": ("tile", "chunk"),
        "tp": (TP,),
        "tile": (TILE,),
    }

    def facts(self, programs: Any, calls: Any) -> dict[tuple[str, str], np.ndarray]:
        """{(kind, layer): (tokens, features)}: what this rank adds to each sum of the right one."""
        layers, products = self.modules(programs[1]), {}
        for (_, name, _), [(x, out, _)] in calls[1].items():
            if name.endswith(SUMS["forward"]):
                products["forward", name] = x.flatten(0, -2) @ layers[name].weight.t()  # pyright: ignore[reportCallIssue]
            elif name.endswith(SUMS["backward"]):
                products["backward", name] = out.grad.flatten(0, -2) @ layers[name].weight
        return {key: product.detach().numpy() for key, product in products.items()}

    def more(self, ranks: Any, first: Any, rank: int) -> dict[str, Any]:
        """The terms of the wrong sum."""
        if first not in ranks[0].facts:
            return {}
        got, want = ranks[rank].arrays[*first, -1]
        return {"sums": taken_apart(self, rank, got, want, [seen.facts[first] for seen in ranks])}


seed, variant, fault = BrokenT3.seed, BrokenT3.variant, BrokenT3.fault
LINEAR, _BOTH = FIRST + SECOND, ("after", "consumer")


# -- in the ring of one layer ----------------------------------------------------------------------
class Spoiled(rings.Ring):
    """A `Ring` that reduce-scatters with other ``pieces`` {name in its module: what}."""

    pieces: dict[str, Any]

    def reduce_scatter(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """As the ring's, with these components."""
        with patch.multiple(rings, **self.pieces):
            return super().reduce_scatter(a, b)


class Misplaced(rings.Ring):
    """A `Ring` that all-gathers with replaced components."""

    pieces: dict[str, Any]

    def gathered(
        self, x: torch.Tensor, pieces: Callable[[int, int], Any] | None = None
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """As the ring's, with these components."""
        with patch.multiple(rings, **self.pieces):
            yield from super().gathered(x, pieces)


def _give(program, layer, kind: type[rings.Ring] = Spoiled, **pieces):
    """Give a layer its own ring, with replaced components."""
    sound = ring_of(program.strategy, program.mesh)
    ring = kind(sound.group, sound.tiles)
    ring.pieces = pieces  # pyright: ignore[reportAttributeAccessIssue]
    layer.ring = ring


def in_ring(cause: str, *layers: str, **options: Any) -> Callable[[type], type]:
    """Names a `Ring`, or its `Messages` or `Tracker`, a fault: that of layers which have it."""

    def keep(part):
        parts = ("Ring", "RingMessages", "Tracker")
        name = next(name for name in parts if issubclass(part, getattr(rings, name)))
        given = {"kind": part} if name == "Ring" else {name: part}
        fault(cause, *layers, **options)(lambda program, layer: _give(program, layer, **given))
        return part

    return keep


@fault("all ranks begin with chunk 0", *LINEAR, gather=_BOTH)
def _same_order(program, layer):
    """All ranks begin with chunk 0."""
    _give(program, layer, order=lambda rank, size: list(range(size)))


@in_ring("ring in the other direction", *LINEAR, gather=_BOTH)
class Upwards(rings.RingMessages):
    """The ring in the other direction."""

    def pass_on(self, tensor: torch.Tensor) -> None:
        """Send to the rank above, and ask the one below."""
        ring = self.ring
        above, below = (ring.rank + 1) % ring.size, (ring.rank - 1) % ring.size
        room = tensor.new_empty(tensor.shape)
        self.coming.append((room, dist.irecv(room, group=ring.down, group_src=below)))
        self.sent.append((tensor, dist.isend(tensor, group=ring.up, group_dst=above)))


@in_ring("triggered after one update", *LINEAR, gather=_BOTH)
class Early(rings.Tracker):
    """Tiles in flight are sent after their first update; the second is lost."""

    def map_tile(
        self, tile: tuple[int, int, int], updates: int, trigger: Callable[[torch.Tensor], Any]
    ) -> None:
        """One update is enough, except in a rank's own chunk."""
        super().map_tile(tile, 1 if 0 < tile[0] < TP - 1 else updates, trigger)

    def update(self, tile: tuple[int, int, int], value: torch.Tensor) -> None:
        """Late updates are lost."""
        if tile in self._mapped:
            super().update(tile, value)


@in_ring("sent before added", *LINEAR, gather=_BOTH)
class Unadded(Early):
    """A tile in flight is forwarded as received; the rank's own store comes too late."""

    def __init__(self):
        super().__init__()
        self.stored = set()

    def update(self, tile: tuple[int, int, int], value: torch.Tensor) -> None:
        """The first update of a tile in the middle is the rank's own."""
        if 0 < tile[0] < TP - 1 and tile not in self.stored:
            self.stored.add(tile)
        else:
            super().update(tile, value)


@fault("memory not zeroed", "mlp.down", "attention.qkv", gather=_BOTH)
def _unzeroed(program, layer):
    """The previous reduce-scatter in the block leaves its numbers in memory, to which this one
    adds."""
    memory = {}

    class Unzeroed(rings.Tracker):
        """Adds to the old numbers, except in the first chunk, which goes to the neighbour."""

        def map_tile(self, tile: tuple[int, int, int], updates, trigger):
            """The result stays after it has been sent."""

            def kept(total):
                memory[tile] = total.clone()
                trigger(total)

            super().map_tile(tile, updates, kept if tile[0] else trigger)

        def update(self, tile, value):
            """The first update finds numbers there."""
            super().update(tile, value + memory.pop(tile) if tile in memory else value)

    before = program.strategy.place.replace("mlp.down", "attention.out")
    before = before.replace("attention.qkv", "mlp.up")
    for module in (dict(program.module.named_modules())[before], layer):
        _give(program, module, Tracker=Unzeroed)


@in_ring("last tile left out", *LINEAR, gather=_BOTH, mode="tile")
class Floored(rings.Ring):
    """A chunk has as many tiles as fit; the remaining rows are dropped."""

    def reduce_scatter(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Memory is zero there."""
        own, tiles = a.new_zeros(a.shape[0] // self.size, b.shape[1]), self.tiles
        full = own.shape[0] // TILE * TILE
        self.tiles = lambda rows, cols: tiles(full, cols)  # pyright: ignore[reportOptionalCall]
        own[:full] = super().reduce_scatter(a, b)[:full]
        self.tiles = tiles
        return own


@in_ring("message not waited for", *LINEAR, gather=_BOTH)
class UnwaitedMessages(rings.RingMessages):
    """A message counts as received as soon as the receive is posted."""

    def take(self) -> torch.Tensor:
        """The buffer before the message arrived. (In fact another buffer, so that the result is
        deterministic.)"""
        in_flight.append(self.coming.popleft())
        return torch.zeros_like(in_flight[-1][0])


in_flight = []
"""Messages that are never waited for, kept so that they end."""


# -- around the ring -------------------------------------------------------------------------------
@fault("gathered before the last update", *SECOND)
def _gathered_early(program, layer):
    """The all-gather sends each rank's own product before the partial sum is added. The rank itself
    reads its own chunk later, when it is complete."""
    plain, gather, rank = layer.forward, operators.gather_first, layer.ring.group.rank()

    def forward(x):
        own = x.flatten(0, -2).chunk(TP)[rank] @ layer.weight.t()

        def early(total, group):
            whole, work = gather(own, group)
            work.wait()
            whole.chunk(TP)[rank].copy_(total)
            return whole, work

        with patch.object(operators, "gather_first", early):
            return plain(x)

    layer.forward = forward


fault("bias on every rank", *SECOND, gather=_BOTH)(bias_everywhere)


@fault("bias's gradient summed", *SECOND)
def _bias_summed(program, layer):
    """The bias's gradient, which each rank has whole, is all-reduced over tp."""

    group = layer.ring.group  # a tensor whose hook holds the tensor is never collected

    def total(grad):
        dist.all_reduce(grad := grad.clone(), group=group)
        return grad

    layer.bias.register_hook(total)


# -- in what the ring gathers ----------------------------------------------------------------------
@fault("pieces in the order they came", *FIRST, gather="consumer")
def _arrival_order(program, layer):
    """Chunks are joined in order of arrival, on every rank."""
    _give(program, layer, Misplaced, gathering_order=lambda rank, size: list(range(size)))


@in_ring("weight's gradient of one chunk", *FIRST, gather="consumer")
class LastChunk(rings.Ring):
    """Where whole chunks are gathered, for the gradient of a weight, the last one overwrites the
    others."""

    def gathered(
        self, x: torch.Tensor, pieces: Callable[[int, int], Any] | None = None
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Only the last whole chunk."""
        chunks = list(super().gathered(x, pieces))
        yield from chunks[-1:] if pieces is operators.whole_chunk else chunks


fault("copies not summed", "sync", gather="consumer")(copies_not_summed)

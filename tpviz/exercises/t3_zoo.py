"""The bug zoo of T3's software form: fused sums that train, and are wrong. Each has one fault.

    broken = zoo.seed("sent before added", block=1)
    tv.verify(broken, zoo.WORKLOAD)          # NOT EQUAL
    t3_bugs.examine(broken)                  # the `Evidence`: where it begins

The program is that of `tpviz.schemes.t3`; one layer gets a ring of its own, in which one piece (the
order, the tracker, the messages) is another, or the fault is around the ring. Not here is what
gives the same numbers: all tiles sent at the end, only slower.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist

from tpviz.schemes.t3 import operators
from tpviz.schemes.t3 import ring as rings
from tpviz.schemes.t3.program import fuse, ring_of
from tpviz.schemes.t3.strategy import T3
from tpviz.workload import GPT

from .seeded import Seeded

WORKLOAD = GPT(layers=2, hidden=16, heads=4, seq=20, batch=2, vocab=32, dtype="float64")
TP, TILE = 4, 4
"""Four ranks have two positions in the middle; 10 rows of a chunk are tiles of 4, 4 and 2."""
NO_LAYER = ("sync",)


class _Known(T3):
    def build(self, *args, **options):
        """Its program, which says whose it is."""
        program = super().build(*args, **options)
        program.strategy = self  # pyright: ignore[reportAttributeAccessIssue]
        return program


@dataclass(frozen=True)
class Broken(Seeded, _Known):
    """A `T3` with the fault ``cause`` (a key of `CAUSES`) in ``layer`` of a block, or in "sync"."""

    cause: str = ""
    block: int = 0
    layer: str = ""

    sound, no_layer = T3, NO_LAYER


class Fault:
    """How a program goes wrong.

    spoil : function of (program, layer's module). layers : where in a block it can be seeded, or
    one of `NO_LAYER`. gathers : the ``gather`` of T3 with which it is there. modes : likewise.
    """

    def __init__(
        self,
        spoil: Callable[..., None],
        layers: tuple[str, ...],
        gathers: tuple[str, ...] = ("after",),
        modes: tuple[str, ...] = ("tile", "chunk"),
    ):
        self.spoil, self.layers, self.gathers, self.modes = spoil, layers, gathers, modes


def seed(
    cause: str,
    layer: str | None = None,
    block: int | None = 0,
    gather: str | None = None,
    mode: str | None = None,
) -> Broken:
    """A `Broken`. Raises ``ValueError`` for a cause, layer, block, gather or mode in which the
    fault is not."""
    from tpviz.checks import one_of

    one_of("cause", cause, tuple(CAUSES))
    fault, one = CAUSES[cause], {}
    for name, value, choices in (
        ("layer", layer, fault.layers),
        ("block", block, (0, 1)),
        ("gather", gather, fault.gathers),
        ("mode", mode, fault.modes),
    ):
        one[name] = choices[0] if value is None else one_of(name, value, choices)
    return Broken(tp=TP, tile=TILE, cause=cause, **one)


def variant(cause: str, number: int) -> Broken:
    """The fault in a layer, block, gather and mode that change with ``number`` and from one to the
    next."""
    fault, number = CAUSES[cause], number + list(CAUSES).index(cause)
    return seed(
        cause,
        fault.layers[number % len(fault.layers)],
        number // 2 % 2,
        *(kinds[number % len(kinds)] for kinds in (fault.gathers, fault.modes)),
    )


# -- in the ring of one layer ----------------------------------------------------------------------
class Spoiled(rings.Ring):
    """A `Ring` that sums with other pieces: ``pieces`` {name in its module: what}."""

    pieces: dict[str, Any]

    def reduce_scatter(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """As the ring's, with these pieces."""
        with patch.multiple(rings, **self.pieces):
            return super().reduce_scatter(a, b)


class Misplaced(rings.Ring):
    """A `Ring` that gathers with other pieces."""

    pieces: dict[str, Any]

    def gathered(
        self, x: torch.Tensor, pieces: Callable[[int, int], Any] | None = None
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """As the ring's, with these pieces."""
        with patch.multiple(rings, **self.pieces):
            yield from super().gathered(x, pieces)


def _give(program, layer, kind: type[rings.Ring] = Spoiled, **pieces):
    """Give a layer a ring of its own, with other pieces."""
    sound = ring_of(program.strategy, program.mesh)
    ring = kind(sound.group, sound.tiles)
    ring.pieces = pieces  # pyright: ignore[reportAttributeAccessIssue]
    fuse(layer, ring, program.strategy.split)


def _same_order(program, layer):
    """All ranks begin with chunk 0."""
    _give(program, layer, order=lambda rank, size: list(range(size)))


class Upwards(rings.Messages):
    """The ring in the other direction."""

    def pass_on(self, tensor: torch.Tensor) -> None:
        """Send to the rank above, and ask the one below."""
        ring = self.ring
        above, below = (ring.rank + 1) % ring.size, (ring.rank - 1) % ring.size
        room = tensor.new_empty(tensor.shape)
        self.coming.append((room, dist.irecv(room, group=ring.down, group_src=below)))
        self.sent.append((tensor, dist.isend(tensor, group=ring.up, group_dst=above)))


def _upwards(program, layer):
    _give(program, layer, Messages=Upwards)


class Early(rings.Tracker):
    """Tiles on their way are sent after their first update; the second finds nobody."""

    def map_tile(
        self, tile: tuple[int, int, int], updates: int, trigger: Callable[[torch.Tensor], Any]
    ) -> None:
        """One update is enough, but in a rank's own chunk."""
        super().map_tile(tile, 1 if 0 < tile[0] < TP - 1 else updates, trigger)

    def update(self, tile: tuple[int, int, int], value: torch.Tensor) -> None:
        """What comes too late is lost."""
        if tile in self._mapped:
            super().update(tile, value)


class Unadded(Early):
    """Of a tile on its way only what arrives is sent; the rank's own store comes too late."""

    def __init__(self):
        super().__init__()
        self.stored = set()

    def update(self, tile: tuple[int, int, int], value: torch.Tensor) -> None:
        """The first update of a tile in the middle is the rank's own."""
        if 0 < tile[0] < TP - 1 and tile not in self.stored:
            self.stored.add(tile)
        else:
            super().update(tile, value)


def _early(program, layer):
    _give(program, layer, Tracker=Early)


def _unadded(program, layer):
    _give(program, layer, Tracker=Unadded)


def _unzeroed(program, layer):
    """The sum before this one, in the same block, leaves its numbers in memory, to which this one
    is added."""
    memory = {}

    class Unzeroed(rings.Tracker):
        """Adds to what is there. The first chunk is not: it goes straight to the neighbour."""

        def map_tile(self, tile: tuple[int, int, int], updates, trigger):
            """The sum stays after it has been sent."""

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


class Floored(rings.Ring):
    """A chunk has as many tiles as fit; the rows that remain are nobody's."""

    def reduce_scatter(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Memory is zero there."""
        own, tiles = a.new_zeros(a.shape[0] // self.size, b.shape[1]), self.tiles
        full = own.shape[0] // TILE * TILE
        self.tiles = lambda rows, cols: tiles(full, cols)  # pyright: ignore[reportOptionalCall]
        own[:full] = super().reduce_scatter(a, b)[:full]
        self.tiles = tiles
        return own


def _floored(program, layer):
    _give(program, layer, Floored)


class Unwaited(rings.Messages):
    """A message counts as here as soon as it is asked for."""

    def take(self) -> torch.Tensor:
        """What is in the buffer before anything came. (In fact it is another buffer, so that this
        comes out the same every time.)"""
        under_way.append(self.coming.popleft())
        return torch.zeros_like(under_way[-1][0])


under_way = []
"""Messages that nobody waits for, kept so that they come to an end."""


def _not_waited(program, layer):
    _give(program, layer, Messages=Unwaited)


def _arrival_order(program, layer):
    """Pieces are put one after another as they come, on every rank."""
    _give(program, layer, Misplaced, gathering_order=lambda rank, size: list(range(size)))


class LastChunk(rings.Ring):
    """Where whole chunks are gathered, for the gradient of a weight, the last one takes the place
    of those before."""

    def gathered(
        self, x: torch.Tensor, pieces: Callable[[int, int], Any] | None = None
    ) -> Iterator[tuple[slice, torch.Tensor]]:
        """Of whole chunks, the last."""
        found = list(super().gathered(x, pieces))
        yield from found[-1:] if pieces is operators.whole_chunk else found


def _last_chunk(program, layer):
    _give(program, layer, LastChunk)


# -- around the ring -------------------------------------------------------------------------------
def _gathered_early(program, layer):
    """The gather takes each rank's own product before the partial sum is added to it. The rank
    itself reads its own chunk later, when it is there."""
    plain, gather, rank = layer.fused, operators.gather_first, layer.group.rank()

    def fused(x, weight):
        own = x.flatten(0, -2).chunk(TP)[rank] @ weight.t()

        def early(total, group):
            whole, work = gather(own, group)
            work.wait()
            whole.chunk(TP)[rank].copy_(total)
            return whole, work

        with patch.object(operators, "gather_first", early):
            return plain(x, weight)

    layer.fused = fused


def _bias_everywhere(program, layer):
    """Every rank adds the bias to its part of the sum."""
    plain, more = layer.forward, layer.group.size() - 1
    layer.forward = lambda x: plain(x) + more * layer.bias.detach()


def _bias_summed(program, layer):
    """The bias's gradient, which each rank has whole, is summed over tp."""

    def total(grad):
        dist.all_reduce(grad := grad.clone(), group=layer.group)
        return grad

    layer.bias.register_hook(total)


def _copies_not_summed(program, _):
    """Replicated parameters keep the gradient of the rank's own part of the sequence."""
    program.partial = ()


_FIRST, _SECOND = ("attention.qkv", "mlp.up"), ("attention.out", "mlp.down")
_SUMS, _BOTH = _FIRST + _SECOND, ("after", "consumer")
CAUSES = {
    "all ranks begin with chunk 0": Fault(_same_order, _SUMS, _BOTH),
    "ring in the other direction": Fault(_upwards, _SUMS, _BOTH),
    "triggered after one update": Fault(_early, _SUMS, _BOTH),
    "sent before added": Fault(_unadded, _SUMS, _BOTH),
    "memory not zeroed": Fault(_unzeroed, ("mlp.down", "attention.qkv"), _BOTH),
    "last tile left out": Fault(_floored, _SUMS, _BOTH, ("tile",)),
    "message not waited for": Fault(_not_waited, _SUMS, _BOTH),
    "gathered before the last update": Fault(_gathered_early, _SECOND),
    "bias on every rank": Fault(_bias_everywhere, _SECOND, _BOTH),
    "bias's gradient summed": Fault(_bias_summed, _SECOND),
    "pieces in the order they came": Fault(_arrival_order, _FIRST, ("consumer",)),
    "weight's gradient of one chunk": Fault(_last_chunk, _FIRST, ("consumer",)),
    "copies not summed": Fault(_copies_not_summed, ("sync",), ("consumer",)),
}
Broken.causes = CAUSES

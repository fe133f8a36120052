"""GEMMs fused with the collective before or after them, on a ring of ranks.

The order is fixed, so that it can be captured and replayed: the GEMM of a tile, then the wait for
its partial sum, then the trigger. The GEMM needs no message, so it overlaps the transfer; the link
stays busy meanwhile with the previous chunk. For equal tiles this order is optimal: it takes the
longer of all GEMMs, and of the first GEMM plus all messages (derived; tested). A message is
received one chunk ahead, and a rank waits for its send of a chunk earlier. So it buffers one chunk
in each direction. If ranks are equally fast that wait returns at once (derived). Events are
labelled with the position of their chunk in the rank's order (``chunk``), the same on all ranks.

Shapes: T tokens, n ranks, k and h features.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tpviz.core.labels import label
from tpviz.schemes.collectives import gather_first, scatter_first
from tpviz.schemes.ring import Neighbours, RingMessages

from .paper import updates_per_element
from .tiles import bands, gathering_order, order
from .tracker import Tracker

if TYPE_CHECKING:
    import torch
    import torch.distributed as dist


class Ring(Neighbours):
    """One rank's place in the ring.

    group, back : as of `Neighbours`. tiles : (rows, columns) of a chunk -> its tiles, as
    `tiles.cut` makes them; None does without fusion: whole GEMMs, collectives before or after.
    """

    def __init__(
        self,
        group: "dist.ProcessGroup",
        tiles: Callable[[int, int], list[tuple[slice, slice]]] | None,
        back: "dist.ProcessGroup | None" = None,
    ):
        super().__init__(group, back)
        self.tiles = tiles

    def reduce_scatter(self, a: "torch.Tensor", b: "torch.Tensor") -> "torch.Tensor":
        """a (T, k) @ b (k, h), summed over the ranks: this rank's rows (T/n, h).

        Each sum is ((p_{c-1} + p_{c-2}) + ...) + p_c, p_r the product on rank r mod n, bit for bit.
        """
        if self.tiles is None:
            own, work = scatter_first(a @ b, self.group)
            work.wait()
            return own
        rows, last = a.shape[0] // self.size, self.size - 1
        own = a.new_empty(rows, b.shape[1])
        tiles, tracker = self.tiles(*own.shape), Tracker()
        messages = RingMessages(self, len(tiles))
        for position in range(self.size):
            updates = updates_per_element(position)
            for down, across in tiles:
                done = messages.pass_on if position < last else own[down, across].copy_
                tracker.map_tile((position, down.start, across.start), updates, done)
        for position, chunk in enumerate(order(self.rank, self.size)):
            part = a.narrow(0, chunk * rows, rows)
            for down, across in tiles:
                tile = position, down.start, across.start
                with label(chunk=position):
                    tracker.update(tile, part[down] @ b[:, across])
                    if position:
                        tracker.update(tile, messages.take())
        tracker.finish()
        messages.finish()
        return own

    def gathered(
        self,
        x: "torch.Tensor",
        pieces: Callable[[int, int], list[tuple[slice, slice]]] | None = None,
    ) -> "Iterator[tuple[slice, torch.Tensor]]":
        """All-gather x (t, h): yield (rows of the result (n t, h), their values) as they arrive.

        pieces : how a chunk is cut, like ``tiles`` (only rows count); default: the ring's.
        """
        x = x.contiguous()
        if self.tiles is None:
            whole, work = gather_first(x, self.group)
            work.wait()
            yield slice(0, whole.shape[0]), whole
            return
        rows, parts = x.shape[0], bands((pieces or self.tiles)(*x.shape))
        messages = RingMessages(self, len(parts))
        for position, chunk in enumerate(gathering_order(self.rank, self.size)):
            for down in parts:
                with label(chunk=position):
                    piece = messages.take() if position else x[down]
                    if position < self.size - 1:
                        messages.pass_on(piece)
                    yield slice(chunk * rows + down.start, chunk * rows + down.stop), piece
        messages.finish()

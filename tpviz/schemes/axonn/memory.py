"""Bytes of a training step of AxoNN on one rank (derived; tests compare with tracked allocations).

What autograd keeps of a microbatch is ATP's for the plane of x and y (`tpviz.schemes.grid.memory`),
of its own rows; with ``recompute="full"`` the input of every block, and all of the one in backward.
Where z > 1, blocks of weights and of their gradients are added, G those of a transformer block, 12
H^2/(x y) by default:

    gathered: with ``keep`` the G of every block and the head's, until their backward
    (recomputed: of the block in backward), else the one in use; OAG: one more, prefetched;
    gradients: the one that is scattered, and its shard; ORS: of all blocks where backward ends, and
    while the next microbatch runs forward, as if a reduce-scatter in flight held its input: with
    ORS an upper bound (tracked is up to a third less, where weights are most of the memory).

``gather="block"``: a gathered message, G, is there until the last of its weights is copied out of
it; prefetched is all of the next one, with a copy of this rank's part of it; the gradients of a
block come into a buffer, G. (What gloo copies to add it up, another G where ORS is off, is not
counted; it shows where weights are most of the memory.)

All of that are buffers and counted as activations; gradients are the shards received.
"""

from math import prod
from typing import TYPE_CHECKING

from tpviz.cluster.clock.cost import Memory
from tpviz.schemes.gpt.memory import core_kept, dropped, statistics, under_adamw
from tpviz.schemes.grid.memory import block_kept

from .step import num_local_parameters

if TYPE_CHECKING:
    from tpviz.core.workload import GPT

    from .strategy import AxoNN


def memory(s: "AxoNN", w: "GPT") -> Memory:
    """The `Memory` of a rank."""
    moments = _Moments(s, w)
    return under_adamw(sum(moments.held) * w.itemsize, w.num_tensors, moments.peak())


class _Moments:
    """Bytes at each moment of the step that may be the peak."""

    def __init__(self, s, w):
        self.held = num_local_parameters(s, w)
        local, self.item, self.wide = s.local(w), w.itemsize, max(w.itemsize, 4)
        self.s, self.w, self.rows = s, w, local.batch * local.seq
        self.stream = self.rows * w.hidden // s.y * self.item
        blocks = s.blocks(w.one_layer)  # all are alike
        size = {name: prod(shape) * self.item for name, shape in blocks.items()}
        self.table = size["embed.token.weight"]  # as large as the head
        layers = "attention.qkv", "mlp.up", "mlp.down"
        self.qkv, self.up, self.down = (size[f"blocks.0.{n}.weight"] for n in layers)
        self.block = sum(n for name, n in size.items() if name.startswith("blocks.0."))
        self.cut, self.later = s.z > 1, s.z > 1 and "ors" in s.overlap
        self.keep, self.again = self.cut and s.keep, self.cut and not s.keep
        self.bundled = self.cut and s.gather == "block"
        self.next_qkv, self.next_up = (
            self.block + self.block // s.z if self.bundled else size for size in (self.qkv, self.up)
        )
        self.kept = block_kept(s.layout, local) + self.keep * self.block
        self.full = s.recompute == "full"
        core = core_kept(local, s.x)
        self.stays = self.kept - dropped(s.recompute, self.kept - self.stream, core)

    def peak(self):
        """Bytes at the peak, beside all tokens and targets, which are int64."""
        return 16 * self.w.batch * self.w.seq + max(self.all())

    def all(self):
        """In the order of the step."""
        layers, scattered = self.w.layers, self._scattered
        blocks, microbatches = layers * self.stays, self.s.accumulation
        under_way = scattered(layers * self.block + 2 * self.table)
        yield blocks + self._loss(last=microbatches == 1)
        if microbatches > 1:
            yield blocks + self._loss(last=microbatches == 2) + under_way
        if self.bundled:  # forward, where the last block's last weight is copied out
            yield blocks + self.block + self.again * self.down + self._ahead(self.table)
        yield blocks + self._head()
        for after in (0, layers - 1):  # from the last block to the first what grows grows evenly
            yield (layers - after) * self.stays + self._block() + scattered(after * self.block)
        yield self.stream + self.table + under_way
        pieces, whole = self.held
        yield (self.cut * whole + (self.s.data > 1) * (pieces + whole)) * self.item

    def _loss(self, last):
        """The last norm, the head's weight, and logits: 2 or 3 of their size."""
        V = self.w.vocab // self.s.x
        logits = (3 if self.s.x == 1 else 2) * self.rows * V * self.wide + 16 * self.rows
        return (
            self._end()
            + logits
            + self.keep * self.table
            + (self._ahead(self.table) if self.again else self._ahead(last=last))
        )

    def _head(self):
        """Gradients of the logits, of the head's weight with its shard, and of its input."""
        logits = self.rows * self.w.vocab // self.s.x * self.item
        piece = self.table // self.s.z if self.cut else 0
        return (
            self._end()
            + logits
            + self.stream
            + self.table
            + piece
            + self.cut * self.table
            + self._ahead()
        )

    def _block(self):
        """Backward of a down projection: gradients of its input, its output and its weight."""
        again = self.kept - self.stream if self.full else 0
        waits = self._scattered(self.table)
        if self.w.tied and not self.later:
            waits = self.table // self.s.z
        return (
            again
            + self.stream
            + waits
            + self._layer()
            + (self._ahead(self.next_up) if self.again else self._ahead())
        )

    def _layer(self):
        """Of that layer: its input's gradient, its weight's, what was gathered again for it."""
        wide = self.rows * self.w.mlp_width // self.s.x * self.item
        down = wide + self.down + self.again * self.down
        if not self.bundled:
            return down + self.cut * self.down // self.s.z
        message = self.again * self.block
        into_buffer = self.block - self.keep * self.down  # the layer's input and weight are gone
        up = self.stream - wide + self.up + self.again * self.up  # backward of the up projection
        return message + max(down, into_buffer + max(wide, self.down, up))

    def _end(self):
        return 2 * self.stream + statistics(self.w) * self.rows * self.wide

    def _scattered(self, size):
        """Gradients of so many bytes with their shards, if not yet waited for."""
        return size + size // self.s.z if self.later else 0

    def _ahead(self, size=None, last=False):
        """Bytes prefetched; by default a weight of the next block, or, but for the last microbatch,
        of the next one the first."""
        if not self.cut or "oag" not in self.s.overlap:
            return 0
        if size is None:
            size = (
                self.next_qkv
                if self.full
                else self.next_up
                if self.again
                else 0
                if last or self.s.accumulation == 1
                else self.table
            )
        return size

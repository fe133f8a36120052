"""Sums of gradients in few bits: what is sent are blocks of integers with one scale each.

qgZ of ZeRO++ (Wang et al. 2023, arXiv 2306.10209): an all-to-all in place of a ring, so that a
number is rounded once on its way to a sum, and not at each rank of the ring. A rank packs the part
of each rank, receives n packed parts of its own, and adds them up at full precision. Of a block x
the scale is s = max |x| / L, with L = 127 in 8 bits and 7 in 4, and round(x / s) is sent: the error
of a number is at most s / 2, of a sum at most that of its n numbers (derived). Where every rank
needs the sum, it is packed again and gathered, which adds its own s / 2.

`Scattered` and `Gathered` have a ``wait``, as torch's handles do, and are of one level of links:
`sums` has the two levels of qgZ.
"""

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from tpviz.schemes.collectives import gather_first, own_of, scatter_first

from .sums import BLOCK, SCALE

BITS_OF_BYTE = 8


def pack(x: torch.Tensor, bits: int) -> torch.Tensor:
    """`sums.packed_bytes` of the numbers x, (numel,): scales in float32, then integers."""
    most = 2 ** (bits - 1) - 1
    blocks = pad(x, (0, -x.numel() % BLOCK)).view(-1, BLOCK)
    blocks = blocks.to(torch.promote_types(x.dtype, torch.float32))
    scales = (blocks.abs().amax(1, keepdim=True) / most).float()
    by = torch.where(scales == 0, 1, scales).to(blocks.dtype)  # a block of zeros
    whole = (blocks / by).round_().clamp_(-most, most).to(torch.int8).view(-1)[: x.numel()]
    if bits < BITS_OF_BYTE:  # two in a byte, as numbers from 0 on
        pairs = pad(whole + most, (0, x.numel() % 2)).view(-1, 2)
        whole = pairs[:, 0] + pairs[:, 1] * 2**bits
    return torch.cat([scales.view(-1).view(torch.uint8), whole.view(torch.uint8)])


def scales_of(packed: torch.Tensor, numel: int, dtype: torch.dtype) -> torch.Tensor:
    """The scale of each of the ``numel`` numbers that were packed."""
    blocks = -(-numel // BLOCK)
    scales = packed[: SCALE * blocks].clone().view(torch.float32).to(dtype)  # aligned
    return scales.repeat_interleave(BLOCK)[:numel]


def unpack(packed: torch.Tensor, numel: int, bits: int, dtype: torch.dtype) -> torch.Tensor:
    """The numbers, (numel,), in ``dtype``."""
    whole = packed[SCALE * -(-numel // BLOCK) :]
    if bits < BITS_OF_BYTE:
        most = 2 ** (bits - 1) - 1
        whole = torch.stack([whole % 2**bits, whole // 2**bits], 1).view(-1)[:numel]
        whole = whole.to(torch.int8) - most
    return whole.view(torch.int8).to(dtype) * scales_of(packed, numel, dtype)


class Scattered:
    """A reduce-scatter of ``flat``, begun: this rank's part of the sum is written to ``out``, or
    ``added`` to it."""

    def __init__(
        self,
        flat: torch.Tensor,
        group: dist.ProcessGroup,
        bits: int,
        out: torch.Tensor,
        added: bool = False,
    ):
        self.out, self.group, self.bits, self.added = out, group, bits, added
        self.sent = torch.stack([pack(part, bits) for part in flat.chunk(group.size())])
        self.received = torch.empty_like(self.sent)
        self.work = dist.all_to_all_single(self.received, self.sent, group=group, async_op=True)

    def wait(self) -> None:
        """Wait for the parts and add them up, in the order of ranks."""
        self.work.wait()  # pyright: ignore[reportOptionalMemberAccess]
        numel, wide = self.out.numel(), torch.promote_types(self.out.dtype, torch.float32)
        total = self.out.to(wide) if self.added else torch.zeros_like(self.out, dtype=wide)
        for packed in self.received:
            total = total + unpack(packed, numel, self.bits, wide)
        self.out.copy_(total)

    def bound(self, before: torch.Tensor | None) -> torch.Tensor:
        """The most that each number of the sum may be off by. before : of what was in ``out``, or
        of what was scattered."""
        numel, dtype = self.out.numel(), self.out.dtype
        halves = torch.cat([scales_of(packed, numel, dtype) / 2 for packed in self.sent])
        if before is not None and before.shape == halves.shape:
            halves, before = halves + before, None
        found, work = scatter_first(halves, self.group)
        work.wait()
        return found if before is None else found + before


class Gathered:
    """An all-gather of every rank's part of ``flat``, packed, begun; into ``flat`` itself."""

    def __init__(self, flat: torch.Tensor, group: dist.ProcessGroup, bits: int):
        self.flat, self.group, self.bits = flat, group, bits
        self.sent = pack(own_of(flat, group), bits)
        self.received, self.work = gather_first(self.sent, group)

    def wait(self) -> None:
        """Wait, and write what all ranks have, this one's own part included."""
        self.work.wait()
        parts = (t.chunk(self.group.size()) for t in (self.flat, self.received))
        for part, packed in zip(*parts):
            part.copy_(unpack(packed, part.numel(), self.bits, part.dtype))

    def bound(self, before: torch.Tensor | None) -> torch.Tensor:
        """The most that each number of ``flat`` may be off by. before : of this rank's part."""
        half = scales_of(self.sent, self.flat.numel() // self.group.size(), self.flat.dtype) / 2
        found, work = gather_first(half if before is None else half + before, self.group)
        work.wait()
        return found

"""The same ring with a process for each rank, over torch's symmetric memory.

    def work():                                    # on each rank of tv.launch(..., device="cuda")
        ring = SymmetricRing(a, b)                 # this rank's (m, k) and (k, n)
        return ring.run()                          # its (m / ranks, n) chunk of the sum

Every rank maps the others' buffers, so the kernel's puts go to the neighbour's memory and its
counter, over NVLink between GPUs. A neighbour is one GPU away, so counters are released at system
scope. Two processes on one GPU (for tests) need TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES=1 and
take turns on it: their default is ``movers=0``, in which nobody waits. Between GPUs movers keep
each rank on its own link; without them a rank may send on a tile of its neighbour. Counters need
atomics on the neighbour's memory, as NVLink has them and PCIe has not.

Torch calls its module alpha. Not run yet: it needs a GPU.
"""

import ctypes
from itertools import permutations
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.distributed as dist

from .ring import GpuRing
from .settings import Settings, ring_of, sizes

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _SymmetricMemory

TIMEOUT = 120_000
"""Milliseconds after which a barrier ends in a CUDA error; longer than a mover's patience."""


class SymmetricRing(GpuRing):
    """This process's rank of a ring over a group; every rank of the group makes one.

    Parameters
    ----------
    a, b : (m, k) and (k, n) of this rank, CUDA, of one 16-bit or 32-bit float type.
    settings : `Settings`; None: 8 movers where each rank has a GPU, else none.
    group : of torch.distributed; None is the world.

    Raises ``ValueError`` for sizes that do not fit; ``RuntimeError`` without CUDA, Triton, atomics
    between the GPUs, or memory that the ranks can map (torch's own words).
    """

    def __init__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        settings: Settings | None = None,
        group: dist.ProcessGroup | None = None,
    ):
        import torch.distributed._symmetric_memory as symmetric

        group = cast(dist.ProcessGroup, group or dist.group.WORLD)
        ranks = group.size()
        if not a.is_cuda:
            raise RuntimeError(f"a is on {a.device}: torch's symmetric memory needs CUDA")
        settings = settings or Settings(movers=8 if torch.cuda.device_count() >= ranks else 0)
        check_atomics(a.device.index, group)
        _, m, _, n = sizes((1, *a.shape), (1, *b.shape))
        tiles = settings.tiles(ring_of(ranks, m), n)
        atomic = settings.reduce == "atomic"
        make = lambda shape, dtype: symmetric.empty(shape, dtype=dtype, device=a.device)
        self.sums = make((m, n), torch.float32)
        self.inbox = self.sums if atomic else make((m, n), torch.float32)
        self.counts = make((ranks * tiles,), torch.int32)
        buffers = self.sums, self.inbox, self.counts
        self.handles = [symmetric.rendezvous(buffer, group) for buffer in buffers]
        tables = [mapped(*pair, group.rank(), ranks) for pair in zip(buffers, self.handles)]
        super().__init__(
            a[None], b[None], *tables, first=group.rank(), settings=settings, scope="sys"
        )

    def run(self, check: bool = True) -> torch.Tensor:
        """Compute and reduce-scatter; this rank's (m / ranks, n) float32, a view until the next.

        With movers it waits for the GPU, and raises ``RuntimeError`` if a rank did not send all
        (each depends on all others); ``check=False`` does neither.

        Barriers on the stream: nobody may send before all have cleared, and without movers a
        rank's kernel can end before its last tile has come.
        """
        self.counts.zero_()
        if self.settings.reduce == "atomic":
            self.sums.zero_()
        self.handles[0].barrier(timeout_ms=TIMEOUT)
        self.launch()
        if check and self.settings.movers:
            self.check(self.counts)
        self.handles[0].barrier(timeout_ms=TIMEOUT)
        return self.sums[self.first * self.chunk : (self.first + 1) * self.chunk]


def check_atomics(device: int | None, group: dist.ProcessGroup) -> None:
    """``RuntimeError``, on all ranks, unless their GPUs' atomics work on each other's memory.

    Ranks that see only their own GPU all call it 0, and are not asked. Collective.
    """
    devices: list[Any] = [None] * group.size()
    dist.all_gather_object(devices, device, group=group)
    for pair in permutations(sorted(set(devices)), 2):
        if not native_atomics(*pair):
            raise RuntimeError(
                f"GPU {pair[0]} has no atomics on the memory of GPU {pair[1]}, "
                "where a ring counts tiles: use GPUs that NVLink joins"
            )


def native_atomics(one: int, other: int) -> bool:
    """Whether the driver says so: attribute 3, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED."""
    found = ctypes.c_int()
    ask = ctypes.CDLL("libcuda.so.1").cuDeviceGetP2PAttribute
    return ask(ctypes.byref(found), 3, one, other) == 0 and found.value == 1


def mapped(buffer: torch.Tensor, handle: "_SymmetricMemory", me: int, ranks: int) -> list[int]:
    """Where each rank's buffer is in this process's addresses."""
    remote = lambda rank: handle.get_remote_tensor(rank, buffer.shape, buffer.dtype)
    return [(buffer if rank == me else remote(rank)).data_ptr() for rank in range(ranks)]

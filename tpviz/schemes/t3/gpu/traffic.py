"""What memory traffic costs a GEMM that runs beside it, and what the memory does alone: measured.

    rows = contention(m=8192, n=4256, k=2128, movers=16)
    [(row.rate, row.slowdown) for row in rows]     # bytes/s moved beside it; GEMM time over alone
    Machine(dram=3.35e12, **machine_fields(bandwidths(), dram=3.35e12))

Movers are programs on SMs that the GEMM does not get in either case, so what the GEMM loses is
memory, not compute units. That is T3's premise (its DMA takes no unit), and unlike a copy engine a
mover can also add. An update here is an atomic in the L2 cache, not in the DRAM: the nearest that
NVIDIA's GPUs have to near-memory reduction. Needs a CUDA device; nothing was measured yet.
"""

from statistics import median
from typing import NamedTuple

import torch

from tpviz.checks import number, one_of, whole_number

from .ring import check_device
from .settings import Settings

BLOCK = 8192
"""Float32 numbers of a block: 32 KB a mover at a time."""
KINDS = ("read", "write", "copy", "update")
PAUSES = (1000, 300, 100, 30, 10, 3, 0)


class Contention(NamedTuple):
    """One row of `contention`: medians of paired runs."""

    kind: str
    pause: int
    rate: float
    """Bytes a second that movers read and wrote (or updated), each byte counted once."""
    alone: float
    """Seconds of the GEMM while its movers do nothing."""
    seconds: float
    slowdown: float
    """Median of the pairs' seconds / alone."""


class Beside:
    """A GEMM, m x k times k x n, and movers beside it, on one device.

    Parameters
    ----------
    m, n, k : sizes of the GEMM; dtype : of its inputs and its output.
    movers : programs that move, on an SM each. Each moves at most some 10 to 20 GB/s (estimated).
    kind : "copy", or "update" as T3's DMA does at the receiver.
    buffer : bytes of the source and of the target; many times the cache (512 MiB).
    device : "cuda", the current one; "cpu" in the interpreter.
    """

    def __init__(self, m, n, k, movers=16, kind="update", dtype=torch.float16, buffer=512 << 20,
                 device="cuda", settings=None):
        for name, size in (("m", m), ("n", n), ("k", k), ("movers", movers)):
            whole_number(name, size)
        self.kind = one_of("kind", kind, KINDS[2:])
        self.settings = settings or Settings()
        self.shape, self.movers = (m, n, k), movers
        self.blocks = whole_number("buffer", buffer, 4 * BLOCK * movers) // (4 * BLOCK)
        check_device(device)
        self.workers = 2
        if torch.device(device).type == "cuda":
            self.workers = processors(device) - movers
        if self.workers < 1:
            raise ValueError(f"movers={movers} leave none of the GPU's {processors(device)} SMs to "
                             f"the GEMM: use at most movers={processors(device) - 1}")
        self.a = torch.randn(m, k, device=device).to(dtype)
        self.b = torch.randn(k, n, device=device).to(dtype)
        self.out = torch.empty(m, n, dtype=dtype, device=device)
        self.source = torch.randn(self.blocks * BLOCK, device=device)
        self.target = torch.zeros_like(self.source)
        self.done = torch.zeros(1, dtype=torch.int32, device=device)
        self.moved = torch.zeros(movers, dtype=torch.int32, device=device)

    def launch(self, pause=0):
        """Start the kernel; ``done`` must be 0. A pause below 0: movers leave at once."""
        from .traffic_kernels import beside

        s = self.settings
        cooperative = {"launch_cooperative_grid": True} if self.a.is_cuda else {}
        beside[(self.workers + self.movers,)](
            self.a, self.b, self.out, self.source, self.target, self.done, self.moved,
            self.workers, self.movers, self.blocks, pause, *self.shape, KIND=self.kind, BLOCK=BLOCK,
            BM=s.tile[0], BN=s.tile[1], BK=s.tile[2], PRECISION="ieee", num_warps=s.warps,
            num_stages=s.stages, enable_fp_fusion=True, **cooperative)

    def measure(self, pause):
        """(seconds, bytes moved) of one run."""
        self.done.zero_()
        seconds = timed(lambda: self.launch(pause))
        return seconds, int(self.moved.sum()) * BLOCK * 4


def contention(m=8192, n=4256, k=2128, movers=16, kind="update", pauses=PAUSES, repeats=20,
               **options):
    """How much longer a GEMM takes beside traffic of several rates: list of `Contention`.

    The default GEMM is T-NLG's FC-2 on 8 GPUs (tokens recalled). pauses: see `Beside.launch`, more
    is less traffic. Runs with and without traffic take turns; options are those of `Beside`.
    """
    whole_number("repeats", repeats)
    bench = Beside(m, n, k, movers, kind, **options)
    rows = []
    for pause in pauses:
        whole_number("pause", pause, 0)
        pairs = [(bench.measure(-1), bench.measure(pause)) for _ in range(repeats + 3)][3:]
        rows.append(Contention(
            kind, pause, median(moved / s for _, (s, moved) in pairs),
            median(s for (s, _), _ in pairs), median(s for _, (s, _) in pairs),
            median(loaded / alone for (alone, _), (loaded, _) in pairs)))
    return rows


def bandwidths(buffer=1 << 30, repeats=20, device="cuda"):
    """{kind: bytes of the buffer passed in a second} of a GPU that does nothing else.

    "copy" and "update" count a byte once that is read and then stored, or added.
    """
    whole_number("repeats", repeats)
    blocks = whole_number("buffer", buffer, 4 * BLOCK) // (4 * BLOCK)
    check_device(device)
    from .traffic_kernels import stream

    source, target = torch.randn(2, blocks * BLOCK, device=device)
    grid = (min(blocks, 4 * processors(device)),)
    found = {}
    for kind in KINDS:
        run = lambda kind=kind: stream[grid](source, target, blocks, BLOCK=BLOCK, KIND=kind,
                                             num_warps=8, enable_fp_fusion=True)
        times = [timed(run) for _ in range(repeats + 3)][3:]
        found[kind] = blocks * BLOCK * 4 / median(times)
    return found


def machine_fields(found, dram):
    """Fields of the simulator's `Machine` from `bandwidths`: efficiency, mixed, update.

    dram : nominal bytes/s of the memory. Derived from the simulator's own memory: a stream alone
    gets efficiency * dram; a copy passes 2 bytes a byte and a read with an update 1 + update, both
    at mixed * dram.

    >>> machine_fields({"read": 9e11, "copy": 4e11, "update": 3e11}, dram=1e12)
    {'efficiency': 0.9, 'mixed': 0.8, 'update': 1.6666666666666665}
    """
    number("dram", dram, 1e9, 1e15)
    if found["read"] > dram or 2 * found["copy"] > dram:
        raise ValueError(f"reads of {found['read']:.3g} and copies of {found['copy']:.3g} bytes/s "
                         f"pass more than dram={dram:.3g}: its nominal rate is at least "
                         f"{max(found['read'], 2 * found['copy']):.3g}")
    return {"efficiency": found["read"] / dram, "mixed": 2 * found["copy"] / dram,
            "update": 2 * found["copy"] / found["update"] - 1}


def processors(device):
    """SMs of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def timed(function):
    """Seconds between CUDA events around a call; waits for it."""
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3

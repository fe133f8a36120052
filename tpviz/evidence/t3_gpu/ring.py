"""Partial products of a ring of ranks, reduce-scattered: after the GEMM, by chunks, or by tiles.

    a, b = ...                                   # (4, m, k) and (4, k, n), float16, on the GPU
    ring = VirtualRing(a, b, Settings(movers=1))
    ring.run("tile")                             # (4, m / 4, n) float32: rank r's chunk of the sum

Virtual ranks are buffers of one GPU: each has its own partial product, counters and share of the
SMs, and all share the memory. So contention for memory is real and the link is not: "sending" is
a copy at memory speed. `symmetric` has the same ring over several processes.

Ran on one H200 (docs/gpu); no other time in this package's documentation was measured on a GPU.
"""

import math
from collections.abc import Sequence
from types import ModuleType

import torch

from tpviz.core.checks import one_of

from .settings import MODES, Settings, ring_of, sizes

PATIENCE = 1 << 26
"""Polls of a tile's counter after which a mover gives up: about a minute (0.5 to 1 µs each,
estimated)."""
DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def kernels() -> ModuleType:
    """The module of Triton kernels; ``RuntimeError`` in words where there is no Triton."""
    try:
        from . import kernels as found
    except ImportError as error:
        raise RuntimeError(
            "T3 on a GPU needs Triton, which comes with torch for CUDA; this torch is "
            f"{torch.__version__} ({error}). Without a GPU tv.T3 and the simulator do the same"
        ) from error
    return found


def check_device(device: torch.device | str) -> None:
    """``RuntimeError`` unless the kernels can run on this device."""
    cuda = torch.device(device).type == "cuda"
    if cuda and not torch.cuda.is_available():
        raise RuntimeError("T3 on a GPU needs a CUDA device, and torch sees none here")
    if cuda == kernels().INTERPRETED:
        have = "interpreted (TRITON_INTERPRET=1)" if cuda else "compiled"
        raise RuntimeError(
            f"the device is {device} and Triton's kernels are {have}: compiled ones "
            "need a CUDA device, interpreted ones the CPU"
        )


class GpuRing:
    """Launches for some neighbouring ranks of a ring whose buffers others have made.

    Parameters
    ----------
    a, b : (here, m, k) and (here, k, n), contiguous, of one 16-bit or 32-bit float type.
    sums, inbox, counts : for *every* rank of the ring the address of its (m, n) float32 sums and
        inbox (the same as sums where ``reduce="atomic"``), and of its int32 counters, one a tile.
    first : the rank of ``a[0]``.
    scope : "gpu", or "sys" where ranks are on several GPUs.
    """

    def __init__(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        sums: Sequence[int],
        inbox: Sequence[int],
        counts: Sequence[int],
        first: int = 0,
        settings: Settings | None = None,
        scope: str = "gpu",
    ):
        self.settings = settings or Settings()
        check_device(a.device)
        self.here, self.m, self.k, self.n = sizes(a.shape, b.shape)
        if a.dtype != b.dtype or a.dtype not in DTYPES:
            raise ValueError(
                f"a is {a.dtype} and b is {b.dtype}: both must be one of "
                f"{', '.join(map(str, DTYPES))}"
            )
        if a.dtype == torch.bfloat16 and not a.is_cuda:
            raise ValueError(
                "Triton's interpreter takes the bits of bfloat16 for whole numbers: "
                "use torch.float16 or torch.float32"
            )
        if any(start % 16 for table in (sums, inbox, counts) for start in table):
            raise ValueError("a rank's buffer starts at no multiple of 16 bytes; see `aligned`")
        self.ranks, self.first, self.scope = len(sums), first, scope
        self.chunk = ring_of(self.ranks, self.m)
        self.a, self.b = a.contiguous(), b.contiguous()
        self.tables = [torch.tensor(t, device=a.device) for t in (sums, inbox, counts)]
        self.tiles = self.settings.tiles(self.chunk, self.n)
        alone = not a.is_cuda  # the interpreter runs one program after another
        if alone and self.settings.movers and self.here > 1:
            raise ValueError(
                f"movers={self.settings.movers} wait for each other, and interpreted "
                "programs run one by one: use movers=0, or a process for each rank"
            )
        processors = (
            self.here * (2 + self.settings.movers)
            if alone
            else torch.cuda.get_device_properties(a.device).multi_processor_count
        )
        self.workers = self.settings.workers(self.here, processors)

    def check(self, counts: torch.Tensor) -> None:
        """``RuntimeError`` if a mover of this rank, with these counters, gave up; waits for it.

        It says so in a counter that is not used else: the rank's first chunk is counted elsewhere.
        """
        if int(counts[(self.first + 1) % self.ranks * self.tiles]):
            raise RuntimeError(
                f"rank {self.first}: a tile never had both its updates; the rank "
                f"{(self.first + 1) % self.ranks} above it does not run, or stopped"
            )

    def launch(self, begin: int = 0, end: int | None = None, fused: bool = True) -> None:
        """Start the kernel on tiles ``begin`` to ``end`` of each rank's order; returns at once."""
        s = self.settings
        movers = s.movers if fused else 0
        end = self.ranks * self.tiles if end is None else end
        cooperative = {"launch_cooperative_grid": True} if movers else {}
        with torch.cuda.device_of(self.a):
            kernels().ring[(self.here * (self.workers + movers),)](
                self.a,
                self.b,
                *self.tables,
                self.first,
                self.ranks,
                self.workers,
                begin,
                end,
                self.m,
                self.n,
                self.k,
                PATIENCE,
                HERE=self.here,
                MOVERS=movers,
                FUSED=fused,
                ATOMIC=s.reduce == "atomic",
                SCOPE=self.scope,
                **s.options,
                **cooperative,
            )


class VirtualRing(GpuRing):
    """A ring whose ranks are all buffers of one device.

    Parameters
    ----------
    a : (ranks, m, k) float16, bfloat16 or float32; rank r's slice in k of the input.
    b : (ranks, k, n); its slice of the weights.
    settings : `Settings`.

    Raises ``ValueError`` for sizes that do not fit, ``RuntimeError`` without Triton or a GPU.
    """

    def __init__(self, a: torch.Tensor, b: torch.Tensor, settings: Settings | None = None):
        settings = settings or Settings()
        ranks, m, _, n = sizes(a.shape, b.shape)
        tiles = settings.tiles(ring_of(ranks, m), n)
        self.sums, self.inbox = (aligned((ranks, m, n), torch.float32, a.device) for _ in range(2))
        self.counts = aligned((ranks, ranks * tiles), torch.int32, a.device)
        inbox = self.sums if settings.reduce == "atomic" else self.inbox
        super().__init__(
            a, b, addresses(self.sums), addresses(inbox), addresses(self.counts), settings=settings
        )

    def clear(self) -> None:
        """Zero what tile mode adds to; T3 takes this to be done off the critical path."""
        self.counts.zero_()
        if self.settings.reduce == "atomic":
            self.sums.zero_()

    def run(self, mode: str = "tile", clear: bool = True) -> torch.Tensor:
        """Compute and reduce-scatter; (ranks, m / ranks, n) float32, a view until the next run.

        "sequential": the GEMM, then a ring reduce-scatter. "chunk": a GEMM a chunk, its hop on a
        side stream meanwhile. "tile": one kernel, tiles leave as they are done. Bits agree, but
        for subnormal numbers and the sign of zero where "tile" adds by atomics; see `Settings`.
        """
        one_of("mode", mode, MODES)
        if mode == "tile":
            if clear:
                self.clear()
            self.launch()
        elif mode == "chunk":
            self._by_chunks()
        else:
            self.launch(fused=False)
            self._reduce_scatter()
        rows = self.sums.view(self.ranks, self.ranks, self.chunk, self.n)
        return rows.diagonal().permute(2, 0, 1)

    def partials(self) -> torch.Tensor:
        """(ranks, m, n) float32: what each rank computes, not summed; a view until the next run."""
        self.launch(fused=False)
        return self.sums

    def _by_chunks(self):
        side = now = None
        if self.a.is_cuda:
            side, now = torch.cuda.Stream(self.a.device), torch.cuda.current_stream(self.a.device)
        for position in range(self.ranks):
            self.launch(position * self.tiles, (position + 1) * self.tiles, fused=False)
            if side and now:
                side.wait_stream(now)  # the chunks of this position are done
            with torch.cuda.stream(side):
                self._hop(position)
        if side and now:
            now.wait_stream(side)

    def _reduce_scatter(self):
        for position in range(self.ranks):
            self._hop(position)

    def _hop(self, position):
        """Every rank passes on the chunk at this position with what came for it; the last stays.

        A hop reads inboxes of this position and writes those of the next: none is both.
        """
        for rank in range(self.ranks):
            c = (rank + 1 + position) % self.ranks
            rows = slice(c * self.chunk, (c + 1) * self.chunk)
            own, came = self.sums[rank, rows], self.inbox[rank, rows]
            to = self.inbox[rank - 1, rows]
            if position == 0:
                to.copy_(own)
            else:
                torch.add(own, came, out=own if position == self.ranks - 1 else to)


def matmul_reduce_scatter(
    a: torch.Tensor, b: torch.Tensor, mode: str = "tile", settings: Settings | None = None
) -> torch.Tensor:
    """a @ b of every virtual rank, summed and scattered; the arguments of `VirtualRing`.

    Returns (ranks, m / ranks, n) float32, with the bits of `ring_sum` as `VirtualRing.run` says.
    """
    return VirtualRing(a, b, settings).run(mode).clone()


def ring_sum(partials: torch.Tensor) -> torch.Tensor:
    """The ring reduce-scatter of (ranks, m, n) partials, one addition after another (derived).

    Chunk c starts at rank c - 1 and goes down: ((p[c-1] + p[c-2]) + ...) + p[c], rank c's result.
    """
    ranks, m, n = partials.shape
    chunks = partials.view(ranks, ranks, ring_of(ranks, m), n)
    out = chunks.diagonal().permute(2, 0, 1).clone()
    for c in range(ranks):
        total = chunks[c - 1, c]
        for step in range(2, ranks + 1):
            total = total + chunks[c - step, c]
        out[c] = total
    return out


def aligned(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> torch.Tensor:
    """Zeros of which every ``x[i]`` starts at a multiple of 16 bytes, as the kernels take it."""
    size = math.prod(shape[1:])
    flat = torch.zeros((shape[0], -(-size // 4) * 4), dtype=dtype, device=device)
    return flat[:, :size].unflatten(1, shape[1:])


def addresses(buffers: torch.Tensor) -> list[int]:
    """Address of each rank's part of a stacked buffer."""
    return [part.data_ptr() for part in buffers]

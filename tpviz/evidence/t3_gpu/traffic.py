"""What memory traffic costs a GEMM that runs beside it, and what the memory does alone: measured.

    rows = contention(m=8192, n=4256, k=2128, movers=16)
    [(row.rate, row.slowdown) for row in rows]     # bytes/s moved beside it; GEMM time over alone
    rows = contention(m=32768, n=32768, k=64, kind="copy")     # a GEMM that the memory bounds
    Machine(dram=3.35e12, **machine_fields(bandwidths(), 3.35e12, rows))    # for the simulator

Movers are programs on SMs that the GEMM does not get in either case, so what the GEMM loses is
memory, not compute units. That is T3's premise (its DMA takes no unit), and unlike a copy engine a
mover can also add. An update here is an atomic in the L2 cache, not in the DRAM: the nearest that
NVIDIA's GPUs have to near-memory reduction. Needs a CUDA device; nothing was measured yet.
"""

from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any, NamedTuple, TypedDict

import torch

from tpviz.core.checks import number, one_of, whole_number
from tpviz.evidence.t3_hardware.machine import Machine

from .ring import check_device
from .settings import Settings

BLOCK = 8192
"""Float32 numbers of a block: 32 KB a mover at a time."""
MOST = 1.1
"""Of one memory that two streams may seem to have, by noise (chosen)."""
KINDS = ("read", "write", "copy", "update")
PAUSES = (1000, 300, 100, 30, 10, 3, 0)
DELAY = 10_000_000
"""Clocks for which the GPU is kept busy while a call is launched: some 5 ms (estimated)."""


class TrafficContention(NamedTuple):
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


class _Fields(TypedDict, total=False):
    efficiency: float
    update: float
    mixed: float


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

    def __init__(
        self,
        m: int,
        n: int,
        k: int,
        movers: int = 16,
        kind: str = "update",
        dtype: torch.dtype = torch.float16,
        buffer: int = 512 << 20,
        device: torch.device | str = "cuda",
        settings: Settings | None = None,
    ):
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
            raise ValueError(
                f"movers={movers} leave none of the GPU's {processors(device)} SMs to "
                f"the GEMM: use at most movers={processors(device) - 1}"
            )
        self.a = torch.randn(m, k, device=device).to(dtype)
        self.b = torch.randn(k, n, device=device).to(dtype)
        self.out = torch.empty(m, n, dtype=dtype, device=device)
        self.source = torch.randn(self.blocks * BLOCK, device=device)
        self.target = torch.zeros_like(self.source)
        self.done = torch.zeros(1, dtype=torch.int32, device=device)
        self.moved = torch.zeros(movers, dtype=torch.int32, device=device)

    def launch(self, pause: int = 0) -> None:
        """Start the kernel; ``done`` must be 0. A pause below 0: movers leave at once."""
        from .traffic_kernels import beside

        s = self.settings
        cooperative = {"launch_cooperative_grid": True} if self.a.is_cuda else {}
        beside[(self.workers + self.movers,)](  # pyright: ignore[reportIndexIssue]
            self.a,
            self.b,
            self.out,
            self.source,
            self.target,
            self.done,
            self.moved,
            self.workers,
            self.movers,
            self.blocks,
            pause,
            *self.shape,
            KIND=self.kind,
            BLOCK=BLOCK,
            **s.options,
            **cooperative,
        )

    def measure(self, pause: int) -> tuple[float, int]:
        """(seconds, bytes moved) of one run."""
        self.done.zero_()
        seconds = timed(lambda: self.launch(pause))
        return seconds, int(self.moved.sum()) * BLOCK * 4


def contention(
    m: int = 8192,
    n: int = 4256,
    k: int = 2128,
    movers: int = 16,
    kind: str = "update",
    pauses: Iterable[int] = PAUSES,
    repeats: int = 20,
    **options: Any,
) -> list[TrafficContention]:
    """How much longer a GEMM takes beside traffic of several rates: list of `TrafficContention`.

    The default GEMM is T-NLG's FC-2 on 8 GPUs (tokens recalled). pauses: see `Beside.launch`, more
    is less traffic. Runs with and without traffic take turns; options are those of `Beside`.
    """
    whole_number("repeats", repeats)
    bench = Beside(m, n, k, movers, kind, **options)
    rows = []
    for pause in pauses:
        whole_number("pause", pause, 0)
        pairs = [(bench.measure(-1), bench.measure(pause)) for _ in range(repeats + 3)][3:]
        rows.append(
            TrafficContention(
                kind,
                pause,
                median(moved / s for _, (s, moved) in pairs),
                median(s for (s, _), _ in pairs),
                median(s for _, (s, _) in pairs),
                median(loaded / alone for (alone, _), (loaded, _) in pairs),
            )
        )
    return rows


def bandwidths(
    buffer: int = 1 << 30, repeats: int = 20, device: torch.device | str = "cuda"
) -> dict[str, float]:
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
        run = lambda kind=kind: stream[grid](  # pyright: ignore[reportIndexIssue]
            source, target, blocks, BLOCK=BLOCK, KIND=kind, num_warps=8, enable_fp_fusion=True
        )
        times = [timed(run) for _ in range(repeats + 3)][3:]
        found[kind] = blocks * BLOCK * 4 / median(times)
    return found


def machine_fields(
    found: Mapping[str, float], dram: float, rows: Iterable[TrafficContention] = ()
) -> _Fields:
    """Fields of the simulator's `Machine`: efficiency, update, and mixed if there are ``rows``.

    found : of `bandwidths`. dram : nominal bytes/s of the memory. rows : of `contention`, with a
    GEMM that the memory bounds (small k); the one with most traffic counts.

    Derived from the simulator's own memory. A stream alone gets efficiency * dram, and a read with
    an update passes 1 + update bytes a byte. With both streams queued all the time, in a second the
    GEMM gets 1 / slowdown of its seconds alone, the movers rate / found[kind] of theirs. The sum
    would be 1 if nothing were lost, and is mixed / efficiency.

    Raises ``ValueError`` for rates that no `Machine` has, and rows whose GEMM had memory to spare.

    >>> machine_fields({"read": 9e11, "update": 3e11}, 1e12)
    {'efficiency': 0.9, 'update': 2.0}
    >>> row = TrafficContention("update", 0, rate=9e10, alone=1e-3, seconds=2e-3, slowdown=2.0)
    >>> round(machine_fields({"read": 9e11, "update": 3e11}, 1e12, [row])["mixed"], 3)
    0.72
    """
    number("dram", dram, 1e9, 1e15)
    loaded = max(rows, key=lambda row: row.rate, default=None)
    for kind in ("read", "update", *([loaded.kind] if loaded else [])):
        number(f"found[{kind!r}]", found.get(kind), 1.0, 1e15)
    if found["read"] > dram:
        raise ValueError(
            f"reads of {found['read']:.3g} bytes/s pass more than dram={dram:.3g}: "
            f"its nominal rate is at least {found['read']:.3g}"
        )
    fields: _Fields = {
        "efficiency": found["read"] / dram,
        "update": found["read"] / found["update"] - 1,
    }
    if loaded:
        share = 1 / loaded.slowdown + loaded.rate / found[loaded.kind]
        if share > MOST:
            raise ValueError(
                f"the GEMM's {1 / loaded.slowdown:.3g} of its speed alone and the "
                f"movers' {share - 1 / loaded.slowdown:.3g} are more than one memory "
                "gives: the memory does not bound this GEMM; use a smaller k"
            )
        fields["mixed"] = fields["efficiency"] * min(share, 1.0)
    try:
        Machine(dram=dram, **fields)
    except ValueError as error:
        raise ValueError(
            f"these rates are those of no memory that the simulator has: {error}; "
            "measure again, or leave that field at its default"
        ) from None
    return fields


def processors(device: torch.device | str) -> int:
    """SMs of a GPU."""
    return torch.cuda.get_device_properties(device).multi_processor_count


def timed(function: Callable[[], object]) -> float:
    """Seconds of the GPU's work that a call starts, between CUDA events; waits for it.

    The GPU is kept busy before, so that all is queued when it begins: launching is not counted.
    """
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(DELAY)
    start.record()
    function()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3

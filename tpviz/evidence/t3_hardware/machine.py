"""The simulated GPU and the GEMM it runs: every input that is not sure is a named knob.

Each knob says where its value is from: "note", a published reading note of the paper; "recalled",
from memory of the paper, unconfirmed; "public", a published configuration of the simulator that the
paper extends; "derived"; "chosen", ours, of little effect or unknown; "fitted", ours: one of two
values, the one nearer to numbers of the paper (`tpviz.evidence.t3.sublayers.FITTED` says which).

Left out: a first arrival that stores, so that memory need not be zeroed (it is, off the critical
path); slots that wait where stores to a peer outrun the link (`SimResult.posted` says how far).

>>> Machine(cus=0)
Traceback (most recent call last):
ValueError: cus=0 is too small: the least that works is 1
"""

from dataclasses import dataclass, field, fields
from math import ceil, inf
from typing import NamedTuple, Self

from tpviz.core.checks import number, one_of, whole_number

POLICIES = {
    "round_robin": "communication and the GEMM in turn, byte for byte",
    "fifo": "whatever came first",
    "mca": "the GEMM first, communication when few entries are queued, or when its oldest "
    "request waits long: then until those that wait are young again",
}
"""{policy of the memory controller: what it serves}."""


def _knob(default, source, help, low=None, high=None, choices=None):
    whole = isinstance(default, int)
    return field(
        default=default,
        metadata={
            "source": source,
            "help": help,
            "low": low,
            "high": high,
            "choices": choices,
            "whole": whole,
        },
    )


@dataclass(frozen=True)
class Machine:
    """One GPU and its link: sizes in bytes, rates in bytes or FLOP per second, times in seconds.

    `Machine.knobs` lists what each field is and where its default is from. Raises ``ValueError``
    for a value out of bounds, with the nearest that works.
    """

    cus: int = _knob(80, "note", "compute units", 1, 1024)
    clock: float = _knob(1.4e9, "note", "clock of the compute units, 1/s", 1e6, 1e11)
    flops: float | None = _knob(
        None, "derived", "GEMM rate; None: cus x clock x 1024, 114.7e12", 1e6, 1e18
    )
    wgs_per_cu: int = _knob(2, "chosen", "workgroups that fit a compute unit at once", 1, 16)
    lockstep: bool = _knob(
        True,
        "note",
        "whether a wave begins when the one before is computed: the note sees reads at its begin, "
        "stores at its end",
        choices=(True, False),
    )
    slices: int = _knob(
        4,
        "chosen",
        "steps in which a workgroup reads its panels along k: it "
        "computes one while it reads the next",
        1,
        64,
    )
    llc: int = _knob(16 << 20, "note", "last-level cache", 0, 1 << 40)
    replacement: str = _knob(
        "nru",
        "fitted",
        "what the cache drops: a panel not recently used, or the least recently used",
        choices=("nru", "lru"),
    )
    dram: float = _knob(1e12, "note", "peak of the memory", 1e9, 1e15)
    efficiency: float = _knob(0.92, "derived", "of it, while one stream is served", 0.05, 1.0)
    mixed: float = _knob(
        0.5,
        "derived",
        "of it, while both streams are queued: then every 64 bytes, 2 clocks of a channel's bus, "
        "open a row, and 4 clocks lie between rows (RRD of public HBM timing at 1 GHz)",
        0.05,
        1.0,
    )
    update: float = _knob(2.0, "recalled", "cost of an update in memory, in plain writes", 1.0, 8.0)
    queue: int = _knob(64, "public", "entries of the memory's queue", 1, 4096)
    entry: int = _knob(2048, "derived", "bytes of an entry: 64 on each of 32 channels", 64, 1 << 20)
    policy: str = _knob(
        "round_robin", "recalled", "whom the memory serves in plain T3", choices=tuple(POLICIES)
    )
    thresholds: tuple[float, ...] = _knob(
        (5, 10, 30, inf),
        "recalled",
        "MCA: entries queued below which communication is let in, most memory-bound GEMM first",
    )
    intensities: tuple[float, ...] = _knob(
        (0.5, 0.25, 0.1),
        "chosen",
        "MCA: busy share of the memory in the first wave from which each threshold but the last "
        "holds",
    )
    starvation: float = _knob(
        1e-4,
        "chosen",
        "MCA: seconds after which a request goes first; "
        "a starved backlog is served until it is young again",
        0.0,
        1.0,
    )
    link: float = _knob(
        150e9, "fitted", "link, in each direction (the note: 150 GB/s bi-directional)", 1e6, 1e15
    )
    latency: float = _knob(500e-9, "note", "of the link", 0.0, 1.0)
    dma_buffer: int = _knob(
        1 << 30,
        "note",
        "bytes that the DMA engine has in flight, from the read to the delivery; its inside is not "
        "modelled in the paper, so no bound; less than link x latency keeps the link idle",
        1,
        1 << 40,
    )
    tracker_sets: int = _knob(256, "note", "sets of the tracker's table", 1, 1 << 20)
    tracker_records: int = _knob(8, "derived", "records of a set: 76 bytes hold about 8", 1, 1024)
    jitter: float = _knob(
        0.0, "chosen", "most seconds by which an arrival is late, at random", 0.0, 1.0
    )
    seed: int = _knob(0, "chosen", "of the jitter", 0, 1 << 31)

    def __post_init__(self):
        for f in fields(self):
            bounds, value = f.metadata, getattr(self, f.name)
            if bounds["choices"]:
                value = one_of(f.name, value, bounds["choices"])
            elif bounds["low"] is not None and not (value is None and f.default is None):
                check = whole_number if bounds["whole"] else number
                value = check(f.name, value, bounds["low"], bounds["high"])
            object.__setattr__(self, f.name, value)
        self._check_levels()

    def _check_levels(self):
        for name, high in (("intensities", 1.0), ("thresholds", inf)):
            values = getattr(self, name)
            if not isinstance(values, (tuple, list)):
                raise ValueError(f"{name}={values!r} must be several numbers")
            object.__setattr__(self, name, tuple(number(name, v, 0.0, high) for v in values))
        levels, entries = self.intensities, self.thresholds
        if len(entries) != len(levels) + 1:
            raise ValueError(
                f"{len(entries)} thresholds need {len(entries) - 1} intensities "
                f"between them, not {len(levels)}"
            )
        if sorted(levels, reverse=True) != list(levels) or min(entries) <= 0:
            raise ValueError(
                f"intensities={levels} must fall and thresholds={entries} be above "
                "0: use (0.5, 0.25, 0.1) and (5, 10, 30, inf)"
            )

    @property
    def rate(self) -> float:
        """FLOP/s of a GEMM on all compute units."""
        return self.cus * self.clock * 1024 if self.flops is None else self.flops

    @property
    def slots(self) -> int:
        """Workgroups that run at once: a wave."""
        return self.cus * self.wgs_per_cu

    def threshold(self, intensity: float) -> float:
        """MCA's entries for a GEMM whose first wave keeps the memory busy for this share."""
        for level, entries in zip(self.intensities, self.thresholds):
            if intensity >= level:
                return entries
        return self.thresholds[-1]

    def knobs(self) -> list[list[str]]:
        """Rows of strings, header first: each knob, its value, what it is, where that is from."""
        return [["knob", "value", "what", "source"]] + [
            [f.name, f"{getattr(self, f.name)}", f.metadata["help"], f.metadata["source"]]
            for f in fields(self)
        ]


class _Gemm(NamedTuple):
    m: int
    n: int
    k: int
    itemsize: int = 2
    tile: tuple[int, int] = (128, 128)
    wavefronts: int = 4


class Gemm(_Gemm):
    """A GEMM of each rank: m x k times k x n; its m x n output is summed over the ranks.

    tile : rows and columns that a workgroup computes; sizes need not divide. wavefronts : parts of
    a tile, cut along its rows, that are stored, tracked and sent by themselves: 1 is faster to
    simulate. itemsize : bytes of a number. Raises ``ValueError`` on sizes below 1.

    >>> Gemm(8192, 4256, 2128).tiles, Gemm(8192, 4256, 2128).bytes
    ((64, 34), 69730304)
    """

    __slots__ = ()

    def __new__(
        cls,
        m: int,
        n: int,
        k: int,
        itemsize: int = 2,
        tile: tuple[int, int] = (128, 128),
        wavefronts: int = 4,
    ) -> Self:
        """Checked sizes."""
        m, n, k = (whole_number(name, size) for name, size in (("m", m), ("n", n), ("k", k)))
        rows, columns = (whole_number("tile", side) for side in _pair(tile))
        wavefronts = whole_number("wavefronts", wavefronts, 1, rows)
        return super().__new__(
            cls, m, n, k, whole_number("itemsize", itemsize, 1, 16), (rows, columns), wavefronts
        )

    @property
    def tiles(self) -> tuple[int, int]:
        """Tiles down and across the output."""
        return ceil(self.m / self.tile[0]), ceil(self.n / self.tile[1])

    @property
    def bytes(self) -> int:
        """Of the output: S in the formulas."""
        return self.m * self.n * self.itemsize

    @property
    def flops(self) -> int:
        """Of the whole GEMM."""
        return 2 * self.m * self.n * self.k


def _pair(tile):
    if not isinstance(tile, (tuple, list)) or len(tile) != 2:
        raise ValueError(f"tile={tile!r} must be two numbers, rows and columns: use (128, 128)")
    return tile

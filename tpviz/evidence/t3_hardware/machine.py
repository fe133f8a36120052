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
from tpviz.evidence.facts import facts, records

POLICIES = {
    "round_robin": "communication and the GEMM in turn, byte for byte",
    "fifo": "whatever came first",
    "mca": "the GEMM first, communication when few entries are queued, or when its oldest "
    "request waits long: then until those that wait are young again",
}
"""{policy of the memory controller: what it serves}."""
KNOBS = {row.pop("knob"): row for row in records(facts(__file__, "machine").knobs)}
"""{knob of `Machine`: its default, where that is from, what it is, and what it may be}."""


def _knob(name):
    return field(default=KNOBS[name]["default"], metadata=KNOBS[name])


@dataclass(frozen=True)
class Machine:
    """One GPU and its link: sizes in bytes, rates in bytes or FLOP per second, times in seconds.

    `Machine.knobs` lists what each field is and where its default is from. Raises ``ValueError``
    for a value out of bounds, with the nearest that works.
    """

    cus: int = _knob("cus")
    clock: float = _knob("clock")
    flops: float | None = _knob("flops")
    wgs_per_cu: int = _knob("wgs_per_cu")
    lockstep: bool = _knob("lockstep")
    slices: int = _knob("slices")
    llc: int = _knob("llc")
    replacement: str = _knob("replacement")
    dram: float = _knob("dram")
    efficiency: float = _knob("efficiency")
    mixed: float = _knob("mixed")
    update: float = _knob("update")
    queue: int = _knob("queue")
    entry: int = _knob("entry")
    policy: str = _knob("policy")
    thresholds: tuple[float, ...] = _knob("thresholds")
    intensities: tuple[float, ...] = _knob("intensities")
    starvation: float = _knob("starvation")
    link: float = _knob("link")
    latency: float = _knob("latency")
    dma_buffer: int = _knob("dma_buffer")
    tracker_sets: int = _knob("tracker_sets")
    tracker_records: int = _knob("tracker_records")
    jitter: float = _knob("jitter")
    seed: int = _knob("seed")

    def __post_init__(self):
        for f in fields(self):
            bounds, value = f.metadata, getattr(self, f.name)
            if bounds["choices"]:
                value = one_of(f.name, value, bounds["choices"])
            elif bounds["low"] is not None and not (value is None and f.default is None):
                check = whole_number if isinstance(f.default, int) else number
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

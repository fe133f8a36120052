"""How the kernels are launched, and which sizes they take. No torch, no Triton."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tpviz.core.checks import divides, one_of, whole_number

MODES = ("sequential", "chunk", "tile")
REDUCTIONS = ("atomic", "turn")


@dataclass(frozen=True)
class Settings:
    """One way to run the GEMM and its ring.

    Parameters
    ----------
    tile : rows, columns and depth of a GEMM tile; powers of two, 16 or more (Triton's dot).
    reduce : "atomic" adds updates to zeroed memory as they come; "turn" stores what arrives in an
        inbox, and whoever sends the tile on adds it. Sums are equal but for subnormal numbers,
        which float32 atomics on memory take for zero, and the sign of zero. "turn" reads more and
        needs an inbox as large as the sums; so do virtual ranks in modes other than tile.
    movers : programs a rank that do nothing but wait for finished tiles and move them, each on an
        SM that the GEMM does not get; 0 lets whoever completes a tile move it.
    programs : GEMM programs a rank; None shares out the GPU's SMs.
    warps, stages : warps a program, depth of its software pipeline.
    """

    tile: tuple[int, int, int] = (128, 128, 64)
    reduce: str = "atomic"
    movers: int = 0
    programs: int | None = None
    warps: int = 8
    stages: int = 3

    def __post_init__(self):
        one_of("reduce", self.reduce, REDUCTIONS)
        whole_number("movers", self.movers, 0)
        whole_number("stages", self.stages)
        if self.programs is not None:
            whole_number("programs", self.programs)
        if whole_number("warps", self.warps, 1, 32) & (self.warps - 1):
            raise ValueError(f"warps={self.warps} is no power of two: use {_near(self.warps)}")
        if not isinstance(self.tile, tuple | list) or len(self.tile) != 3:
            raise ValueError(f"tile={self.tile!r} must be rows, columns, depth: (128, 128, 64)")
        for name, size in zip(("rows", "columns", "depth"), self.tile):
            if whole_number(f"tile {name}", size, 16, 256) & (size - 1):
                raise ValueError(f"tile {name}={size} is no power of two: use {_near(size)}")

    def workers(self, here: int, processors: int) -> int:
        """GEMM programs a rank, ``here`` ranks on a GPU of ``processors`` SMs; checks that waiting
        programs cannot keep the ones they wait for off the GPU."""
        least = self.programs or 1
        if here * (least + self.movers) > processors and (self.movers or not self.programs):
            most = processors // (least + self.movers)
            other = f"at most {most} ranks" if most else f"movers={max(processors - least, 0)}"
            raise ValueError(
                f"{here} ranks of {least} GEMM programs and movers={self.movers} need "
                f"{here * (least + self.movers)} SMs at once, and the GPU has "
                f"{processors}: use {other}"
            )
        return self.programs or processors // here - self.movers

    @property
    def options(self) -> dict[str, Any]:
        """What every kernel with a GEMM is launched with."""
        tile = dict(zip(("BM", "BN", "BK"), self.tile))
        launch = {"num_warps": self.warps, "num_stages": self.stages, "enable_fp_fusion": True}
        return {**tile, "PRECISION": "ieee", **launch}

    def tiles(self, rows: int, columns: int) -> int:
        """Tiles of a chunk of so many rows and columns; ragged ones count."""
        return -(-rows // self.tile[0]) * -(-columns // self.tile[1])


def sizes(a: Sequence[int], b: Sequence[int]) -> tuple[int, int, int, int]:
    """(ranks, m, k, n) of a (ranks, m, k) @ b (ranks, k, n); ``ValueError`` if they do not fit."""
    if len(a) != 3 or len(b) != 3:
        raise ValueError(
            f"a has shape {tuple(a)}, b has {tuple(b)}: both are one matrix a rank, "
            "(ranks, m, k) and (ranks, k, n)"
        )
    if a[0] != b[0] or a[2] != b[1]:
        raise ValueError(
            f"a {tuple(a)} does not multiply b {tuple(b)}: b must be ({a[0]}, {a[2]}, n)"
        )
    for name, size in zip("mkn", (a[1], a[2], b[2])):
        whole_number(name, size)
    return a[0], a[1], a[2], b[2]


def ring_of(ranks: int, m: int) -> int:
    """Rows of a chunk of m rows over a ring; ``ValueError`` if there is no ring or no equal one."""
    whole_number("ranks", ranks, 2)
    divides("rows m", m, "ranks", ranks)
    return m // ranks


def _near(size):
    below = 1 << (size.bit_length() - 1)
    return f"{below} or {2 * below}"

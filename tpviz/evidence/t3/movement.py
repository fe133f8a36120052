"""``movement``: memory reads and writes of one GPU, chunk by chunk, fused or not.

Counted in chunks of S / N bytes (S the output, N ranks) by `tpviz.schemes.t3.paper.dram_chunks`.
The all-gather after it, N - 1 reads and as many writes, is the same. The ratio of reads, 2.5 for 8
ranks and 2.2 for 16, is what published notes on the paper give; the simulator's bytes must equal
these counts exactly.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpviz.core.charts import axis, bar, panel
from tpviz.core.checks import whole_number
from tpviz.core.tables import show_bytes
from tpviz.evidence.report import Report
from tpviz.evidence.t3_hardware import Gemm, Machine, simulate
from tpviz.schemes.t3.paper import dram_chunks

if TYPE_CHECKING:
    from tpviz.evidence.t3_hardware import SimResult

CONFIGS = {"sequential": "sequential", "t3_mca": "T3"}
KINDS = {
    "gemm": "GEMM's output, written",
    "incoming": "received, written",
    "read": "read, to send or to add",
    "sum": "last addition, written",
}
"""{what moves: words}."""
WRITTEN = ("gemm", "incoming", "sum")
INK = {
    "gemm": ("forward", ""),
    "incoming": ("axis0", "/"),
    "read": ("axis1", "\\"),
    "sum": ("backward", "x"),
}
"""{what moves: (ink, pattern)}."""
CLASSES = {
    "sequential": {"gemm": ("gemm_write",), "incoming": ("rs_write",), "read": ("rs_read",)},
    "t3_mca": {"gemm": ("update_local",), "incoming": ("update_incoming",), "read": ("dma_read",)},
}
"""{config: {what moves: classes that the simulator counts it as}}; the last sum's write is one of
"rs_write"."""


@dataclass(frozen=True, repr=False)
class Movement(Report):
    """The counts of one sublayer, and two simulated runs to compare with. runs : {config of
    `CONFIGS`: `tpviz.evidence.t3_hardware.SimResult`}."""

    gemm: Gemm
    ranks: int
    runs: "dict[str, SimResult]"

    def counts(self, config: str) -> list[dict[str, int]]:
        """Per position {what moves: chunks}."""
        return [dram_chunks(config, self.ranks, j) for j in range(self.ranks)]

    def total(self, config: str, *kinds: str) -> int:
        """Chunks in all; of all kinds if none is named."""
        return sum(row[kind] for row in self.counts(config) for kind in kinds or KINDS)

    @property
    def gathers(self) -> int:
        """Chunks that the all-gather reads; it writes as many."""
        return self.ranks - 1

    @property
    def fewer_reads(self) -> float:
        """Reads of the reduce-scatter, sequential over T3: (2N - 1) / (N - 2)."""
        return self.total("sequential", "read") / self.total("t3_mca", "read")

    @property
    def saved(self) -> float:
        """The fraction (0..1) of all traffic but the GEMM's reads that T3 saves."""
        one, two = (self.total(c) + 2 * self.gathers for c in CONFIGS)
        return 1 - two / one

    def simulated(self, config: str, kind: str) -> float:
        """Chunks that the simulator moved: its bytes over those of a chunk. The last addition's
        write counts as received."""
        run = self.runs[config]
        names = CLASSES[config].get(kind, ())
        return sum(run.dram[name] for name in names) * self.ranks / self.gemm.bytes

    @property
    def exact(self) -> bool:
        """Whether the simulator moved exactly that many bytes."""
        return all(
            self.simulated(config, kind)
            == self.total(config, kind, *["sum"] * (kind == "incoming"))
            for config in CONFIGS
            for kind in CLASSES[config]
        )

    @property
    def badges(self) -> list[str]:
        """Sources of the numbers."""
        return ["derived", "simulated: equal" if self.exact else "simulated: differs"]

    def drawing(self) -> dict[str, Any]:
        """Chunks read and written for each chunk of the output, in the order in which it goes."""
        panels = []
        for config, name in CONFIGS.items():
            counts, places = self.counts(config), list(range(1, self.ranks + 1))
            bars = [
                bar(words, places, [row[kind] for row in counts], *INK[kind])
                for kind, words in KINDS.items()
            ]
            title = f"{name}: {self.total(config)} chunks read and written"
            panels.append(panel(title, bars, axis("chunk, in the order in which it goes")))
        chunk = show_bytes(self.gemm.bytes // self.ranks)
        output = f"{self.gemm.m} x {self.gemm.n} output"
        return {
            "title": f"Memory of one GPU: {output}, {self.ranks} ranks, chunks of {chunk}",
            "panels": panels,
            "stack": True,
            "shared_y": True,
        }

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each kind, in chunks."""
        rows = [
            [words, *(str(self.total(config, kind)) for config in CONFIGS)]
            for kind, words in KINDS.items()
        ]
        both = [str(2 * self.gathers)] * 2
        reads = [show_bytes(run.dram["gemm_read"]) for run in self.runs.values()]
        return [
            ["in chunks (derived)", *CONFIGS.values()],
            *rows,
            ["all-gather, read and written", *both],
            ["GEMM's inputs, read (simulated, bytes)", *reads],
        ]

    def words(self) -> list[str]:
        """The counts."""
        lines = [f"Over {self.ranks} ranks, without the GEMM's inputs."]
        for config, name in CONFIGS.items():
            reads, writes = (self.total(config, *kinds) for kinds in (("read",), WRITTEN))
            lines.append(self.say("counts", name=name, reads=reads, writes=writes))
        return lines

    def notes(self) -> list[str]:
        """T3's savings, the simulator's agreement, and the unchanged traffic."""
        agree = "are these counts exactly" if self.exact else "DIFFER from these counts"
        return [self.say("savings", agree=agree), self.say("gathers")]


def movement(ranks: int = 8, gemm: Gemm | None = None, machine: Machine | None = None) -> Movement:
    """The `Movement` of a `Gemm` over ``ranks`` (3 to 64); by default one small one.

    Raises ``ValueError`` on sizes whose chunks are not alike: counts in chunks are for equal ones.
    """
    ranks = whole_number("ranks", ranks, 3, 64)
    gemm = Gemm(128 * ranks, 256, 256, wavefronts=1) if gemm is None else gemm
    machine = Machine(cus=8) if machine is None else machine
    return Movement(gemm, ranks, {c: simulate(gemm, ranks, machine, c) for c in CONFIGS})

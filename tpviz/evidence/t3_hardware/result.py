"""What a simulated run did: times, memory traffic, the tracker, every part of every tile."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tpviz.core.tables import html_table, show_bytes, show_seconds
from tpviz.evidence.facts import filled, notes

from .dram import CLASSES
from .machine import Gemm, Machine
from .maps import Remote

if TYPE_CHECKING:
    from tpviz.core.trace import Trace

    from .gpu import Gpu
    from .payload import Payload
    from .ring import RingPass
    from .tiling import Tiling


class Tiles(NamedTuple):
    """Arrays, one column for each wavefront's part of a tile; times (s) have one row for each GPU.

    tile, wave, chunk, row, column, bytes : where it is and how large, (parts,). position : in the
    rank's order of computing, (gpus, parts). start, computed : of its workgroup. stored : its own
    store is in memory. arrived : the last update from a peer came (the tracker may let it wait).
    second : all its updates are in memory. triggered : the DMA was. sent : its last byte left. nan
    where it never happens.
    """

    tile: np.ndarray
    wave: np.ndarray
    chunk: np.ndarray
    row: np.ndarray
    column: np.ndarray
    bytes: np.ndarray
    position: np.ndarray
    start: np.ndarray
    computed: np.ndarray
    stored: np.ndarray
    arrived: np.ndarray
    second: np.ndarray
    triggered: np.ndarray
    sent: np.ndarray


class Tracked(NamedTuple):
    """The tracker; each of peak, stalls and stalled of the GPU where it is largest. peak : records
    live at once. capacity : records that there are. stalls : updates that waited for a record;
    stalled : seconds they did, summed. updates : (gpus, parts) how many each part got. spilled :
    parts that went past a full table, since nothing moved any more; of all GPUs."""

    peak: int
    capacity: int
    stalls: int
    stalled: float
    updates: np.ndarray
    spilled: int


@dataclass(frozen=True, eq=False, repr=False)
class SimResult:
    """A simulated run. Seconds: ``seconds`` in all; ``gemm_end`` its last store, ``rs_end`` the
    reduce-scatter's (or other collective's) last update, ``ag_end`` the all-gather's last write.

    dram : {class of `dram.CLASSES`: bytes} of GPU 0, ``drams`` of each GPU simulated. link_bytes :
    that GPU 0 sent. posted : most bytes of stores straight to a peer (`maps.Remote`) that waited
    for links at once, on the GPU where it is largest. tracker : `Tracked`. tiles : `Tiles`.
    values : the result where values were given. Everything is simulated.
    """

    gemm: Gemm
    ranks: int
    machine: Machine
    config: str
    collective: str
    mode: str
    gemm_end: float
    rs_end: float
    ag_end: float
    drams: tuple[dict[str, int], ...]
    link_bytes: int
    posted: int
    tracker: Tracked
    tiles: Tiles
    logs: tuple[dict[str, list[Any]], ...]
    values: np.ndarray | None = None

    @property
    def seconds(self) -> float:
        """Of the whole: to the end of the all-gather, if one follows."""
        return self.ag_end

    @property
    def dram(self) -> dict[str, int]:
        """{class: bytes} of GPU 0."""
        return self.drams[0]

    def series(self, samples: int = 200, gpu: int = 0) -> dict[str, Any]:
        """What a GPU's memory, tracker and links hold over time: see `sampled.series`."""
        from .sampled import series

        return series(self, samples, gpu)

    def trace(self) -> "Trace":
        """A `Trace`: compute by chunk, links, badge "simulated". See `sampled.trace`."""
        from .sampled import trace

        return trace(self)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first."""
        ends = [
            ["GEMM ends", self.gemm_end],
            [f"{_words(self.collective)} ends", self.rs_end],
            ["all ends", self.ag_end],
        ]
        return [
            ["what (simulated)", "value"],
            *[[w, show_seconds(t)] for w, t in ends],
            *[[f"DRAM {name}", show_bytes(b)] for name, b in self.dram.items() if b],
            ["link, sent", show_bytes(self.link_bytes)],
            ["link, stores posted at the peak", show_bytes(self.posted)],
            ["tracker, records at the peak", f"{self.tracker.peak} of {self.tracker.capacity}"],
            ["tracker, updates that waited", f"{self.tracker.stalls}"],
            *[["tracker, parts past it", f"{self.tracker.spilled}"]] * (self.tracker.spilled > 0),
        ]

    def describe(self) -> str:
        """The run in words."""
        facts = {"collective": _words(self.collective), "total": sum(self.dram.values())}
        return filled(notes(__file__)["run"], it=self, **facts)

    def __repr__(self):
        g = self.gemm
        return (
            f"<Played {self.config} of {g.m}x{g.n}x{g.k} on {self.ranks} GPUs ({self.mode}): "
            f"{show_seconds(self.seconds)}, simulated>"
        )

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


def played(
    tiling: "Tiling",
    run: tuple[Machine, str, str, str],
    gpus: "Sequence[Gpu]",
    passes: "Sequence[Sequence[RingPass]]",
    ends: tuple[float, float, float],
    payload: "Payload | None" = None,
) -> SimResult:
    """A `SimResult` of GPUs that have run. run : machine, config, collective and mode. passes : per
    GPU, the passes of rings by themselves. ends : of the GEMM, the collective and the all-gather.
    """
    drams, logs = [], []
    for gpu, own in zip(gpus, passes):
        memories = {id(m): m for m in (gpu.memory, gpu.other, *(p.memory for p in own))}.values()
        drams.append({name: round(sum(m.bytes[name] for m in memories)) for name in CLASSES})
        logs.append(
            {
                "served": [row for m in memories for row in m.log],
                "sent": gpu.sent + [row for p in own for row in p.sent],
                "records": gpu.table.changes,
            }
        )
    tracked = [g.table for g in gpus]
    parts = _parts(tiling)
    updates = np.array([[t.counts.get(p, 0) for p in parts] for t in tracked])
    tracker = Tracked(
        max(t.peak for t in tracked),
        tracked[0].sets * tracked[0].records,
        max(t.stalls for t in tracked),
        max(g.stalled for g in gpus),
        updates,
        sum(t.spilled for t in tracked),
    )
    return SimResult(
        tiling.gemm,
        tiling.ranks,
        *run,
        *ends,
        tuple(drams),
        round(sum(row[3] for row in logs[0]["sent"])),
        max(map(_posted, gpus)),
        tracker,
        _tiles(tiling, gpus, parts),
        tuple(logs),
        payload and payload.result(),
    )


def _posted(gpu):
    """Most bytes of remote stores that wait at once; a store waits until its last byte has left."""
    chunk_of, waves = gpu.tiling.chunk_of, gpu.waves
    changes = []
    for asked, _, end, bytes, _, part in gpu.sent:
        if isinstance(gpu.rules[chunk_of[part // waves]], Remote):
            changes += (asked, bytes), (end, -bytes)
    return max(accumulate(change for _, change in sorted(changes)), default=0)


def _parts(tiling):
    waves = tiling.gemm.wavefronts
    return [t * waves + w for t in range(tiling.total) for w in range(len(tiling.sizes[t]))]


def _tiles(tiling, gpus, parts):
    parts = np.array(parts)
    tile, wave = np.divmod(parts, tiling.gemm.wavefronts)
    chunk = np.array(tiling.chunk_of)[tile]
    position = np.array([[g.position[c] for c in range(tiling.ranks)] for g in gpus])[:, chunk]
    sizes = np.array([b for each in tiling.sizes for b in each])
    times = {
        what: np.array([g.times[what] for g in gpus])[
            :, tile if what in ("start", "computed") else parts
        ]
        for what in gpus[0].times
    }
    return Tiles(
        tile,
        wave,
        chunk,
        np.array(tiling.rows)[tile],
        np.array(tiling.columns)[tile],
        sizes,
        position,
        **times,
    )


def _words(collective):
    return {
        "ring_rs": "ring reduce-scatter",
        "direct_rs": "direct reduce-scatter",
        "ring_ag": "ring all-gather",
        "all_to_all": "all-to-all",
    }[collective]

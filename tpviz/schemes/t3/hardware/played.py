"""What a simulated run did: times, memory traffic, the tracker, every part of every tile."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tpviz.cost import show_bytes, show_seconds
from tpviz.tables import html_table

from .dram import CLASSES
from .machine import Gemm, Machine


class Tiles(NamedTuple):
    """Arrays, one column for each wavefront's part of a tile; times (s) have one row for each GPU.

    tile, wave, chunk, row, column, bytes : where it is and how large, (parts,). position : in the
    rank's order of computing, (gpus, parts). start, computed : of its workgroup. stored : its own
    store is in memory. arrived : the last update from a peer reached the memory's queue. second :
    all its updates are in memory. triggered : the DMA was. sent : its last byte left. nan where it
    never happens.
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
    """The tracker, worst GPU. peak : records live at once. capacity : records that there are.
    stalls : updates that waited for a record; stalled : seconds they did, summed. updates : (gpus,
    parts) how many each part got."""

    peak: int
    capacity: int
    stalls: int
    stalled: float
    updates: np.ndarray


@dataclass(frozen=True, eq=False, repr=False)
class Played:
    """A simulated run. Seconds: ``seconds`` in all; ``gemm_end`` its last store, ``rs_end`` the
    reduce-scatter's (or other collective's) last update, ``ag_end`` the all-gather's last write.

    dram : {class of `dram.CLASSES`: bytes} of GPU 0, ``drams`` of each GPU simulated. link_bytes :
    that GPU 0 sent. tracker : `Tracked`. tiles : `Tiles`. values : the result where values were
    given. Everything is simulated.
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
    drams: tuple
    link_bytes: int
    tracker: Tracked
    tiles: Tiles
    logs: tuple
    values: np.ndarray | None = None

    @property
    def seconds(self):
        """Of the whole: to the end of the all-gather, if one follows."""
        return self.ag_end

    @property
    def dram(self):
        """{class: bytes} of GPU 0."""
        return self.drams[0]

    def series(self, samples=200, gpu=0):
        """What a GPU's memory, tracker and links hold over time: see `sampled.series`."""
        from .sampled import series

        return series(self, samples, gpu)

    def trace(self):
        """A `Trace`: compute by chunk, links, badge "simulated". See `sampled.trace`."""
        from .sampled import trace

        return trace(self)

    def to_table(self):
        """Rows of strings, header first."""
        ends = [["GEMM ends", self.gemm_end], [f"{_words(self.collective)} ends", self.rs_end],
                ["all ends", self.ag_end]]
        return [["what (simulated)", "value"], *[[w, show_seconds(t)] for w, t in ends],
                *[[f"DRAM {name}", show_bytes(b)] for name, b in self.dram.items() if b],
                ["link, sent", show_bytes(self.link_bytes)],
                ["tracker, records at the peak",
                 f"{self.tracker.peak} of {self.tracker.capacity}"],
                ["tracker, updates that waited", f"{self.tracker.stalls}"]]

    def describe(self):
        """The run in words."""
        total = sum(self.dram.values())
        return (f"{self.config} of a {self.gemm.m} x {self.gemm.n} x {self.gemm.k} GEMM with "
                f"{_words(self.collective)} over {self.ranks} GPUs ({self.mode}), simulated: "
                f"GEMM until {show_seconds(self.gemm_end)}, collective until "
                f"{show_seconds(self.rs_end)}, all until {show_seconds(self.ag_end)}. A GPU moves "
                f"{show_bytes(total)} in memory and sends {show_bytes(self.link_bytes)}. The "
                f"tracker holds {self.tracker.peak} of {self.tracker.capacity} records at its "
                f"peak; {self.tracker.stalls} updates waited for one.")

    def __repr__(self):
        g = self.gemm
        return (f"<Played {self.config} of {g.m}x{g.n}x{g.k} on {self.ranks} GPUs ({self.mode}): "
                f"{show_seconds(self.seconds)}, simulated>")

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


def played(tiling, machine, config, collective, mode, gpus, passes, gemm_end, rs_end, ag_end,
           payload=None):
    """A `Played` of GPUs that have run; ``passes`` were each run once, for all of them."""
    drams = []
    for gpu in gpus:
        memories = {id(m): m for m in (gpu.memory, gpu.other, *(p.memory for p in passes))}
        drams.append({name: round(sum(m.bytes[name] for m in memories.values()))
                      for name in CLASSES})
    passed = [row for p in passes for row in p.sent]
    logs = tuple({"served": [row for m in {id(m): m for m in (
        gpu.memory, gpu.other, *(p.memory for p in passes))}.values() for row in m.log],
        "sent": gpu.sent + passed, "records": gpu.table.changes} for gpu in gpus)
    tracked = [g.table for g in gpus]
    parts = _parts(tiling)
    updates = np.array([[t.counts.get(p, 0) for p in parts] for t in tracked])
    tracker = Tracked(max(t.peak for t in tracked), tracked[0].sets * tracked[0].records,
                      max(t.stalls for t in tracked), max(g.stalled for g in gpus), updates)
    return Played(tiling.gemm, tiling.ranks, machine, config, collective, mode, gemm_end, rs_end,
                  ag_end, tuple(drams), round(sum(row[3] for row in logs[0]["sent"])), tracker,
                  _tiles(tiling, gpus, parts), logs, payload and payload.result())


def _parts(tiling):
    waves = tiling.gemm.wavefronts
    return [t * waves + w for t in range(tiling.total) for w in range(len(tiling.sizes[t]))]


def _tiles(tiling, gpus, parts):
    parts = np.array(parts)
    tile, wave = np.divmod(parts, tiling.gemm.wavefronts)
    chunk = np.array(tiling.chunk_of)[tile]
    position = np.array([[g.position[c] for c in range(tiling.ranks)] for g in gpus])[:, chunk]
    sizes = np.array([b for each in tiling.sizes for b in each])
    times = {what: np.array([g.times[what] for g in gpus])[
        :, tile if what in ("start", "computed") else parts] for what in gpus[0].times}
    return Tiles(tile, wave, chunk, np.array(tiling.rows)[tile], np.array(tiling.columns)[tile],
                 sizes, position, **times)


def _words(collective):
    return {"ring_rs": "ring reduce-scatter", "direct_rs": "direct reduce-scatter",
            "ring_ag": "ring all-gather", "all_to_all": "all-to-all"}[collective]

"""A simulated run over time: samples for drawing, and a `Trace` for whatever reads traces."""

from typing import TYPE_CHECKING, Any

import numpy as np

from tpviz.core.checks import whole_number
from tpviz.core.trace import Event, Trace

from .dram import COMM

if TYPE_CHECKING:
    from .result import SimResult


def series(run: "SimResult", samples: int = 200, gpu: int = 0) -> dict[str, Any]:
    """{what: array of ``samples``} of one GPU, over the whole run.

    time : s, the middles of equal intervals of length ``width``. gemm_queue, comm_queue : bytes
    asked of the memory and not served yet, by stream, at that time. tracker : live records at that
    time. gemm_rate, comm_rate : bytes served per second within the interval. link : share of the
    interval in which a link sends (links that run side by side add up).
    """
    samples = whole_number("samples", samples, 2, 100_000)
    gpu = whole_number("gpu", gpu, 0, len(run.logs) - 1)
    log = run.logs[gpu]
    edges = np.linspace(0.0, run.seconds or 1e-9, samples + 1)
    time, width = (edges[1:] + edges[:-1]) / 2, edges[1] - edges[0]
    found = {"time": time, "width": width}
    served = log["served"]
    stream = np.array([row[4] == COMM for row in served], bool)
    asked, done, size = (np.array([row[i] for row in served], float) for i in (1, 2, 3))
    for name, mine in (("gemm", ~stream), ("comm", stream)):
        came, went = _steps(asked[mine], size[mine], time), _steps(done[mine], size[mine], time)
        found[f"{name}_queue"] = np.maximum(came - went, 0.0)
        found[f"{name}_rate"] = np.diff(_steps(done[mine], size[mine], edges)) / width
    changes = np.array(log["records"], float).reshape(-1, 2)
    found["tracker"] = _steps(changes[:, 0], changes[:, 1], time)
    sent = np.array([row[1:3] for row in log["sent"]], float).reshape(-1, 2)
    found["link"] = np.diff(_covered(sent, edges)) / width
    return found


def _steps(times, amounts, at):
    """The sum of the amounts whose time has come, at each of ``at``."""
    order = np.argsort(times, kind="stable")
    total = np.concatenate([[0.0], np.cumsum(amounts[order])])
    return total[np.searchsorted(times[order], at, side="right")]


def _covered(spans, at):
    """Seconds of the spans that lie before each of ``at``."""
    starts, ends = np.sort(spans[:, 0]), np.sort(spans[:, 1])
    done = [np.concatenate([[0.0], np.cumsum(x)]) for x in (starts, ends)]
    begun, over = (np.searchsorted(x, at, side="right") for x in (starts, ends))
    # each span begun gives (at - start), each one over takes back (at - end)
    return (begun - over) * at - done[0][begun] + done[1][over]


def trace(run: "SimResult") -> Trace:
    """A `Trace` of all GPUs simulated: on lane "compute" the GEMM by chunk, on "comm/link" what the
    links send of each chunk, and the all-gather; on a lane a chunk begins where the one before ends
    at the earliest.
    """
    events = []
    for rank in range(len(run.logs)):
        events += _computed(run, rank)
        events += _sent(run, rank)
        events.append(
            Event(rank=rank, lane="step", kind="step", name="sublayer", step=0, end=run.seconds)
        )
    meta = {
        "badge": "simulated",
        "world_size": run.ranks,
        "device": "simulated GPU",
        "strategy": f"T3 hardware, {run.config}, {run.collective}, {run.mode}",
        "workload": f"GEMM {run.gemm.m} x {run.gemm.n} x {run.gemm.k}",
    }
    return Trace.from_events(events, meta)


def _computed(run, rank):
    tiles = run.tiles
    spans = {}
    for position in np.unique(tiles.position[rank]):
        mine = (tiles.position[rank] == position) & ~np.isnan(tiles.computed[rank])
        if mine.any():
            share = tiles.bytes[mine].sum() / run.gemm.bytes
            spans[int(position)] = (
                tiles.start[rank][mine].min(),
                tiles.computed[rank][mine].max(),
                int(tiles.chunk[mine][0]),
                round(run.gemm.flops * share),
            )
    end = 0.0
    for start, computed, chunk, flops in spans.values():
        start, end = max(start, end), max(computed, end)
        what = {"lane": "compute", "kind": "compute", "name": "gemm", "flops": flops}
        yield _event(rank, chunk, start, end, **what)


def _sent(run, rank):
    tiles, waves = run.tiles, run.gemm.wavefronts
    chunk_of = dict(zip((tiles.tile * waves + tiles.wave).tolist(), tiles.chunk.tolist()))
    spans = {}
    for _, start, end, bytes, _, part in sorted(run.logs[rank]["sent"]):
        name = run.collective if start < max(run.rs_end, run.gemm_end) else "all_gather"
        key = name, chunk_of.get(part, -1)
        first, last, size = spans.get(key, (start, end, 0))
        spans[key] = min(first, start), max(last, end), size + bytes
    over = 0.0
    for (name, chunk), (start, end, size) in sorted(spans.items(), key=lambda item: item[1]):
        start, over = max(start, over), max(end, over)
        what = {"lane": "comm/link", "kind": "comm", "name": name, "axis": "link"}
        sizes = {"bytes": round(size), "wire_bytes": float(size)}
        yield _event(rank, chunk, start, over, **what, **sizes)


def _event(rank: int, chunk: int, start: float, end: float, **what: Any):
    span = {"start": float(start), "end": float(end)}
    return Event(rank=rank, chunk=chunk, step=0, **span, **what)

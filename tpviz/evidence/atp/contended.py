"""``contention``: how much longer a GEMM takes on this machine while a collective is in flight."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from tpviz.core.charts import axis, panel, points
from tpviz.core.checks import one_of, whole_number
from tpviz.core.tables import show_seconds
from tpviz.evidence.facts import facts
from tpviz.evidence.report import Report
from tpviz.ranks.devices import badge
from tpviz.ranks.launch import launch
from tpviz.ranks.most import check_world_size

A100 = facts(__file__).a100
AUTHORS = "{} to {}".format(*A100["kappa"])
"""Range of kappa on the authors' GPUs."""
DTYPES = ("float32", "float64", "bfloat16")
SIZES = {"cpu": 1024, "cuda": 4096}
"""On a CPU long enough to span several of the system's time slices: a shorter GEMM is often over
before the thread that moves the bytes gets a core, and seems not to be slowed."""
PAYLOADS = {"cpu": 2**24, "cuda": 2**26}


@dataclass(frozen=True, eq=False, repr=False)
class Contention(Report):
    """Pairs of the same GEMM on real ranks, alone and under all-reduces.

    alone, under : arrays (ranks, repeats), seconds. in_flight : share of the GEMMs at whose end
    the all-reduces were still in flight. payload : bytes of each, ``collectives`` of them queued.
    """

    alone: np.ndarray
    under: np.ndarray
    in_flight: float
    size: int
    dtype: str
    payload: int
    collectives: int
    machine: str
    badge: str

    @property
    def ratios(self) -> np.ndarray:
        """Under / alone of each pair, flat."""
        return (self.under / self.alone).ravel()

    @property
    def ratio(self) -> float:
        """Their median, as measured; noise can bring it below 1."""
        return float(np.median(self.ratios))

    @property
    def kappa(self) -> float:
        """The median, 1 or more: for T(C) of `tpviz.schemes.atp.chunks` and `chunk_curve`."""
        return max(1.0, self.ratio)

    @property
    def spread(self) -> tuple[float, float]:
        """(lower, upper) quartile of the ratios."""
        return tuple(np.quantile(self.ratios, (0.25, 0.75)).tolist())

    @property
    def badges(self) -> tuple[str, ...]:
        """Sources of the numbers."""
        return (self.badge,)

    def drawing(self) -> dict[str, Any]:
        """A row for this machine, every pair with median and quartiles, and one for the authors'
        A100s; the axis begins at no slowdown."""
        ratios, (low, high), here = self.ratios.tolist(), self.spread, self.machine
        error = {
            "type": "data",
            "symmetric": False,
            "array": [high - self.ratio],
            "arrayminus": [self.ratio - low],
            "color": "ink:axis0",
            "thickness": 3,
        }
        quartiles = points(
            "median, quartiles", [self.ratio], [here], "axis0", "diamond", 13, error_x=error
        )
        theirs = points(
            A100["from"], A100["kappa"], [A100["name"]] * 2, "forward", "circle-open", 11
        )
        theirs |= {"mode": "lines+markers"}
        theirs |= {"line": {"color": "ink:forward", "dash": "dot", "width": 3}}
        pairs = points(
            "one pair of GEMMs", ratios, [here] * len(ratios), "other", "line-ns-open", 22
        )
        x = axis("kappa: time during a collective / time alone")
        x["range"] = [min(0.9, *ratios) - 0.05, max(*ratios, *A100["kappa"]) * 1.05]
        y = {"type": "category", "autorange": "reversed", "categoryarray": [here, A100["name"]]}
        return {
            "title": "Slowdown of a GEMM during a collective",
            "panels": [panel("", [pairs, quartiles, theirs], x, y)],
        }

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first."""
        low, high = self.spread
        alone, under = (show_seconds(float(np.median(t))) for t in (self.alone, self.under))
        return [
            ["where", "kappa", "range", "GEMM alone", "during a collective", "from"],
            [
                self.machine,
                f"{self.ratio:.2f}",
                f"{low:.2f} to {high:.2f} (quartiles)",
                alone,
                under,
                f"measured, {self.badge}",
            ],
            [A100["name"], "", AUTHORS, A100["alone"], A100["during"], A100["from"]],
        ]

    def words(self) -> list[str]:
        """The measurement."""
        return [self.say("slowdown")]

    def notes(self) -> list[str]:
        """The authors' range, and the limits of ours."""
        found = [self.say("authors", range=AUTHORS, source=A100["from"]), self.say("emulated")]
        return found + [self.say("too short")] * (self.in_flight < 0.9)


def contention(
    world_size: int = 2,
    *,
    size: int | None = None,
    dtype: str = "float32",
    payload: int | None = None,
    repeats: int = 15,
    device: str | None = None,
    timeout: float = 120,
    progress: Callable[[int, int, str], object] | bool | None = None,
) -> Contention:
    """The `Contention` of this machine: pairs of a GEMM alone and one under async all-reduces.

    Parameters
    ----------
    size, dtype : of the square GEMM; 1024, on GPUs 4096, when left out.
    payload : bytes of an all-reduce; so many are queued that they outlast the GEMM. 16 MiB, on GPUs
        64 MiB, when left out.
    repeats : pairs on each rank, after two that do not count.
    device, timeout (s), progress : as `tpviz.launch` takes them.

    Raises ``ValueError`` before any rank starts if something does not fit.
    """
    world_size = check_world_size(whole_number("world_size", world_size, 2))
    size = size if size is None else whole_number("size", size)
    payload = payload if payload is None else whole_number("payload", payload, 4)
    repeats, dtype = whole_number("repeats", repeats), one_of("dtype", dtype, DTYPES)
    options = {"device": device, "timeout": timeout, "progress": progress}
    asked = size, dtype, payload, repeats
    ranks = launch(_time_rank, *asked, world_size=world_size, **options)
    alone, under = (np.array([rank[name] for rank in ranks]) for name in ("alone", "under"))
    in_flight = float(np.mean([rank["in_flight"] for rank in ranks]))
    return Contention(**{**ranks[0], "alone": alone, "under": under, "in_flight": in_flight})


def _time_rank(size, dtype, payload, repeats):
    """One rank's pairs, and what it runs on."""
    device = os.environ.get("TPVIZ_DEVICE", "cpu")
    size, payload = size or SIZES[device], payload or PAYLOADS[device]
    a = torch.randn(size, size, device=device).to(getattr(torch, dtype))
    b, out = a.clone(), torch.empty_like(a)
    data = torch.zeros(-(-payload // 4), device=device)
    gemm = lambda: torch.mm(a, b, out=out)
    count = _enough(gemm, data, device)
    alone, under, in_flight = [], [], []
    for number in range(2 + repeats):
        _together(device)
        single = _lasts(gemm, device)
        _together(device)
        works = [dist.all_reduce(data, async_op=True) for _ in range(count)]
        beside = _lasts(gemm, device)
        going = not works[-1].is_completed()  # pyright: ignore[reportOptionalMemberAccess]
        for work in works:
            work.wait()  # pyright: ignore[reportOptionalMemberAccess]
        if number >= 2:
            alone.append(single)
            under.append(beside)
            in_flight.append(going)
    cores = len(os.sched_getaffinity(0))
    what = torch.cuda.get_device_name() if device == "cuda" else f"{cores} cores"
    return {
        "alone": alone,
        "under": under,
        "in_flight": np.mean(in_flight),
        "size": size,
        "dtype": dtype,
        "payload": 4 * data.numel(),
        "collectives": count,
        "badge": badge(device),
        "machine": f"{what}, {dist.get_world_size()} ranks",
    }


def _enough(gemm, data, device):
    """How many all-reduces outlast a GEMM three times over; the same on every rank."""
    gemm()
    dist.all_reduce(data)
    _together(device)
    longest = max(_lasts(gemm, device) for _ in range(3))
    _together(device)
    start = time.perf_counter()
    for _ in range(3):
        dist.all_reduce(data)
    _together(device)
    each = (time.perf_counter() - start) / 3
    count = torch.tensor([3 * longest / each], device=data.device)
    dist.all_reduce(count, op=dist.ReduceOp.MAX)
    return max(1, int(np.ceil(count.item())))


def _together(device):
    """All ranks, with nothing of theirs in flight."""
    if device == "cuda":
        torch.cuda.synchronize()
    dist.barrier()


def _lasts(gemm, device):
    """Seconds of one GEMM; on a GPU by its own stream's clock."""
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        gemm()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1e3
    start = time.perf_counter()
    gemm()
    return time.perf_counter() - start

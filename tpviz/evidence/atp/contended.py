"""``contention``: how much longer a GEMM takes on this machine while a collective is in flight."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tpviz.core.charts import axis, panel, points
from tpviz.core.checks import one_of, whole_number
from tpviz.core.tables import show_seconds
from tpviz.evidence.facts import facts
from tpviz.evidence.report import Report
from tpviz.ranks.most import check_world_size

A100 = facts(__file__).a100
AUTHORS = "{} to {}".format(*A100["kappa"])
"""Range of kappa on the authors' GPUs."""
DTYPES = ("float32", "float64", "bfloat16")


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
    from tpviz.ranks.launch import launch

    from .contended_ranks import time_rank

    options = {"device": device, "timeout": timeout, "progress": progress}
    asked = size, dtype, payload, repeats
    ranks = launch(time_rank, *asked, world_size=world_size, **options)
    alone, under = (np.array([rank[name] for rank in ranks]) for name in ("alone", "under"))
    in_flight = float(np.mean([rank["in_flight"] for rank in ranks]))
    return Contention(**{**ranks[0], "alone": alone, "under": under, "in_flight": in_flight})

"""``paying``: when fusing pays: speedup of a sublayer by the length of its GEMM.

By rates alone that is `tpviz.schemes.t3.paper.ideal_speedup`: 1.5 is the most, where both take
equally long.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from tpviz.core.charts import axis, line, panel
from tpviz.core.checks import whole_number
from tpviz.core.tables import show_seconds
from tpviz.evidence.report import Report
from tpviz.evidence.t3_hardware import Gemm, Machine
from tpviz.evidence.t3_hardware.closed_form import gemm_over_ring
from tpviz.evidence.t3_hardware.small_gpu import SMALL_GPU
from tpviz.schemes.t3.paper import ideal_speedup

from .sublayers import STYLES, simulated_sublayer

CONFIGS = ("t3", "t3_mca", "ideal")
INNER = (128, 256, 512, 768, 1024, 1536, 2048, 3072)


class PayingPoint(NamedTuple):
    """One inner dim: its x, and {config, "sequential" too: seconds}."""

    k: int
    x: float
    seconds: dict[str, float]

    def speedup(self, config: str) -> float:
        """Over sequential."""
        return self.seconds["sequential"] / self.seconds[config]


@dataclass(frozen=True, repr=False)
class Paying(Report):
    """The points of one output on one machine."""

    m: int
    n: int
    ranks: int
    machine: Machine
    points: tuple[PayingPoint, ...]
    badges = ("derived", "simulated")

    @property
    def best(self) -> float:
        """The inner dim at which the closed form is largest, x = 1."""
        return 1 / gemm_over_ring(1, self.ranks, self.machine)

    def drawing(self) -> dict[str, Any]:
        """Speedup over x: the closed form, and each configuration simulated."""
        most = max(p.x for p in self.points)
        xs = sorted({1.0, *(most * (i + 1) / 80 for i in range(80))})
        form = "without memory: (x+2) / (max(x,1)+1), derived"
        style = "axis4", "solid", "circle"
        traces = [{**line(form, xs, map(ideal_speedup, xs), style), "mode": "lines"}]
        text = [f"K={p.k}" for p in self.points]
        for config in CONFIGS:
            name, *style = STYLES[config]
            x, y = [p.x for p in self.points], [p.speedup(config) for p in self.points]
            traces.append(line(f"{name}, simulated", x, y, style, text=text))
        one = {"x": 1.0, "dash": "dot", "text": ""}
        title = "speedup of the sublayer, over x = GEMM / reduce-scatter"
        return {
            "title": f"What fusing gains: output {self.m} x {self.n} over {self.ranks} GPUs",
            "panels": [panel(title, traces, axis("x", rangemode="tozero"), rules=[one])],
        }

    def _lines(self):
        return ((p,) for p in self.points)

    def _columns(self):
        def speedup(config):
            return f"{config} (simulated)", lambda p: f"{p.speedup(config):.3f}"

        return [
            ("K", lambda p: str(p.k)),
            ("x (derived)", lambda p: f"{p.x:.2f}"),
            ("closed form (derived)", lambda p: f"{ideal_speedup(p.x):.3f}"),
            ("sequential (simulated)", lambda p: show_seconds(p.seconds["sequential"])),
            *map(speedup, CONFIGS),
        ]

    def words(self) -> list[str]:
        """The points."""
        speedups = lambda p: {
            "form": ideal_speedup(p.x),
            "t3": p.speedup("t3"),
            "mca": p.speedup("t3_mca"),
        }
        lines = "; ".join(self.say("inner dim", p=p, **speedups(p)) for p in self.points)
        return [
            f"Speedup over sequential of a sublayer (simulated), over {self.ranks} GPUs: {lines}."
        ]

    def notes(self) -> list[str]:
        """The maximum of the closed form, and its omissions."""
        return [self.say("paying")]

    def __repr__(self):
        top = max(self.points, key=lambda p: p.speedup("t3_mca"))
        return f"<{self.say('Paying', top=top, speedup=top.speedup('t3_mca'))}>"


def paying(
    ranks: int = 8,
    inner: Iterable[int] = INNER,
    m: int = 2048,
    n: int = 1024,
    machine: Machine | None = None,
) -> Paying:
    """The `Paying` of an m x n output summed over ``ranks``, for some inner dims.

    machine : by default a tenth of the paper's GPU in every amount. Raises ``ValueError`` on fewer
    than two ranks, no inner dim, and sizes that clash.
    """
    machine = SMALL_GPU if machine is None else machine
    ranks = whole_number("ranks", ranks, 2, 64)
    inner = tuple(dict.fromkeys(whole_number("inner", k) for k in inner))
    if not inner:
        raise ValueError(f"inner is empty: give some inner dims, as in {INNER}")
    points = []
    for k in sorted(inner):
        *_, seconds = simulated_sublayer(Gemm(m, n, k, wavefronts=1), ranks, machine)
        points.append(PayingPoint(k, gemm_over_ring(k, ranks, machine), seconds))
    return Paying(m, n, ranks, machine, tuple(points))

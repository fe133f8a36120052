"""``sublayers``: the paper's models, the four GEMMs of a layer that need an all-reduce, simulated.

Speedups hardly depend on the tokens of a batch, which are recalled. Which knobs of `Machine` are
fitted, and to what, is in `FITTED`.
"""

from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from tpviz.core.charts import axis, label, line, panel
from tpviz.core.checks import one_of, some_of, whole_number
from tpviz.core.tables import show_seconds
from tpviz.evidence.facts import facts, notes, records
from tpviz.evidence.report import Report
from tpviz.evidence.t3_hardware import Gemm, Machine, simulate
from tpviz.evidence.t3_hardware.dram import EventClock
from tpviz.evidence.t3_hardware.ring import reduce_scatter
from tpviz.ranks.bar import viewer

if TYPE_CHECKING:
    from tpviz.evidence.t3_hardware import SimResult


class Model(NamedTuple):
    """A model of the paper. tokens : of a batch (recalled). tp : degrees of tensor parallelism.
    small : whether it is one of the two that knobs may be fitted to."""

    name: str
    hidden: int
    layers: int
    tokens: int
    tp: tuple[int, ...]
    small: bool


MODELS = {row["name"]: Model(**row) for row in records(facts(__file__).models)}
SUBLAYERS = {"OP": 1, "FC-2": 4, "FC-1": 4, "IP": 3}
"""{sublayer: its k in units of hidden / TP}. Forward OP and FC-2; backward FC-1 and IP."""
CONFIGS = ("ideal", "ideal_nmc", "t3", "t3_mca")
FUSED = ("t3", "t3_mca")
"""Those of them that take a simulation of their own."""
STYLES = {
    "ideal": ("ideal overlap", "forward", "dot", "circle-open"),
    "t3": ("T3", "axis1", "dash", "square-open"),
    "t3_mca": ("T3-MCA", "backward", "solid", "diamond"),
}
"""{configuration: (name, ink, dash, marker)}."""
FITTED = notes(__file__)["fitted"]


class SublayerRow(NamedTuple):
    """One sublayer of one model, simulated. gemm, rs, rs_nmc, ag : seconds alone. seconds :
    {"sequential" and each of `CONFIGS`: of the whole}. dram : {"sequential", "t3", "t3_mca": {class
    of memory traffic: bytes}}."""

    model: Model
    tp: int
    name: str
    gemm: float
    rs: float
    rs_nmc: float
    ag: float
    seconds: dict[str, float]
    dram: dict[str, dict[str, int]]

    def speedup(self, config: str) -> float:
        """Sequential's time over that of a configuration."""
        return self.seconds["sequential"] / self.seconds[config]

    def moved(self, config: str = "t3_mca") -> float:
        """The share of the memory traffic that is saved."""
        return 1 - sum(self.dram[config].values()) / sum(self.dram["sequential"].values())

    def read(self, config: str = "t3_mca") -> float:
        """How many times the GEMM's reads sequential makes."""
        return self.dram["sequential"]["gemm_read"] / self.dram[config]["gemm_read"]


@dataclass(frozen=True, eq=False, repr=False)
class Sublayers(Report):
    """``rows`` of `SublayerRow`, simulated on ``machine``."""

    rows: tuple[SublayerRow, ...]
    machine: Machine
    badges = ("simulated",)

    def of(self, small: bool) -> "Sublayers":
        """Those of the small models, or of the large ones."""
        return Sublayers(tuple(r for r in self.rows if r.model.small == small), self.machine)

    def geomean(self, value: str | Callable[[SublayerRow], float]) -> float:
        """Over the rows, of ``value(row)`` or of a configuration's speedup."""
        values = self._values(value)
        return prod(values) ** (1 / len(values))

    def max(self, value: str | Callable[[SublayerRow], float]) -> float:
        """The largest."""
        return max(self._values(value))

    def _values(self, value):
        if not self.rows:
            raise ValueError("there are no sublayers to take the mean of: simulate other models")
        if isinstance(value, str):
            name = one_of("config", value, CONFIGS)
            return [row.speedup(name) for row in self.rows]
        return [value(row) for row in self.rows]

    def drawing(self) -> dict[str, Any]:
        """Speedup of each sublayer over sequential, a model's lines by themselves."""
        models = [f"{r.model.name}\nTP {r.tp}" for r in self.rows[:: len(SUBLAYERS)]]
        each = len(SUBLAYERS)
        text = _broken([f"{r.model.name}, TP {r.tp}, {r.name}" for r in self.rows], each)
        traces, least, most = [], 1.0, 0.0
        for config, (name, *style) in STYLES.items():
            speedups = [r.speedup(config) for r in self.rows]
            x = _broken(range(len(self.rows)), each)
            traces.append(line(name, x, _broken(speedups, each), style, text=text))
            least, most = min(least, *speedups), max(most, *speedups)
        middles = [m * each + (each - 1) / 2 for m in range(len(models))]
        borders = [m * each - 0.5 for m in range(1, len(models))]
        x = axis(tickvals=list(range(len(self.rows))), ticktext=[r.name for r in self.rows])
        one = panel(
            "speedup over GEMM, reduce-scatter and all-gather in sequence",
            traces,
            x,
            {"range": [least - 0.02, most + 0.12]},
            [label(name, place, most + 0.02) for name, place in zip(models, middles)],
            [{"x": place, "dash": "solid", "text": ""} for place in borders],
        )
        return {
            "title": "T3's sublayers: forward OP and FC-2, backward FC-1 and IP",
            "panels": [one],
        }

    def _columns(self):
        """Seconds alone, and each configuration's speedup."""

        def speedup(config):
            return config, lambda r: f"{r.speedup(config):.3f}x"

        return [
            ("model", lambda r: r.model.name),
            ("TP", lambda r: str(r.tp)),
            ("sublayer", lambda r: r.name),
            ("GEMM", lambda r: show_seconds(r.gemm)),
            ("reduce-scatter", lambda r: show_seconds(r.rs)),
            ("all-gather", lambda r: show_seconds(r.ag)),
            *map(speedup, CONFIGS),
            ("memory traffic saved", lambda r: f"{100 * r.moved():.1f} %"),
        ]

    def describe(self) -> str:
        """The means in words."""
        words = "; ".join(
            f"{c} {self.geomean(c):.3f}x, at most {self.max(c):.3f}x" for c in CONFIGS
        )
        return self.say("means", count=len(self.rows), means=words, fitted=FITTED)

    def notes(self) -> list[str]:
        """The names of the sublayers, the known numbers of the paper, and the fitted knobs."""
        return [self.say("names"), "We have only means and maxima of the paper's bars. " + FITTED]

    def __repr__(self):
        return f"<{self.say('Sublayers', count=len(self.rows), mean=self.geomean('t3_mca'))}>"


def _broken(values, each):
    """``each`` values and None in turn: a line ends there, and another begins."""
    starts = range(0, len(values), each)
    return [value for start in starts for value in (*values[start : start + each], None)]


def sublayers(
    machine: Machine | None = None,
    models: str | Iterable[str] = tuple(MODELS),
    wavefronts: int = 4,
    tile: tuple[int, int] = (128, 128),
    progress: Callable[[int, int, str], object] | bool | None = None,
    fused: tuple[str, ...] = FUSED,
) -> Sublayers:
    """The `Sublayers` of models (names of `MODELS`) at each of their TP degrees.

    wavefronts, tile : as `Gemm` takes them; wavefronts=1 takes a third of the time and changes
    means by 2 points at most. progress : as `tpviz.launch` takes it; a GEMM takes 0.5 s. fused :
    those of `FUSED` that are wanted; rows have no seconds of the others.
    """
    machine = Machine() if machine is None else machine
    wavefronts = whole_number("wavefronts", wavefronts, 1, 128)
    cases = [
        (MODELS[name], tp)
        for name in some_of("models", models, tuple(MODELS))
        for tp in MODELS[name].tp
    ]
    rows, done = [], {}
    with closing(viewer(progress)) as show:
        for model, tp in cases:
            for name, units in SUBLAYERS.items():
                if (model, tp, units) not in done:  # FC-1 is FC-2 again
                    show(len(done), 3 * len(cases), f"{model.name}, TP {tp}: {name}")
                    inner = units * model.hidden // tp
                    gemm = Gemm(model.tokens, model.hidden, inner, tile=tile, wavefronts=wavefronts)
                    done[model, tp, units] = _row(machine, model, tp, name, gemm, fused)
                rows.append(done[model, tp, units]._replace(name=name))
    return Sublayers(tuple(rows), machine)


def _row(machine, model, tp, name, gemm, fused):
    runs, (g, rs, ag), seconds = simulated_sublayer(gemm, tp, machine, fused)
    near = reduce_scatter(EventClock(), machine, gemm.bytes / tp, tp, near_memory=True)
    near.clock.run()
    seconds |= {"ideal_nmc": max(g, near.ended) + ag}
    dram = {config: run.dram for config, run in runs.items()}
    return SublayerRow(model, tp, name, g, rs, near.ended, ag, seconds, dram)


def simulated_sublayer(
    gemm: Gemm, ranks: int, machine: Machine, fused: tuple[str, ...] = FUSED
) -> "tuple[dict[str, SimResult], tuple[float, float, float], dict[str, float]]":
    """({config: `SimResult`}; seconds of GEMM, reduce-scatter and all-gather, each alone; {config,
    "ideal" too: seconds of the whole})."""
    runs = {config: simulate(gemm, ranks, machine, config) for config in ("sequential", *fused)}
    plain = runs["sequential"]
    g, rs, ag = plain.gemm_end, plain.rs_end - plain.gemm_end, plain.ag_end - plain.rs_end
    seconds = {config: run.seconds for config, run in runs.items()}
    return runs, (g, rs, ag), seconds | {"ideal": max(g, rs) + ag}

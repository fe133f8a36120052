"""``validate``: published runs, or rows of one's own, beside what `predict` says of them.

>>> checked = validate([r for r in published(model="gpt2-2B") if r.n_gpus == 2])
>>> [(r.model, r.gpu, r.measured, r.reason) for r in checked.rows]
[('gpt2-2B', 'V100-SXM3-32GB', 1.093, ''), ('gpt2-2B', 'A100-SXM-40GB', 1.026, '')]
>>> 0 < checked.rows[0].predicted < 2
True
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np

from tpviz.cluster import Cluster
from tpviz.cluster.clock.cost import Memory
from tpviz.core.charts import FROM_ZERO, axis, line, log_ticks, panel, points
from tpviz.core.tables import Columns, show_bytes, show_seconds, text_table
from tpviz.evidence.report import Report
from tpviz.verbs.predict import predict
from tpviz.verbs.room import room

from .adapter import NotModelled, RunPlan, memory, plan_of
from .rows import PublishedRow, published, read, row_of

STYLES = {
    "nanotron": ("backward", "diamond-open", "dot"),
    "Megatron-LM": ("axis0", "circle-open", "solid"),
    "FSDP": ("forward", "square-open", "dash"),
    "other": ("axis4", "x", "dashdot"),
}
"""Framework -> (ink, marker, dash)."""
__all__ = ["Checked", "Validation", "published", "validate"]


@dataclass(frozen=True)
class Checked:
    """A row and its prediction.

    step : predicted seconds of a step, None of rows of memory; memory : predicted bytes of a rank,
    by kind. Both None where the run is not modelled, for the ``reason``. plan : what was predicted.
    """

    row: PublishedRow
    step: float | None = None
    memory: Memory | None = None
    reason: str = ""
    plan: RunPlan | None = None

    @property
    def source(self) -> str:
        """The source of the measured run."""
        return self.row.source

    @property
    def model(self) -> str:
        """The model's name in the source."""
        return self.row.model

    @property
    def gpu(self) -> str:
        """The GPU's name."""
        return self.row.gpu

    @property
    def n_gpus(self) -> int:
        """Number of GPUs; 0 where it is not stated."""
        return self.row.n_gpus

    @property
    def kind(self) -> str:
        """What was measured: "measured" a step, "memory" a peak, "failed" nothing."""
        return self.row.kind

    @property
    def measured(self) -> float | None:
        """Seconds of a step; of a memory row bytes; None of one that failed."""
        return self.row.peak if self.kind == "memory" else self.row.step

    @property
    def predicted(self) -> float | None:
        """The same, predicted; None where it is not modelled."""
        if self.kind == "memory":
            return self.memory.total if self.memory else None
        return self.step

    @property
    def ratio(self) -> float | None:
        """Predicted over measured; None without one of the two."""
        return self.predicted / self.measured if self.predicted and self.measured else None

    @property
    def fits(self) -> bool | None:
        """Whether the predicted memory fits the device."""
        if self.plan is None or self.memory is None:
            return None
        return self.memory.total <= room(self.plan.cluster)


@dataclass(frozen=True, eq=False, repr=False)
class Validation(Report):
    """``rows``: every row given, as `Checked`, in the order given."""

    rows: tuple[Checked, ...]
    badges = ("predicted", "measured by others")

    def ratios(self) -> list[float]:
        """Predicted over measured of the rows that have both."""
        return [row.ratio for row in self.rows if row.ratio]

    @property
    def reasons(self) -> dict[str, int]:
        """{why rows are not modelled: how many}, most first."""
        return dict(Counter(row.reason for row in self.rows if row.reason).most_common())

    def drawing(self) -> dict[str, Any]:
        """Every row by framework: predicted over measured, and how many rows have which error."""
        scatter, shares = [], []
        for name, (ink, symbol, dash) in STYLES.items():
            own = [r for r in self.rows if r.row.framework == name and r.ratio]
            words = [f"{r.model}, {r.n_gpus} {r.gpu}: {r.row.layout}" for r in own]
            x, y = [r.measured for r in own], [r.ratio for r in own if r.ratio]
            scatter.append(points(name, x, y, ink, symbol, 6, text=words))
            off = sorted(100 * abs(ratio - 1) for ratio in y)
            some = sorted({round(i * (len(off) - 1) / 40) for i in range(41)}) if off else []
            percent = [100 * (i + 1) / len(off) for i in some]
            curve = line(name, [off[i] for i in some], percent, (ink, dash, symbol), mode="lines")
            shares.append(curve)
        measured, ratios = [x for t in scatter for x in t["x"]], self.ratios()
        ticks = log_ticks(ratios or [1.0]), log_ticks(measured or [1.0])
        unit = "bytes" if any(r.kind == "memory" for r in self.rows) else "seconds a step"
        ratio = axis("predicted / measured", ticks[0])
        error = {"title": "absolute error (%)", **FROM_ZERO}
        rule = {"y": 1.0, "dash": "dash", "text": ""}
        return {
            "title": "Predictions beside published measurements",
            "panels": [
                panel("each run", scatter, axis(f"measured ({unit})", ticks[1]), ratio, (), [rule]),
                panel("share of runs below an error", shares, error, axis("runs (%)")),
            ],
        }

    def words(self) -> list[str]:
        """The errors."""
        ratios = self.ratios()
        words = [f"{len(self.rows)} rows, {len(ratios)} of them predicted and measured."]
        if ratios:
            middle, most = 100 * np.percentile([abs(r - 1) for r in ratios], [50, 90])
            words.append(
                f"Absolute error: median {middle:.1f} %, 90th percentile {most:.1f} %; median of "
                f"predicted over measured {median(ratios):.2f}."
            )
        return words

    def notes(self) -> list[str]:
        """The most frequent reasons of rows without a prediction, without what would work."""
        most = list(self.reasons.items())[:5]
        return [f"{n} without a prediction: {why.partition(': use ')[0]}." for why, n in most]

    def _columns(self):
        return COLUMNS

    def __repr__(self):
        return "\n".join([*text_table(self.to_table(), right=(2,)), self.describe()])


def _show(row: Checked, value: float | None):
    """Seconds or bytes."""
    if value is None:
        return ""
    return show_bytes(round(value)) if row.kind == "memory" else show_seconds(value)


COLUMNS: Columns = (
    ("source", lambda r: r.source),
    ("model", lambda r: r.model),
    ("GPUs", lambda r: str(r.n_gpus or "")),
    ("layout", lambda r: r.row.layout),
    ("measured", lambda r: "failed" if r.kind == "failed" else _show(r, r.measured)),
    ("predicted", lambda r: _show(r, r.predicted)),
    ("predicted / measured", lambda r: f"{r.ratio:.2f}" if r.ratio else ""),
    ("reason", lambda r: r.reason),
)


def validate(rows: Any = None) -> Validation:
    """Predict published runs and compare with what was measured: see `Checked`.

    rows : `published` rows; or the path of a CSV file, or mappings, in the columns of the
    published ones (steps, failed configurations or memory peaks); all published steps when left
    out. A row that is not modelled, or makes no sense, has a ``reason``. Raises ``ValueError``
    where columns are missing.
    """
    return checked_rows(rows)


def checked_rows(
    rows: Any, cluster: Callable[[str, int, str], Cluster] | None = None
) -> Validation:
    """`validate` on other clusters: ``cluster`` as `adapter.plan_of`."""
    rows = published() if rows is None else rows
    typed = isinstance(rows, (list, tuple)) and all(isinstance(r, PublishedRow) for r in rows)
    found = rows if typed and rows else read(rows)
    return Validation(tuple(_checked(row, cluster) for row in found))


def _checked(cells: PublishedRow | Mapping[str, Any], cluster: Callable[..., Cluster] | None):
    try:
        row = cells if isinstance(cells, PublishedRow) else row_of(cells)
    except ValueError as error:
        assert isinstance(cells, Mapping)
        source, model, gpu = (str(cells.get(k) or "") for k in ("source", "model", "gpu"))
        return Checked(PublishedRow("measured", source, model, gpu), reason=str(error))
    try:
        plan = plan_of(row, cluster)
    except NotModelled as error:
        return Checked(row, reason=str(error))
    found = memory(plan, row)
    if row.kind == "memory":
        return Checked(row, None, found, plan=plan)
    step = predict(plan.strategy, plan.workload, plan.cluster).step_time
    return Checked(row, step, found, plan=plan)

"""``validate``: published runs, or rows of one's own, beside what `predict` says of them.

>>> checked = validate([r for r in published(model="gpt2-2B") if r.n_gpus == 2])
>>> [(r.model, r.gpu, r.measured, r.reason) for r in checked.rows]
[('gpt2-2B', 'V100-SXM3-32GB', 1.093, ''), ('gpt2-2B', 'A100-SXM-40GB', 1.026, '')]
>>> 0 < checked.rows[0].predicted < 2
True
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from tpviz.cluster import Cluster
from tpviz.cost import Memory, show_bytes, show_seconds
from tpviz.tables import html_table
from tpviz.verbs.predict import predict

from .adapter import NotModelled, Plan, cluster_of, memory, plan_of
from .rows import PublishedRow, plain_table, published, read, row_of

__all__ = ["Checked", "Validation", "published", "validate"]


@dataclass(frozen=True)
class Checked:
    """A row and its prediction.

    step : predicted seconds of a step; memory : predicted bytes of a rank, by kind. Both None where
    the run is not modelled, for the ``reason``. plan : what was predicted.
    """

    row: PublishedRow
    step: float | None = None
    memory: Memory | None = None
    reason: str = ""
    plan: Plan | None = None

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
    def n_gpus(self) -> int | None:
        """Number of GPUs."""
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
        return self.memory.total <= self.plan.cluster.device.memory


@dataclass(frozen=True, repr=False)
class Validation:
    """``rows``: every row given, as `Checked`, in the order given."""

    rows: tuple[Checked, ...]

    def ratios(self) -> list[float]:
        """Predicted over measured of the rows that have both."""
        return [row.ratio for row in self.rows if row.ratio]

    @property
    def reasons(self) -> dict[str, int]:
        """{why rows are not modelled: how many}, most first."""
        return dict(Counter(row.reason for row in self.rows if row.reason).most_common())

    def describe(self) -> str:
        """The errors in words."""
        ratios = self.ratios()
        words = [f"{len(self.rows)} rows, {len(ratios)} of them predicted and measured"]
        if ratios:
            errors = median(abs(r - 1) for r in ratios)
            words.append(
                f"median absolute error {100 * errors:.1f} %, median of predicted over measured "
                f"{median(ratios):.2f}"
            )
        words += [f"not modelled: {why} ({n})" for why, n in self.reasons.items()]
        return "; ".join(words) + "."

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first."""
        body = []
        for checked in self.rows:
            row, ratio = checked.row, checked.ratio
            show = (lambda n: show_bytes(round(n))) if row.kind == "memory" else show_seconds
            told = [show(n) if n else "" for n in (checked.measured, checked.predicted)]
            told[0] = told[0] or row.kind * (row.kind == "failed")
            shares = [f"{ratio:.2f}" if ratio else "", checked.reason]
            body.append([row.source, row.model, f"{row.n_gpus}", row.layout, *told, *shares])
        head = ["source", "model", "GPUs", "layout", "measured", "predicted"]
        return [[*head, "predicted / measured", "reason"], *body]

    def __repr__(self):
        return f"{plain_table(self.to_table(), numbers=(2,))}\n{self.describe()}"

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


def validate(rows: Any = None) -> Validation:
    """Predict published runs, and set what was measured beside it: see `Checked`.

    rows : `published` rows; or the path of a CSV file, or mappings, in the columns of the
    published ones (steps, failed configurations or memory peaks); all published steps when left
    out. A row that is not modelled, or makes no sense, has a ``reason``. Raises ``ValueError``
    where columns are missing.
    """
    return checked_rows(rows, cluster_of)


def checked_rows(rows: Any, cluster: Callable[[str, int, str], Cluster]) -> Validation:
    """`validate` on other clusters: ``cluster`` as `adapter.cluster_of`."""
    rows = published() if rows is None else rows
    typed = isinstance(rows, (list, tuple)) and all(isinstance(r, PublishedRow) for r in rows)
    found = rows if typed and rows else read(rows)
    return Validation(tuple(_checked(row, cluster) for row in found))


def _checked(cells, cluster):
    try:
        row = cells if isinstance(cells, PublishedRow) else row_of(cells)
    except ValueError as error:
        named = {name: str(cells.get(name) or "") for name in ("source", "model", "gpu")}
        return Checked(PublishedRow("measured", **named), reason=str(error))
    try:
        plan = plan_of(row, cluster)
    except NotModelled as error:
        return Checked(row, reason=str(error))
    step = predict(plan.strategy, plan.workload, plan.cluster).step_time
    return Checked(row, step, memory(plan, row), plan=plan)

"""Strategies ranked by models and by measurement."""

from collections.abc import Iterable
from typing import Any, NamedTuple

from tpviz.cluster import Cluster
from tpviz.core.tables import show_seconds
from tpviz.core.workload import GPT
from tpviz.verbs.ranking import agreement, rounded

from .study import ask

MODES = ("communication", "predicted", "measured")


class RankedRow(NamedTuple):
    """A strategy on a cluster, seconds: ``communication`` of the blocks by the kind of formula that
    papers have, the ``predicted`` step, the ``measured`` one on the emulated cluster (None: not
    run; faithful : as the model says). fits : whether a rank's memory does."""

    strategy: Any
    communication: float
    predicted: float
    measured: float | None = None
    faithful: bool = True
    fits: bool = True

    def words(self, mode: str) -> str:
        """The seconds of one of MODES; "" where there are none."""
        seconds = getattr(self, mode)
        return "" if seconds is None else show_seconds(seconds)

    def run(self, workload: GPT, cluster: Cluster, **options: Any) -> "RankedRow":
        """The row with its measured step. options : of `tpviz.evidence.study.ask`."""
        [one] = ask({"": self.strategy}, workload, cluster, ["measured"], **options)
        times = one.times["measured"]
        return self._replace(measured=times.step, faithful=times.faithful)


def order(rows: Iterable[RankedRow], mode: str) -> list[RankedRow]:
    """Rows by one of MODES, least first; of equals, to rounding, as they stand. Those whose memory
    does not fit come last."""
    known = (row for row in rows if getattr(row, mode) is not None)
    return sorted(known, key=lambda row: (not row.fits, rounded(getattr(row, mode))))


def tau(rows: Iterable[RankedRow], first: str, second: str) -> float | None:
    """Kendall's tau of two MODES, over the rows that have both; None for fewer than two."""
    found = agreement(list(rows), [(first, second)])
    return found[f"{first}, {second}"]["tau"] if found else None

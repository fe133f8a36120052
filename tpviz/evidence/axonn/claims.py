"""Claims of AxoNN's papers about their runs: shown next to ours, never reproduced here.

`facts.json` has them with two kinds of source: an abstract, literally, and "recalled": from memory
of a paper's body, not confirmed.
"""

from typing import NamedTuple

from tpviz.evidence.facts import facts, records
from tpviz.schemes.axonn.models import NOMINAL


class ClaimedRun(NamedTuple):
    """A run of the papers. model : a key of `SIZES`, None where the abstract names none.

    flops : of all devices together, per second. device : a key of `NOMINAL`.
    """

    cluster: str
    model: str | None
    devices: int
    flops: float
    source: str
    device: str

    @property
    def fraction(self) -> float:
        """Of the vendor's peak (derived from ``flops``)."""
        return self.flops / self.devices / NOMINAL[self.device]

    @property
    def sure(self) -> bool:
        """Whether an abstract claims it for this model."""
        return self.model is not None and not self.source.startswith("recalled")

    @property
    def words(self) -> str:
        """The run in words."""
        what = self.model or "a model that the abstract does not name"
        return (
            f"{what} on {self.devices} {self.device}s: {self.flops / 1e15:.5g} PFLOP/s, "
            f"{100 * self.fraction:.1f} % of peak ({self.source})"
        )


FACTS = facts(__file__)
VALIDATION: str = FACTS.validation
OVERLAPS: str = FACTS.overlaps
RUNS = tuple(ClaimedRun(flops=row.pop("pflops") * 1e15, **row) for row in records(FACTS.runs))


def runs_of(cluster: str, model: str) -> tuple[ClaimedRun, ...]:
    """The `RUNS` on a cluster whose model is this one, or not named."""
    return tuple(run for run in RUNS if run.cluster == cluster and run.model in (model, None))

"""Claims of AxoNN's papers about their runs: shown next to ours, never reproduced here.

Two kinds of source: an abstract, literally, and "recalled": from memory of a paper's body, not
confirmed. FLOP/s count recomputation, in bfloat16.
"""

from typing import NamedTuple

from tpviz.schemes.axonn.models import NOMINAL

ABSTRACT_A = "abstract of arXiv 2305.13525 v3"
ABSTRACT_B = "abstract of arXiv 2502.08145"
RECALLED = "recalled from arXiv 2502.08145, not confirmed"


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
        return self.model is not None and self.source != RECALLED

    @property
    def words(self) -> str:
        """The run in words."""
        what = self.model or "a model that the abstract does not name"
        return (
            f"{what} on {self.devices} {self.device}s: {self.flops / 1e15:.5g} PFLOP/s, "
            f"{100 * self.fraction:.1f} % of peak ({self.source})"
        )


RUNS = (
    ClaimedRun("Perlmutter", "80B", 1024, 182e15, ABSTRACT_A, "A100"),
    ClaimedRun("Perlmutter", None, 4096, 620.1e15, ABSTRACT_B, "A100"),
    ClaimedRun("Frontier", None, 32768, 1381e15, ABSTRACT_B, "MI250X GCD"),
    *(
        ClaimedRun("Frontier", model, devices, pflops * 1e15, RECALLED, "MI250X GCD")
        for model, devices, pflops in (
            ("5B", 512, 40.4),
            ("10B", 1024, 77.3),
            ("20B", 2048, 145.7),
            ("40B", 4096, 295.9),
            ("80B", 8192, 571.4),
            ("160B", 16384, 1019.9),
            ("320B", 32768, 1381.0),
        )
    ),
)
"""80B on 1024: the abstract also gives 57 % of peak, which equals 182 PFLOP/s. The last recalled
row is the abstract's 1.381 EFLOP/s, with the model recalled."""

VALIDATION = (
    "The paper: all grids of 20B on 32 and 40B on 64 GPUs of Perlmutter, the 10 fastest called "
    "efficient; 9 of the model's first 10 were (recalled, not confirmed; not reproduced here)."
)
OVERLAPS = (
    "The paper: the overlaps improve training of a 20B transformer by nearly 53 % (abstract "
    "of arXiv 2305.13525 v2; number of GPUs and share of each overlap not in it; not "
    "reproduced here)."
)


def runs_of(cluster: str, model: str) -> tuple[ClaimedRun, ...]:
    """The `RUNS` on a cluster whose model is this one, or not named."""
    return tuple(run for run in RUNS if run.cluster == cluster and run.model in (model, None))

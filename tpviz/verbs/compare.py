"""``compare``: predict, simulate and run one strategy, and lay the three over each other.

c = tv.compare(tv.Megatron(tp=2) * tv.DataParallel(dp=2), tv.GPT(), cluster)
c.ratio, c.residual.parts, c.residual.verdict
"""

from collections.abc import Callable
from contextlib import closing, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Self

from tpviz.core.checks import one_of, whole_number
from tpviz.core.show import Tabled, figure_of
from tpviz.core.trace.steps import median_step
from tpviz.ranks.bar import viewer

from .capture import capture as capture_program
from .checks import check_faults
from .expert_loads import expert_loads
from .imbalance import as_measured, evened, hottest, hottest_of, with_even_loads
from .predict import predict
from .residual import residual
from .run import run as measure
from .simulate import simulate

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.cluster.clock.injected_faults import Faults
    from tpviz.cluster.clock.program import Capture
    from tpviz.core.trace.table import Trace
    from tpviz.core.workload import GPT
    from tpviz.schemes.strategy import Strategy

    from .predict import Prediction
    from .residual import Residual

STEPS = 3
"""Steps replayed for a run, so that jitter is drawn more than once."""


def compare(
    strategy: "Strategy",
    workload: "GPT",
    cluster: "Cluster",
    *,
    steps: int = 5,
    warmup: int = 1,
    run: bool = True,
    emulate: bool = True,
    faults: "Faults | None" = None,
    timeout: float | None = 120,
    progress: Callable[[int, int, str], Any] | bool | None = None,
) -> "Comparison":
    """Compare formula, simulation and real ranks for ``strategy`` on ``cluster``: a `Comparison`.

    Parameters
    ----------
    steps, warmup, timeout (s), progress : of the run on the emulated cluster, as `tpviz.run` takes
        them.
    run : False leaves the real ranks out.
    emulate : False runs at this machine's own speed, paced by no model: then ``cluster`` is that of
        `tpviz.calibrate`, and the comparison shows how well it describes this machine.
    faults : `Faults` injected into the run alone; the residual should find them.

    Raises ``ValueError`` where sizes do not fit each other or the cluster, and for faults without
    an emulated run.
    """
    steps, run = whole_number("steps", steps), one_of("run", run, (True, False))
    emulate = one_of("emulate", emulate, (True, False))
    check_faults(faults)
    if faults is not None and not (run and emulate):
        raise ValueError(
            "faults happen only in the emulated run: leave them out, or use run=True, emulate=True"
        )
    with closing(viewer(progress)) as show:
        show(0, steps, "capturing the program and simulating it")
        capture = capture_program(strategy, workload)
        made = Comparison(
            strategy, workload, cluster, _foreseen(strategy, workload, cluster), capture=capture
        )
        made.simulated = made.replay(steps=min(steps, STEPS) if run else 1)
        if run:
            made.measured = measure(
                strategy,
                workload,
                cluster if emulate else None,
                steps=steps,
                warmup=warmup,
                faults=faults,
                timeout=timeout,
                progress=show,
            )
    return made


def _foreseen(strategy: "Strategy", workload: "GPT", cluster: "Cluster"):
    """The `Prediction`, or None for a strategy without a formula (`tpviz.evidence.peers`)."""
    try:
        return predict(strategy, workload, cluster)
    except NotImplementedError:
        return None


class Comparison(Tabled):
    """A `Prediction`, a simulated and a measured `Trace` of one step, and how they differ.

    prediction is None for a strategy without a formula; measured is None where nothing has run,
    and ``residual`` then splits the simulated step. ``strategy``, ``workload`` and ``cluster`` say
    what is compared. Made by `compare` and `of`.
    """

    simulated: "Trace"  # None only until they that make it replay

    def __init__(
        self,
        strategy: "Strategy",
        workload: "GPT",
        cluster: "Cluster",
        prediction: "Prediction | None" = None,
        simulated: "Trace | None" = None,
        measured: "Trace | None" = None,
        capture: "Capture | None" = None,
    ):
        self.strategy, self.workload, self.cluster = strategy, workload, cluster
        self.prediction, self.simulated, self.measured = prediction, simulated, measured  # pyright: ignore[reportAttributeAccessIssue]
        self._capture = capture

    @classmethod
    def of(
        cls,
        prediction: "Prediction",
        simulated: "Trace | None" = None,
        measured: "Trace | None" = None,
        *,
        capture: "Capture | None" = None,
    ) -> Self:
        """From existing results; ``capture`` avoids capturing the program again.

        simulated None: it is simulated here. Raises ``ValueError`` if they belong to different
        strategies, workloads or clusters.
        """
        p = prediction
        made = cls(p.strategy, p.workload, p.cluster, p, simulated, measured, capture)
        if simulated is None:
            made.simulated = made.replay(steps=made._steps())
        for trace in filter(None, (made.simulated, measured)):
            made._check_same(trace)
        return made

    @property
    def badges(self) -> tuple[str, ...]:
        """Where the numbers come from: "predicted", "simulated" and, after a run, the run's."""
        traces = [t for t in (self.simulated, self.measured) if t is not None]
        foreseen = [] if self.prediction is None else [self.prediction.badge]
        return (*foreseen, *(t.badge for t in traces))

    @property
    def ratio(self) -> float | None:
        """Measured over simulated step time; None without a run."""
        if self.measured is None:
            return None
        return self.measured.step_time / self.simulated.step_time

    @property
    def overlap(self) -> tuple[float, float | None]:
        """(simulated, measured) fraction of communication under computation, each of its median
        step; None: not measured."""
        measured = None if self.measured is None else median_step(self.measured).overlap()
        return median_step(self.simulated).overlap(), measured

    @cached_property
    def residual(self) -> "Residual":
        """The `tpviz.verbs.residual.Residual` of the measured (else the simulated) step.

        Where the simulation has fewer steps than are compared, it is replayed with more.
        """
        steps = self._steps()
        measured = self.simulated if self.measured is None else self.measured
        simulated = self.simulated if len(self.simulated.steps) >= steps else None
        again = partial(self.replay, steps=steps)
        if self._measured_loads is not None:
            own = partial(self._replayed, self._measured_loads, self.workload, steps=steps)
            return residual(measured, self.cluster, own, None, again, self._hottest(measured))
        if self._even is None:
            return residual(measured, self.cluster, again, simulated)
        hot = hottest(self.strategy, self.workload, self.capture.model)
        return residual(measured, self.cluster, again, simulated, partial(again, even=True), hot)

    @cached_property
    def _measured_loads(self):
        """The program with the loads of a measured step, where a router chose them; else None."""
        w = self.workload
        if self.measured is None or not w.experts or w.routing or w.capacity:
            return None
        return as_measured(self.capture, self.measured)

    def _hottest(self, measured: "Trace"):
        cut = getattr(self.strategy, "inside", self.strategy).local(self.workload).cut
        with suppress(ValueError):
            return hottest_of(expert_loads(median_step(measured), self.workload, cut.etp))
        return None

    @cached_property
    def capture(self) -> "Capture":
        """The captured program."""
        return self._capture or capture_program(self.strategy, self.workload)

    @cached_property
    def _even(self):
        """The program with mean loads of experts, or None where they are even."""
        return evened(self.capture, self.strategy, self.workload)

    def _steps(self):
        """How many steps to replay."""
        trace = self.simulated if self.measured is None else self.measured
        return 1 if trace is None else min(max(1, len(trace.steps)), STEPS)

    def replay(
        self,
        cluster: "Cluster | None" = None,
        *,
        steps: int = 1,
        contention: bool = True,
        faults: "Faults | None" = None,
        even: bool = False,
    ) -> "Trace":
        """Simulate the captured program again, with other options (see `tpviz.simulate`). even :
        with mean loads of experts."""
        program, w = self.capture, self.workload
        if even and self._even is not None:
            program, w = self._even, with_even_loads(w)
        return self._replayed(
            program, w, cluster or self.cluster, steps=steps, contention=contention, faults=faults
        )

    def _replayed(self, program: "Capture", w: "GPT", cluster: "Cluster", **options: Any):
        return simulate(self.strategy, w, cluster, capture=program, **options)

    def _check_same(self, trace: "Trace"):
        """Raise ``ValueError`` unless the trace says it is of what was predicted."""
        expected = {
            "strategy": repr(self.strategy),
            "workload": repr(self.workload),
            "cluster": self.cluster.caption,
        }
        for what, value in expected.items():
            found = trace.meta.get(what, value)
            if found != value:
                raise ValueError(
                    f"the prediction is of {what} {value}, the "
                    f"{trace.badge} trace of {found}: compare results of "
                    f"the same {what}"
                )

    # -- shown -------------------------------------------------------------------------------------
    @cached_property
    def scene(self) -> dict[str, Any]:
        """The picture as data: `tpviz.views.figures.comparison.comparison_scene`."""
        return figure_of(self).comparison_scene(
            self.prediction,
            self.simulated,
            self.measured,
            self.residual,
            title=self.strategy.title(self.workload),
            about=f"{self.strategy.short} on {self.workload.short}",
            caption=self.cluster.caption,
        )

    def to_svg(self, **options: Any) -> str:
        """One static SVG; options as `tpviz.views.figures.comparison.comparison_svg` takes them."""
        return figure_of(self).comparison_svg(self.scene, **options)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each part as predicted and as found, then the steps."""
        return figure_of(self).to_table(self.scene)

    def describe(self) -> str:
        """The comparison in words."""
        return figure_of(self).describe(self.scene)

    def __repr__(self):
        return (
            f"<Comparison of {self.strategy!r} on {self.cluster.caption}: {', '.join(self.badges)}>"
        )

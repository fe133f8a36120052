"""``compare``: predict, simulate and run one strategy, and lay the three over each other.

    c = tv.compare(tv.Megatron(tp=2) * tv.DataParallel(dp=2), tv.GPT(), cluster)
    c.ratio, c.residual.parts, c.residual.verdict
"""

from functools import cached_property
from importlib import import_module

from tpviz.checks import one_of, whole_number

from .capture import capture as capture_program
from .predict import predict
from .residual import residual
from .run import run as measure
from .simulate import check_faults, simulate

STEPS = 3
"""Steps replayed beside a run: from the second on, ranks begin as unevenly as they ended."""


def compare(strategy, workload, cluster, *, steps=5, warmup=1, run=True, faults=None, timeout=120,
            progress=None):
    """The `Comparison` of what formula, replay and real ranks say of ``strategy`` on ``cluster``.

    Parameters
    ----------
    steps, warmup, timeout (s), progress : of the run on the emulated cluster, as `tpviz.run` takes
        them.
    run : False leaves the real ranks out.
    faults : `Faults` that only the run suffers; the residual has to find them.

    Raises ``ValueError`` where sizes do not fit each other or the cluster, and for faults without a
    run.
    """
    steps, run = whole_number("steps", steps), one_of("run", run, (True, False))
    check_faults(faults)
    if faults is not None and not run:
        raise ValueError("faults happen only in the run: leave them out, or use run=True")
    prediction = predict(strategy, workload, cluster)
    capture = capture_program(strategy, workload)
    simulated = simulate(strategy, workload, cluster, steps=STEPS if run else 1, capture=capture)
    measured = None
    if run:
        measured = measure(strategy, workload, cluster, steps=steps, warmup=warmup, faults=faults,
                           timeout=timeout, progress=progress)
    return Comparison(prediction, simulated, measured, capture)


class Comparison:
    """A `Prediction`, a simulated and a measured `Trace` of one step, and what sets them apart.

    measured is None where nothing has run; ``residual`` then splits the simulated step.
    """

    def __init__(self, prediction, simulated, measured=None, capture=None):
        self.prediction, self.simulated, self.measured = prediction, simulated, measured
        self._capture = capture

    @classmethod
    def of(cls, prediction, simulated=None, measured=None, *, capture=None):
        """From results at hand; ``capture`` spares capturing the program again.

        simulated None: simulated here. Raises ``ValueError`` where they are of different
        strategies, workloads or clusters.
        """
        made = cls(prediction, simulated, measured, capture)
        if simulated is None:
            made.simulated = made._replay(prediction.cluster)
        for trace in filter(None, (made.simulated, measured)):
            _check_same(prediction, trace)
        return made

    @property
    def badges(self):
        """Where the numbers come from: "predicted", "simulated" and, after a run, the run's."""
        traces = [t for t in (self.simulated, self.measured) if t is not None]
        return (self.prediction.badge, *(t.meta.get("badge", "origin unknown") for t in traces))

    @property
    def ratio(self):
        """Measured over simulated step time; None without a run."""
        if self.measured is None:
            return None
        return self.measured.step_time / self.simulated.step_time

    @property
    def overlap(self):
        """(simulated, measured) fraction of communication under computation; None: not measured."""
        return self.simulated.overlap(), None if self.measured is None else self.measured.overlap()

    @cached_property
    def residual(self):
        """The `tpviz.verbs.residual.Residual` of the measured (else the simulated) step."""
        measured = self.simulated if self.measured is None else self.measured
        return residual(measured, self.prediction.cluster, self._replay, self.simulated)

    def _replay(self, cluster, contention=True, faults=None):
        strategy, workload = self.prediction.strategy, self.prediction.workload
        if self._capture is None:
            self._capture = capture_program(strategy, workload)
        steps = STEPS if self.simulated is None else max(1, len(self.simulated.steps))
        return simulate(strategy, workload, cluster, steps=steps, contention=contention,
                        faults=faults, capture=self._capture)

    # -- shown -------------------------------------------------------------------------------------
    @cached_property
    def scene(self):
        """The picture as data: `tpviz.figures.comparison.comparison_scene`."""
        figure = import_module("tpviz.figures.comparison")  # above the verbs: only when asked for
        return figure.comparison_scene(self.prediction, self.simulated, self.measured,
                                       self.residual)

    def to_svg(self, **options):
        """One static SVG; options as `tpviz.figures.comparison_svg.comparison_svg` takes them."""
        return import_module("tpviz.figures.comparison_svg").comparison_svg(self.scene, **options)

    def to_table(self):
        """Rows of strings, header first: each part as predicted and as found, then the steps."""
        return import_module("tpviz.figures.comparison").to_table(self.scene)

    def describe(self):
        """The comparison in words."""
        return import_module("tpviz.figures.comparison").describe(self.scene)

    def _repr_html_(self):
        return import_module("tpviz.figures.comparison").to_html(self.scene, self.to_svg)

    def __repr__(self):
        return (f"<Comparison of {self.prediction.strategy!r} on "
                f"{self.prediction.cluster.caption}: {', '.join(self.badges)}>")


def _check_same(prediction, trace):
    """Raise ``ValueError`` unless the trace says it is of what was predicted."""
    expected = {"strategy": repr(prediction.strategy), "workload": repr(prediction.workload),
                "cluster": prediction.cluster.caption}
    for what, value in expected.items():
        found = trace.meta.get(what, value)
        if found != value:
            raise ValueError(f"the prediction is of {what} {value}, the {trace.meta.get('badge')} "
                             f"trace of {found}: compare results of the same {what}")

"""Running a configuration, and the pane of its result with the guess and the prediction."""

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets

from tpviz.cluster import Cluster
from tpviz.cluster.clock.program import Capture
from tpviz.core.trace import Trace, faithful
from tpviz.core.trace.steps import median_step
from tpviz.core.workload import GPT
from tpviz.ranks.most import max_ranks
from tpviz.schemes.strategy import Strategy
from tpviz.verbs.predict import Prediction
from tpviz.views.figures.losses import losses_svg
from tpviz.views.figures.svg import fitted, scrolled
from tpviz.views.plans.pictures import message, table_html

from .guess import Guess, Reveal
from .timeline import Timeline

if TYPE_CHECKING:
    from tpviz.verbs.compare import Comparison


@dataclass(frozen=True)
class RunOutcome:
    """Traces of one configuration: measured, simulated, or both; and the two laid over the model.

    comparison : a `tpviz.verbs.compare.Comparison`, or None; note : why there is none, or "".
    """

    measured: Trace | None = None
    simulated: Trace | None = None
    comparison: "Comparison | None" = None
    note: str = ""

    @classmethod
    def of(cls, result: "Trace | RunOutcome") -> "RunOutcome":
        """A runner's result, which may be only a `Trace`. Raises ValueError on others."""
        if isinstance(result, cls) and result.traces:
            return result
        if isinstance(result, Trace):
            return cls(result)
        raise ValueError(f"a runner returns a Trace or an Outcome with one, not {result!r}")

    @property
    def traces(self) -> dict[str, Trace]:
        """{"measured": Trace, "simulated": Trace}, of those that there are."""
        both = {"measured": self.measured, "simulated": self.simulated}
        return {name: trace for name, trace in both.items() if trace is not None}

    @property
    def trace(self) -> Trace:
        """The measured trace, or the simulated one where nothing was measured."""
        return next(iter(self.traces.values()))


def run(
    strategy: Strategy,
    workload: GPT,
    cluster: Cluster | None,
    *,
    steps: int,
    progress: Callable[..., Any],
) -> RunOutcome:
    """The runner of ``explore``: on this machine measured, on a cluster also simulated.

    With more ranks than this machine starts, simulated only. progress : called with (done, total,
    text). Raises what `tpviz.simulate` and `tpviz.run` do.
    """
    import tpviz

    if cluster is None:
        return RunOutcome(tpviz.run(strategy, workload, steps=steps, progress=progress))
    progress(0, steps, "capturing the program and simulating it ...")
    capture = tpviz.capture(strategy, workload)
    simulated, measured = tpviz.simulate(strategy, workload, cluster, capture=capture), None
    if strategy.world_size <= max_ranks():
        progress(0, steps, f"running on {strategy.world_size} ranks, each paced as its device ...")
        # Said in the view, by `faithful.remark`; what other callers of run are told stays as it is.
        warnings.filterwarnings("ignore", "this emulated run", module=re.escape(__name__))
        measured = tpviz.run(strategy, workload, cluster, steps=steps, progress=progress)
    progress(steps, steps, "comparing ...")
    prediction = tpviz.predict(strategy, workload, cluster)
    return RunOutcome(measured, simulated, *compared(prediction, simulated, measured, capture))


def compared(
    prediction: Prediction,
    simulated: Trace | None,
    measured: Trace | None,
    capture: Capture | None = None,
) -> "tuple[Comparison | None, str]":
    """(`Comparison`, "") with its residual worked out, or (None, why there is none)."""
    from tpviz.verbs.compare import Comparison

    try:
        comparison = Comparison.of(prediction, simulated, measured, capture=capture)
        _ = comparison.scene  # replays the program several times: now, not when it is drawn
    except ValueError as error:
        return None, str(error)
    return comparison, ""


def reveals(
    guesses: Mapping[str, Guess], prediction: Prediction | None, outcome: RunOutcome
) -> dict[str, Reveal]:
    """{quantity: `Reveal`}: guess (where there is one), formula (None: not on a cluster),
    simulation and measurement."""
    asked = {
        "step": ("step time", "ms", lambda t: 1e3 * t.step_time),
        "exposed": ("of it exposed communication", "%", exposed_share),
    }
    predicted = {}
    if prediction is not None:
        share = 100 * sum(prediction.exposed.values()) / prediction.step_time
        predicted = {"step": _shown(1e3 * prediction.step_time)}
        if not prediction.parts["bubble"]:  # waiting for a peer: in a trace, exposed too
            predicted["exposed"] = _shown(share)
    revealed = {}
    for name, (words, unit, read) in asked.items():
        guess = guesses[name].value if name in guesses else None
        seen = {which: _shown(read(trace)) for which, trace in outcome.traces.items()}
        both = seen.get("measured"), "", predicted.get(name), unit, seen.get("simulated")
        revealed[words] = Reveal(guess, *both)
    return revealed


def reveals_table(revealed: Mapping[str, Reveal]) -> list[list[str]]:
    """Rows of strings, header first, of `reveals`: one per quantity."""
    heads = ["", *(head for head, _ in next(iter(revealed.values())).cells())]
    rows = [[words, *(text for _, text in reveal.cells())] for words, reveal in revealed.items()]
    return [heads, *rows]


def exposed_share(trace: Trace) -> float:
    """Per cent of a step that is exposed communication (of the worst rank)."""
    one = median_step(trace)
    return 100 * one.exposed_communication() / one.step_time if one.step_time else 0.0


def _shown(value):
    """Four significant digits: measured times are no better."""
    return float(f"{value:.4g}")


# -- the pane --------------------------------------------------------------------------------------
class ResultsPane(ipywidgets.VBox):
    """Guess, model, simulation and measurement; comparison; ledger; timeline; losses.

    Without a run it shows the formula's ledger alone.
    """

    def __init__(self):
        self.revealed, self.warning, self.comparison, self.ledger, self.losses = (
            ipywidgets.HTML() for _ in range(5)
        )
        self.revealed.add_class("tpviz-revealed")
        self.comparison.add_class("tpviz-comparison")
        self.which = ipywidgets.ToggleButtons(
            options=["measured", "simulated"],
            style={"button_width": "110px"},
            tooltips=["measured on the ranks", "the same program on a virtual clock"],
            layout={"display": "none"},
        )
        self.timeline, self._outcome = Timeline(), None
        self.timeline.layout.display = "none"
        self.which.observe(lambda change: self.show_timeline(), "value")
        above = [self.warning, self.revealed, self.comparison, self.ledger]
        super().__init__([*above, self.which, self.timeline, self.losses])

    def show(
        self, outcome: RunOutcome, prediction: Prediction | None, guesses: Mapping[str, Guess]
    ) -> None:
        """Show an `RunOutcome`. prediction: None where it was not on a cluster."""
        self._outcome, self.timeline.layout.display = outcome, ""
        losses = outcome.trace.fact("losses")
        self.losses.value = losses_svg(losses, theme="page") if losses else ""
        self.warning.value = self.comparison.value = ""
        self.revealed.value = reveals_html(reveals(guesses, prediction, outcome))
        self.which.options = tuple(outcome.traces)
        self.which.layout.display = "" if len(outcome.traces) > 1 else "none"
        self.show_timeline()
        if prediction is not None:
            late = outcome.measured.fact("late") if outcome.measured else {}
            self.warning.value = "" if faithful.is_faithful(late) else faithful.remark(late)
            self.comparison.value = comparison_html(outcome)

    def show_timeline(self) -> None:
        """Draw the trace that the switch names."""
        if self._outcome is not None:
            traces = self._outcome.traces
            self.timeline.show(traces.get(self.which.value, self._outcome.trace))  # pyright: ignore[reportArgumentType, reportCallIssue]


def comparison_html(outcome: RunOutcome) -> str:
    """Prediction, simulation and measurement on one axis, and their difference."""
    comparison = outcome.comparison
    if comparison is None:
        return message(f"No comparison: {outcome.note}") if outcome.note else ""
    picture = fitted(comparison.to_svg(theme="page"), 0)
    return (
        f"{scrolled(picture)}<details><summary>as a table</summary>"
        f"{table_html(comparison.to_table())}</details>"
    )


def reveals_html(revealed: Mapping[str, Reveal]) -> str:
    """Guess, model, simulation and measurement in one table, and how good the guesses were."""
    verdicts = [
        f"{words}: {reveal.verdict}"
        for words, reveal in revealed.items()
        if reveal.guess is not None
    ]
    return table_html(reveals_table(revealed)) + "".join(
        f"<div style='line-height:1.5'>{escape(verdict)}</div>" for verdict in verdicts
    )

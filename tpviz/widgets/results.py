"""The results' pane of ``explore``: what a run showed, beside what was guessed and predicted."""

from collections.abc import Mapping
from html import escape
from typing import TYPE_CHECKING

import ipywidgets

from tpviz.figures.ledger import ledger_html
from tpviz.figures.losses import losses_svg

from .model import fitted, message, table_html
from .outcome import reveals, reveals_table, unfaithful
from .timeline import Timeline

if TYPE_CHECKING:
    from tpviz.exercises.guess import Guess, Reveal
    from tpviz.trace import Ledger
    from tpviz.verbs.predict import Prediction

    from .outcome import Outcome


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
            tooltips=["what the ranks did", "the same program on a virtual clock"],
            layout={"display": "none"},
        )
        self.timeline, self._outcome = Timeline(), None
        self.which.observe(lambda change: self.show_timeline(), "value")
        super().__init__(
            [
                self.warning,
                self.revealed,
                self.comparison,
                self.ledger,
                self.which,
                self.timeline,
                self.losses,
            ]
        )

    def show(
        self, outcome: "Outcome", prediction: "Prediction | None", guesses: "Mapping[str, Guess]"
    ) -> None:
        """Show an `Outcome`. prediction: None where it was not on a cluster."""
        self._outcome = outcome
        losses = outcome.trace.fact("losses")
        self.losses.value = losses_svg(losses, theme="page") if losses else ""
        self.warning.value = self.revealed.value = self.comparison.value = ""
        self.which.options = tuple(outcome.traces)
        self.which.layout.display = "" if len(outcome.traces) > 1 else "none"
        self.show_timeline()
        if prediction is not None:
            words = outcome.measured and unfaithful(outcome.measured)
            self.warning.value = message(words) if words else ""  # pyright: ignore[reportArgumentType]
            self.revealed.value = reveals_html(reveals(guesses, prediction, outcome))
            self.comparison.value = comparison_html(outcome)

    def show_timeline(self) -> None:
        """Draw the trace that the switch names."""
        if self._outcome is not None:
            traces = self._outcome.traces
            self.timeline.show(traces.get(self.which.value, self._outcome.trace))  # pyright: ignore[reportArgumentType, reportCallIssue]

    def show_ledger(self, expected: "Ledger | None", measured: "Ledger | None") -> None:
        """The formula's ledger, and the measured one where there is one."""
        self.ledger.value = ledger_html(expected, measured)  # pyright: ignore[reportArgumentType]


def comparison_html(outcome: "Outcome") -> str:
    """Prediction, simulation and measurement laid over each other, and what sets them apart."""
    comparison = outcome.comparison
    if comparison is None:
        return message(f"No comparison: {outcome.note}") if outcome.note else ""
    return (
        f"{fitted(comparison.to_svg(theme='page'))}<details><summary>as a table</summary>"
        f"{table_html(comparison.to_table())}</details>"
    )


def reveals_html(found: "Mapping[str, Reveal]") -> str:
    """Guess, model, simulation and measurement in one table, and how good the guesses were."""
    verdicts = [
        f"{words}: {reveal.verdict}" for words, reveal in found.items() if reveal.guess is not None
    ]
    return table_html(reveals_table(found)) + "".join(
        f"<div style='line-height:1.5'>{escape(verdict)}</div>" for verdict in verdicts
    )

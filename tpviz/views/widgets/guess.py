"""Commit a guess first, then compare it with the formula and the measurement.

>>> guess = Guess("How many bytes does one rank send?", unit="bytes")
>>> guess.commit(1000)
>>> guess.reveal(1500, formula="2 (n-1)/n S", predicted=1500)
your guess 1,000 bytes | formula 2 (n-1)/n S = 1,500 bytes | measured 1,500 bytes
You guessed 0.67x the measured value.
"""

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from html import escape
from typing import Any

import ipywidgets

from tpviz.core.show import Tabular

from .still import Still


class Guess(Still, ipywidgets.VBox):
    """A question with a field and a Commit button; a committed guess stays.

    question: plain text. unit: of the answer, "bytes" say. A cell that reveals works with or
    without a guess, so a notebook also runs from top to bottom by itself.
    """

    def __init__(self, question: str, unit: str = ""):
        self.question, self.unit, self.value = question, unit, None
        self._lock, self._heard = threading.Lock(), []
        self._field = ipywidgets.Text(
            placeholder="a number", description="my guess", tooltip=f"{question} ({unit})"
        )
        self._button = ipywidgets.Button(description="Commit", tooltip="fix this guess")
        self._note = ipywidgets.HTML(escape(unit), layout={"flex": "1 0 auto"})
        self._button.on_click(lambda _: self._click())
        row = ipywidgets.HBox([self._field, self._button, self._note])
        super().__init__([ipywidgets.HTML(f"<b>{escape(question)}</b>"), row])
        self.add_class("tpviz-guess")

    def _state(self):
        return "no guess yet" if self.value is None else f"guess {_number(self.value, self.unit)}"

    def _still(self):
        return f"<p><b>{escape(self.question)}</b> ({escape(self._state())})</p>"

    def __repr__(self):
        return f"<Guess {self.question!r}: {self._state()}>"

    def commit(self, value: float | str) -> None:
        """Fix the guess: a number or its text ("1.5e6"). Raises ValueError on anything else."""
        number = _parse(value)
        with self._lock:
            if self.value is not None:
                raise ValueError(f"you have committed {_number(self.value, self.unit)}; it stays")
            self.value = number
        self._field.value = _number(number)
        self._field.disabled = self._button.disabled = True
        self._note.value = f"{escape(self.unit)} — committed"
        self._draw_still()
        for callback in self._heard:
            callback()

    def on_commit(self, callback: Callable[[], object]) -> None:
        """Call ``callback()`` once a guess is committed, from whatever thread commits it."""
        self._heard.append(callback)

    def _click(self):
        try:
            self.commit(self._field.value)
        except ValueError as error:
            self._note.value = escape(str(error))

    def reveal(
        self,
        measured: float | None,
        formula: str = "",
        predicted: float | None = None,
        simulated: float | None = None,
        badge: str = "measured",
    ) -> "Reveal":
        """Guess, formula (its text and its value), simulated and measured value: a `Reveal`.

        measured None: not measured, and the guess is compared with the simulated value.
        badge : the label of the measured value; "emulated" for a run paced to a cluster.
        """
        return Reveal(self.value, measured, formula, predicted, self.unit, simulated, badge)


@dataclass(frozen=True)
class Reveal(Tabular):
    """The guessed, predicted, simulated (or None) and measured values; a table."""

    guess: float | None
    measured: float | None
    formula: str = ""
    predicted: float | None = None
    unit: str = ""
    simulated: float | None = None
    badge: str = "measured"
    _look = "tpviz-reveal"

    def cells(self) -> list[tuple[str, str]]:
        """(heading, text) of each column."""
        told = lambda value, none="": none if value is None else _number(value, self.unit)
        cells = [
            ("your guess", told(self.guess, "no guess committed")),
            ("formula", " = ".join(filter(None, (self.formula, told(self.predicted))))),
            ("simulated", told(self.simulated)),
            (self.badge, told(self.measured)),
        ]
        return [cell for cell in cells if cell[1]]

    @property
    def verdict(self) -> str:
        """How the guess compares with the measured value, in words."""
        if self.guess is None:
            return "Commit a guess first next time, so you can compare it with the measurement."
        what, value = self.badge, self.measured
        if value is None:
            what, value = "simulated", self.simulated
        if self.guess == value:
            return "Your guess was exactly right."
        if not value:
            return f"You guessed {_number(self.guess, self.unit)}; it is none."
        return f"You guessed {self.guess / value:.2g}x the {what} value."

    def __repr__(self):
        return " | ".join(f"{head} {text}" for head, text in self.cells()) + f"\n{self.verdict}"

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first."""
        return [list(row) for row in zip(*self.cells())]

    def _below(self):
        return self.verdict


def _parse(value: Any):
    try:
        number = float(str(value).replace(",", ""))
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"a guess is a number, such as 4096 or 1.5e6; got {value!r}")
    return number


def _number(value: float, unit: str = ""):
    """1,572,864 bytes; four significant digits when it is not whole, and all before the point."""
    whole = value == int(value) or abs(value) >= 1000
    text = f"{value:,.0f}" if whole else f"{value:.4g}"
    return f"{text} {unit}".strip()

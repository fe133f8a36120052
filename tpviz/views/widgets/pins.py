"""Plans that were pinned: they stay while knobs move, and stand side by side with what differs."""

from collections.abc import Callable
from dataclasses import fields
from typing import NamedTuple

import ipywidgets

from tpviz.core.tables import html_table, show_bytes, show_seconds
from tpviz.verbs.predict import Prediction
from tpviz.views.figures.svg import scrolled
from tpviz.views.plans.fitting import ModelSizes

from .setting import Configuration

MOST = 2
BYTES = "bytes sent by a rank", "memory of a rank"


class PinnedPlan(NamedTuple):
    """A `Configuration`, and its `Prediction` where it is on a cluster."""

    choice: Configuration
    prediction: Prediction | None = None

    def numbers(self, measured: float | None = None) -> dict[str, tuple[float, str]]:
        """{quantity: (number, its words)} at full speed. measured : seconds of its step."""
        strategy, workload = self.choice.strategy, self.choice.workload
        times, slow = {}, 1.0
        if self.prediction:
            slow = self.prediction.cluster.slow_motion
            times["step, predicted"] = self.prediction.step_time
            times["compute"] = self.prediction.parts["compute"]
            times |= {f"exposed on {a}": t for a, t in self.prediction.exposed.items()}
        if measured is not None:
            times["step, emulated" if self.prediction else "step, measured"] = measured
        found = {name: (t / slow, show_seconds(t / slow)) for name, t in times.items()}
        sent, held = BYTES
        sizes = {sent: strategy.ledger(workload).total()[2]}
        try:
            sizes[held] = strategy.memory(workload).total
        except NotImplementedError:  # a scheme without this formula
            pass
        return found | {name: (size, show_bytes(size)) for name, size in sizes.items()}


def side_by_side(
    first: PinnedPlan,
    second: PinnedPlan,
    step_of: Callable[[Configuration], float | None],
    names: tuple[str, str],
) -> list[list[str]]:
    """Rows of strings, header first: what two plans are, their numbers, and the second's difference
    to the first. step_of : `Configuration` -> seconds of its measured step, None where it was not
    run."""
    both = first, second
    rows = [["", *names, "difference"]]
    rows.append(["strategy", *(plan.choice.strategy.short for plan in both), ""])
    for f in fields(ModelSizes):
        sizes = [f"{getattr(plan.choice.workload, f.name):,}" for plan in both]
        rows += [[f.name, *sizes, ""]] * (sizes[0] != sizes[1])
    places = [plan.choice.cluster and plan.choice.cluster.name for plan in both]
    rows += [["cluster", *(place or "this machine" for place in places), ""]] * any(places)
    one, other = (plan.numbers(step_of(plan.choice)) for plan in both)
    for name in sorted({**one, **other}, key=lambda name: name in BYTES):  # times come first
        told = [numbers.get(name) for numbers in (one, other)]
        rows.append([name, *(n[1] if n else "" for n in told), _change(*told)])
    return rows


def _change(old: tuple[float, str] | None, new: tuple[float, str] | None):
    """-12 %, or "" where one of the two has no such number."""
    if old is None or new is None or not old[0]:
        return ""
    return f"{100 * (new[0] / old[0] - 1):+.3g} %" if new[0] != old[0] else "the same"


class PinsPane(ipywidgets.VBox):
    """A button that pins the plan in view, a button for each pinned one that lets go of it, and the
    comparison: of the two pinned ones, or of the one with the plan in view.

    step_of : `Configuration` -> seconds of its measured step, None where it was not run.
    """

    def __init__(self, step_of: Callable[[Configuration], float | None]):
        self.button = ipywidgets.Button(
            description="Pin this plan", icon="thumb-tack", tooltip="keep it, to compare others"
        )
        self._held, self.table = ipywidgets.HBox(), ipywidgets.HTML()
        self.table.add_class("tpviz-pins")
        self.plans: list[PinnedPlan] = []
        self._now: PinnedPlan | None = None
        self._step_of = step_of
        super().__init__([ipywidgets.HBox([self.button, self._held]), self.table])
        self.button.on_click(lambda button: self.pin())
        self.draw()

    def show(self, now: PinnedPlan | None) -> None:
        """The plan in view; None where its sizes do not fit."""
        self._now = now
        self.draw()

    def pin(self) -> None:
        """Keep the plan in view. Nothing happens where two are pinned, or where it is one."""
        if self._now is not None and len(self.plans) < MOST and self._now not in self.plans:
            self.plans.append(self._now)
            self._hold()

    def unpin(self, number: int) -> None:
        """Let go of a pinned plan, 0 or 1."""
        del self.plans[number]
        self._hold()

    def _hold(self):
        boxes = []
        for number, plan in enumerate(self.plans):
            box = ipywidgets.Button(
                description=f"unpin {plan.choice.strategy.short}",
                icon="times",
                tooltip=plan.choice.words,
                layout={"width": "auto", "max_width": "260px"},
            )
            box.on_click(lambda button, number=number: self.unpin(number))
            boxes.append(box)
        for box in self._held.children:
            box.close()
        self._held.children = boxes
        self.draw()

    def rows(self) -> list[list[str]]:
        """The comparison as rows of strings, header first; none where nothing is pinned."""
        if len(self.plans) == MOST:
            first, second = self.plans
            return side_by_side(first, second, self._step_of, ("pinned first", "pinned second"))
        if not self.plans or self._now is None or self._now in self.plans:
            return []
        return side_by_side(self.plans[0], self._now, self._step_of, ("pinned", "in view"))

    def draw(self) -> None:
        """Draw the comparison anew: a plan was run, say."""
        self.button.disabled = len(self.plans) == MOST or self._now in (None, *self.plans)
        rows, side = self.rows(), "padding:1px 6px;vertical-align:top;text-align:"
        styles = [f"{side}left;white-space:nowrap", *[f"{side}right"] * 3]
        frame = "style='border-collapse:collapse;line-height:1.4'"
        self.table.value = scrolled(html_table(rows, frame, styles)) if rows else ""

"""The map of plans as a widget: every plan a dot, one of them chosen; click another to take it."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import traitlets

from tpviz.schemes.merak.strategy import Merak
from tpviz.schemes.strategy import Strategy
from tpviz.verbs.predict import Prediction, predict
from tpviz.verbs.ranking import Row
from tpviz.verbs.room import room
from tpviz.verbs.space import cells, usual
from tpviz.views.figures import plan_map as figure
from tpviz.views.figures.svg import amount, seconds

from .base import View, named, shown
from .job import Job, Working
from .plans import PlansAsked

MOST = 160
"""Dots: the plans that people run, then others of the space, evenly."""


class PlanMap(Working, View):
    """Time over memory of the plans around one, which its card has in figures.

    take : called with the strategy that was clicked. `show` gives it a `Prediction`; `look` lets a
    worker thread predict others, `add` what a search finds. ``plans`` : [(strategy, `PlanDot`)].
    """

    kind, _svg = "plan_map", staticmethod(figure.plan_map_svg)
    picked = traitlets.Int(-1).tag(sync=True)

    @named()
    def __init__(self, take: Callable[[Strategy], Any]):
        super().__init__()
        self._take, self._chosen, self._around = take, None, None
        self._for: PlansAsked | None = None
        self.plans: list[tuple[Strategy, figure.PlanDot]] = []
        self.observe(self._clicked, "picked")

    def show(self, prediction: Prediction, around: Sequence[float] | None = None) -> None:
        """Choose a plan. around : seconds from which to which runs like it took."""
        with self._lock:
            self._chosen, self._around = prediction, around
            self._publish()

    def look(self, asked: PlansAsked) -> None:
        """Predict the plans of a question, if it is a new one, in a worker thread."""
        with self._lock:
            if asked == self._for:
                return
            self.stop()
            self._for, self.plans = asked, []
            self._job = Job(lambda: [*islice(_predicted(asked), MOST)], self._found)

    @shown
    def _found(self, result, error, stopped):
        if error is None and not stopped:
            self._more(result)

    def add(self, found: Sequence[Row]) -> None:
        """Show the plans of a search, for the same question, with the others."""
        self._more([(row.strategy, dot_of(row.prediction)) for row in found])

    def _more(self, plans):
        with self._lock:
            self.plans = [*dict([*self.plans, *plans]).items()]
            self._publish()

    def _publish(self):
        p = self._chosen
        if p is None:
            return
        own, capacity = dot_of(p), room(p.cluster, p.training)
        dots = [*(dot for _, dot in self._others), own]
        scene = figure.plan_map_scene(
            dots, capacity, len(dots) - 1, self._around, p.badge.partition(",")[0], p.strategy.short
        )
        memory = f"{amount(own.memory)} of {amount(capacity)}, "
        ends = (self._around or [])[:: max(len(self._around or ()) - 1, 1)]
        scene |= {
            "big": seconds(p.step_time),
            "says": f"a step, with {p.strategy.caption}",
            "numbers": [
                *([["9 of 10 runs (bar)", " to ".join(map(seconds, ends))]] if ends else []),
                ["speed", f"{p.tokens_per_second / p.strategy.world_size:,.0f} tokens/s a GPU"],
                ["memory", memory + ("fits" if p.fits else "does not fit")],
            ],
        }
        self.publish(scene=scene, picked=-1, error="")

    @property
    def _others(self):
        """The plans that are not chosen, in the order of their dots."""
        return [one for one in self.plans if not self._chosen or one[0] != self._chosen.strategy]

    @shown
    def _clicked(self, change):
        others = self._others
        if 0 <= change.new < len(others):
            self._take(others[change.new][0])

    def _draw(self, **options):
        return self._svg(self.scene, **options)

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each plan."""
        rows = [[d.name, d.kind, seconds(d.step), amount(d.memory)] for _, d in self.plans]
        return [["plan", "kind", "step", "memory of a GPU"], *rows]

    def describe(self) -> str:
        """The map in words."""
        if not self.scene:
            return "Map of plans without a plan."
        numbers = ", ".join(" ".join(pair) for pair in self.scene["numbers"])
        return f"{self.scene['big']} {self.scene['says']}: {numbers}. {self.scene['captions'][0]}."

    def _words(self):
        return f"{len(self.plans)} plans" if self.plans else "no other plans"


def dot_of(prediction: Prediction) -> figure.PlanDot:
    """The dot of a predicted plan."""
    strategy = prediction.strategy
    kind = figure.kind_of(strategy.axes)
    memory = prediction.memory().total
    return figure.PlanDot(strategy.short, kind, prediction.step_time, memory)


def _predicted(asked: PlansAsked) -> Iterator[tuple[Strategy, figure.PlanDot]]:
    """Plans that people run, then others, each with its dot; those without a formula are left
    out."""
    w, cluster, ranks, training = asked
    seen = set()
    for strategy in _around(w, cluster, ranks):
        if strategy in seen:
            continue
        seen.add(strategy)
        try:
            yield strategy, dot_of(predict(strategy, w, cluster, training=training))
        except (ValueError, NotImplementedError):
            continue


def _around(w, cluster, ranks):
    common = [cell.made(choice) for cell in usual(w, cluster, ranks) for choice in cell.choices]
    yield from common[:: 1 + len(common) // MOST]
    space = [*cells(w, ranks, [Merak])]
    for cell in space[:: max(len(space) // MOST, 1)]:
        yield cell.made(cell.choices[0])

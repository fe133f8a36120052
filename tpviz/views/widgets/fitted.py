"""A view whose knobs bind each other: those of a strategy, of one around it, and of the model."""

import threading
from collections.abc import Iterable, Mapping
from itertools import count
from math import prod
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets

from tpviz.core.here import thread_time
from tpviz.core.workload import GPT
from tpviz.ranks.bar import viewer
from tpviz.schemes import strategies
from tpviz.schemes.grid.tensor import WholeBlocks
from tpviz.schemes.strategy import Strategy
from tpviz.views.figures.page import swept, write_view
from tpviz.views.plans.factors import BETWEEN, composes
from tpviz.views.plans.fitting import Fitting, ModelSizes
from tpviz.views.plans.pictures import message

from .base import check_sweep, shown
from .job import Latest
from .knobs import Knobs
from .still import Still


class Fitted(Still):
    """Mixin of ``explore`` and of the planner: strategy and model by knobs, and the view as a page.

    A view gives ``most_ranks()``, how many ranks there may be; ``show_knobs(sizes, *factors)``;
    ``_state_at(values)``, what a page draws of values of the knobs, or the error alone;
    ``_heading()``, its title; and calls ``_moved`` where something else was changed.
    """

    menu: ipywidgets.Dropdown
    message: ipywidgets.HTML
    error: str
    _lock: threading.RLock
    _moved: Latest
    _fitting: Fitting

    if TYPE_CHECKING:

        def most_ranks(self) -> int:
            """How many ranks there may be."""
            ...

        def show_knobs(self, sizes: Knobs, *factors: Knobs) -> None:
            """Show the knobs of a strategy, of those around it, and those of the model."""
            ...

        def _state_at(self, values: dict[str, Any]) -> dict[str, Any]: ...
        def _heading(self) -> str: ...

    def usual_between(self, workload: GPT) -> tuple[Strategy, ...]:
        """Factors between a strategy and data parallelism that have knobs though none was given."""
        return ()

    @shown
    def _choose(self, inner=None, outer=None, between=(), placement: Any = "", workload=None):
        """A strategy was chosen: its knobs, those of data parallelism around it, and the model's.

        inner, outer, between : factors whose values the knobs take, None for the usual ones.
        placement : the order of axes that products of these values have, "" for their own.
        """
        with self._lock:
            cls = strategies()[self.menu.value]  # pyright: ignore[reportArgumentType]
            if outer is None and not (composes(cls) or cls.shares_batch):
                outer = next(c for c in strategies().values() if composes(c))(**{"dp": 1})
            inner, w = inner or cls(), workload or self._fitting.workload
            factors = {type(f): f for f in (*self.usual_between(w), *between)}
            between = [factors[kind] for kind in BETWEEN if kind in factors]
            fitting = self._fitting = self._fitting_of(w, inner, outer, between, placement)
            values, stops = fitting.values, fitting.stops
            self._sizes = Knobs(ModelSizes, values, compact=True, stops=stops)
            self._inner = Knobs(cls, values, stops=stops)
            of = lambda factor, without: Knobs(type(factor), values, stops=stops, without=without)
            self._outer = of(outer, self._inner.controls) if outer else None
            self._cuts = {type(f): of(f, WholeBlocks.__dataclass_fields__) for f in between}
            self._turned, self._writer = {}, 0
            self.show_knobs(*self._all_knobs)
            for knobs in self._all_knobs:
                for name, box in knobs.controls.items():
                    box.observe(lambda change, name=name: self._turn(name), "value")
        self._moved()

    def _fitting_of(self, workload: GPT, inner: Strategy, outer: Any, between: Any, placement: str):
        return Fitting(workload, inner, outer, self.most_ranks(), (), between, placement)

    @property
    def _all_knobs(self):
        factors = self._inner, self._outer, *self._cuts.values()
        return [knobs for knobs in (self._sizes, *factors) if knobs]

    def _turn(self, name):
        """A knob was moved, not by `_fit`: the last one moved is the last of ``_turned``."""
        if self._writer != threading.get_ident():
            self._turned.pop(name, None)
            self._turned[name] = True
            self._moved()

    def _fit(self):
        """Let knobs give way to those moved, and stop at what fits now."""
        values = {name: v for knobs in self._all_knobs for name, v in knobs.values().items()}
        turned, self._turned = self._turned, {}
        self._fitting.ranks = self.most_ranks()
        gave = self._settle({name: values[name] for name in turned if name in values})
        self._writer = threading.get_ident()
        try:
            for knobs in self._all_knobs:
                for name in knobs.controls.keys() & self._fitting.stops.keys():
                    knobs.offer(name, self._fitting.stops[name], self._fitting.values[name])
        finally:
            self._writer = 0
        return gave

    def _settle(self, moved: dict[str, Any]):
        """Move knobs of the fitting; {name: (before, after)} of those that gave way."""
        return self._fitting.move(moved)

    def show_error(self, error: BaseException | str) -> None:
        """Show an exception (or a text; "" clears it) under the controls."""
        plain = isinstance(error, ValueError | str)
        self.error = str(error) if plain else f"{type(error).__name__}: {error}"
        self.message.value = self.error and message(self.error)

    # -- the view as a page ----------------------------------------------------------------------
    def _swept(self) -> dict[str, Any]:
        """{knob: value} of all that a page may have sliders for."""
        return self._fitting.values

    def to_html(
        self,
        path: str | PathLike[str],
        sweep: Mapping[str, Iterable[Any]] | None = None,
        *,
        title: str = "",
    ) -> Path:
        """Write one HTML file with what the formulas say, without kernel and network; returns the
        path.

        sweep : {knob: values}, a slider for each, first at the knob's own value if that is among
        them; where sizes clash, the page says so. title : of the page. Raises ``ValueError`` for a
        knob that the view does not have, and where no combination fits.
        """
        with self._lock:
            values, known = {k: list(v) for k, v in (sweep or {}).items()}, self._swept()
            check_sweep(values, known)
            total, began = prod(map(len, values.values())), thread_time()
            done, show = count(1), viewer(None)

            def state(**at):
                if thread_time() - began > 1:
                    show(next(done), total, "drawing the sweep")
                return self._state_at({**known, **at})

            try:
                view = swept("picture", values, state, known)
            finally:
                show.close()
            title = title or self._heading()
            return write_view(path, title, view, self.to_svg(), title)  # pyright: ignore[reportAttributeAccessIssue]

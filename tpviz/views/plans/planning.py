"""The planner without widgets: what a page shows, and what changes when a reader turns a knob.

>>> planning = Planning()
>>> [control["name"] for control in planning.controls()[:3]]
['model', 'GPU', 'GPUs']
>>> shown = planning.turn("GPUs", 3)  # the fourth of the numbers to choose from
>>> "on 16 H100-SXM-80GB" in shown["facts"]
True
"""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import Any, NamedTuple

from tpviz import clusters, models
from tpviz.cluster.profiles import frameworks
from tpviz.core.checks import divisors
from tpviz.evidence.published.bands import EXPERTS, IDEAL, band
from tpviz.schemes import strategies
from tpviz.schemes.context.strategy import Context
from tpviz.schemes.experts.strategy import Experts
from tpviz.schemes.strategy import Strategy
from tpviz.schemes.zero.strategy import DataParallel
from tpviz.verbs.predict import predict
from tpviz.verbs.search import first_plan
from tpviz.verbs.space import tried

from .factors import BETWEEN, composes, offered, parts
from .fields import gave_words, label
from .filling import filling, settle
from .fitting import Fitting, ModelSizes, own_fields, size_names
from .numbers import plan_html, plan_words
from .presets import (
    COUNTS,
    STATES,
    USUAL_FRAMEWORK,
    USUAL_GPU,
    USUAL_GPUS,
    USUAL_MODEL,
    cluster_for,
    plan_cell,
    preset,
)

_AXES = {Context: "cp", Experts: "ep"}
_START = {
    "model": f"{USUAL_MODEL} 70B",
    "GPU": USUAL_GPU,
    "GPUs": USUAL_GPUS,
    "run by": USUAL_FRAMEWORK,
    "AdamW": STATES[0][1],
}


class Choice(NamedTuple):
    """A control: its ``name``, the ``values`` to choose from, as ``labels``, and the one chosen.
    group : under which heading it stands; help : a line on it."""

    name: str
    values: Sequence[Any]
    value: Any
    group: str
    help: str = ""
    labels: Sequence[str] = ()

    def shown(self) -> dict[str, Any]:
        """What the page needs of it; numbers are sliders."""
        return {
            "name": self.name,
            "group": self.group,
            "help": self.help,
            "kind": "slider" if type(self.value) is int else "menu",
            "labels": list(self.labels or map(label, self.values)),
            "at": list(self.values).index(self.value),
        }

    @property
    def text(self) -> str:
        """The value as an address says it."""
        return self._texts()[list(self.values).index(self.value)]

    def _texts(self) -> list[str]:
        return list(self.labels or map(str, self.values))

    def nearest(self, text: str | None) -> Any:
        """The value of what an address says: the same, or the nearest number; else the one chosen,
        as in the gallery (``address.js``)."""
        same = [v for v, said in zip(self.values, self._texts()) if said == text]
        if same or type(self.value) is not int:
            return same[0] if same else self.value
        with suppress(TypeError, ValueError):
            if isfinite(number := float(text or "")):
                return min(self.values, key=lambda value: abs(value - round(number)))
        return self.value


class Planning:
    """Model, GPUs and plan by knobs, each of them an index among what it may be; `scene` is what
    formulas say of them. ``gave`` says which knobs gave way to the one turned last.

    What the knobs may be takes longer to find than the scene, so it is asked apart, by `controls`.
    """

    def __init__(self) -> None:
        self._chosen: dict[str, Any] = dict(_START)
        self.gave, self._offered = "", dict[str, Sequence[Any]]()
        self._take_first()
        self._start = self._told()

    # -- what is chosen --------------------------------------------------------------------------
    def _take_first(self):
        """The plan that is fastest by formula of those that people run first."""
        workload, ranks = preset(self._chosen["model"]), self._chosen["GPUs"]
        how = self._training(workload)
        self._take(first_plan(workload, self._cluster, ranks, how), workload)

    def _take(self, strategy: Strategy, workload: Any, moved: Mapping[str, Any] = {}) -> None:
        self._factors, self._fill, self._fitting = self._fit(strategy, workload)
        self._settle(moved)

    def _fit(self, strategy: Strategy, workload: Any) -> tuple[list[Any], str, Fitting]:
        """(the factors with knobs, the knob that takes all ranks that are left, the knobs)."""
        inner, outer, between, placement = parts(strategy)
        assert inner is not None
        if outer is None and not (composes(type(inner)) or inner.shares_batch):
            outer = DataParallel(dp=1)
        usual = (Experts(ep=1),) * bool(workload.experts), (Context(cp=1),)
        factors = {type(factor): factor for factor in (*sum(usual, ()), *between)}
        kinds = [factors[kind] for kind in BETWEEN if kind in factors]
        fill = filling(type(inner).__name__, outer is not None)
        ranks = self._chosen["GPUs"]
        more = {n for count in (*COUNTS, ranks) for n in divisors(count)}
        on = workload, inner, outer, ranks, sorted(more), kinds, placement
        return [inner, *filter(None, [outer]), *kinds], fill, Fitting(*on)

    def _settle(self, moved):
        self._fitting.ranks = self._chosen["GPUs"]
        self.gave = gave_words(settle(self._fitting, moved, self._fill))

    def _training(self, workload):
        return self._chosen["AdamW"] if workload.itemsize == 2 else None

    @property
    def _cluster(self):
        return cluster_for(*(self._chosen[name] for name in ("GPU", "GPUs", "run by")))

    def _hardware(self) -> list[Choice]:
        """The controls of model, GPUs and training."""
        chosen, told = self._chosen, dict(STATES)
        hardware = {
            "model": (models.names(), "sizes as published"),
            "GPU": ([*clusters.GPUS], "in NVIDIA's nodes"),
            "GPUs": (sorted({*COUNTS, chosen["GPUs"]}), "how many"),
            "run by": ([IDEAL, *frameworks()], "whose kernels"),
        }
        found = [Choice(n, v, chosen[n], "model and GPUs", h) for n, (v, h) in hardware.items()]
        kept = "what training in 16 bits keeps"
        states = Choice("AdamW", [*told.values()], chosen["AdamW"], "model and GPUs", kept, [*told])
        return [*found, states]

    def _menu(self) -> Choice:
        """The control of what splits the model."""
        inner = type(self._factors[0]).__name__
        whole = tried(self._fitting.workload, None)  # what splits all of its blocks
        names = {inner, *(c.__name__ for c in whole if isinstance(c, type))}
        several = [name for name in offered() if name in names]
        return Choice("strategy", several, inner, "strategy", "what splits the model")

    def choices(self) -> list[Choice]:
        """All controls, in order."""
        found = [*self._hardware(), self._menu()]
        seen = set[str]()
        for factor in self._factors:
            axis = _AXES.get(type(factor))  # without ranks, only how many is asked
            fields = own_fields(type(factor))
            if axis and self._fitting.values[axis] == 1:
                fields = [f for f in fields if f.name == axis]
            found += self._knobs((f for f in fields if f.name not in seen), "strategy")
            seen |= {f.name for f in fields}
        return found + self._knobs(own_fields(ModelSizes), "the model and its batch")

    def _knobs(self, fields: Iterable[Any], group: str) -> list[Choice]:
        """Those of knobs that have something to choose from."""
        stops, values = self._fitting.stops, self._fitting.values
        return [
            Choice(f.name, stops[f.name], values[f.name], group, f.metadata["help"])
            for f in fields
            if len(stops.get(f.name, ())) > 1
        ]

    # -- a page ----------------------------------------------------------------------------------
    def controls(self) -> list[dict[str, Any]]:
        """What the page shows of all controls; from here on their values are numbered so."""
        every = self.choices()
        self._offered = {choice.name: choice.values for choice in every}
        return [choice.shown() for choice in every]

    def turn(self, name: str, at: int) -> dict[str, Any]:
        """The `scene` after a control was set to its value of this number; where that fits nothing,
        the one before, with why as its ``error``. Raises ``ValueError`` for a control that is not
        there, or has no such value."""
        known = self._offered or {choice.name: choice.values for choice in self.choices()}
        if name not in known or not 0 <= at < len(known[name]):
            raise ValueError(f"{name}={at}: there are {', '.join(known)}, numbered from 0")
        value, fitting = known[name][at], self._fitting
        before = self._chosen.copy(), self._factors, self._fill, fitting, fitting.values
        try:
            if name == "strategy":
                self._take(*self._named(value), {n: fitting.values[n] for n in size_names()})
            elif name not in self._chosen:
                self._settle({name: value})
            else:
                self._chosen[name] = value
                self._take_first() if name == "model" else self._settle({})
            return self.scene()
        except Exception as error:
            self._chosen, self._factors, self._fill, self._fitting, self._fitting.values = before
            self._settle({})
            if not isinstance(error, ValueError):
                raise
            return {**self.scene(), "error": str(error)}

    # -- an address ------------------------------------------------------------------------------
    def open(self, told: Mapping[str, str]) -> dict[str, Any]:
        """The `scene` of what an address says, {control: its value as text}, as ``said`` of a scene
        has it. What is not said is as at the start, what does not fit is left out or nearest."""
        self._chosen = dict(_START)
        try:
            for choice in self._hardware():
                self._chosen[choice.name] = choice.nearest(told.get(choice.name))
            self._take_first()
            if "strategy" in told:
                self._take(*self._named(self._menu().nearest(told["strategy"])))
            fitting, moved = self._fitting, dict[str, Any]()
            for name in [name for name in told if name in fitting.choices]:
                values = fitting.also(name, told[name])
                moved[name] = Choice(name, values, fitting.values[name], "").nearest(told[name])
            self._settle(moved)
            return self.scene()
        except ValueError as error:
            self._chosen = dict(_START)
            self._take_first()
            return {**self.scene(), "error": str(error)}

    def _told(self):
        """What an address says: controls that are not as at the start, and the strategy with its
        knobs that are not as it has them by default; so a link does not depend on what is found to
        be the first plan."""
        told = {c.name: c.text for c in self._hardware() if c.value != _START[c.name]}
        told["strategy"] = self._menu().value
        _, fill, usual = self._fit(*self._named(told["strategy"]))
        settle(usual, {}, fill)
        for name in self._fitting.choices:
            value = self._fitting.values[name]
            if name == fill or value != usual.values.get(name):
                told[name] = str(value)
        return told

    def _named(self, strategy):
        """(a strategy of the menu as it is by default, the model in its published sizes)."""
        return strategies()[strategy](), preset(self._chosen["model"])

    def _cell(self):
        """The notebook's cell that makes the planner's widget as it stands."""
        chosen, fitting = self._chosen, self._fitting
        on = {"gpus": chosen["GPUs"], "gpu": chosen["GPU"], "framework": chosen["run by"]}
        return plan_cell(chosen["model"], fitting.workload, fitting.strategy, chosen["AdamW"], **on)

    # -- what a page shows -----------------------------------------------------------------------
    def scene(self) -> dict[str, Any]:
        """What the page shows beside controls: words, pictures, a table; ``said`` is what its
        address then says, {control: text}, and ``cell`` the cell of a notebook that makes it."""
        w, strategy, chosen = self._fitting.workload, self._fitting.strategy, self._chosen
        prediction = predict(strategy, w, self._cluster, training=self._training(w))
        runs = f"{chosen['run by']}{EXPERTS * bool(w.experts)}"
        around, on = band(runs, chosen["GPU"]), f"{chosen['GPUs']:,} {chosen['GPU']}"
        pictures, axes = plan_html(prediction, around, chosen["GPUs"])
        return {
            "facts": plan_words(chosen["model"], w, on, chosen["run by"], strategy),
            "seconds": prediction.step_time,
            "pictures": pictures,
            "axes": axes,
            "gave": self.gave,
            "error": "",
            "said": {} if (told := self._told()) == self._start else told,
            "cell": self._cell(),
        }

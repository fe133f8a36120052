"""The planner: a model that people train on GPUs that one may not have. Prediction alone.

Model, hardware and strategy by knobs; beside them step time, throughput, memory and communication,
the best plans by `search`, and how far such predictions were from published runs. The plan can then
be run here, as a scale model on a few ranks, in an `Explore`.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from html import escape
from typing import Any

import ipywidgets

from tpviz import clusters, models
from tpviz.cluster import Cluster
from tpviz.cluster.profiles import frameworks
from tpviz.core.checks import divisors
from tpviz.core.workload import GPT
from tpviz.evidence.published.bands import EXPERTS, IDEAL, Band, band
from tpviz.ranks.most import max_ranks
from tpviz.schemes.context.strategy import Context
from tpviz.schemes.experts.strategy import Experts
from tpviz.schemes.strategy import Strategy
from tpviz.verbs.predict import Prediction, predict
from tpviz.verbs.room import USUAL, Training
from tpviz.verbs.search import first_plan
from tpviz.verbs.space import also
from tpviz.verbs.why import foreign
from tpviz.views.figures.svg import seconds, stacked
from tpviz.views.plans.factors import offered, parts
from tpviz.views.plans.fields import gave_words, small_html
from tpviz.views.plans.filling import filling, settle
from tpviz.views.plans.fitting import Fitting
from tpviz.views.plans.numbers import figures, plan_html, plan_svgs, plan_words
from tpviz.views.plans.pictures import message
from tpviz.views.plans.presets import (
    COUNTS,
    STATES,
    USUAL_FRAMEWORK,
    USUAL_GPU,
    USUAL_GPUS,
    cluster_for,
    given,
    plan_cell,
    preset,
)

from .base import check_names, shown
from .explore import Explore
from .fitted import Fitted
from .in_small import Small, in_small
from .job import Latest
from .knobs import WIDE, WRAPPED, Knobs
from .plan_map import PlanMap
from .plans import PlansAsked, PlansPane
from .setting import ROOMY, dropdown


def explore(
    workload: GPT | str | None = None,
    cluster: Cluster | None = None,
    *,
    gpus: int | None = None,
    gpu: str | None = None,
    framework: str | None = None,
    **options: Any,
) -> "Explore | Planner":
    """The widget that joins knobs, model, run, timeline and ledger; see `Explore`.

    With the name of a model, or with one of ``gpus``, ``gpu`` and ``framework``, it is the planner:
    see `Planner`. ``explore("llama2 70B", gpus=512)``. Raises ``ValueError`` where these come with
    a cluster.
    """
    hardware = {"gpus": gpus, "gpu": gpu, "framework": framework}
    if not isinstance(workload, str) and not any(value is not None for value in hardware.values()):
        return Explore(workload, cluster, **options)
    if cluster is not None:
        raise ValueError(
            f"cluster={cluster!r} comes with the name of a model, gpus, gpu or framework: give a "
            "cluster and a tv.GPT, or those names"
        )
    check_names("explore", options, [*hardware, "strategy", "runner"])
    return Planner(workload, **hardware, **options)  # pyright: ignore[reportArgumentType]


RANKS = 8
"""Of a scale model, at most."""


class Planner(Fitted, ipywidgets.VBox):
    """Knobs -> formulas, within the error of published runs; a search beside them.

    Parameters
    ----------
    workload : a `GPT`, or the name of one of `tpviz.models` ("llama2 70B"), whose batch is then of
        `BATCH` tokens. Raises ValueError on anything else.
    gpus, gpu : how many, and of which name in `tpviz.clusters.GPUS`; in NVIDIA's nodes.
    framework : whose kernels, of `tpviz.clusters.as_run_by`; "ideal" for nominal rates.
    strategy : that the knobs show at first; by default a pipeline of 1F1B, with the fewest ranks to
        a replica that have room.
    runner : as of `Explore`, for the scale model.

    ``prediction`` is that of the knobs, None where sizes clash; ``band`` the `Band` around it;
    ``plans`` the search's pane; ``small`` the scale model's view, None before it was asked for;
    ``error`` the message shown, or "".
    """

    def __init__(
        self,
        workload: GPT | str | None = None,
        *,
        gpus: int | None = None,
        gpu: str | None = None,
        framework: str | None = None,
        strategy: Strategy | None = None,
        runner: Callable[..., Any] | None = None,
    ):
        named = given(workload)
        gpus, gpu = USUAL_GPUS if gpus is None else gpus, gpu or USUAL_GPU
        framework = framework or USUAL_FRAMEWORK
        cluster_for(gpu, gpus, framework)
        inner, *around = parts(strategy)
        self._lock, self._moved = threading.RLock(), Latest(self._redraw)
        self._runner, self._quiet, self.error = runner, False, ""
        self.prediction: Prediction | None = None
        self._given: int | None = gpus  # for which a strategy was given
        self.band: Band | None = None
        self.small: Explore | None = None
        own = [] if isinstance(named, str) else [("as given", named)]
        presets = [(name, name) for name in models.names()]
        self.model = dropdown("model", [*own, *presets], named, "sizes as published: tv.models")
        self.menu = ipywidgets.Dropdown(options=offered(), description="strategy", style=WIDE)
        self.gpu = dropdown("GPU", tuple(clusters.GPUS), gpu, "in NVIDIA's nodes: tv.clusters.dgx")
        counts = [(f"{n:,}", n) for n in sorted({*COUNTS, gpus})]
        self.gpus = ipywidgets.SelectionSlider(
            options=counts, value=gpus, description="GPUs", style=WIDE, layout=ROOMY
        )
        run_by = [("ideal: nominal rates", IDEAL), *((name, name) for name in frameworks())]
        self.framework = dropdown("run by", run_by, framework, "whose kernels: clusters.as_run_by")
        self.states = dropdown("AdamW", STATES, USUAL, "what 16-bit training keeps: tv.Training")
        self.facts, self.message, self.gave, self.picture, self.axes = (
            ipywidgets.HTML() for _ in range(5)
        )
        self.picture.add_class("tpviz-predicted")
        self.knobs_box, self.small_box = ipywidgets.VBox(), ipywidgets.VBox()
        self.map = PlanMap(self.take)
        self.plans = PlansPane(self.take, self.show_error, self.map.add)
        self.small_button = ipywidgets.Button(
            description="Run it here as a scale model",
            icon="play",
            tooltip=f"on at most {RANKS} ranks of this machine",
            layout={"width": "240px"},
        )
        super().__init__(self._rows())
        self._choose_first(inner, *around)
        self.model.observe(lambda change: self._choose_first(), "value")
        self.menu.observe(lambda change: self._quiet or self._choose_menu(), "value")
        for box in (self.gpu, self.gpus, self.framework, self.states):
            box.observe(lambda change: self._moved(), "value")
        self.plans.search_button.on_click(lambda button: self.search())
        self.small_button.on_click(lambda button: self.run_small())

    def _rows(self):
        half = {"flex": "1 1 440px", "min_width": "400px"}
        hardware = [self.model, self.gpu, self.gpus, self.framework, self.states]
        left = [*hardware, self.menu, self.knobs_box, self.gave, self.message]
        sides = [left, [self.picture, self.axes]]
        both = [ipywidgets.VBox(side, layout=half) for side in sides]
        below = [self.plans, self.small_button, self.small_box]
        return [self.facts, self.map, ipywidgets.Box(both, layout=WRAPPED), *below]

    # -- what is chosen --------------------------------------------------------------------------
    @property
    def cluster(self) -> Cluster:
        """The hardware chosen. Raises ``ValueError`` for a node that would be cut."""
        return cluster_for(self.gpu.value, self.gpus.value, self.framework.value)  # pyright: ignore[reportArgumentType]

    @property
    def workload(self) -> GPT:
        """The model and the batch chosen."""
        return self._fitting.workload

    @property
    def strategy(self) -> Strategy:
        """The strategy chosen."""
        return self._fitting.strategy

    def usual_between(self, workload: GPT) -> tuple[Strategy, ...]:
        """`Context`, and `Experts` where there are some."""
        return (*(Experts(ep=1),) * bool(workload.experts), Context(cp=1))

    def most_ranks(self) -> int:
        """As many ranks as GPUs."""
        return self.gpus.value  # pyright: ignore[reportReturnType]

    @shown
    def _choose_first(self, inner=None, *around):
        """A model was chosen, and perhaps a strategy inside and those around it."""
        chosen: Any = self.model.value
        workload = preset(chosen) if isinstance(chosen, str) else chosen
        how = self._training_of(workload)
        if inner is None:
            inner, *around = parts(first_plan(workload, self.cluster, self.most_ranks(), how))
            self._given = None
        self._set_menu(inner)
        self._choose(inner, *around, workload=workload)

    def _choose_menu(self):
        self._given = None
        self._choose()

    def _set_menu(self, inner):
        self._quiet = True
        try:
            self.menu.value = type(inner).__name__
        finally:
            self._quiet = False

    @shown
    def take(self, strategy: Strategy) -> None:
        """Set the knobs to a strategy."""
        inner, *around = parts(strategy)
        self._set_menu(inner)
        self._choose(inner, *around)

    def _fitting_of(self, workload, inner, outer, between, placement):
        more = {n for count in (*COUNTS, self.most_ranks()) for n in divisors(count)}
        return Fitting(workload, inner, outer, self.most_ranks(), sorted(more), between, placement)

    def _settle(self, moved):
        """Replicas take all GPUs that are left, but for a strategy that was given, as it stands."""
        if self._given == self.gpus.value and not moved:
            return self._fitting.move(moved)
        self._given = None
        return settle(self._fitting, moved, filling(self.menu.value, bool(self._outer)))  # pyright: ignore[reportArgumentType]

    @property
    def training(self) -> Training | None:
        """What AdamW's menu says; None of a model that is not in 16 bits."""
        return self._training_of(self._fitting.workload)

    def _training_of(self, workload) -> Training | None:
        return self.states.value if workload.itemsize == 2 else None  # pyright: ignore[reportReturnType]

    @property
    def _asked(self):
        """For what plans are searched."""
        return PlansAsked(self.workload, self.cluster, self.most_ranks(), self.training)

    # -- while knobs move --------------------------------------------------------------------------
    def show_knobs(self, sizes: Knobs, *factors: Knobs) -> None:
        """Show the knobs of a strategy, of those around it, and those of the model."""
        heading = ipywidgets.HTML("<b>the model and its batch</b>")
        self.knobs_box.children = [*factors, heading, sizes]

    def _show_cuts(self):
        """Show the knobs of context parallelism where sequences are long or cut, those of experts
        where there are some; how they are cut only where they are, and what there is to choose."""
        w, values = self.workload, self._fitting.values
        long = Context in also(w)
        tp = self.strategy.axes.get("tp", 1)
        choice = {"etp": tp > 1, "overlap": w.shared_experts > 0}
        for kind, (axis, wanted) in {Context: ("cp", long), Experts: ("ep", True)}.items():
            if (knobs := self._cuts.get(kind)) is None:
                continue
            on = values[axis] > 1
            knobs.layout.display = "" if on or wanted else "none"
            for name, line in zip(knobs.controls, knobs.children):
                there = name == axis or (on and choice.get(name, True))
                line.layout.display = "" if there else "none"

    @shown
    def _redraw(self):
        """Something moved: what formulas say of it. Searches nothing, runs nothing."""
        with self._lock:
            self.prediction = None
            try:
                cluster = self.cluster
                gave = self._fit()
                self._show_cuts()
                prediction = predict(self.strategy, self.workload, cluster, training=self.training)
            except ValueError as error:
                self.show_error(error)
                self.facts.value = "These sizes do not fit; below are the last valid ones."
                return
            runs = f"{self.framework.value}{EXPERTS * bool(prediction.workload.experts)}"
            self.prediction, self.band = prediction, band(runs, self.gpu.value)  # pyright: ignore[reportArgumentType]
            self.show_error("")
            self.gave.value = small_html(gave_words(gave))
            heavy = "" if prediction.fits else f"Does not fit: {prediction.fit_in_words()} "
            name = escape(heavy + self._name())
            self.facts.value = f"<b style='line-height:1.4'>{name}</b>"
            self.picture.value, self.axes.value = self._drawn(prediction)
            asked = self._asked
            self.plans.look(asked)
            around = self.band.around(prediction.step_time) if self.band else None
            self.map.show(prediction, around)
            if self._place:  # it is shown
                self.map.look(asked)

    def _drawn(self, p):
        """(the pictures, the table of axes) as HTML."""
        return plan_html(p, self.band, self.most_ranks())

    def _ipython_display_(self):
        super()._ipython_display_()
        if self.prediction is not None:
            self.map.look(self._asked)

    # -- search, and the scale model ---------------------------------------------------------------
    @shown
    def search(self) -> None:
        """Search the best plans for the model on these GPUs, in a worker thread."""
        self.plans.start(self._asked)

    def scale_model(self) -> Small:
        """The plan in small: see `tpviz.views.widgets.in_small`."""
        return in_small(self.strategy, self.workload, self.cluster, min(RANKS, max_ranks()))

    @shown
    def run_small(self) -> None:
        """Run the plan on a few ranks of this machine, in a view below."""
        with self._lock:
            if self.small is not None:
                self.small.stop()
            small = self.scale_model()
            self.small = Explore(
                small.workload, small.cluster, strategy=small.strategy, runner=self._runner
            )
            self.small.guesses.on.value = False
            self.small_box.children = [ipywidgets.HTML(message(small.words, "#0072B2")), self.small]
            self.small.run()

    # -- the view in words, tables, pictures -------------------------------------------------------
    def _heading(self):
        return f"{self.gpus.value:,} {self.gpu.value}: {self._named()}"

    def _named(self):
        chosen = self.model.value
        return chosen if isinstance(chosen, str) else chosen.words  # pyright: ignore[reportOptionalMemberAccess]

    def _name(self):
        on = f"{self.gpus.value:,} {self.gpu.value}"
        return plan_words(self._named(), self.workload, on, self.framework.value, self.strategy)  # pyright: ignore[reportArgumentType]

    def _swept(self):
        return {**self._fitting.values, "gpus": self.gpus.value}

    def _state_at(self, values):
        values, gpus = dict(values), values["gpus"]
        try:
            cluster = cluster_for(self.gpu.value, gpus, self.framework.value)  # pyright: ignore[reportArgumentType]
            strategy, workload = self._fitting.made(values)
            how = self._training_of(workload)
            prediction = predict(strategy, workload, cluster, training=how)
        except ValueError as error:
            return {"error": str(error)}
        drawn = "".join(self._drawn(prediction))
        state: dict[str, Any] = {"scene": {"svg": f"<h2>{escape(strategy.short)}</h2>{drawn}"}}
        with suppress(ValueError):  # of one's own, without code
            on = {"gpus": gpus, "gpu": self.gpu.value, "framework": self.framework.value}
            state["cell"] = plan_cell(self._named(), workload, strategy, self.states.value, **on)  # pyright: ignore[reportArgumentType]
        return state

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: the best plans, where a search has found some, else the
        parts of the predicted step."""
        with self._lock:
            if self.plans.rows or self.prediction is None:
                return self.plans.to_table()
            return self.prediction.to_table()

    def to_svg(self, theme: str = "auto") -> str:
        """The pictures of the plan, and the chart of the best ones where a search has found
        some."""
        with self._lock:
            p, drawn = self.prediction, []
            if p is not None:
                drawn = plan_svgs(p, self.band, theme)
            if self.plans.found is not None:
                drawn.append(self.plans.found.to_svg(theme))
            return stacked(drawn, self._heading(), theme)

    def describe(self) -> str:
        """The plan, its prediction, and the error of such predictions, in words."""
        with self._lock:
            p = self.prediction
            if p is None:
                return f"Planner, bad sizes ({self.error})."
            waits = ", ".join(f"{seconds(s)} for {axis}" for axis, s in p.exposed.items())
            around = f" The error of such predictions: {self.band.words}." if self.band else ""
            fit, plan = p.fit_in_words(), f"{self._name()}. "
            own = f" {foreign(p.strategy, p.cluster)}".rstrip()
            said = (
                f"Predicted: {seconds(p.step_time)} a step, {', '.join(figures(p))}. "
                f"Kernels wait {waits or 'for nothing'}."
            )
            order = (plan, said, f" {fit}") if p.fits else (f"It does not fit: {fit} ", plan, said)
            return f"Planner: {''.join(order)}{own}{around}"

    def __repr__(self):
        return f"<Planner {self._heading()}: {self.strategy.short}>"

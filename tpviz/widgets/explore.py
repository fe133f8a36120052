"""``explore``: choose a strategy and a cluster, change the knobs, run, and inspect the result.

While a knob moves only formulas are evaluated: the prediction, the mesh, the shards, and the
ledger. Run simulates the configuration and starts real ranks, in a worker thread; then guess,
model, simulation and measurement are compared.
"""

import threading
from collections.abc import Callable, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import ipywidgets

from tpviz.figures.cluster import cluster_scene, cluster_svg
from tpviz.figures.ledger import ledger_table
from tpviz.mesh import Mesh
from tpviz.strategy import Strategy, strategies
from tpviz.workload import GPT

from .base import check_names, shown
from .guessing import GuessPane
from .job import Job, Latest
from .knobs import WIDE, WRAPPED, Knobs, knob_fields
from .mesh import MeshView
from .model import ModelPane, fitted, message
from .results import Outcome, ResultsPane, run
from .setting import Setting, check_cluster, read

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.trace import Trace

MOST = 8
"""Upper end of whole-number sliders; a notebook's machine cannot run more ranks."""
STEPS = 3


class Panel(ipywidgets.VBox):
    """Controls on the left, model and mesh on the right; results below.

    names: the strategies of the menu; cluster: the one chosen at first, or None; lock: of the view.
    ``error`` is the message shown, or "".
    """

    def __init__(self, names: Sequence[str], cluster: "Cluster | None", lock: threading.RLock):
        self.menu = ipywidgets.Dropdown(options=names, description="strategy", style=WIDE)
        self.knobs_box = ipywidgets.VBox()
        self.setting, self.guesses = Setting(cluster), GuessPane(lock)
        self.steps = ipywidgets.IntSlider(STEPS, min=1, max=20, description="steps", style=WIDE)
        self.run_button = ipywidgets.Button(
            description="Run", button_style="primary", icon="play", tooltip="run on real ranks"
        )
        self.stop_button = ipywidgets.Button(
            description="Stop", icon="stop", disabled=True, tooltip="end the ranks of this run"
        )
        self.bar = ipywidgets.IntProgress(value=0, max=1, layout={"width": "160px"})
        self.status, self.message, self.facts = (ipywidgets.HTML() for _ in range(3))
        self.model, self.results, self.mesh = ModelPane(), ResultsPane(), MeshView()
        self.timeline, self.ledger = self.results.timeline, self.results.ledger
        self.losses = self.results.losses
        self.axis = ipywidgets.ToggleButtons(style={"button_width": "64px"})
        self.cluster_picture = ipywidgets.HTML()
        traffic = ipywidgets.HBox([ipywidgets.Label("traffic of axis"), self.axis])
        self.cluster_box = ipywidgets.VBox([traffic, self.cluster_picture])
        ipywidgets.jslink((self.mesh, "rank"), (self.timeline, "rank"))
        self.error = ""
        super().__init__(self._rows())

    def _rows(self):
        buttons = ipywidgets.HBox([self.run_button, self.stop_button, self.bar])
        left = [self.menu, self.knobs_box, self.setting, self.steps, self.guesses, buttons]
        sides = [*left, self.status, self.message], [self.model, self.mesh]
        half = {"flex": "1 1 440px", "min_width": "400px"}
        columns = [ipywidgets.VBox(side, layout=half) for side in sides]
        top = ipywidgets.Box(columns, layout=WRAPPED)
        return [self.facts, top, self.cluster_box, self.results]

    def show_knobs(self, inner: Knobs, outer: Knobs | None = None) -> None:
        """Show the knobs of a strategy, and of one around it."""
        boxes = [inner]
        if outer:
            words = f"combined with {escape(outer.cls.__name__)}"
            boxes += [ipywidgets.HTML(f"<b>{words}</b>"), outer]
        self.knobs_box.children = boxes

    def show_cluster(self, cluster: "Cluster | None", mesh: Mesh) -> None:
        """The cluster with the mesh laid on it, and the traffic of the axis chosen; None hides."""
        self.cluster_box.layout.display = "none" if cluster is None else ""
        if cluster is None:
            self.cluster_picture.value = ""
            return
        if self.axis.options != mesh.names:
            chosen = self.axis.value
            self.axis.options = mesh.names
            self.axis.value = chosen if chosen in mesh.names else mesh.names[-1]
        scene = cluster_scene(cluster, mesh, self.axis.value)
        self.cluster_picture.value = fitted(cluster_svg(scene, theme="page"))

    def show_error(self, error: BaseException | str) -> None:
        """Show an exception (or a text; "" clears it) under the controls."""
        plain = isinstance(error, ValueError | str)
        self.error = str(error) if plain else f"{type(error).__name__}: {error}"
        self.message.value = self.error and message(self.error)

    def say(self, text: str) -> None:
        """Show a status under the buttons."""
        self.status.value = f"<div aria-live='polite' style='line-height:1.4'>{escape(text)}</div>"


def explore(
    workload: GPT | None = None, cluster: "Cluster | None" = None, **options: Any
) -> "Explore":
    """The widget that joins knobs, model, run, timeline and ledger; see `Explore`."""
    return Explore(workload, cluster, **options)


class Explore(Panel):
    """Knobs -> formula; Run -> simulation and real ranks -> comparison, timeline, ledger, losses.

    Parameters
    ----------
    workload : GPT, or None for ``tv.GPT()``. Raises ValueError on anything else.
    cluster : the `Cluster` chosen at first, or None for this machine; the menu has the presets.
        Raises ValueError on anything else.
    strategy : the `Strategy` that the knobs show at first, alone or inside a `DataParallel`; None
        is the first of the menu as it is by default. Raises ValueError on anything else.
    runner : function ``(strategy, workload, cluster, steps=, progress=)`` that returns a `Trace` or
        an `outcome.Outcome`; None simulates and measures. cluster None is this machine.

    ``choice`` is the knobs' strategy (None where sizes clash), ``prediction`` its prediction on a
    cluster; ``outcome`` the result of the last successful run, or None, and ``trace`` its trace;
    ``error`` the message shown, or "".
    """

    def __init__(
        self,
        workload: GPT | None = None,
        cluster: "Cluster | None" = None,
        *,
        strategy: Strategy | None = None,
        runner: "Callable[..., Trace | Outcome] | None" = None,
        **unknown: Any,
    ):
        check_names("explore", unknown, ["workload", "cluster", "strategy", "runner"])
        check_cluster(cluster)
        inner, outer = _parts(strategy)
        if not isinstance(workload, GPT | None):
            raise ValueError(f"explore needs a workload such as tv.GPT(), not {workload!r}")
        self._lock, self._moved = threading.RLock(), Latest(self._redraw)
        self._runner, self._workload = runner or run, workload or GPT()
        self.choice = self.prediction = self.outcome = self._ran = self._job = None
        self._expected = self._drawn = None
        names = sorted(strategies(), key=_place)
        super().__init__(names, cluster, self._lock)
        if strategy is not None:
            self.menu.value = type(inner).__name__
        self.menu.observe(lambda change: self._choose(), "value")
        self.axis.observe(lambda change: self._draw_cluster(), "value")
        self.setting.on_change(self._moved)
        self.guesses.on_change(self._moved)
        self.run_button.on_click(lambda button: self.run())
        self.stop_button.on_click(lambda button: self.stop())
        self._choose(inner, outer)

    @property
    def strategy(self) -> Strategy | None:
        """The strategy chosen, or None where sizes clash."""
        return self.choice and self.choice.strategy

    @property
    def trace(self) -> "Trace | None":
        """The trace of the last successful run, or None."""
        return self.outcome and self.outcome.trace

    # -- while knobs move ------------------------------------------------------------------------
    @shown
    def _choose(self, inner=None, around=None):
        """A strategy was chosen: its knobs, and those of data parallelism around it.

        inner, around : strategies whose values the knobs take, None for the usual ones.
        """
        with self._lock:
            cls = strategies()[self.menu.value]  # pyright: ignore[reportArgumentType]
            outer = next(
                (c for c in strategies().values() if _composes(c) and not _composes(cls)), None
            )
            self._inner = Knobs(cls, vars(inner) if inner else None, MOST)
            usual = vars(around) if around else {"dp": 1}
            self._outer = Knobs(outer, usual, MOST) if outer else None
            self.show_knobs(self._inner, self._outer)
            for knobs in filter(None, (self._inner, self._outer)):
                knobs.on_change(self._moved)
        self._moved()

    @shown
    def _redraw(self):
        """Something moved: check the sizes, redraw the formulas' results. Runs nothing."""
        with self._lock:
            self.choice = self.prediction = None
            try:
                reading = read(self._from_knobs(), self._workload, self.setting.chosen)
                choice, prediction, scale, rows = reading
            except ValueError as error:
                self.show_error(error)
                self.facts.value = "These sizes do not fit; below are the last valid ones."
                self.guesses.ask(None)
                self._enable()
                return
            self.choice, self.prediction = choice, prediction
            self.show_error("")
            self.setting.say(scale)
            self.guesses.ask(choice if choice.cluster else None)
            words = f"<b>{escape(choice.words)}</b> for {escape(repr(choice.workload))}"
            self.facts.value = f"<div style='line-height:1.4'>{words}</div>"
            self._draw(rows)
            self._enable()

    def _from_knobs(self):
        """The strategy of the knobs; a dp of 1 adds nothing."""
        strategy = self._inner.cls(**self._inner.values())
        if self._outer and self._outer.values().get("dp", 1) > 1:
            strategy = strategy * self._outer.cls(**self._outer.values())
        return strategy

    def _draw(self, rows):
        """The mesh and the ledger if the strategy changed; results that depend on the cluster."""
        assert self.choice is not None
        strategy, mesh = self.choice.strategy, Mesh(self.choice.strategy.axes)
        if strategy != self._drawn:
            self._drawn, self._expected = strategy, strategy.ledger(self._workload)
            self.mesh.show(mesh, rows, badge=f"{strategy.world_size} ranks")
        self._draw_ledger()
        if self.prediction is None:
            self.model.clear()
        else:
            self.model.show(self.prediction, mesh, self.guesses.covering)
        self._draw_cluster()

    @shown
    def _draw_cluster(self):
        with self._lock:
            if self.choice is not None:
                self.show_cluster(self.choice.cluster, Mesh(self.choice.strategy.axes))

    def _draw_ledger(self):
        self.results.show_ledger(self._expected, self._measured())

    def _measured(self):
        """The ledger measured for the strategy in view, or None."""
        if self.outcome is None or self._ran is None or self._ran.strategy != self.strategy:
            return None
        return self.outcome.measured.ledger() if self.outcome.measured else None

    # -- runs ------------------------------------------------------------------------------------
    @shown
    def run(self) -> None:
        """Run the knobs' strategy. A second run while one is active is refused, in the view."""
        with self._lock:
            refusal = self._refusal()
            if refusal:
                self.say(refusal)
                return
            choice, prediction, steps = self.choice, self.prediction, self.steps.value
            assert choice is not None
            self.show_error("")
            self.say(f"running {choice.words} on {choice.strategy.world_size} ranks ...")
            self.bar.value, self.bar.max = 0, max(steps, 1)
            self._job = Job(
                lambda: Outcome.of(
                    self._runner(
                        choice.strategy,
                        choice.workload,
                        choice.cluster,
                        steps=steps,
                        progress=self._progress,
                    )
                ),
                lambda *end: self._ended(choice, prediction, *end),
            )
            self._enable()

    def _refusal(self):
        """Why Run is unavailable now, or ""."""
        if self._job and self._job.running:
            return "a run is in progress: wait for it, or press Stop"
        if self.choice is None:
            return "these sizes do not fit together: see the message"
        return "" if self.guesses.settled else "commit a guess first, or skip it"

    @shown
    def stop(self) -> None:
        """End the active run; its ranks end too."""
        with self._lock:
            if self._job and self._job.stop():
                self.say("stopping ...")
                self.stop_button.disabled = True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the active run (for scripts and tests); True when none is left."""
        return self._job is None or self._job.join(timeout)

    def _progress(self, done, total, text=""):
        with self._lock:
            self.bar.max, self.bar.value = max(total, 1), done
            if self._job is None or not self._job.stopped:
                self.say(text or f"{done} of {total}")

    @shown
    def _ended(self, choice, prediction, outcome, error, stopped):
        with self._lock:
            self._enable()
            if error is not None:
                self.say("stopped; the ranks have ended" if stopped else "the run failed")
                if not stopped:
                    self.show_error(error)
                return
            self.outcome, self._ran = outcome, choice
            self.bar.value = self.bar.max
            self._draw_ledger()
            self.results.show(outcome, prediction, self.guesses.of(choice))
            self.say(f"{'measured' if outcome.measured else 'simulated'}: {choice.words}")

    def _enable(self):
        running = bool(self._job and self._job.running)
        self.run_button.disabled = bool(self._refusal())
        self.stop_button.disabled = not running
        self.run_button.description = "Run" if not self.choice or self.choice.runs else "Simulate"

    # -- the view in words, tables, pictures -----------------------------------------------------
    def to_table(self) -> list[list[str]]:
        """Rows of strings: the formula's ledger beside the measured one."""
        with self._lock:
            return ledger_table(self._expected, self._measured())  # pyright: ignore[reportArgumentType]

    def to_svg(self, **options: Any) -> str:
        """The timeline of the last run, or the mesh before any."""
        return (self.timeline if self.trace is not None else self.mesh).to_svg(**options)

    def describe(self) -> str:
        """The choice, its prediction and measurement, in words."""
        with self._lock:
            chosen = self.choice.words if self.choice else f"bad sizes ({self.error})"
            formula = f" {self.prediction.describe()}" if self.prediction else ""
            seen = self.timeline.describe() if self.trace is not None else "No run yet."
            return f"Explore {chosen} for {self._workload!r}.{formula} {seen}"

    def __repr__(self):
        chosen = self.choice.words if self.choice else f"{self.menu.value}, sizes do not fit"
        return f"<Explore {chosen}>"

    def _repr_mimebundle_(self, **kwargs):
        data = super()._repr_mimebundle_(**kwargs)
        return data and {**data, "text/plain": repr(self), "image/svg+xml": self.to_svg()}


def _place(name):
    """A strategy's place in the menu: fewest knobs first, those that hold another one last."""
    cls = strategies()[name]
    return _composes(cls), len(knob_fields(cls)), name


def _parts(strategy):
    """(the strategy inside, the one around it or None). Raises ValueError on what is none."""
    if strategy is None:
        return None, None
    if not isinstance(strategy, Strategy):
        raise ValueError(f"strategy={strategy!r} is no strategy: give one such as tv.ATP()")
    inner = getattr(strategy, "inner", None)
    return (inner, strategy) if inner else (strategy, None)


def _composes(cls):
    """Whether a strategy class can hold another one inside."""
    return "inner" in cls.__dataclass_fields__

"""``explore``: choose a strategy and a cluster, change the knobs, run, and inspect the result.

While a knob moves only formulas are evaluated: the prediction, the mesh, the shards, and the
ledger. Run simulates the configuration and starts real ranks, in a worker thread; then guess,
model, simulation and measurement are compared.
"""

import threading
from collections.abc import Callable
from contextlib import suppress
from html import escape
from typing import Any

from tpviz.cluster import Cluster
from tpviz.core.mesh import Mesh
from tpviz.core.trace import Trace
from tpviz.core.workload import GPT
from tpviz.ranks.most import check_world_size, max_ranks
from tpviz.schemes.strategy import Strategy
from tpviz.verbs.predict import predict
from tpviz.verbs.written import cell
from tpviz.views.figures.ledger import ledger_html, ledger_table
from tpviz.views.figures.mesh import mesh_scene, mesh_svg
from tpviz.views.figures.svg import scrolled, stacked
from tpviz.views.plans.factors import offered, parts
from tpviz.views.plans.fields import small_html
from tpviz.views.plans.pictures import model_html, model_svgs

from .base import check_names, shown
from .fitted import Fitted
from .job import Job, Latest, Working
from .panel import Panel
from .pins import PinnedPlan
from .results import RunOutcome, run
from .setting import HERE, Configuration, check_cluster, read


class Explore(Working, Fitted, Panel):
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
        cluster: Cluster | None = None,
        *,
        strategy: Strategy | None = None,
        runner: Callable[..., Trace | RunOutcome] | None = None,
        **unknown: Any,
    ):
        check_names("explore", unknown, ["workload", "cluster", "strategy", "runner"])
        check_cluster(cluster)
        inner, *around = parts(strategy)
        if not isinstance(workload, GPT | None):
            raise ValueError(f"explore needs a workload such as tv.GPT(), not {workload!r}")
        workload = workload or GPT()
        if strategy is not None:
            strategy.check(workload)
            check_ranks(strategy, cluster)
        self._lock, self._moved = threading.RLock(), Latest(self._redraw)
        self._runner, self._steps = runner or run, {}
        self.choice = self.prediction = self.outcome = self._ran = None
        self._expected = self._drawn = None
        super().__init__(offered(), cluster, self._lock)
        if strategy is not None:
            self.menu.value = type(inner).__name__
        self.menu.observe(lambda change: self._choose(), "value")
        self.axis.observe(lambda change: self._draw_cluster(), "value")
        self.setting.on_change(self._moved)
        self.guesses.on_change(self._moved)
        self.run_button.on_click(lambda button: self.run())
        self.stop_button.on_click(lambda button: self.stop())
        self._choose(inner, *around, workload=workload)

    @property
    def strategy(self) -> Strategy | None:
        """The strategy chosen, or None where sizes clash."""
        return self.choice and self.choice.strategy

    @property
    def trace(self) -> Trace | None:
        """The trace of the last successful run, or None."""
        return self.outcome and self.outcome.trace

    # -- while knobs move ------------------------------------------------------------------------
    def most_ranks(self) -> int:
        """How many ranks there may be: the cluster's devices, or what this machine may start."""
        cluster = self.setting.cluster
        return max_ranks() if cluster is None else cluster.size

    @shown
    def _redraw(self):
        """Something moved: fit the sizes, redraw the formulas' results. Runs nothing."""
        with self._lock:
            self.choice = self.prediction = None
            try:
                self.show_gave(self._fit())
                strategy, workload = self._fitting.strategy, self._fitting.workload
                self.setting.scale(lambda c: predict(strategy, workload, c), workload.dtype)
                reading = read(strategy, workload, self.setting.chosen)
                choice, prediction, scale, rows = reading
            except ValueError as error:
                self.show_error(error)
                self.facts.value = "These sizes do not fit; below are the last valid ones."
                self.guesses.ask(None)
                self.pins.show(None)
                self._enable()
                return
            self.choice, self.prediction = choice, prediction
            self.show_error("")
            self.setting.say(scale)
            self.guesses.ask(choice, slowly=prediction is not None)
            whole = escape(f"{choice.words} for {choice.workload!r}", quote=True)
            words = f"<b title='{whole}' style='line-height:1.4'>{escape(self._name())}</b>"
            self.facts.value = words
            self._draw(rows)
            self.pins.show(PinnedPlan(choice, prediction))
            self._enable()

    def _draw(self, rows):
        """The mesh and the ledger if the strategy changed; results that depend on the cluster."""
        assert self.choice is not None
        strategy, workload = self.choice.strategy, self.choice.workload
        mesh = Mesh(strategy.axes)
        if (strategy, workload) != self._drawn:
            self._drawn, self._expected = (strategy, workload), strategy.ledger(workload)
            self.mesh.show(mesh, rows)
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
        self.ledger.value = ledger_html(self._expected, self._measured(), "Run to measure it.")  # pyright: ignore[reportArgumentType]

    def _measured(self):
        """The ledger measured for the strategy in view, or None."""
        ran = self._ran and (self._ran.strategy, self._ran.workload)
        if self.outcome is None or ran != self._drawn:
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
                lambda: RunOutcome.of(
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

    def stop(self) -> bool:
        """End the active run; its ranks end too. False where none goes on."""
        with self._lock:
            stops = super().stop()
            if stops:
                self.say("stopping ...")
                self.stop_button.disabled = True
            return stops

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
            if outcome.measured:
                self._steps[choice] = outcome.measured.step_time
                self.pins.draw()
            self.bar.value = self.bar.max
            self._draw_ledger()
            self.results.show(outcome, prediction, self.guesses.of(choice))
            done = "measured" if outcome.measured else "simulated"
            self.say(f"{done}: {choice.strategy.short} on {_place(choice)}")
            self._draw_still()

    def _enable(self):
        running = bool(self._job and self._job.running)
        self.run_button.disabled = bool(self._refusal())
        self.stop_button.disabled = not running
        self.run_button.description = "Run" if not self.choice or self.choice.runs else "Simulate"

    def step_of(self, choice: Configuration) -> float | None:
        """Seconds of the step that was last measured of a choice, or None."""
        return self._steps.get(choice)

    # -- the view as a page ----------------------------------------------------------------------
    def _heading(self):
        cluster = self.setting.cluster
        return f"{self.menu.value} on {cluster.name if cluster else HERE}"

    def _state_at(self, values):
        """What the page draws of these values of the knobs; or the error alone."""
        try:
            strategy, workload = self._fitting.made(values)
            _, prediction, words, rows = read(strategy, workload, self.setting.chosen)
        except ValueError as error:
            return {"error": str(error)}
        mesh = Mesh(strategy.axes)
        drawn = [f"<h2>{escape(strategy.caption)}</h2>"]
        if prediction is not None:
            drawn += [*model_html(prediction, mesh), small_html(words)]
        drawn.append(scrolled(mesh_svg(mesh_scene(mesh, rows), theme="page")))
        drawn.append(ledger_html(strategy.ledger(workload)))
        state: dict[str, Any] = {"scene": {"svg": "".join(drawn)}}
        with suppress(ValueError):  # of one's own, without code
            given = {"cluster": self.setting.cluster, "strategy": strategy}
            state["cell"] = cell("explore", Explore, workload=workload, **given)
        return state

    # -- the view in words, tables, pictures -----------------------------------------------------
    def to_table(self) -> list[list[str]]:
        """Rows of strings: the formula's ledger beside the measured one."""
        with self._lock:
            return ledger_table(self._expected, self._measured())  # pyright: ignore[reportArgumentType]

    def to_svg(self, theme: str = "auto") -> str:
        """The prediction's step and memory, and the mesh; after a run also how it compares with
        the prediction, or its timeline."""
        with self._lock:
            covered, ahead = self.guesses.covering, self.prediction
            drawn = model_svgs(ahead, covered, theme) if ahead else []
            drawn.append(self.mesh.to_svg(theme=theme))
            if self.outcome is not None:
                run = self.outcome.comparison or self.timeline
                drawn.append(run.to_svg(theme=theme))
            return stacked(filter(None, drawn), self._name(), theme)

    def _name(self):
        """The strategy, and where."""
        if self.choice is None:
            return str(self.menu.value)
        return f"{self.choice.strategy.caption} on {_place(self.choice)}"

    def describe(self) -> str:
        """The choice, its prediction and measurement, in words."""
        with self._lock:
            chosen = self.choice.words if self.choice else f"bad sizes ({self.error})"
            formula = f" {self.prediction.describe()}" if self.prediction else ""
            seen = self.timeline.describe() if self.trace is not None else "No run yet."
            return f"Explore {chosen} for {self._fitting.workload!r}.{formula} {seen}"

    def __repr__(self):
        chosen = self.choice.words if self.choice else f"{self.menu.value}, sizes do not fit"
        return f"<Explore {chosen}>"


def _place(choice: Configuration) -> str:
    """Where a choice runs."""
    return choice.cluster.name if choice.cluster else HERE


def check_ranks(strategy: Strategy, cluster: Cluster | None) -> None:
    """Raise ``ValueError`` where a strategy has more ranks than there may be."""
    if cluster is None:
        check_world_size(strategy.world_size)
    else:
        cluster.check_world(strategy.world_size)

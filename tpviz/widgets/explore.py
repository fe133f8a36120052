"""``explore``: choose a strategy, turn its knobs, run it on real ranks, look at what happened.

While a knob moves only formulas are evaluated: the mesh, who owns what, and the ledger. Run starts
real ranks in a worker thread; then the measured ledger stands beside the formula's, with the
timeline and the losses below.
"""

import threading
from html import escape

from tpviz.figures.ledger import ledger_html, ledger_table
from tpviz.figures.losses import losses_svg
from tpviz.mesh import Mesh
from tpviz.strategy import strategies
from tpviz.workload import GPT

from .base import check_names, shown
from .job import Job
from .knobs import Knobs
from .panel import Panel

MOST = 8
"""Sliders of whole numbers end here; more ranks than a notebook's machine serves are no use."""


def explore(workload=None, cluster=None, **options):
    """The widget that joins knobs, run, timeline and ledger; see `Explore` for the options."""
    return Explore(workload, cluster, **options)


class Explore(Panel):
    """Knobs -> formula; Run -> real ranks -> timeline, measured ledger, losses.

    Parameters
    ----------
    workload : GPT, or None for ``tv.GPT()``. Raises ValueError on anything else.
    cluster : None, this machine. Raises ValueError on anything else.
    runner : function ``(strategy, workload, steps=, progress=) -> Trace``; None for `tpviz.run`.

    ``trace`` is that of the last run that ended well, or None; ``error`` the message shown, or "".
    """

    def __init__(self, workload=None, cluster=None, *, runner=None, **unknown):
        check_names("explore", unknown, ["workload", "cluster", "runner"])
        if cluster is not None:
            raise ValueError(
                f"cluster={cluster!r} cannot be used: runs take place on this machine; leave it out"
            )
        if not isinstance(workload, GPT | None):
            raise ValueError(f"explore needs a workload such as tv.GPT(), not {workload!r}")
        self._lock = threading.RLock()
        self._runner, self._workload = runner or _run, workload or GPT()
        self.trace = self.strategy = self._job = self._ran = None
        self._expected = None
        super().__init__(sorted(strategies(), key=lambda name: _composes(strategies()[name])))
        self.menu.observe(lambda change: self._choose(), "value")
        self.run_button.on_click(lambda button: self.run())
        self.stop_button.on_click(lambda button: self.stop())
        self._choose()

    @shown
    def _choose(self):
        """A strategy was chosen: its knobs, and those of data parallelism around it."""
        with self._lock:
            cls = strategies()[self.menu.value]
            outer = next(
                (c for c in strategies().values() if _composes(c) and not _composes(cls)), None
            )
            self._inner = Knobs(cls, most=MOST)
            self._outer = Knobs(outer, {"dp": 1}, MOST) if outer else None
            self.show_knobs(self._inner, self._outer)
            for knobs in filter(None, (self._inner, self._outer)):
                knobs.on_change(self._moved)
        self._moved()

    @shown
    def _moved(self):
        """A knob moved: check the sizes, redraw what follows from formulas. No rank is started."""
        with self._lock:
            self.strategy = None
            try:
                strategy = self._from_knobs()
                strategy.check(self._workload)
                _check_ranks(strategy.world_size)
                expected = strategy.ledger(self._workload)
                rows = _ownership(strategy, self._workload)
            except ValueError as error:
                self.show_error(error)
                self.facts.value = "These sizes do not fit; below are the last that did."
                self._enable()
                return
            self.strategy, self._expected = strategy, expected
            self.show_error("")
            self.facts.value = f"<b>{escape(repr(strategy))}</b> on {escape(repr(self._workload))}"
            self.mesh.show(Mesh(strategy.axes), rows, badge=f"{strategy.world_size} ranks")
            self._draw_ledger()
            self._enable()

    def _from_knobs(self):
        """The strategy as the knobs stand; a dp of 1 adds nothing."""
        strategy = self._inner.cls(**self._inner.values())
        if self._outer and self._outer.values().get("dp", 1) > 1:
            strategy = strategy * self._outer.cls(**self._outer.values())
        return strategy

    @shown
    def run(self):
        """Run what the knobs say. A second run while one is under way is refused, in view."""
        with self._lock:
            if self._job and self._job.running:
                self.say("a run is under way: wait for it, or press Stop")
                return
            if self.strategy is None:
                self.say("these sizes do not fit together: see the message")
                return
            strategy, workload, steps = self.strategy, self._workload, self.steps.value
            self.show_error("")
            self.say(f"running {strategy!r} on {strategy.world_size} ranks ...")
            self.bar.value, self.bar.max = 0, max(steps, 1)
            self._job = Job(
                lambda: self._runner(strategy, workload, steps=steps, progress=self._progress),
                lambda trace, error, stopped: self._ended(strategy, trace, error, stopped),
            )
            self._enable()

    @shown
    def stop(self):
        """End the run under way; its ranks end too."""
        with self._lock:
            if self._job and self._job.stop():
                self.say("stopping ...")
                self.stop_button.disabled = True

    def wait(self, timeout=None):
        """Wait for the run under way (for scripts and tests); True when none is left."""
        return self._job is None or self._job.join(timeout)

    def _progress(self, done, total, text=""):
        with self._lock:
            self.bar.max, self.bar.value = max(total, 1), done
            if self._job is None or not self._job.stopped:
                self.say(text or f"{done} of {total}")

    @shown
    def _ended(self, strategy, trace, error, stopped):
        with self._lock:
            self._enable()
            if stopped and error is not None:
                self.say("stopped; the ranks have ended")
            elif error is not None:
                self.say("the run failed")
                self.show_error(error)
            else:
                self.trace, self._ran = trace, strategy
                self.timeline.show(trace)
                self.losses.value = _losses(trace)
                self._draw_ledger()
                self.bar.value = self.bar.max
                self.say(f"measured: {strategy!r}")

    def _enable(self):
        running = bool(self._job and self._job.running)
        self.run_button.disabled = running or self.strategy is None
        self.stop_button.disabled = not running

    def _measured(self):
        """The ledger measured for the strategy in view, or None."""
        fits = self.trace is not None and self._ran == self.strategy
        return self.trace.ledger() if fits else None

    def _draw_ledger(self):
        self.ledger.value = ledger_html(self._expected, self._measured())

    def to_table(self):
        """Rows of strings: the formula's ledger beside the measured one."""
        with self._lock:
            return ledger_table(self._expected, self._measured())

    def to_svg(self, **options):
        """The timeline of the last run, or the mesh before any."""
        return (self.timeline if self.trace is not None else self.mesh).to_svg(**options)

    def describe(self):
        """What is chosen and what was measured, in words."""
        with self._lock:
            chosen = repr(self.strategy) if self.strategy else f"bad sizes ({self.error})"
            seen = self.timeline.describe() if self.trace is not None else "No run yet."
            return f"Explore {chosen} on {self._workload!r}. {seen}"

    def __repr__(self):
        chosen = repr(self.strategy) if self.strategy else f"{self.menu.value}, sizes do not fit"
        return f"<Explore {chosen}>"

    def _repr_mimebundle_(self, **kwargs):
        data = super()._repr_mimebundle_(**kwargs)
        return data and {**data, "text/plain": repr(self), "image/svg+xml": self.to_svg()}


def _composes(cls):
    """Whether a strategy class can hold another one inside."""
    return "inner" in cls.__dataclass_fields__


def _losses(trace):
    losses = trace.meta.get("losses") or []
    return losses_svg(losses, theme="page") if losses else ""


def _ownership(strategy, workload):
    from tpviz.schemes.ownership import ownership

    return ownership(strategy, workload)


def _check_ranks(world_size):
    from tpviz.runtime.launch import check_world_size

    check_world_size(world_size)


def _run(strategy, workload, steps, progress):
    from tpviz.verbs.run import run

    return run(strategy, workload, steps=steps, progress=progress)

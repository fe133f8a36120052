"""What a run on a cluster brings, made up: for the tests of ``explore``."""

from synthetic import synthetic_trace

import tpviz as tv
from tpviz.core.trace import Trace
from tpviz.views.widgets.results import RunOutcome

PAIRS = tv.clusters.nvlink_pairs()


class Compared:
    """What the view asks of a comparison."""

    def to_svg(self, theme):
        return f"<svg width='9' height='9' class='{theme}'/>"

    def to_table(self):
        return [["part", "measured"], ["unexplained <>", "0 s"]]


def emulated(strategy, workload, cluster, steps, progress):
    """A runner with made-up traces, badged as those of an emulated run and a simulation."""
    progress(1, steps, "step 1")
    trace = synthetic_trace(strategy.axes, steps=2)
    meta = {**trace.meta, "badge": "emulated", "strategy": repr(strategy)}
    simulated = synthetic_trace(strategy.axes, steps=1, memory=False)
    simulated = Trace(simulated.columns, {**meta, "badge": "simulated"})
    return RunOutcome(Trace(trace.columns, meta), simulated, Compared())

"""What Run does for a configuration, and what comes back: simulated and measured, side by side."""

from dataclasses import dataclass
from typing import Any

from tpviz.runtime.launch import max_ranks
from tpviz.trace import Trace


@dataclass(frozen=True)
class Outcome:
    """Traces of one configuration: measured, simulated, or both; and the two laid over the model.

    comparison : a `tpviz.verbs.compare.Comparison`, or None; note : why there is none, or "".
    """

    measured: Trace | None = None
    simulated: Trace | None = None
    comparison: Any = None
    note: str = ""

    @classmethod
    def of(cls, result):
        """What a runner returned, which may be a `Trace` alone. Raises ValueError on others."""
        if isinstance(result, cls) and result.traces:
            return result
        if isinstance(result, Trace):
            return cls(result)
        raise ValueError(f"a runner returns a Trace or an Outcome with one, not {result!r}")

    @property
    def traces(self):
        """{"measured": Trace, "simulated": Trace}, of those that there are."""
        both = {"measured": self.measured, "simulated": self.simulated}
        return {name: trace for name, trace in both.items() if trace is not None}

    @property
    def trace(self):
        """The measured trace, or the simulated one where nothing was measured."""
        return next(iter(self.traces.values()))


def run(strategy, workload, cluster, *, steps, progress):
    """The runner of ``explore``: on this machine measured, on a cluster also simulated.

    With more ranks than this machine starts, simulated only. progress : called with (done, total,
    text). Raises what `tpviz.simulate` and `tpviz.run` do.
    """
    import tpviz

    if cluster is None:
        return Outcome(tpviz.run(strategy, workload, steps=steps, progress=progress))
    progress(0, steps, "capturing the program and simulating it ...")
    capture = tpviz.capture(strategy, workload)
    simulated, measured = tpviz.simulate(strategy, workload, cluster, capture=capture), None
    if strategy.world_size <= max_ranks():
        progress(0, steps, f"running on {strategy.world_size} ranks, each paced as its device ...")
        measured = tpviz.run(strategy, workload, cluster, steps=steps, progress=progress)
    progress(steps, steps, "comparing ...")
    prediction = tpviz.predict(strategy, workload, cluster)
    return Outcome(measured, simulated, *compared(prediction, simulated, measured, capture))


def compared(prediction, simulated, measured, capture=None):
    """(`Comparison`, "") with its residual worked out, or (None, why there is none)."""
    from tpviz.verbs.compare import Comparison

    try:
        comparison = Comparison.of(prediction, simulated, measured, capture=capture)
        _ = comparison.scene  # replays the program several times: now, not when it is drawn
    except ValueError as error:
        return None, str(error)
    return comparison, ""


def unfaithful(trace, tolerance=0.05):
    """A warning where ranks ran late by more than ``tolerance`` of an emulated step, else ""."""
    late = trace.meta.get("late") or {}
    seconds, events = late.get("seconds", 0.0), late.get("events", [])
    if not events and seconds <= tolerance * trace.step_time:
        return ""
    names = f" ({', '.join(map(str, events))})" if events else ""
    share = 100 * seconds / trace.step_time if trace.step_time else 0.0
    return (
        f"Not faithful: events too short to be emulated{names} made a rank late by {share:.1f} % "
        "of a step. Choose a slower motion or a larger hidden scale."
    )


def reveals(guesses, prediction, outcome):
    """[(question, `Reveal`)]: guess, formula, simulation and measurement of each question."""
    parts = prediction.parts
    bare = sum(parts.get(name, 0.0) for name in ("exposed communication", "latency"))
    formulas = {
        "step": (1e3 * prediction.step_time, lambda trace: 1e3 * trace.step_time, "sum of parts"),
        "exposed": (100 * bare / prediction.step_time, exposed_share, "exposed / step"),
    }
    found = []
    for name, guess in guesses.items():
        predicted, read, formula = formulas[name]
        seen = {which: _shown(read(trace)) for which, trace in outcome.traces.items()}
        reveal = guess.reveal(
            seen.get("measured"), formula, _shown(predicted), seen.get("simulated")
        )
        found.append((guess.question, reveal))
    return found


def exposed_share(trace):
    """Per cent of a step in which a rank communicates and nothing hides it (the worst rank's)."""
    spans = max(len(trace.steps), 1) * trace.step_time
    return 100 * trace.exposed_communication() / spans if spans else 0.0


def _shown(value):
    """Four significant digits: measured times are no better."""
    return float(f"{value:.4g}")

"""What Run does for a configuration, and what comes back: simulated and measured, side by side."""

import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tpviz.exercises.guess import Reveal
from tpviz.runtime.launch import max_ranks
from tpviz.trace import Trace, faithful

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.exercises.guess import Guess
    from tpviz.simulation.program import Capture
    from tpviz.strategy import Strategy
    from tpviz.verbs.compare import Comparison
    from tpviz.verbs.predict import Prediction
    from tpviz.workload import GPT


@dataclass(frozen=True)
class Outcome:
    """Traces of one configuration: measured, simulated, or both; and the two laid over the model.

    comparison : a `tpviz.verbs.compare.Comparison`, or None; note : why there is none, or "".
    """

    measured: Trace | None = None
    simulated: Trace | None = None
    comparison: "Comparison | None" = None
    note: str = ""

    @classmethod
    def of(cls, result: "Trace | Outcome") -> "Outcome":
        """What a runner returned, which may be a `Trace` alone. Raises ValueError on others."""
        if isinstance(result, cls) and result.traces:
            return result
        if isinstance(result, Trace):
            return cls(result)
        raise ValueError(f"a runner returns a Trace or an Outcome with one, not {result!r}")

    @property
    def traces(self) -> dict[str, Trace]:
        """{"measured": Trace, "simulated": Trace}, of those that there are."""
        both = {"measured": self.measured, "simulated": self.simulated}
        return {name: trace for name, trace in both.items() if trace is not None}

    @property
    def trace(self) -> Trace:
        """The measured trace, or the simulated one where nothing was measured."""
        return next(iter(self.traces.values()))


def run(
    strategy: "Strategy",
    workload: "GPT",
    cluster: "Cluster | None",
    *,
    steps: int,
    progress: Callable[..., Any],
) -> Outcome:
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
        # Said in the view, by `unfaithful`; what other callers of run are told stays as it is.
        warnings.filterwarnings("ignore", "this emulated run", module=re.escape(__name__))
        measured = tpviz.run(strategy, workload, cluster, steps=steps, progress=progress)
    progress(steps, steps, "comparing ...")
    prediction = tpviz.predict(strategy, workload, cluster)
    return Outcome(measured, simulated, *compared(prediction, simulated, measured, capture))


def compared(
    prediction: "Prediction",
    simulated: Trace | None,
    measured: Trace | None,
    capture: "Capture | None" = None,
) -> "tuple[Comparison | None, str]":
    """(`Comparison`, "") with its residual worked out, or (None, why there is none)."""
    from tpviz.verbs.compare import Comparison

    try:
        comparison = Comparison.of(prediction, simulated, measured, capture=capture)
        _ = comparison.scene  # replays the program several times: now, not when it is drawn
    except ValueError as error:
        return None, str(error)
    return comparison, ""


def unfaithful(trace: Trace) -> str:
    """What an emulated run says against its own faithfulness, and what helps; "" for nothing."""
    words = faithful.unfaithful(trace.fact("late"))
    return words and f"{words[0].upper()}{words[1:]}."


def reveals(
    guesses: "Mapping[str, Guess]", prediction: "Prediction", outcome: Outcome
) -> dict[str, Reveal]:
    """{quantity: `Reveal`}: guess (where there is one), formula, simulation and measurement."""
    parts = prediction.parts
    bare = parts["exposed communication"] + parts["latency"]
    asked = {
        "step": ("step time", "ms", 1e3 * prediction.step_time, lambda t: 1e3 * t.step_time),
        "exposed": (
            "of it communication that nothing hides",
            "%",
            100 * bare / prediction.step_time,
            exposed_share,
        ),
    }
    found = {}
    for name, (words, unit, predicted, read) in asked.items():
        guess = guesses[name].value if name in guesses else None
        seen = {which: _shown(read(trace)) for which, trace in outcome.traces.items()}
        found[words] = Reveal(
            guess, seen.get("measured"), "", _shown(predicted), unit, seen.get("simulated")
        )
    return found


def reveals_table(found: Mapping[str, Reveal]) -> list[list[str]]:
    """Rows of strings, header first, of `reveals`: one per quantity."""
    heads = ["", *(head for head, _ in next(iter(found.values())).cells())]
    rows = [[words, *(text for _, text in reveal.cells())] for words, reveal in found.items()]
    return [heads, *rows]


def exposed_share(trace: Trace) -> float:
    """Per cent of a step in which a rank communicates and nothing hides it (the worst rank's)."""
    spans = max(len(trace.steps), 1) * trace.step_time
    return 100 * trace.exposed_communication() / spans if spans else 0.0


def _shown(value):
    """Four significant digits: measured times are no better."""
    return float(f"{value:.4g}")

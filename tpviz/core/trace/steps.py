"""The steps of a trace, and the one that stands for them in pictures and comparisons."""

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .table import Trace


def step_spans(trace: "Trace") -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(numbers, starts, ends) of the steps marked, in order of their numbers: a step is from its
    first rank's start to its last rank's end."""
    marked = trace["kind"] == "step"
    numbers, which = np.unique(trace["step"][marked], return_inverse=True)
    start, end = np.full(len(numbers), np.inf), np.full(len(numbers), -np.inf)
    np.minimum.at(start, which, trace["start"][marked])
    np.maximum.at(end, which, trace["end"][marked])
    return numbers, start, end


def median_step(trace: "Trace") -> "Trace":
    """The rows of the step that `median_number` says; all rows where no steps are marked."""
    spans = step_spans(trace)
    return trace.select(step=spans[0][median_number(*spans[1:])]) if len(spans[0]) else trace


def median_number(start: np.ndarray, end: np.ndarray) -> int:
    """Index of the step of median duration, of an even number of steps the shorter of the middle
    two: so the median is the time of a step that ran, and other figures can be of that step too."""
    return int(np.argsort(end - start, kind="stable")[(len(start) - 1) // 2])

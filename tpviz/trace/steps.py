"""One step out of several: the one that stands for them in pictures and comparisons."""


def median_step(trace):
    """The rows of the step whose duration is nearest to ``trace.step_time``, the median; all rows
    where no steps are marked. At equal distance the earlier step."""
    spans = {step: trace.select(kind="step", step=step) for step in trace.steps}
    if not spans:
        return trace
    middle = trace.step_time
    length = {step: s["end"].max() - s["start"].min() for step, s in spans.items()}
    return trace.select(step=min(length, key=lambda step: (abs(length[step] - middle), step)))

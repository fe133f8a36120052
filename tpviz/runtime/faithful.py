"""Whether an emulated run was as the model says, from the overruns in ``trace.meta["late"]``."""

import warnings

LATE = 0.02  # from this share of a step in overruns on an emulated run is called unfaithful,
LATE_COMM = 0.03  # or from this share of its communication, which shifts the overlap by as much


def is_faithful(late):
    """Whether a run with these overruns (``trace.meta["late"]``) is as the model says."""
    return late["share"] <= LATE and late["share_of_communication"] <= LATE_COMM


def warn_if_late(late):
    """Warn that events were too short to be faithful, and say what would help."""
    if is_faithful(late):
        return
    step, comm = late["share"] / LATE, late["share_of_communication"] / LATE_COMM
    times = 2 ** round(max(step, comm)).bit_length()
    share, of = (late["share"], "step") if step >= comm else (
        late["share_of_communication"], "communication (so the overlap may be off)")
    warnings.warn(
        f"this emulated run is not faithful: {100 * share:.0f} % of the {of} is overrun of events "
        f"too short for this machine: {', '.join(late['events'])}. Slower motion helps: {times} x "
        f"slower than now, by cluster.scale_model(slow_motion={times}) of this same cluster",
        stacklevel=3,
    )

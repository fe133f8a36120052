"""Whether an emulated run was as the model says, from the overruns in ``trace.meta["late"]``.

The one place that decides this and says it: in the badge of every picture (`Trace.badge`), in a
warning or a notebook's quiet remark, and in views.
"""

import sys
import warnings
from typing import Any

from tpviz.core.tables import in_notebook, quiet

LATE = 0.02  # from this share of a step in overruns on an emulated run is called unfaithful,
LATE_COMM = 0.03  # or from this share of its communication, which shifts the overlap by as much
_OWN = tuple(f"tpviz.{part}." for part in ("core.trace", "files", "ranks", "verbs"))


def is_faithful(late: dict[str, Any]) -> bool:
    """Whether a run with these overruns (``trace.meta["late"]``) is as the model says."""
    return max(_excess(late)) <= 1


def badge_words(late: dict[str, Any]) -> str:
    """The text that a badge adds for such a run; "" if it is faithful."""
    if is_faithful(late):
        return ""
    share, of = _worst(late)
    return f", not faithful ({100 * share:.0f} % of the {of} late)"


def unfaithful(late: dict[str, Any]) -> str:
    """What is wrong with such a run and what would help, in a sentence; "" for nothing."""
    if is_faithful(late):
        return ""
    share, of = _worst(late)
    if of == "communication":
        of += " (so the overlap may be off)"
    times = 2 ** round(max(_excess(late))).bit_length()
    return (
        f"this emulated run is not faithful: {100 * share:.0f} % of the {of} is overrun of events "
        f"too short for this machine ({', '.join(late.get('events', ()))}); slower motion helps: "
        f"cluster.scale_model(slow_motion={times}), {times} x slower than now"
    )


def remark(late: dict[str, Any]) -> str:
    """A quiet badge with the sentence, as HTML."""
    return _remark("not faithful", unfaithful(late))


def _remark(label, words):
    return quiet(label, f"{words[0].upper()}{words[1:]}.")


def warn_if_late(late: dict[str, Any]) -> None:
    """Issue a warning if the run was not as the model says (`is_faithful`)."""
    if not is_faithful(late):
        warn("not faithful", unfaithful(late))


def warn(label: str, words: str) -> None:
    """Warn in the line that called the package; a notebook shows a quiet remark with a label."""
    frame, level = sys._getframe(1), 2
    while frame.f_back and f"{frame.f_globals.get('__name__')}.".startswith(_OWN):
        frame, level = frame.f_back, level + 1
    with warnings.catch_warnings():
        if in_notebook():
            warnings.showwarning = lambda *warning: _show(_remark(label, words))
        warnings.warn(words, stacklevel=level)


def _show(html):
    from IPython.display import display

    display({"text/html": html}, raw=True)


def _excess(late):
    """How many times what is allowed: of the step, of the communication."""
    shares = late.get("share", 0.0), late.get("share_of_communication", 0.0)
    return shares[0] / LATE, shares[1] / LATE_COMM


def _worst(late):
    """(share, of what)."""
    step, communication = _excess(late)
    if step >= communication:
        return late["share"], "step"
    return late["share_of_communication"], "communication"

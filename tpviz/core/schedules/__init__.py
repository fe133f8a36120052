"""Pipeline schedules as short printable actions: generators, a validator, a parser and a clock.

>>> print(schedule("shifted_critical_path", ranks=4, microbatches=4))
s0: F0 F1 F2 F3 RB0 R1 B1 R2 B2 R3 B3
s1: F0 F1 F2 R0 B0 F3 RB1 R2 B2 R3 B3
s2: F0 F1 F2 R0 B0 R1 B1 F3 RB2 RB3
s3: F0 B0 F1 B1 F2 B2 F3 B3
>>> timeline(schedule("1f1b", 4, 4)).makespan
28.0
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from tpviz.core.checks import one_of, whole_number

from . import interleaved, one_f_one_b, v_shaped
from .actions import KINDS, Action
from .clock import ScheduleTimes, timeline
from .own import own
from .plan import finish
from .table import Schedule
from .validity import schedule_errors, validate

if TYPE_CHECKING:
    from .plan import Plan

__all__ = [
    "KINDS",
    "SCHEDULES",
    "Action",
    "Schedule",
    "ScheduleTimes",
    "check",
    "schedule",
    "schedule_errors",
    "timeline",
    "validate",
]


class Known(NamedTuple):
    """A schedule by name: make(ranks, microbatches[, chunks]) -> `plan.Plan`; a line of help.

    chunks : the least, the usual and the most stages that a rank has; None: any number.
    check(ranks, microbatches, chunks) : raises ``ValueError`` if no such schedule exists.
    """

    make: "Callable[..., Plan]"
    help: str
    chunks: tuple[int, int, int | None] = (1, 1, 1)
    check: Callable[[int, int, int], None] = lambda p, m, chunks: None


SCHEDULES = {
    "gpipe": Known(one_f_one_b.gpipe, "all forwards, then all backwards"),
    "1f1b": Known(one_f_one_b.one_f_one_b, "a forward and a backward in turn"),
    "early_recompute": Known(
        one_f_one_b.early_recompute, "1F1B; the last backwards recompute while they wait"
    ),
    "last_no_recompute": Known(
        one_f_one_b.last_no_recompute, "early recompute, and none on the last rank"
    ),
    "shifted_critical_path": Known(
        one_f_one_b.shifted_critical_path,
        "Merak's: and one more forward before it",
        check=one_f_one_b.can_shift,
    ),
    "interleaved_1f1b": Known(
        interleaved.interleaved_1f1b,
        "1F1B with several stages on each rank",
        (2, 2, None),
        interleaved.in_rounds,
    ),
    "zb_h1": Known(
        interleaved.zb_h1,
        "1F1B; gradients of weights fill the bubbles",
        (1, 1, None),
        interleaved.in_rounds,
    ),
    "zb_v": Known(v_shaped.zb_v, "two stages a rank in a V; bubbles filled", (2, 2, 2)),
    "dualpipe_v": Known(
        v_shaped.dualpipe_v,
        "the V; forwards overlapped with backwards, in pairs",
        (2, 2, 2),
        v_shaped.can_pair,
    ),
}
"""{name: how it is made}, in the order in which views list them."""


def schedule(
    name: str,
    ranks: int,
    microbatches: int,
    chunks: int | None = None,
    recompute: bool | Sequence[bool] = True,
) -> Schedule:
    """The `Schedule` of a name in `SCHEDULES`, or of the text of one of your own (`own.as_text`).

    ranks : p, pipeline ranks. microbatches : m. chunks : stages on each rank; None: the usual
    number. recompute : False: no stage recomputes; True: as the schedule says; a tuple of bool, one
    for each stage: where False that stage does not. The order does not depend on it.
    Raises ``ValueError`` where there is no such schedule, with the nearest sizes that have one.
    """
    if _written(name):
        return own(name, ranks, microbatches, chunks, recompute)
    chunks = check(name, ranks, microbatches, chunks)
    known = SCHEDULES[name]
    several = [chunks] if known.chunks[2] is None else []
    return finish(name, known.make(ranks, microbatches, *several), microbatches, recompute)


def check(name: str, ranks: int, microbatches: int, chunks: int | None = None) -> int:
    """The number of stages on each rank; ``ValueError`` if `schedule` has none for these sizes."""
    if _written(name):
        return own(name, ranks, microbatches, chunks).stages // ranks
    known = SCHEDULES[one_of("schedule", name, SCHEDULES)]
    whole_number("ranks", ranks)
    whole_number("microbatches", microbatches)
    least, usual, most = known.chunks
    chunks = usual if chunks is None else chunks
    try:
        whole_number("chunks", chunks, least, most)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    known.check(ranks, microbatches, chunks)
    return chunks


def _written(name: str) -> bool:
    """Whether this is the text of a schedule rather than a name."""
    return isinstance(name, str) and any(c.isspace() for c in name)

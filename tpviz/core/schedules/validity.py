"""What is wrong with a schedule, in words: for people who write their own.

>>> from .table import Schedule
>>> print(*schedule_errors(Schedule.parse("s0: F0 F1 B1 B0 \\n s1: F0 B0 F1")), sep="\\n")
stage 0 runs backward in the order 1, 0: gradients are added in the order 0 to 1
stage 1 has no backward of microbatch 1: add B1
"""

from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from tpviz.core.tables import listed

from .actions import BACKWARDS, KINDS, Action
from .order import rings, walk

if TYPE_CHECKING:
    from .order import Step
    from .table import Schedule

BEFORE = {"R": "F", "B": "FR", "RB": "F", "I": "FR", "W": "I"}
"""{kind: the kinds that come before it on its own stage, if they are there}."""

COMPLETE = {
    False: ({"F", "B"}, {"F", "I", "W"}),
    True: ({"F", "RB"}, {"F", "R", "B"}, {"F", "R", "I", "W"}),
}
"""{whether a stage recomputes: the kinds of actions that it may have for one microbatch}."""


def validate(schedule: "Schedule") -> "tuple[Step, ...]":
    """The `order.Step`s of a schedule, each after all that it needs.

    Raises ``ValueError`` with all `schedule_errors`, if there are any.
    """
    steps, waits = walk(schedule)
    wrong = _faults(schedule, waits)
    if wrong:
        raise ValueError(f"{schedule!r} cannot run:\n- " + listed(wrong, "\n- ", most=12))
    return steps


def schedule_errors(schedule: "Schedule") -> list[str]:
    """What is wrong with a schedule, as a list of sentences; empty if nothing is.

    Errors are: actions of stages or microbatches that do not exist, or on another rank than their
    stage; missing or repeated actions; actions before one that they need; gradients summed in
    another order than 0..m-1 (all schedules must give the same bits); and ranks that wait for each
    other in a ring.
    """
    return _faults(schedule, walk(schedule)[1])


def _faults(schedule, waits):
    found = [line for rank in range(schedule.ranks) for line in _strangers(schedule, rank)]
    if found:
        return found
    stages = defaultdict(list)
    for row in schedule.actions:
        for action in row:
            stages[action.stage].append(action)
    for stage in range(schedule.stages):
        found += _missing(schedule, stage, stages[stage])
        found += _disordered(schedule, stage, stages[stage])
    return found + [_hang(schedule, ring) for ring in rings(schedule, waits)]


def _strangers(schedule, rank):
    """Actions that are not of this rank, or of no schedule of these sizes."""
    for action in schedule.of(rank):
        if action.kind not in KINDS:
            word = schedule.word(action)
            yield f"rank {rank}: {word} is of no known kind: use {', '.join(KINDS)}"
        elif not 0 <= action.stage < schedule.stages:
            yield f"rank {rank}: {action} has no stage: there are 0 to {schedule.stages - 1}"
        elif not 0 <= action.microbatch < schedule.microbatches:
            word, last = schedule.word(action), schedule.microbatches - 1
            yield f"rank {rank}: {word} has no microbatch: there are 0 to {last}"
        elif schedule.rank_of[action.stage] != rank:
            yield (
                f"rank {rank}: {action} is of stage {action.stage}, which is on rank "
                f"{schedule.rank_of[action.stage]}"
            )
    for index in (k for r, k in sorted(schedule.pairs) if r == rank):
        kinds = [action.kind for action in schedule.of(rank)[index : index + 2]]
        if kinds not in [["F", kind] for kind in BACKWARDS]:
            yield (
                f"rank {rank}: only a forward and the backward after it can be a pair, not "
                f"{'+'.join(schedule.word(a) for a in schedule.of(rank)[index : index + 2])}"
            )


def _missing(schedule, stage, actions):
    """Actions that a stage lacks, has twice, or that do not go together."""
    times = Counter(actions)
    for action, count in times.items():
        if count > 1:
            yield f"stage {stage} does {schedule.word(action)} {count} times: once is enough"
    has = defaultdict(set)
    for action in actions:
        has[action.microbatch].add(action.kind)
    for i in range(schedule.microbatches):
        if has[i] in COMPLETE[schedule.recomputes[stage]]:
            continue
        words = {kind: schedule.word(Action(kind, stage, i)) for kind in KINDS}
        yield from (
            f"stage {stage} {line}"
            for line in _unmatched(has[i], words, f"microbatch {i}", schedule.recomputes[stage])
        )


def _unmatched(has, words, which, recomputes):
    """What is wrong with the kinds of actions that a stage ``has`` for one microbatch."""
    f, b, rb, r, i, w = (words[kind] for kind in ("F", "B", "RB", "R", "I", "W"))
    backwards = [words[kind] for kind in BACKWARDS if kind in has]
    if "F" not in has:
        yield f"has no forward of {which}: add {f}"
    if not backwards:
        yield f"has no backward of {which}: add {rb if recomputes else b}"
    elif len(backwards) > 1:
        yield f"runs backward more than once for {which}: keep one of {', '.join(backwards)}"
    if "I" in has and "W" not in has:
        yield f"does {i} and never {w}: its weights get no gradient of {which}"
    if "W" in has and "I" not in has:
        yield f"does {w} without {i}" + (
            f": {backwards[0]} is whole, leave {w} out" if backwards else ""
        )
    if not recomputes:
        if "R" in has:
            yield f"keeps its activations, so there is nothing to recompute: leave {r} out"
        if "RB" in has:
            yield f"keeps its activations, so there is nothing to recompute: use {b} for {rb}"
    elif {"R", "RB"} <= has:
        yield f"recomputes {which} twice: use {r} and {b}, or {rb} alone"
    elif backwards and not {"R", "RB"} & has:
        yield (
            f"keeps only checkpoints, so {backwards[0]} has nothing to go backward through: "
            f"put {r} before it" + (f", or use {rb}" if "B" in has else "")
        )


def _disordered(schedule, stage, actions):
    """Actions of a stage that come before what they need, and sums in another order."""
    place = {(a.kind, a.microbatch): k for k, a in reversed(list(enumerate(actions)))}
    for (late, i), k in place.items():
        for early in BEFORE.get(late, ()):
            if place.get((early, i), -1) > k:
                word, needed = (schedule.word(Action(x, stage, i)) for x in (late, early))
                yield f"stage {stage} does {word} before {needed}, which it needs"
    for kinds, what in ((BACKWARDS, "runs backward"), (("B", "RB", "W"), "adds gradients")):
        order = [a.microbatch for a in actions if a.kind in kinds]
        if order != sorted(order):
            yield (
                f"stage {stage} {what} in the order {', '.join(map(str, order))}: gradients are "
                f"added in the order 0 to {schedule.microbatches - 1}"
            )
            return


def _hang(schedule, ring):
    """A deadlock in words."""
    links = []
    for wait in ring:
        word = schedule.word(schedule.of(wait.rank)[wait.index])
        links.append(
            f"rank {wait.rank} at {word} waits for the {wait.what} of microbatch "
            f"{wait.microbatch} from stage {wait.stage} on rank "
            f"{schedule.rank_of[wait.stage]}"
        )
    return "deadlock: " + "; ".join(links)

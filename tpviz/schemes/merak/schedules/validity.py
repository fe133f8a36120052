"""What is wrong with a schedule, in words: for people who write their own.

>>> from .actions import Schedule
>>> print(*faults(Schedule.parse("s0: F0 F1 B1 B0 \\n s1: F0 B0 F1")), sep="\\n")
stage 0 goes backward in the order 1, 0: gradients are summed in the order 0 to 1
stage 1 has no backward of microbatch 1: add B1 (or I1 and W1)
"""

from collections import Counter, defaultdict

from .actions import BACKWARDS, KINDS
from .order import rings, walk


def validate(schedule):
    """The `order.Step`s of a schedule, each after all that it needs.

    Raises ``ValueError`` with all `faults`, if there are any.
    """
    wrong = faults(schedule)
    if wrong:
        most = 12
        more = [f"and {len(wrong) - most} more"] if len(wrong) > most else []
        raise ValueError(f"{schedule!r} cannot run:\n" + "\n".join(
            f"- {line}" for line in wrong[:most] + more))
    return walk(schedule)[0]


def faults(schedule):
    """What is wrong with a schedule, as a list of sentences; empty if nothing is.

    Wrong are actions of stages or microbatches that do not exist, or on another rank than their
    stage; what is missing, or there twice; what comes before something it needs; gradients summed
    in another order than 0..m-1 (every schedule must give the same bits); and ranks that wait for
    each other in a ring.
    """
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
    return found + [_hang(schedule, ring) for ring in rings(schedule, walk(schedule)[1])]


def _strangers(schedule, rank):
    """Actions that are not of this rank, or of no schedule of these sizes."""
    for action in schedule.of(rank):
        word = schedule.word(action)
        if action.kind not in KINDS:
            yield f"rank {rank}: {word} is of no known kind: use {', '.join(KINDS)}"
        elif not 0 <= action.stage < schedule.stages:
            yield f"rank {rank}: {action} has no stage: there are 0 to {schedule.stages - 1}"
        elif not 0 <= action.microbatch < schedule.microbatches:
            yield (f"rank {rank}: {word} has no microbatch: there are 0 to "
                   f"{schedule.microbatches - 1}")
        elif schedule.rank_of[action.stage] != rank:
            yield (f"rank {rank}: {action} is of stage {action.stage}, which is on rank "
                   f"{schedule.rank_of[action.stage]}")


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
        yield from (f"stage {stage} {line}" for line in _unmatched(
            has[i], i, schedule.recomputes[stage]))


def _unmatched(kinds, i, recomputes):
    """What is wrong with the kinds of actions that a stage has for microbatch ``i``."""
    backwards = [kind for kind in BACKWARDS if kind in kinds]
    if "F" not in kinds:
        yield f"has no forward of microbatch {i}: add F{i}"
    if not backwards:
        yield f"has no backward of microbatch {i}: add {'RB' if recomputes else 'B'}{i} " \
              f"(or {f'R{i}, ' if recomputes else ''}I{i} and W{i})"
    elif len(backwards) > 1:
        yield f"goes backward more than once for microbatch {i}: " \
              f"keep one of {', '.join(f'{kind}{i}' for kind in backwards)}"
    if "I" in kinds and "W" not in kinds:
        yield f"does I{i} and never W{i}: the weights get no gradient of it"
    if "W" in kinds and "I" not in kinds:
        yield f"does W{i} without I{i}" + (f": {backwards[0]}{i} is whole, leave W{i} out"
                                           if backwards else "")
    if not recomputes:
        for kind in ("R", "RB"):
            if kind in kinds:
                yield f"keeps its activations, so {kind}{i} has nothing to recompute: " \
                      + (f"leave {kind}{i} out" if kind == "R" else f"use B{i}")
    elif "R" in kinds and "RB" in kinds:
        yield f"recomputes microbatch {i} twice: use R{i} and B{i}, or RB{i} alone"
    elif backwards and not {"R", "RB"} & kinds:
        yield f"keeps only checkpoints, so {backwards[0]}{i} has nothing to go backward through: " \
              f"use RB{i}, or R{i} before it"


def _disordered(schedule, stage, actions):
    """Actions of a stage that come before what they need, and sums in another order."""
    place = {(a.kind, a.microbatch): k for k, a in reversed(list(enumerate(actions)))}
    for early, late in [("F", "R"), *(("F", b) for b in BACKWARDS),
                        *(("R", b) for b in BACKWARDS), ("I", "W")]:
        for i in range(schedule.microbatches):
            if place.get((early, i), -1) > place.get((late, i), len(actions)):
                yield f"stage {stage} does {late}{i} before {early}{i}, which it needs"
    for kinds, what in ((BACKWARDS, "goes backward"), (("B", "RB", "W"), "sums gradients")):
        order = [a.microbatch for a in actions if a.kind in kinds]
        if order != sorted(order):
            yield (f"stage {stage} {what} in the order {', '.join(map(str, order))}: gradients "
                   f"are summed in the order 0 to {schedule.microbatches - 1}")
            return


def _hang(schedule, ring):
    """A deadlock in words."""
    links = []
    for wait in ring:
        word = schedule.word(schedule.of(wait.rank)[wait.index])
        links.append(f"rank {wait.rank} at {word} waits for the {wait.what} of microbatch "
                     f"{wait.microbatch} from stage {wait.stage} on rank "
                     f"{schedule.rank_of[wait.stage]}")
    return "deadlock: " + "; ".join(links)

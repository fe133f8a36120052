"""GPipe, 1F1B, and Merak's three improvements of 1F1B with recompute, as released.

Microbatches are numbered 0..m-1, ranks 0..p-1, one stage each. 1F1B on rank s: p - s forwards, then
a backward and a forward in turn (PipeDream-flush; Megatron-LM, DeepSpeed). Merak's code adds
(derived: its orders were compared with these for p 2-8, m 3-19 and were the same):

======================  ===========================================================================
early_recompute         the last p-1-s backwards of rank s, between which no forward is left,
                        recompute early: in the time in which they wait for the gradient
last_no_recompute       and the last rank does not recompute: its backward comes right after its
                        forward; rank p-2's first backward is early, its last is not
shifted_critical_path   and rank p-2 does a third forward before its first backward; its first two
                        backwards are early, and the first one of rank p-3
======================  ===========================================================================

>>> print(finish("mine", shifted_critical_path(3, 4), 4, True))
s0: F0 F1 F2 R0 B0 F3 RB1 R2 B2 R3 B3
s1: F0 F1 F2 R0 B0 R1 B1 F3 RB2 RB3
s2: F0 B0 F1 B1 F2 B2 F3 B3
"""

from .actions import Action
from .plan import Plan, finish, looped  # noqa: F401  (finish: for the example)


def gpipe(p: int, m: int) -> Plan:
    """All forwards, then all backwards (arXiv 1811.06965); here backwards are in the order 0..m-1,
    as in all schedules, where the paper reverses them."""
    rows = [[Action(kind, s, i) for kind in "FB" for i in range(m)] for s in range(p)]
    return Plan(looped(p), rows, (True,) * p)


def one_f_one_b(p: int, m: int) -> Plan:
    """One forward, one backward (PipeDream-flush)."""
    return Plan(looped(p), [in_turn(s, p - s, m) for s in range(p)], (True,) * p)


def in_turn(stage: int, warmup: int, microbatches: int) -> list[Action]:
    """``warmup`` forwards (or as many as there are), then a backward and a forward in turn."""
    forwards = [Action("F", stage, i) for i in range(microbatches)]
    row = forwards[:warmup]
    for i in range(microbatches):
        row += [Action("B", stage, i), *forwards[warmup + i : warmup + i + 1]]
    return row


def early_recompute(p: int, m: int) -> Plan:
    """1F1B whose cool-down backwards recompute before the gradient is there."""
    return one_f_one_b(p, m)._replace(early=lambda a: _in_cooldown(a, p, m))


def last_no_recompute(p: int, m: int) -> Plan:
    """Early recompute, and none at all on the last rank."""

    def early(action):
        if action.stage == p - 2:
            return action.microbatch == 0
        return _in_cooldown(action, p, m)

    return one_f_one_b(p, m)._replace(recomputes=_but_last(p), early=early)


def can_shift(p: int, m: int, chunks: int) -> None:
    """Raise ``ValueError`` if `shifted_critical_path` does not exist for these sizes."""
    if p > 1 and m < max(p, 4):
        raise ValueError(
            f"shifted_critical_path with {p} ranks needs at least {max(p, 4)} microbatches, not "
            f"{m}: use microbatches={max(p, 4)}, or last_no_recompute, which takes any number"
        )


def shifted_critical_path(p: int, m: int) -> Plan:
    """Merak's schedule: the critical path shifts from the last rank to the one before it."""

    def early(action):
        first = {p - 2: 2, p - 3: 1}.get(action.stage, 0)
        return action.microbatch < first or (action.stage != p - 2 and _in_cooldown(action, p, m))

    rows = [in_turn(s, p - s, m) for s in range(p)]
    if p > 1:
        row = rows[p - 2]
        row[2], row[3] = row[3], row[2]  # F0 F1 [B0 F2] -> F0 F1 F2 B0
    return Plan(looped(p), rows, _but_last(p), early)


def _in_cooldown(action, p, m):
    """Whether no forward is left before this backward."""
    return action.microbatch >= m - (p - 1 - action.stage)


def _but_last(p):
    return (True,) * (p - 1) + (False,)

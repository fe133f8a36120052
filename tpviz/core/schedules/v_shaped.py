"""ZB-V and DualPipeV: two stages on each rank, s and 2p-1-s, laid as a V over the ranks.

The first stage of the model and its last are both on rank 0, so the loss is where the activations
begin. Chunk 0 of a rank is the stage on the way down, 1 the one on the way back. Both schedules are
rows of phases (how often, what): F0 is a forward on chunk 0, the next microbatch of it; W the
oldest weight gradient that waits; F0+B1 an overlapped pair.

ZB-V (arXiv 2401.10241): the last stage's first gradient is made at time 2p (F = I = W = 1) and is
on rank s at 2p + s; until then rank s does forwards, from time 2p-1-s on one of each chunk. Weight
gradients follow their I at once, but at the end, where they fill the wait for gradients. A rank
holds 2p microbatch-chunks, as many as p whole ones: what 1F1B holds on rank 0.

DualPipeV (DeepSeek's DualPipe, arXiv 2412.19437, folded in half at the turn of the V, after Sea AI
Lab): in the long middle phase each forward runs beside the backward of another microbatch on the
other chunk, so that one's messages go while the other computes.

>>> print(finish("mine", dualpipe_v(2, 4), 4, False))
r0: 0F0 0F1 0F2 3F0 3I0 3W0 3F1 0F3+3B1 3F2+0B0 3B2 3F3+0B1 3B3 0I2 0W2 0I3 0W3
r1: 1F0 2F0 1F1 2F1 1F2 2B0 2F2+1B0 1F3+2B1 2F3+1B1 2B2 1B2 2I3 1I3 2W3 1W3
"""

from .actions import Action
from .plan import Plan, finish, v_shape  # noqa: F401  (finish: for the example)


def zb_v(p: int, m: int) -> Plan:
    """ZB-V: no bubble between a rank's first and last action, if F = I = W and m >= 2p - 1.

    With fewer microbatches it is the order for m = 2p - 1, without the missing microbatches.
    """
    whole = max(m, 2 * p - 1)
    rows = []
    for s in range(p):
        steady = whole - (2 * p - 1 - s)  # forwards of chunk 0 that are left after warm-up
        phases = [(2 * (p - s) - 1, "F0"), (s, "F1 F0"), (p - s, "F1 I1 W")]
        phases += [(steady, "F0 I0 W F1 I1 W"), (p - 1 - s, "I0 W F1 I1 W")]
        phases += [(s, "I0 I1"), (p - s, "I0 W"), (2 * s, "W")]
        rows.append(_play(s, p, m, phases))
    return Plan(v_shape(p), rows, (True,) * 2 * p)


def can_pair(p: int, m: int, chunks: int) -> None:
    """Raise ``ValueError`` if `dualpipe_v` does not exist for these sizes."""
    if m < 2 * p:
        raise ValueError(
            f"dualpipe_v with {p} ranks has {2 * p} stages and needs as many "
            f"microbatches, not {m}: use microbatches={2 * p} or more, or zb_v, which "
            f"takes any number"
        )


def dualpipe_v(p: int, m: int) -> Plan:
    """DualPipeV: forwards overlapped with backwards; only backwards near the ends are split."""
    rows = []
    for s in range(p):
        middle, turns = m - 2 * p + s + 1, ["B1", "B0"] * (s + 1)
        phases = [(2 * (p - 1 - s), "F0"), (s + 1, "F0 F1"), (p - 1 - s, "I1 W F1")]
        if s == p - 1:  # no pair at first: F0 runs while the first gradient is on its way
            phases, middle = [*phases, (1, "F0 B1 F1+B0")], middle - 1
        phases += [
            (middle, "F0+B1 F1+B0"),
            (p - 1 - s, "B1 F1+B0"),
            (1, " ".join(turns[: s + 1])),
            (1, " ".join(turns[s + 1 :]).replace("B", "I")),
            (p - 1 - s, "W I0"),
            (s + 1, "W"),
        ]
        rows.append(_play(s, p, m, phases))
    return Plan(v_shape(p), rows, (True,) * 2 * p)


def _play(rank, p, m, phases):
    """A rank's row from its phases, [(how often, words)]; microbatches from m on are left out."""
    stages, done, waiting, row = (rank, 2 * p - 1 - rank), {}, [], []

    def act(word):
        if word == "W":
            return waiting.pop(0) if waiting else None
        way, stage = word[0] == "F", stages[int(word[1])]
        action = Action(word[0], stage, done.get((way, stage), 0))
        done[way, stage] = action.microbatch + 1
        if action.microbatch >= m:
            return None
        if action.kind == "I":
            waiting.append(action._replace(kind="W"))
        return action

    for times, words in phases:
        for word in words.split() * times:
            both = tuple(filter(None, map(act, word.split("+"))))
            row += [both] if len(both) == 2 else both
    return row

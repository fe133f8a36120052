"""Slow ranks: a measured step compared with a simulated one, event by event.

Both steps come from the same program, so on each rank the k-th kernel of one is the k-th of the
other, and so are the k-th collectives of a group. The method is our own (derived).
"""

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpviz.trace.critical import match_collectives
from tpviz.trace.members import members_list

if TYPE_CHECKING:
    from tpviz.trace.table import Trace

STRAGGLER = 1.15
"""A rank straggles when its kernels take more than this many times as long as the other ranks'."""
SLOW_LINK = 1.2
"""A group is slow when its collectives take more than this many times as long as simulated."""


class Straggler(NamedTuple):
    """A rank whose kernels take ``factor`` times as long as those of the other ranks."""

    rank: int
    factor: float

    def __str__(self):
        return f"rank {self.rank} is a straggler: its kernels take {self.factor:.2f} times as long"


class SlowLink(NamedTuple):
    """Collectives that take ``factor`` times as long as simulated, on ``axes``.

    ranks : whose link it is; several where their groups are the same, so that times cannot tell
    them apart. placed : False where no single rank is in all the slow groups and only in those.
    groups : the slow groups, as members.
    """

    ranks: tuple[int, ...]
    axes: tuple[str, ...]
    factor: float
    groups: tuple[str, ...]
    placed: bool = True

    def __str__(self):
        where = f"ax{'es' if len(self.axes) > 1 else 'is'} {', '.join(self.axes)}"
        slow = f"collectives on {where} take {self.factor:.2f} times as long as simulated"
        ranks = ", ".join(map(str, self.ranks))
        if not self.placed:
            groups = "; ".join(self.groups[:4]) + (" and more" if len(self.groups) > 4 else "")
            return f"{slow} in groups {groups}, with no one rank behind it"
        if len(self.ranks) > 1:
            return f"a slow link at one of ranks {ranks}, whose groups are the same: {slow}"
        return f"a slow link at rank {ranks}: its {slow}"


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """The value with half of the weight on either side: long events decide, not the many short."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def kernel_times(step: "Trace") -> dict[int, np.ndarray]:
    """{rank: seconds of each of its kernels, in the order of the program}."""
    rows = step.select(kind="compute")
    rows = rows.where(np.lexsort((rows["start"], rows["rank"])))
    length = rows["end"] - rows["start"]
    return {rank: length[rows["rank"] == rank] for rank in rows.ranks}


def find_stragglers(measured: "Trace", simulated: "Trace", late: float = 0.0) -> list[Straggler]:
    """The `Straggler` list of a measured step, slowest first.

    late : seconds by which the measuring itself may be off in a step; a rank that lost less than
    that to its kernels is not accused. A rank is compared with the median of the others, so what
    slows all ranks alike makes none of them a straggler. Raises ``ValueError`` where the two steps
    are not of the same program.
    """
    ours, theirs = kernel_times(measured), kernel_times(simulated)
    ranks = _same(ours, theirs, "kernels on rank")
    busy = {rank: theirs[rank].sum() for rank in ranks}
    ranks = [rank for rank in ranks if busy[rank] > 0]
    factors = np.array([_factor(ours[rank], theirs[rank]) for rank in ranks])
    found = []
    for i, rank in enumerate(ranks if len(ranks) > 1 else []):
        usual = float(np.median(np.delete(factors, i)))
        factor = factors[i] / usual
        if factor > STRAGGLER and (factor - 1) * usual * busy[rank] > late:
            found.append(Straggler(rank, float(factor)))
    return sorted(found, key=lambda straggler: -straggler.factor)


def collective_times(step: "Trace") -> dict[tuple[str, str], np.ndarray]:
    """{(axis, members): seconds of each collective of that group, in order}.

    Counted from when its last member has issued it and the group's previous one has ended, to the
    first member's end: what the link took, whoever came late.
    """
    spans = defaultdict(list)
    for rows in match_collectives(step):
        key = str(step["axis"][rows[0]]), str(step["members"][rows[0]])
        if key[1]:
            spans[key].append((step["start"][rows].max(), step["end"][rows].min()))
    times = {}
    for key, pairs in spans.items():
        start, end = np.array(sorted(pairs)).T
        start[1:] = np.maximum(start[1:], np.maximum.accumulate(end)[:-1])
        times[key] = np.maximum(end - start, 0.0)
    return times


def find_slow_link(measured: "Trace", simulated: "Trace", late: float = 0.0) -> SlowLink | None:
    """The `SlowLink` that explains the most lost time of a measured step, or None.

    A rank's link is slow when its collectives are slow in every group it is in (as far as the group
    communicates enough to show it). Raises ``ValueError`` where the steps are of two programs.
    """
    ours, theirs = collective_times(measured), collective_times(simulated)
    slow, fine, lost = {}, set(), {}
    for key in _same(ours, theirs, "collectives of group"):
        total = theirs[key].sum()
        if not total > 0:
            continue
        factor = _factor(ours[key], theirs[key])
        if factor > SLOW_LINK and (factor - 1) * total > late:
            slow[key], lost[key] = factor, (factor - 1) * total
        elif (SLOW_LINK - 1) * total > late:
            fine.add(key)
    if not slow:
        return None
    mine = defaultdict(set)
    for key in [*slow, *fine]:
        for rank in members_list(key[1]):
            mine[rank].add(key)
    guilty = {rank: keys for rank, keys in mine.items() if not keys & fine}
    whole = [rank for rank, keys in guilty.items() if keys == set(slow)]
    if not guilty or not (fine or whole):  # an axis, or everything, is slow: not one rank's doing
        return _link(sorted(mine), slow, placed=False)
    best = max(guilty, key=lambda rank: (sum(lost[key] for key in guilty[rank]), -rank))
    same = [rank for rank, keys in guilty.items() if keys == guilty[best]]
    return _link(sorted(same), {key: slow[key] for key in guilty[best]})


def refined(link: SlowLink, measured: "Trace", simulated: "Trace") -> SlowLink:
    """The `SlowLink` with the factor that is still missing, where ``simulated`` has it already.

    A slow collective shares ports for longer, so durations grow by more or less than the factor.
    """
    ours, theirs = collective_times(measured), collective_times(simulated)
    keys = [k for k in theirs if k[0] in link.axes and k[1] in link.groups and theirs[k].sum() > 0]
    missing = float(np.median([_factor(ours[key], theirs[key]) for key in keys]))
    return link._replace(factor=link.factor * missing)


def _link(ranks, slow, placed=True):
    axes = tuple(sorted({axis for axis, _ in slow}))
    groups = tuple(sorted(members for _, members in slow))
    return SlowLink(tuple(ranks), axes, float(np.median(list(slow.values()))), groups, placed)


def _factor(measured, simulated):
    shown = simulated > 0
    return weighted_median(measured[shown] / simulated[shown], simulated[shown])


def _same(ours, theirs, what):
    """The keys of both, in order, or ``ValueError`` where their events do not pair up."""
    for key in sorted(ours.keys() | theirs.keys(), key=str):
        counts = len(ours.get(key, ())), len(theirs.get(key, ()))
        if counts[0] != counts[1]:
            which = " ".join(key) if isinstance(key, tuple) else key
            raise ValueError(
                f"the measured step has {counts[0]} {what} {which}, the simulated one "
                f"{counts[1]}: these are not steps of the same program"
            )
    return sorted(theirs, key=str)

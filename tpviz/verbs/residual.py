"""The residual: where the seconds of a measured step went, part by part, summing to the step.

A ladder of replays of the same captured program, each with one more of the world's troubles; a part
is the difference between two rungs (derived; counterfactual replay as in "what-if" analyses):

    S0  links of no latency and endless bandwidth    compute of the busiest rank + bubble
    S1  bandwidth                                    bandwidth wait        = S1 - S0
    S2  latency                                      latency wait          = S2 - S1
    S3  axes share ports (= `tpviz.simulate`)        contention            = S3 - S2
    S4  the stragglers found in the measurement      straggler             = S4 - S3
    S5  the slow links found in it                   slow link             = S5 - S4
        what was measured                            unexplained           = measured - S5

Where experts have uneven loads, S0 to S2 have mean loads on all ranks, E stands for S3 with these,
and S3 has each rank's own (where a router chose them, those of the measured step): contention =
E - S2, imbalance = S3 - E.

The order matters: latency is what hops add to a step that already waits for bytes. Differences
of whole steps, they count only what nothing hides: where every rank does the same, both waits and
contention are the step's exposed communication. "unexplained" is jitter and the host's own work.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tpviz.cluster.clock.injected_faults import Faults
from tpviz.core.tables import listed, show_seconds
from tpviz.core.trace.critical import match_collectives
from tpviz.core.trace.faithful import LATE
from tpviz.core.trace.members import members_list
from tpviz.core.trace.steps import median_step

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.core.trace.table import Trace

    from .imbalance import HotExpert

PARTS = (
    "compute",
    "bandwidth wait",
    "latency wait",
    "bubble",
    "contention",
    "imbalance",
    "straggler",
    "slow link",
    "unexplained",
)
"""In order; "imbalance" is one only where loads are uneven."""
ROUNDS = 4
"""Slow links are looked for one after another, at most so many: each is replayed before the next,
since what it delays can look slow too."""
REFINED, CLOSE = 5, 0.01
"""A slow link's factor is corrected by replaying it, at most so often, or until it changes less."""
ROUNDING = 1e-9
"""Parts below this fraction of the step are what float arithmetic leaves of equal rungs: zero."""


@dataclass(frozen=True, eq=False)
class Residual:
    """The parts of a measured step in seconds, and who is to blame.

    parts : {part: seconds}, in the order of `PARTS`; they sum to ``measured``, the median step.
    rungs : {"S0": seconds of the step, ...} of the ladder. stragglers, slow_links : what was found.
    hot : who has most rows of experts, or None.
    late : seconds by which the emulation overran its own clock in a step, on the worst rank; they
    are part of "unexplained". badge, cluster : where ``measured`` comes from, and the caption.
    """

    parts: dict[str, float]
    rungs: dict[str, float]
    measured: float
    simulated: float
    stragglers: "tuple[Straggler, ...]" = ()
    slow_links: "tuple[SlowLink, ...]" = ()
    late: float = 0.0
    badge: str = "origin unknown"
    cluster: str = ""
    hot: "HotExpert | None" = None

    @property
    def verdict(self) -> str:
        """The causes of the step time, in one or two sentences."""
        return self._imbalance() + self._blame() + self._caveat()

    def _imbalance(self):
        if self.hot is None or not self.parts.get("imbalance", 0.0) > 0:
            return ""
        words = f"{self.hot}: {show_seconds(self.parts['imbalance'])} of the step "
        return f"{words[0].upper()}{words[1:]}({self.share('imbalance')}). "

    def _caveat(self):
        if not self.late > LATE * self.measured:
            return ""
        return (
            f" The emulation overran its own clock by {self._of(self.late)} of the step: in "
            "slower motion this would say more."
        )

    def _blame(self):
        found = [str(f) for f in (*self.stragglers, *self.slow_links)]
        costs = [
            f"{show_seconds(self.parts[part])} of the step ({self.share(part)})"
            for part in ("straggler", "slow link")
            if self.parts[part] > 0
        ]
        if found:
            words = "; ".join(found) + (f": {' and '.join(costs)}" if costs else "")
            return words[0].upper() + words[1:] + "."
        largest = max(self.parts, key=lambda part: abs(self.parts[part]))
        words = "" if self.measured == self.simulated else "No rank and no link is slow. "
        words += f"Most of the step is {largest}: {self.share(largest)}"
        if largest == "compute":
            second = max(list(self.parts)[1:], key=lambda part: abs(self.parts[part]))
            if round(100 * abs(self.parts[second]) / self.measured, 1):
                words += f", then {second}: {self.share(second)}"
        return words + "."

    def share(self, part: str) -> str:
        """The part as a percentage of the measured step, in words."""
        return f"{100 * self.parts[part] / self.measured if self.measured else 0.0:.1f} %"

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first: each part, then the whole, simulated and measured."""
        rows = [["part", "time", "share"]]
        rows += [[part, show_seconds(s), self.share(part)] for part, s in self.parts.items()]
        rows.append([f"step, {self.badge}", show_seconds(self.measured), "100.0 %"])
        rows.append(["step, simulated", show_seconds(self.simulated), self._of(self.simulated)])
        if self.late:
            rows.append(
                [
                    "of unexplained, overrun of the emulation",
                    show_seconds(self.late),
                    self._of(self.late),
                ]
            )
        return rows

    def describe(self) -> str:
        """The residual in words, for people who cannot see the picture."""
        parts = ", ".join(f"{part} {show_seconds(s)}" for part, s in self.parts.items() if s)
        where = f" on {self.cluster}" if self.cluster else ""
        return (
            f"One step ({self.badge}{where}) takes {show_seconds(self.measured)}, simulated "
            f"{show_seconds(self.simulated)}: {parts}. {self.verdict}"
        )

    def _of(self, seconds):
        return f"{100 * seconds / self.measured if self.measured else 0.0:.1f} %"

    def __repr__(self):
        return f"<Residual of one step, {self.badge}: {len(self.parts)} parts>"


def residual(
    measured: "Trace",
    cluster: "Cluster",
    replay: "Callable[..., Trace]",
    simulated: "Trace | None" = None,
    even: "Callable[..., Trace] | None" = None,
    hot: "HotExpert | None" = None,
) -> Residual:
    """The `Residual` of a measured `Trace` on ``cluster``.

    Parameters
    ----------
    replay : function (cluster, contention=bool, faults=`Faults` or None) -> `Trace` of the same
        program, as `tpviz.simulate` gives it.
    simulated : the plain replay, if available.
    even : as ``replay``, with mean loads of experts, where they are uneven. hot : who has most.

    Raises ``ValueError`` where measured and simulated steps are not of the same program.
    """
    evenly = even or replay
    ideal = evenly(without_links(cluster), contention=False, faults=None)
    rungs = {"S0": ideal.step_time}
    rungs["S1"] = evenly(without_latency(cluster), contention=False, faults=None).step_time
    rungs["S2"] = evenly(cluster, contention=False, faults=None).step_time
    if even:
        rungs["E"] = even(cluster, contention=True, faults=None).step_time
    if simulated is None:
        simulated = replay(cluster, contention=True, faults=None)
    rungs["S3"] = simulated.step_time
    late = measured.fact("late").get("seconds", 0.0)
    blame = _Blame(measured, late, lambda faults: replay(cluster, contention=True, faults=faults))
    rungs["S4"], rungs["S5"] = blame.climb(simulated)
    busiest = max(_busy(median_step(ideal)).values(), default=0.0)
    total, steps = measured.step_time, list(rungs.values())
    parts = {name: 0.0 for name in PARTS if even or name != "imbalance"}
    parts |= {"compute": busiest, "bubble": steps[0] - busiest}
    names = [name for name in parts if name not in ("compute", "bubble", "unexplained")]
    parts |= {name: above - below for name, below, above in zip(names, steps, steps[1:])}
    parts["unexplained"] = total - steps[-1]
    parts = {name: s if abs(s) > ROUNDING * total else 0.0 for name, s in parts.items()}
    return Residual(
        parts,
        rungs,
        total,
        rungs["S3"],
        tuple(blame.stragglers),
        tuple(blame.links),
        late,
        measured.badge,
        cluster.caption,
        hot,
    )


class _Blame:
    """Looks for who was slow, replaying each finding before the next is looked for."""

    def __init__(self, measured, late, replay):
        self.step, self.late, self.replay = median_step(measured), late, replay
        self.stragglers, self.links = [], []

    def climb(self, simulated):
        """(S4, S5), seconds of the step with the stragglers found, and with the slow links too."""
        self.stragglers = find_stragglers(self.step, median_step(simulated), self.late)
        slow_ranks = {straggler.rank: straggler.factor for straggler in self.stragglers}
        if slow_ranks:
            simulated = self.replay(Faults(stragglers=slow_ranks))
        before, found = simulated.step_time, {}
        for _ in range(ROUNDS):
            link = find_slow_link(self.step, median_step(simulated), self.late)
            if link is None or (link.placed and link.ranks[0] in found):
                break
            if not link.placed:  # no fault of one rank says this, so it stays unexplained
                self.links.append(link)
                break
            for _ in range(REFINED):
                found[link.ranks[0]] = link.factor
                simulated = self.replay(Faults(stragglers=slow_ranks, slow_links=found))
                better = refined(link, self.step, median_step(simulated))
                if abs(better.factor / link.factor - 1) < CLOSE:
                    break
                link = better
            self.links.append(link._replace(factor=found[link.ranks[0]]))
        return before, simulated.step_time


def without_latency(cluster: "Cluster") -> "Cluster":
    """The cluster with links of no latency."""
    return replace(
        cluster,
        latencies={},
        levels=_each(cluster.levels, latency=0.0),
        torus=_each(cluster.torus, latency=0.0),
    )


def without_links(cluster: "Cluster") -> "Cluster":
    """The cluster with links of no latency and endless bandwidth: communication takes no time."""
    bare = without_latency(cluster)
    return replace(
        bare,
        table={},
        levels=_each(bare.levels, p2p=inf, group=inf),
        torus=_each(bare.torus, bandwidth=inf),
    )


def _each(parts, **changes):
    return tuple(replace(part, **changes) for part in parts)


def _busy(step):
    """{rank: seconds of its kernels}."""
    return {rank: float(seconds.sum()) for rank, seconds in kernel_times(step).items()}


# -- slow ranks: a measured step compared with a simulated one, event by event ---------------------
# Both steps come from the same program, so on each rank the k-th kernel of one is the k-th of the
# other, and so are the k-th collectives of a group. The method is our own (derived).
STRAGGLER = 1.15
"""A rank straggles when its kernels take more than this many times as long as the other ranks'."""
SLOW_LINK = 1.2
"""A group is slow when its collectives take more than this many times as long as simulated."""


class Straggler(NamedTuple):
    """A rank whose kernels take ``factor`` times as long as the other ranks' kernels."""

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
            groups = listed(self.groups, "; ", most=4)
            return f"{slow} in groups {groups}, with no one rank behind it"
        if len(self.ranks) > 1:
            return f"a slow link at one of ranks {ranks}, whose groups are the same: {slow}"
        return f"a slow link at rank {ranks}: its {slow}"


def weighted_median(values: np.ndarray, weights: np.ndarray) -> float:
    """The value with half of the weight on either side; weighted by duration, long events
    decide."""
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def kernel_times(step: "Trace") -> dict[int, np.ndarray]:
    """{rank: seconds of each of its kernels, in the order of the program}."""
    return _of_kernels(step, lambda rows: rows["end"] - rows["start"])


def _of_kernels(step, value):
    rows = step.select(kind="compute")
    rows = rows.where(np.lexsort((rows["start"], rows["rank"])))
    values = value(rows)
    return {rank: values[rows["rank"] == rank] for rank in rows.ranks}


def find_stragglers(measured: "Trace", simulated: "Trace", late: float = 0.0) -> list[Straggler]:
    """The `Straggler` list of a measured step, slowest first.

    late : seconds by which the measuring itself may be off in a step; a rank that lost less than
    that to its kernels is not accused. A rank is compared with the median of the others, so what
    slows all ranks alike makes none of them a straggler. Kernels with other work than simulated, as
    of experts that a router chose, say nothing of a rank's speed. Raises ``ValueError`` where the
    two steps are not of the same program.
    """
    ours, theirs = kernel_times(measured), kernel_times(simulated)
    ranks = _same(ours, theirs, "kernels on rank")
    works = [_of_kernels(step, lambda rows: rows["flops"]) for step in (measured, simulated)]
    for rank, same in ((rank, works[0][rank] == works[1][rank]) for rank in ranks):
        if theirs[rank][same].sum() > 0:  # else one of the two does not know
            ours[rank], theirs[rank] = ours[rank][same], theirs[rank][same]
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

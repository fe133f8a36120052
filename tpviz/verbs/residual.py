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

So the order matters: latency is what hops add to a step that already waits for bytes. Differences
of whole steps, they count only what nothing hides: where every rank does the same, both waits and
contention are the step's exposed communication. "unexplained" is jitter and the host's own work.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING

from tpviz.cost import show_seconds
from tpviz.simulation.injected_faults import Faults
from tpviz.trace.faithful import LATE
from tpviz.trace.steps import median_step

from .slowdown_attribution import find_slow_link, find_stragglers, refined

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.trace.table import Trace

    from .slowdown_attribution import SlowLink, Straggler

PARTS = (
    "compute",
    "bandwidth wait",
    "latency wait",
    "bubble",
    "contention",
    "straggler",
    "slow link",
    "unexplained",
)
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

    @property
    def verdict(self) -> str:
        """The causes of the step time, in one or two sentences."""
        return self._blame() + self._caveat()

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
            second = max(PARTS[1:], key=lambda part: abs(self.parts[part]))
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
) -> Residual:
    """The `Residual` of a measured `Trace` on ``cluster``.

    Parameters
    ----------
    replay : function (cluster, contention=bool, faults=`Faults` or None) -> `Trace` of the same
        program, as `tpviz.simulate` gives it.
    simulated : the plain replay, if available.

    Raises ``ValueError`` where measured and simulated steps are not of the same program.
    """
    ideal = replay(without_links(cluster), contention=False, faults=None)
    rungs = {"S0": ideal.step_time}
    rungs["S1"] = replay(without_latency(cluster), contention=False, faults=None).step_time
    rungs["S2"] = replay(cluster, contention=False, faults=None).step_time
    if simulated is None:
        simulated = replay(cluster, contention=True, faults=None)
    rungs["S3"] = simulated.step_time
    late = measured.fact("late").get("seconds", 0.0)
    blame = _Blame(measured, late, lambda faults: replay(cluster, contention=True, faults=faults))
    rungs["S4"], rungs["S5"] = blame.climb(simulated)
    busiest = max(_busy(median_step(ideal)).values(), default=0.0)
    total, steps = measured.step_time, list(rungs.values())
    parts = dict.fromkeys(PARTS, 0.0)
    parts |= {"compute": busiest, "bubble": steps[0] - busiest}
    names = ("bandwidth wait", "latency wait", "contention", "straggler", "slow link")
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
    rows = step.select(kind="compute")
    length = rows["end"] - rows["start"]
    return {rank: float(length[rows["rank"] == rank].sum()) for rank in rows.ranks}

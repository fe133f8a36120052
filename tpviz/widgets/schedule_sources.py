"""Where the schedule view has its schedules from, and the knobs of each."""

from collections.abc import Collection
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import ipywidgets

from tpviz import clusters
from tpviz.schedules import SCHEDULES, Schedule, schedule_errors
from tpviz.schemes.merak.strategy import Merak
from tpviz.workload import GPT

from .knobs import CONTROL, WIDE, Knobs, control
from .schedule_panels import NONE, Sizes, of_sizes, of_strategy

if TYPE_CHECKING:
    from tpviz.cluster import Cluster
    from tpviz.trace import Trace

    from .schedule_panels import ScheduleScene

TIMES = {"f": 4.0, "b": 8.0, "r": 4.0, "w": 4.0, "latency": 2.0}
"""Ends of the sliders of times."""


def source_of(
    schedule: str | Schedule | Merak,
    workload: GPT | None,
    cluster: "Cluster | None",
    against: str,
    sizes: dict[str, Any],
) -> "ByName | ByStrategy":
    """The source of what a `ScheduleView` is given: it has ``knobs``, and gives a ``shown``.

    Raises ``ValueError`` on what is no schedule, and where the arguments do not go together.
    """
    make = {str: ByName, Schedule: Own, Merak: ByStrategy}.get(type(schedule))
    if make is None:
        raise ValueError(
            "ScheduleView shows a schedule's name, a Schedule of your own or a "
            f"tv.Merak, not {schedule!r}: names are {', '.join(SCHEDULES)}"
        )
    return make(schedule, workload, cluster, against, sizes)


class ByName:
    """A schedule by its name: all knobs."""

    hidden = ()

    def __init__(
        self,
        schedule: str | Schedule,
        workload: GPT | None,
        cluster: "Cluster | None",
        against: str,
        sizes: dict[str, Any],
    ):
        if workload is not None or cluster is not None:
            raise ValueError(
                "workload and cluster are for a tv.Merak: a schedule by its name has "
                "times f, b, r, w and latency"
            )
        self.own = None
        self.knobs = TimeKnobs(self._sizes(schedule, against, sizes), self.hidden)

    def _sizes(self, schedule, against, sizes):
        return Sizes(schedule=schedule, against=against, **sizes)

    def shown(self, trace: "Trace | None") -> "ScheduleScene | Schedule":
        """What the knobs say."""
        return of_sizes(Sizes(**self.knobs.values()), self.own)

    def check(self, trace: "Trace") -> None:
        """Refuse a run."""
        raise ValueError(
            "this view has no strategy, its times have no unit: to draw a run, give "
            "it the strategy, the workload and the cluster of the run"
        )


class Own(ByName):
    """A schedule of one's own: its ranks and microbatches are given."""

    hidden = ("schedule", "p", "m", "chunks", "recompute")

    def __init__(
        self,
        schedule: Schedule,
        workload: GPT | None,
        cluster: "Cluster | None",
        against: str,
        sizes: dict[str, Any],
    ):
        super().__init__(schedule, workload, cluster, against, sizes)
        self.own = schedule

    def _sizes(self, schedule, against, sizes):
        given = [name for name in self.hidden if name in sizes]
        if given:
            raise ValueError(f"{given[0]} is the schedule's own: leave it out")
        return Sizes(against=against, recompute=any(schedule.recomputes), **sizes)

    def shown(self, trace: "Trace | None") -> "ScheduleScene | Schedule":
        """What the knobs say; the schedule itself where it has faults."""
        return self.own if schedule_errors(self.own) else super().shown(trace)


class ByStrategy:
    """A strategy on a cluster: its knobs."""

    def __init__(
        self,
        strategy: Merak,
        workload: GPT | None,
        cluster: "Cluster | None",
        against: str,
        sizes: dict[str, Any],
    ):
        if sizes:
            raise ValueError(
                f"{next(iter(sizes))} is not for a strategy: its sizes are its own "
                "knobs, its times those of the cluster"
            )
        self.workload = GPT() if workload is None else workload
        self.cluster = clusters.laptop(strategy.world_size) if cluster is None else cluster
        self.strategy = strategy
        self.knobs = StrategyKnobs(strategy, against)

    def shown(self, trace: "Trace | None") -> "ScheduleScene":
        """What the knobs say."""
        values = self.knobs.values()
        against = values.pop("against")
        self.strategy = Merak(**values)
        same = trace is not None and trace.meta["strategy"] == repr(self.strategy)
        return of_strategy(
            self.strategy, against, self.workload, self.cluster, trace if same else None
        )

    def check(self, trace: "Trace") -> None:
        """Refuse the run of another strategy, workload or cluster."""
        for name, mine in (
            ("strategy", repr(self.strategy)),
            ("workload", repr(self.workload)),
            ("cluster", self.cluster.caption),
        ):
            its = trace.meta.get(name, mine if name == "cluster" else None)
            if its != mine:
                raise ValueError(
                    f"the trace is of another {name}: {its}, and this view shows {mine}"
                )


class TimeKnobs(Knobs):
    """The knobs of `Sizes`; times are sliders. hidden : names of those that are not shown."""

    def __init__(self, sizes: Sizes, hidden: Collection[str] = ()):
        values = {f.name: getattr(sizes, f.name) for f in fields(sizes)}
        super().__init__(Sizes, values, compact=True)
        for name, most in TIMES.items():
            self.controls[name] = ipywidgets.FloatSlider(
                values[name],
                min=0.0,
                max=max(most, values[name]),
                step=0.25,
                description=name,
                style=WIDE,
                layout=CONTROL,
                tooltip=self.controls[name].tooltip,
            )
        [row] = self.children
        row.children = [box for name, box in self.controls.items() if name not in hidden]


class StrategyKnobs(Knobs):
    """Merak's knobs, and a second schedule."""

    def __init__(self, strategy: Merak, against: str):
        values = {f.name: getattr(strategy, f.name) for f in fields(strategy)}
        super().__init__(type(strategy), values, 8, compact=True)
        self.controls["microbatches"].max = max(32, strategy.microbatches)
        self.controls["against"] = control("against", against, choices=(NONE, *SCHEDULES))
        [row] = self.children
        row.children = [*row.children, self.controls["against"]]

    def values(self) -> dict[str, Any]:
        """{name: value} as the controls stand."""
        return {name: box.value for name, box in self.controls.items()}

"""From a `Capture` and a cluster to a simulated `Trace`: build programs, replay, tabulate."""

import gc
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from tpviz.cluster.exchanges import EQUAL, UNEQUAL
from tpviz.cluster.routes import Link
from tpviz.core.copies import HOST
from tpviz.core.trace.columns import COLUMNS
from tpviz.core.trace.critical import rows_of
from tpviz.core.trace.members import MANY, members_list

from .agreement import checked
from .alike import Alike
from .cores import Cores
from .engine import Engine, GroupQueue
from .injected_faults import NONE, Faults
from .program import Capture, is_message, operations, place, strides
from .shared import SharedTrace, groups_in, members_of

if TYPE_CHECKING:
    from tpviz.cluster import Cluster, Device
    from tpviz.core.trace.table import Trace

BADGE, MOVES = "simulated", ("comm", "copy")
MOST = 250_000
"""A trace with more rows than that, about 1 kB each, has them once for ranks that do the same."""


def replay(
    capture: Capture,
    cluster: "Cluster",
    steps: int = 1,
    faults: Faults = NONE,
    contention: bool = True,
    devices: "Mapping[int, Device] | None" = None,
) -> "Trace":
    """The `Trace` of ``steps`` steps of every rank of a captured program on a cluster.

    devices : {rank recorded: its device}, where it is not the cluster's.
    Raises ``ValueError`` if the ranks do not fit the cluster or the faults name others, or if ranks
    disagree about a collective, and ``RuntimeError`` if the program never ends (with who waits for
    whom).
    """
    checked(capture)
    cluster.check_world(capture.world_size)
    faults.check(capture.world_size)
    with _no_collection():
        return _replay(capture, cluster, steps, faults, contention, devices or {})


@contextmanager
def _no_collection():
    """A replay makes many small objects and no cycles: searching for some would double its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _replay(capture, cluster, steps, faults, contention, devices):
    templates = {
        rank: Template(trace, rank, devices.get(rank, cluster.device))
        for rank, trace in capture.traces.items()
    }
    of = [templates[capture.model[rank]] for rank in range(capture.world_size)]
    board = GroupQueues(capture, cluster, faults)
    cores = Cores.of(cluster, capture.world_size)
    kinds = [(t.rank, faults.kernel_kind(r), cores and r) for r, t in enumerate(of)]
    alike = Alike(kinds, [board.of(t, rank) for rank, t in enumerate(of)], contention)
    sent = Exchanges(cluster, of, board)
    programs = [
        _program(of[rank], alike.of(rank), rank, steps, faults, sent) for rank in alike.ranks
    ]
    engine = Engine(cluster, programs, contention, alike.ranks, cores)
    times = dict(zip(alike.ranks, engine.run()))
    last = dict(zip(alike.ranks, ([t.last for t in own] for own in engine.issued)))
    trace = _trace(capture.mesh, of, alike, times, last, steps)
    meta = {"mesh": {"axes": capture.axes}, "badge": BADGE, **_memory(capture, of, alike, times)}
    rows = sum(steps * len(template.trace) for template in of)
    if rows <= MOST or len(alike.ranks) == len(of):
        return SharedTrace(trace, meta, alike.model).whole()
    meta["badge"] += f", {len(of)} ranks by the rows of {len(alike.ranks)}"
    return SharedTrace(trace, meta, alike.model)


class Template:
    """One captured rank's step: its operations, their seconds, and the groups it takes part in."""

    def __init__(self, trace: "Trace", rank: int, device: "Device"):
        self.trace, self.rank = trace, rank
        self.operations = operations(trace)
        columns = [trace[c].tolist() for c in ("flops", "bytes", "dtype")]
        self.seconds = [*map(cache(device.time), *columns)]  # rows of layers and microbatches
        self.names, self.bytes = trace["name"].tolist(), trace["bytes"].tolist()
        axes, members = trace["axis"].tolist(), trace["members"].tolist()
        self.group = list(zip(axes, members, map(cache(is_message), self.names)))
        comm = {row for row, kind in enumerate(trace["kind"].tolist()) if kind in MOVES}
        self.groups = list(dict.fromkeys(g for row, g in enumerate(self.group) if row in comm))
        self.side = {group: side for side, group in enumerate(self.groups)}

    @cached_property
    def parts_of(self) -> list[list[tuple[int, ...]]]:
        """For each of the groups, of each of its collectives the bytes to each member, or ()."""
        found, same = [[] for _ in self.groups], {}
        known = iter(self.trace.meta.get("parts", {}).get(self.rank, ()))
        for what, row, _ in self.operations:
            if what == "issue":
                parts = tuple(next(known, ())) if self.names[row] == UNEQUAL else ()
                found[self.side[self.group[row]]].append(same.setdefault(parts, parts))
        return found

    @cached_property
    def waits_for(self) -> np.ndarray:
        """The row that each row waits for, -1 for none."""
        return rows_of(self.trace, self.trace["waits_for"])

    @cached_property
    def per_step(self) -> np.ndarray:
        """For each row, the number of collectives that its group has in one step."""
        kinds = self.trace["kind"].tolist()
        counts = Counter(group for group, kind in zip(self.group, kinds) if kind == "comm")
        return np.array([counts[group] for group in self.group])

    def moments(self, times: Sequence[tuple[float, float]]) -> tuple[tuple[float, ...], np.ndarray]:
        """(captured stamps, seconds) of the operations' starts and ends, both growing."""
        starts, ends = self.trace["start"], self.trace["end"]
        pairs = []
        for (what, _, row), (start, end) in zip(self.operations, times):
            if what in ("kernel", "issue", "begin"):
                pairs.append((starts[row], start))
            if what in ("kernel", "wait", "end"):
                pairs.append((ends[row], end))
        stamps, seconds = zip(*sorted(pairs))
        return stamps, np.maximum.accumulate(seconds)


class GroupQueues:
    """The `GroupQueue` of every group; each is made once and then shared by its members."""

    def __init__(self, capture: Capture, cluster: "Cluster", faults: Faults):
        self.capture, self.cluster, self.faults = capture, cluster, faults
        self.queues, self.placed = {}, {}

    def of(self, template: Template, rank: int) -> list[GroupQueue]:
        """The queue of each of the template's groups, for the rank ``rank``."""
        return [
            self._queue(axis, self._place(template.rank, rank, text, peer), peer)
            for axis, text, peer in template.groups
        ]

    def _place(self, source, rank, text, peer):
        members, mesh = members_list(text), self.capture.mesh
        if peer or not members:
            return place(mesh, source, rank, members, peer)
        if (source, text) not in self.placed:
            places = np.array(members)
            free = [
                (stride, size)
                for stride, size in strides(mesh)
                if (places // stride % size == source // stride % size).all()
            ]
            self.placed[source, text] = free, {}
        free, known = self.placed[source, text]
        key = tuple(rank // stride % size for stride, size in free)
        if key not in known:
            known[key] = place(mesh, source, rank, members)
        return known[key]

    def _queue(self, axis, members, peer):
        key = axis, members, peer
        if key not in self.queues:
            shift = members[1] - members[0] if peer else None
            if axis in HOST:
                link = Link(rate := self.cluster.device.host_rate, 0.0, rate, ())
            else:
                link = self.cluster.link(members, self.capture.world_size, shift)
            factor = self.faults.link_factor(members)
            kind = axis, link.family, shift
            self.queues[key] = GroupQueue(axis, members, kind, link, factor)
        return self.queues[key]


class Exchanges:
    """The bytes of all-to-alls as `Engine` takes them, those of an equal one that takes as long:
    only here are the parts of all members known."""

    def __init__(self, cluster: "Cluster", of: Sequence[Template], board: GroupQueues):
        self.cluster, self.of, self.board = cluster, of, board
        self.sides, self.known = {}, {}

    def issued(self, queue: GroupQueue, number: int, name: str, bytes: int) -> tuple[str, float]:
        """(name, payload) of the ``number``-th collective of a queue's group, which a rank issues
        by these."""
        rows = [of[number] if number < len(of) else () for of in self._parts(queue)]
        equal = name == EQUAL and not any(rows)
        if not equal and not all(rows):
            return name, bytes  # nobody knows who gets how much
        key = queue, bytes if equal else tuple(map(id, rows))
        if key not in self.known:
            parts = bytes / len(rows) if equal else rows
            self.known[key] = self.cluster.exchanged(parts, queue.members, len(self.of))
        return EQUAL, self.known[key]

    def _parts(self, queue):
        """Of each member, the parts of its collectives on the queue."""
        if queue not in self.sides:
            each = [(self.of[m], self.board.of(self.of[m], m)) for m in queue.members]
            self.sides[queue] = [of.parts_of[sides.index(queue)] for of, sides in each]
        return self.sides[queue]


def _program(template, sides, rank, steps, faults, sent):
    """The rank's operations, as `Engine` takes them; sides: (queue, side, count) by group; sent:
    the program's `Exchanges`."""
    program, kernels, issued = [], 0, 0
    faulty = faults is not NONE
    for before in range(steps):
        place_of, counts = {}, Counter()
        for what, row, _ in template.operations:
            if what == "kernel":
                seconds = template.seconds[row]
                if faulty:
                    seconds *= faults.kernel_factor(rank, kernels)
                kernels += 1
                program.append(("kernel", seconds))
            elif what == "issue":
                place_of[row] = issued
                issued += 1
                at = template.side[template.group[row]]
                (queue, *side), name, size = sides[at], template.names[row], template.bytes[row]
                if name in (EQUAL, UNEQUAL):
                    name, size = sent.issued(queue, counts[at], name, size)
                counts[at] += 1
                program.append(("issue", queue, name, size, *side))
            elif what == "wait":
                program.append(("wait", place_of[row]))
            else:  # steps begin together, as in an emulated run
                program.append(("align",) if what == "begin" and before else ("mark",))
    return program


def _trace(mesh, of, alike, times, last, steps):
    """The columns of the ranks that stand for all: the captured rows, each with the times found.

    Ids are those of a table of all ranks. ``last`` : the id of a collective's last member.
    """
    first_id = np.concatenate([[0], np.cumsum([steps * len(t.trace) for t in of])])
    issues = {
        rank: [
            first_id[rank] + step * len(of[rank].trace) + row
            for step in range(steps)
            for what, row, _ in of[rank].operations
            if what == "issue"
        ]
        for rank in times
    }
    place = {index: rank for index, rank in enumerate(alike.ranks)}
    parts = []
    for rank, found in times.items():
        template, at = of[rank], 0
        rows, size = len(template.trace), len(template.operations)
        for step in range(steps):
            columns = dict(template.trace.columns)
            next_id = int(first_id[rank]) + step * rows
            start, end = _placed(template, found[step * size : (step + 1) * size])
            lasts = np.full(rows, -1)
            for what, row, _ in template.operations:
                if what == "issue":
                    who, number = last[rank][at]
                    lasts[row], at = issues[place[who]][number], at + 1
            columns |= {
                "id": np.arange(next_id, next_id + rows),
                "rank": np.full(rows, rank),
                "start": start,
                "end": end,
                "members": columns["members"]
                if rank == template.rank
                else members_of(mesh, template.rank, rank, groups_in(columns)),
                "waits_for": np.where(template.waits_for < 0, -1, template.waits_for + next_id),
                "last": lasts,
            }
            if steps > 1:
                columns["step"] = np.where(columns["step"] >= 0, step, -1)
                if step:
                    is_step = columns["kind"] == "step"
                    columns["name"] = np.where(is_step, f"step {step}", columns["name"])
                    columns["seq"] = columns["seq"] + step * template.per_step
            parts.append(columns)
    return {name: np.concatenate([part[name] for part in parts]) for name in (*COLUMNS, "last")}


def _memory(capture, of, alike, times):
    """{"memory": series of ranks}: what was allocated in the captured step, at simulated times.

    In a large world only the ranks recorded have one, and those that stand for others.
    """
    world, found = len(of), {}
    ranks = range(world) if world <= MANY else sorted({*capture.traces, *alike.ranks[:MANY]})
    for rank in ranks:
        template = of[rank]
        series = template.trace.meta.get("memory", {}).get(template.rank)
        if series:
            stamps, seconds = template.moments(times[alike.model[rank]][: len(template.operations)])
            at = np.interp(series["time"], stamps, seconds).tolist()
            found[rank] = {**series, "time": at}
    return {"memory": found} if found else {}


def _placed(template, found):
    """(start, end) arrays by row of the trace, from the times of one step's operations."""
    start, end = np.zeros(len(template.trace)), np.zeros(len(template.trace))
    for (what, _, row), (a, b) in zip(template.operations, found):
        if what == "end":
            end[row] = b
        else:
            start[row] = a
            end[row] = b
    return start, end

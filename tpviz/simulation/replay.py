"""From a `Capture` and a cluster to a simulated `Trace`: build programs, replay, tabulate."""

import gc
from collections import Counter
from contextlib import contextmanager
from functools import cached_property

import numpy as np

from tpviz.trace.table import COLUMNS, MANY, Trace, members_list, members_text

from .engine import Engine, Queue
from .faults import NONE
from .program import is_message, operations, place

BADGE = "simulated"


def replay(capture, cluster, steps=1, faults=NONE, contention=True):
    """The `Trace` of ``steps`` steps of every rank of a captured program on a cluster.

    Raises ``ValueError`` if the ranks do not fit the cluster or the faults name others, and
    ``RuntimeError`` if the program never ends (with who waits for whom).
    """
    cluster.check_world(capture.world_size)
    faults.check(capture.world_size)
    with _no_collection():
        return _replay(capture, cluster, steps, faults, contention)


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


def _replay(capture, cluster, steps, faults, contention):
    templates = {
        rank: Template(trace, rank, cluster.device) for rank, trace in capture.traces.items()
    }
    board = Board(capture, cluster, faults)
    programs, texts = [], []
    for rank in range(capture.world_size):
        template = templates[capture.model[rank]]
        queues, own_texts = board.of(template, rank)
        programs.append(_program(template, queues, rank, steps, faults))
        texts.append(own_texts)
    times = Engine(cluster, programs, contention).run()
    return _trace(capture, templates, texts, times, steps)


class Template:
    """One captured rank's step: its operations, their seconds, and the groups it takes part in."""

    def __init__(self, trace, rank, device):
        self.trace, self.rank = trace, rank
        self.operations = operations(trace)
        columns = [trace[c].tolist() for c in ("flops", "bytes", "dtype")]
        self.seconds = [device.time(*row) for row in zip(*columns)]
        self.names, self.bytes = trace["name"].tolist(), trace["bytes"].tolist()
        axes, members = trace["axis"].tolist(), trace["members"].tolist()
        self.group = [
            (axis, text, is_message(name))
            for axis, text, name in zip(axes, members, self.names)
        ]
        comm = {row for row, kind in enumerate(trace["kind"].tolist()) if kind == "comm"}
        self.groups = list(dict.fromkeys(g for row, g in enumerate(self.group) if row in comm))
        self.texts = list(dict.fromkeys(group[1:] for group in self.group))
        self.text_index = np.array([self.texts.index(group[1:]) for group in self.group], int)

    @cached_property
    def waits_for(self):
        """The row that each row waits for, -1 for none."""
        row_of = {i: row for row, i in enumerate(self.trace["id"].tolist())}
        return np.array([row_of.get(i, -1) for i in self.trace["waits_for"].tolist()], int)

    @cached_property
    def per_step(self):
        """How many collectives each row's group has in one step."""
        kinds = self.trace["kind"].tolist()
        counts = Counter(group for group, kind in zip(self.group, kinds) if kind == "comm")
        return np.array([counts[group] for group in self.group])

    def moments(self, times):
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


class Board:
    """The queues of all groups, made once each."""

    def __init__(self, capture, cluster, faults):
        self.capture, self.cluster, self.faults = capture, cluster, faults
        self.queues, self.placed = {}, {}

    def of(self, template, rank):
        """({(axis, text, peer): queue}, [members text of each of the template's texts])."""
        placed = {text: self._place(template.rank, rank, *text) for text in template.texts}
        queues = {
            group: self._queue(group[0], placed[group[1:]], group[2]) for group in template.groups
        }
        return queues, [members_text(placed[text]) for text in template.texts]

    def _place(self, source, rank, text, peer):
        members = members_list(text)
        if not members:
            return ()
        mesh = self.capture.mesh
        if peer:
            return place(mesh, source, rank, members, peer)
        if (source, text) not in self.placed:
            here, places = mesh.coords(source), [mesh.coords(m) for m in members]
            free = [a for a in mesh.names if all(p[a] == here[a] for p in places)]
            self.placed[source, text] = free, {}
        free, known = self.placed[source, text]
        there = mesh.coords(rank)
        key = tuple(there[a] for a in free)
        if key not in known:
            known[key] = place(mesh, source, rank, members)
        return known[key]

    def _queue(self, axis, members, peer):
        key = axis, members, peer
        if key not in self.queues:
            shift = members[1] - members[0] if peer else None
            link = self.cluster.link(members, self.capture.world_size, shift)
            factor = self.faults.link_factor(members)
            kind = axis, link.family, shift
            self.queues[key] = Queue(axis, members, kind, link, factor)
        return self.queues[key]


def _program(template, queues, rank, steps, faults):
    """The rank's operations, as `Engine` takes them."""
    program, kernels, issued = [], 0, 0
    faulty = faults is not NONE
    for before in range(steps):
        place_of = {}
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
                queue = queues[template.group[row]]
                program.append(("issue", queue, template.names[row], template.bytes[row]))
            elif what == "wait":
                program.append(("wait", place_of[row]))
            else:  # steps begin together, as in an emulated run
                program.append(("align",) if what == "begin" and before else ("mark",))
    return program


def _trace(capture, templates, texts, times, steps):
    """The table of all ranks: the captured rows, each with the times found."""
    parts, next_id = [], 0
    for rank, found in enumerate(times):
        template = templates[capture.model[rank]]
        rows, own_texts, size = len(template.trace), texts[rank], len(template.operations)
        for step in range(steps):
            columns = dict(template.trace.columns)
            start, end = _placed(template, found[step * size : (step + 1) * size])
            columns |= {
                "id": np.arange(next_id, next_id + rows),
                "rank": np.full(rows, rank),
                "start": start,
                "end": end,
                "members": np.array(own_texts)[template.text_index],
                "waits_for": np.where(template.waits_for < 0, -1, template.waits_for + next_id),
            }
            if steps > 1:
                columns["step"] = np.where(columns["step"] >= 0, step, -1)
                if step:
                    is_step = columns["kind"] == "step"
                    columns["name"] = np.where(is_step, f"step {step}", columns["name"])
                    columns["seq"] = columns["seq"] + step * template.per_step
            parts.append(columns)
            next_id += rows
    table = {name: np.concatenate([part[name] for part in parts]) for name in COLUMNS}
    return Trace(table, _memory(capture, templates, times))


def _memory(capture, templates, times):
    """{"memory": series of ranks}: what was allocated in the captured step, at simulated times.

    In a large world only the ranks recorded have one: the others' are the same.
    """
    ranks = range(len(times)) if len(times) <= MANY else capture.traces
    found = {}
    for rank in ranks:
        template = templates[capture.model[rank]]
        series = template.trace.meta.get("memory", {}).get(template.rank)
        if series:
            stamps, seconds = template.moments(times[rank][: len(template.operations)])
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

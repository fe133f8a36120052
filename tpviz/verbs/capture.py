"""``capture``: each rank's program, by tracing the strategy with a fake process group.

program = tv.capture(tv.Megatron(tp=4), tv.GPT())
program.ledger(), program.trace(0)
"""

import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
)

from tpviz.cluster.clock import deadline
from tpviz.cluster.clock.affine import Affine, enough
from tpviz.cluster.clock.agreement import checked
from tpviz.cluster.clock.program import Capture, place
from tpviz.core.here import thread_time
from tpviz.core.mesh import Mesh
from tpviz.core.trace.members import members_list
from tpviz.ranks.clock import OrderClock
from tpviz.ranks.fake import NoNumbers, fake_tensors, fake_world
from tpviz.ranks.rank_errors import raised_at
from tpviz.ranks.recorder import Recorder
from tpviz.ranks.repeat import repeating
from tpviz.schemes.ownership import ownership
from tpviz.schemes.strategy import seen_by

from .checks import check_fit

if TYPE_CHECKING:
    from tpviz.core.trace import Trace
    from tpviz.core.workload import GPT
    from tpviz.schemes.gpt.program import Program
    from tpviz.schemes.strategy import Strategy

_NUMBERS = NoNumbers, DataDependentOutputException, DynamicOutputShapeException
_Record = Callable[[int], "Trace"]
_lock = threading.Lock()  # a process has one torch.distributed world


def capture(strategy: "Strategy", workload: "GPT", *, detail: str = "kernels") -> Capture:
    """Record one training step with a fake process group: a `Capture`, without ranks or numbers.

    If the strategy says that all ranks are ``alike``, one is recorded; if along some axes only, or
    if work along some is ``uneven``, one for each index on the others. Otherwise the first, the
    last along each mesh axis and the last of all. If these run the same program but for their place
    in the mesh, they stand for all (ranks between are not checked); along an axis where they
    differ, every index is recorded, with the first and last along the other axes. Where ranks
    differ in how many rows their experts have, a few are recorded, from which the others' programs
    follow (`tpviz.cluster.clock.affine`).
    detail: as `tpviz.record` takes it. Raises ``ValueError`` where sizes do not fit, where ranks
    disagree about a collective's size, operation, root or dtype, or the program needs the numbers
    that its tensors hold; ``RuntimeError`` inside a rank.
    """
    check_fit(strategy, workload)
    mesh = Mesh(strategy.axes)
    with _lock:
        traces = {}

        def record(rank: int) -> "Trace":
            if rank not in traces:
                traces[rank] = _record(strategy, workload, rank, mesh.size, detail)
            return traces[rank]

        if strategy.alike is False:
            distinct = _distinct_axes(mesh, record)
        else:
            known = {*(mesh.names if strategy.alike is True else strategy.alike)}
            known -= {*strategy.uneven(workload)}
            distinct = tuple(a for a in mesh.names if a not in known)
        ranks = _ranks(mesh, distinct)
        recorded = _all(strategy, workload, mesh, ranks, record)
    model = {}
    for rank in range(mesh.size):
        coords = mesh.coords(rank)
        model[rank] = mesh.rank(**{a: i if a in distinct else 0 for a, i in coords.items()})
    found = Capture(
        strategy.axes,
        recorded,
        model,
        {
            "strategy": repr(strategy),
            "workload": repr(workload),
            "title": strategy.title(workload),
            "mesh": {"axes": strategy.axes},
            "ownership": ownership(strategy, workload),
            "detail": detail,
        },
    )
    return checked(found)


def _all(strategy: "Strategy", w: "GPT", mesh: Mesh, ranks: Collection[int], record: _Record):
    """{rank: its program}; where experts' rows alone differ of a few, and one to compare."""
    routed = {*strategy.routed(w)}
    families, found, start = dict[Any, dict[int, Any]](), dict[int, "Trace"](), thread_time()
    for rank in ranks:
        rows = strategy.rows(seen_by(strategy, w, rank)) if routed else ()
        few = tuple(min(n, 2) for n in rows)  # without rows, or with one, it is another program
        family = *((a, i) for a, i in mesh.coords(rank).items() if a not in routed), few
        families.setdefault(family, {})[rank] = rows
    for number, family in enumerate(families.values()):
        deadline.check_pace(start, number, len(families))
        found |= _family(mesh, family, record, checked=number == 0)
    return {rank: found[rank] for rank in ranks}


def _family(mesh: Mesh, family: Mapping[int, tuple[int, ...]], record: _Record, checked: bool):
    """{rank: its program} of {rank: its counts of rows}."""
    ranks, rows = [*family], np.array([*family.values()], np.int64)
    chosen = [ranks[at] for at in enough(rows)]
    rest = [rank for rank in ranks if rank not in chosen]
    if len(rest) > checked:
        records = {rank: record(rank) for rank in chosen}
        program = Affine.of_records(mesh, records, np.array([family[rank] for rank in chosen]))
        if program:
            made = records | {rank: program.at(rank, np.array(family[rank])) for rank in rest}
            if not checked or _equal(made[rest[-1]], record(rest[-1])):
                return made
    return {rank: record(rank) for rank in ranks}


def _equal(one: "Trace", other: "Trace") -> bool:
    """Whether two programs of a rank are the same, in every row and every byte allocated."""
    same = all(np.array_equal(one[name], other[name]) for name in one.columns)
    return same and all(one.meta.get(key) == other.meta.get(key) for key in ("memory", "parts"))


def _distinct_axes(mesh: Mesh, record: Callable[[int], "Trace"]):
    """The axes along which ranks do different things, by the ranks at the ends."""
    zero, last = dict.fromkeys(mesh.names, 0), {a: n - 1 for a, n in mesh.axes.items()}
    found = ()
    while True:
        more = set()
        for rank in _ranks(mesh, found):  # each index where ranks differ, against its own ends
            here, trace = mesh.coords(rank), record(rank)
            rest = [a for a in mesh.names if a not in found]
            more |= {
                a
                for a in rest
                if not _same(mesh, trace, rank, record, mesh.rank(**here | {a: last[a]}))
            }
            corner = mesh.rank(**here | {a: last[a] for a in rest})
            if not more and not _same(mesh, trace, rank, record, corner):
                more |= {a for a in rest if last[a] != zero[a]}
        if not more:
            return found
        found = tuple(a for a in mesh.names if a in found or a in more)


def _same(mesh: Mesh, trace: "Trace", rank: int, record: Callable[[int], "Trace"], other: int):
    """Whether the program of ``other`` is that of ``rank``, but for the groups' places."""
    if other == rank:
        return True
    theirs = record(other)
    if len(theirs) != len(trace):
        return False
    plain = [n for n in trace.columns if n not in ("rank", "members")]
    if any((trace[n] != theirs[n]).any() for n in plain):
        return False
    pairs = dict.fromkeys(zip(trace["members"].tolist(), theirs["members"].tolist()))
    return all(
        place(mesh, rank, other, members_list(a)) == tuple(members_list(b))
        for a, b in pairs
        if a or b
    )


def _ranks(mesh: Mesh, distinct: Collection[str]):
    """One rank for every combination of indices on the axes where ranks differ."""
    ranges = [range(n) if a in distinct else (0,) for a, n in mesh.axes.items()]
    return [mesh.rank(**dict(zip(mesh.names, coords))) for coords in product(*ranges)]


def _record(strategy: "Strategy", workload: "GPT", rank: int, world_size: int, detail: str):
    """One rank's step as a `Trace`."""
    with fake_world(rank, world_size):
        mesh = Mesh(strategy.axes).device_mesh("cpu")
        with fake_tensors(), _refusing_data(strategy), repeating():
            program = strategy.build(workload, mesh, getattr(torch, workload.dtype), "cpu")
            shape = workload.batch, workload.seq
            batch = tuple(torch.zeros(shape, dtype=torch.int64) for _ in range(2))
            _train(program, batch)  # optimizers and FSDP set themselves up in the first step
            with Recorder(True, detail, OrderClock()) as recorder, recorder.step():
                _train(program, batch)
    return recorder.trace


@contextmanager
def _refusing_data(strategy: "Strategy"):
    """Say in words that a program needs what tensors hold, and where it does."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, _NUMBERS) and "data is not allocated" not in str(error):
            raise
        what = str(error) if isinstance(error, NoNumbers) else "reads the numbers in its tensors"
        raise ValueError(
            f"{strategy!r} cannot be captured: it {what}{raised_at(error)}, and captured tensors "
            "have none (DDP's reducer and torch's pipeline schedules read them too); run it with "
            "tv.run, or record it inside tv.launch"
        ) from None


def _train(program: "Program", batch: tuple[torch.Tensor, ...]):
    program.step(batch)
    program.optimizer_step()

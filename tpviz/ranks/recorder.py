"""`record`: every compute kernel, collective and wait of this rank, as a `Trace`.

    with tv.record() as rec:          # inside a rank; any torch.distributed program
        with rec.step():
            loss = train_step()
    rec.trace.ledger()

Collectives are seen by the process group (`backend`), compute by `compute`, phases by `phases`,
times by a clock, allocations (``memory=True``, slower: record it in a step of its own) by `memory`.
"""

import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tpviz.cluster import Cluster
from tpviz.cluster.clock.injected_faults import Faults
from tpviz.core import copies
from tpviz.core.checks import one_of
from tpviz.core.trace.ledger import wire_bytes
from tpviz.core.trace.members import members_text
from tpviz.core.trace.table import Event, Trace

from . import adapters, backend, compute
from .clock import CudaClock, HostClock, OrderClock, host_or_device_clock
from .compiled import CompiledCode
from .compute import kernel_cost
from .devices import badge
from .hosts import host
from .memory import MemoryHook
from .offsets import offset
from .phases import WHERE, Phases

if TYPE_CHECKING:
    from .pacing import Pacer

DETAILS = ("kernels", "all")


class Recorder:
    """Collects the events of one rank while active; `trace` after it.

    Raises ``RuntimeError`` if another recorder is active in this process.
    """

    clock: HostClock  # once entered
    pacer: "Pacer | None"
    trace: Trace  # once left

    def __init__(
        self,
        memory: bool = False,
        detail: str = "kernels",
        clock: OrderClock | None = None,
        cluster: Cluster | None = None,
        faults: Faults | None = None,
    ):
        self.detail = one_of("detail", detail, DETAILS)
        self.kernels, self.comms, self.waits, self.steps = [], [], [], []
        self.phases = Phases(self.kernels)
        self.memory = MemoryHook(self.phases, clock) if memory else None
        self.own_seconds, self.walls = 0.0, []
        self.clock, self.cluster, self.faults, self.pacer = clock, cluster, faults, None  # pyright: ignore[reportAttributeAccessIssue]
        self.hooks = []
        self.trace = None  # pyright: ignore[reportAttributeAccessIssue]

    # -- life ------------------------------------------------------------------------------------
    def __enter__(self):
        if backend.recorder is not None:
            raise RuntimeError(
                "this rank is already being recorded; nested tv.record() is not possible"
            )
        if self.hooks:
            raise RuntimeError("a recorder records once; make another one with tv.record()")
        self.hooks = self._hooks()
        self.phases.start()
        backend.recorder, backend.pacer = self, self.pacer
        copies.watch(self)
        for h in self.hooks:
            h.__enter__()
        self.begun = self.clock.now(), time.perf_counter()
        return self

    def _hooks(self):
        captured = self.clock is not None  # on fake tensors, which are never compiled
        now, note = self._clock()
        if self.detail == "kernels":
            kernels = compute.KernelHook(now, note, fake=captured)
        else:
            kernels = compute.EveryOperator(now, note)
        hooks: list[Any] = [kernels, self.memory] if self.memory else [kernels]
        if not captured:
            see = self.memory.see if self.memory else None
            hooks.append(CompiledCode(now, note, [self.phases, kernels], see))
        return hooks

    def _clock(self) -> tuple[Callable[[], Any], Callable[[Any], None]]:
        """(now, note) for the hooks; with a cluster kernels are paced before they are noted."""
        if self.cluster is None:
            self.clock = self.clock or host_or_device_clock()
            return self.clock.now, self.kernels.append
        from .pacing import Pacer

        self.clock = self.pacer = Pacer(self.cluster, self.faults)
        return time.perf_counter, lambda note: self.kernels.append(self.pacer.kernel(note))  # pyright: ignore[reportOptionalMemberAccess]

    def __exit__(self, *exc: Any):
        for h in reversed(self.hooks):
            h.__exit__(None, None, None)
        backend.recorder = backend.pacer = None
        copies.watch(None)
        self.phases.stop()
        if exc[0] is None:
            if self.pacer:
                self.pacer.close()
                self.whole = self.clock.now() - self.begun[0], time.perf_counter() - self.begun[1]  # pyright: ignore[reportOperatorIssue]
            self.trace = self._build()

    @contextmanager
    def step(self) -> Generator[int, None, None]:
        """Mark one training step; steps are numbered from 0, one that raises included.

        Raises ``RuntimeError`` inside another step.
        """
        if self.phases.step >= 0:
            raise RuntimeError(f"step {self.phases.step} is not over; steps cannot be nested")
        number = len(self.steps)
        if self.pacer:
            self.pacer.align()
        self.phases.set_step(number)
        start, real = self.clock.now(), time.perf_counter()
        try:
            yield number
        finally:
            self.steps.append((number, start, self.clock.now()))
            self.walls.append(time.perf_counter() - real)
            self.phases.set_step(-1)

    # -- what the hooks call ---------------------------------------------------------------------
    def issued(
        self,
        collective: str,
        payload: int,
        members: tuple[int, ...],
        axis: str,
        seq: int,
        terms: str,
        parts: Sequence[int] = (),
    ) -> list[Any]:
        """A collective was handed to the group: returns the row whose end `completed` fills in.
        parts : bytes to each member, of an all-to-all that was given these."""
        where = self.phases.where(collective)
        # not the group: a row lives as long as its operation, and may end on gloo's own thread
        row = [collective, self.clock.now(), None, where, payload, members, axis, seq, terms, parts]
        self.comms.append(row)
        return row

    def completed(self, row: list[Any], stamp: Any = None) -> None:
        """The collective of ``row`` is done; later calls for the same row are ignored."""
        if row[2] is None:
            row[2] = self.clock.now() if stamp is None else stamp

    def waited(self, row: list[Any], start: Any) -> None:
        """The compute lane was blocked from ``start`` until now by the collective of ``row``."""
        end = self.clock.now()
        compute.resumed(end)
        self.waits.append((row, start, end, self.phases.where(row[0])))

    # -- as `copies.Watcher` -----------------------------------------------------------------------
    def departed(self, way: str, size: int) -> list[Any]:
        """A copy to or from the host begins."""
        row = self.issued(copies.COPY, size, (_rank(),), way, -1, "")
        if self.pacer:
            self.pacer.copies(row)
        return row

    def stamp(self) -> Any:
        """Now."""
        return self.clock.now()

    def arrived(self, row: list[Any]) -> None:
        """A copy has ended; in an emulated run it may last longer."""
        self.completed(row, time.perf_counter() if self.pacer else None)

    def awaited(self, row: list[Any], start: Any) -> None:
        """A copy was waited for."""
        if self.pacer:
            self.pacer.await_copy(row)
        self.waited(row, start)

    # -- the table -------------------------------------------------------------------------------
    def _build(self):
        rank = _rank()
        resolve, events, ids = self.clock.resolve, [], {}

        def add(start: Any, end: Any, **fields: Any):
            events.append(Event(rank=rank, start=resolve(start), end=resolve(end), **fields))

        for number, start, end in self.steps:
            add(start, end, lane="step", kind="step", name=f"step {number}", step=number)
        for kernel, where in zip(map(compute.Note._make, self.kernels), self.phases.of_kernels()):
            name = kernel.operator.overloadpacket.__name__
            add(kernel.start, kernel.end, name=name, **_work(kernel), **where)
        for row in self.comms:
            ids[id(row)] = len(events)
            events.append(self._comm_event(row, rank))
        for row, start, end, where in self.waits:
            source = events[ids[id(row)]]
            group = {"axis": source.axis, "members": source.members, "seq": source.seq}
            of = {**group, "waits_for": ids[id(row)], **self._where(where)}
            add(start, end, kind="wait", name=f"wait {row[0]}", **of)
        return Trace.from_events(events, self._meta(rank))

    def _comm_event(self, row: list[Any], rank: int):
        collective, start, end, where, payload, members, axis, seq, terms, _ = row
        start, kind = self.clock.resolve(start), "copy" if axis in copies.HOST else "comm"
        end = self.clock.resolve(self.clock.now() if end is None else end)  # pyright: ignore[reportArgumentType]
        return Event(
            rank=rank,
            lane=f"{kind}/{axis}",
            kind=kind,
            name=collective,
            start=min(start, end),  # a host may see the end before the device's stream is at start
            end=end,
            bytes=payload,
            wire_bytes=wire_bytes(collective, payload, len(members)),
            axis=axis,
            members=members_text(members),
            seq=seq,
            terms=terms,
            **self._where(where),
        )

    def _where(self, where: tuple[Any, ...]) -> dict[str, Any]:
        phase, layer, sequence, microbatch, chunk, step = where
        if sequence >= 0 and not layer:
            layer = self.phases.layer_of(sequence)
        return dict(zip(WHERE, (phase, layer, microbatch, chunk, step)))

    def _meta(self, rank: int):
        device = "cuda" if isinstance(self.clock, CudaClock) else "cpu"
        count = len(self.kernels)
        meta: dict[str, Any] = {
            "badge": badge(device),
            "device": device,
            "torch": torch.__version__,
            "world_size": dist.get_world_size() if dist.is_initialized() else 1,
            "overhead": self.own_seconds + count * kernel_cost(),
            "detail": self.detail,
        }
        if not isinstance(self.clock, OrderClock):
            meta["hosts"] = {rank: host()}
            if compared := offset():
                meta["offsets"] = {rank: compared}
        if parts := [list(row[9]) for row in self.comms if row[9]]:
            meta["parts"] = {rank: parts}
        unrecorded = adapters.unrecorded(backend.is_recorded) if dist.is_initialized() else []
        if unrecorded:
            meta["unrecorded"] = unrecorded
        if self.pacer:
            span, wall = self.whole
            spans = [end - start for _, start, end in self.steps] or [span]
            meta |= self.pacer.meta(spans, self.walls or [wall])
        if self.memory:
            meta["memory"] = {rank: self.memory.series()}
        return meta


def _rank():
    return dist.get_rank() if dist.is_initialized() else 0


def _work(kernel: compute.Note):
    """FLOPs, bytes and dtype of a kernel, from what was noted of its arguments."""
    return {
        "flops": compute.flops(kernel.operator, kernel.shapes),
        "bytes": compute.traffic(kernel.operator, kernel.shapes, kernel.dtype),
        "dtype": str(kernel.dtype).removeprefix("torch.") if kernel.dtype else "",
    }


def record(
    memory: bool = False,
    detail: str = "kernels",
    cluster: Cluster | None = None,
    faults: Faults | None = None,
) -> Recorder:
    """Record this rank's events while the ``with`` block runs; ``.trace`` holds them afterwards.

    memory: also track every allocation (parameters, gradients, optimizer, activations); this slows
    the program, so do not trust the times of such a recording. detail: "kernels" (GEMMs,
    convolutions, attention, fused optimizers: what carries the FLOPs, cheap) or "all" (every
    operator, slower). cluster: a `Cluster` to emulate: recorded kernels and collectives really run,
    and last as long as the cluster says (memory-bound kernels count in `tpviz.run` alone, which
    knows the workload); all ranks of the world must be on one host, enter together and mark the
    same steps. faults: `Faults` of that cluster. Collectives are recorded on groups of the "tpviz"
    backend, the default of `tpviz.launch`; with another backend only compute is recorded, and a
    warning says so.
    """
    if not isinstance(cluster, Cluster | None) or not isinstance(faults, Faults | None):
        raise ValueError(
            f"cluster={cluster!r}, faults={faults!r}: give a tv.Cluster and, if you like, tv.Faults"
        )
    if faults is not None and cluster is None:
        raise ValueError("faults are those of an emulated cluster: give a cluster too")
    if dist.is_initialized() and not backend.is_recorded():
        import warnings

        warnings.warn(
            f"the default group's backend is {dist.get_backend()!r}, so its collectives are not "
            'recorded; record within tv.launch, or initialise it with backend="tpviz"',
            stacklevel=2,
        )
    return Recorder(memory, detail, cluster=cluster, faults=faults)

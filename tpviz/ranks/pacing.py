"""Pacing: real tensors and real GEMMs, at the speed of a described cluster.

A rank has a *lane clock*, the time on the emulated device. A kernel really runs; its event ends at
lane clock + FLOPs / rate, and the rank sleeps until then. A collective really runs; it starts when
its last member has issued it (`issue_times`), `Flows` says when it ends, and its handle is not done
before. What the host does in between is free, as it is on a device that is fed asynchronously; host
idleness is not: time in which the rank was blocked or asleep moves the lane clock. Nothing is
subtracted: where the real thing took longer than the model allows, the event ends when it really
ended, and the overrun is kept in `late`, by event. Events bear the lane clock's times; how far the
wall's clock is behind it over a step is in the trace's meta.
"""

import os
import resource
import threading
import time
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tpviz.cluster.clock.flows import Flows
from tpviz.cluster.clock.injected_faults import NONE, Faults
from tpviz.cluster.exchanges import EQUAL

from . import board, compute
from .clock import HostClock
from .issue_times import IssueTimes
from .operations import PEER

if TYPE_CHECKING:
    from tpviz.cluster import Cluster

SILENT = PEER | {"reduce_scatter"}
QUICK = 1e-3  # a wait that takes less (s) is for something that was done before
now = time.perf_counter


class Flight:
    """One collective of this rank in flight; ``end`` (s) once it is known."""

    __slots__ = ("end", "key", "name", "row", "start")

    end: float | None
    row: list[Any] | None

    def __init__(self, key: tuple[int, int], name: str, start: float):
        self.key, self.name, self.start = key, name, start
        self.end = self.row = None


class Pacer(HostClock):
    """Paces one rank; made by all ranks of the world together, closed by each on its own."""

    def __init__(self, cluster: "Cluster", faults: Faults | None = None):
        faults = faults or NONE
        self.cluster, self.faults = cluster, faults
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        cluster.check_world(self.world_size)
        faults.check(self.world_size)
        self.issue_times, self.flows = IssueTimes(), Flows()
        self.flights, self.under_way, self.numbers = {}, {}, Counter()
        self.busy, self.due = dict[str, float](), dict[int, float]()
        self.lock = threading.Lock()
        self.kernels, self.late = 0, Counter()
        self.communication = self.late_communication = 0.0
        cores = os.cpu_count() or 1
        self.share = max(1.0, int(os.environ.get("LOCAL_WORLD_SIZE", self.world_size)) / cores)
        self.starts = -1
        self.align()

    # -- the lane clock --------------------------------------------------------------------------
    def now(self) -> float:
        """The lane clock (s), advanced by the time blocked or idle since the last call."""
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        if usage.ru_nvcsw != self.switches:  # this thread has slept, or was blocked
            self.lane = max(self.lane, now() - self._worked(usage))
            self._mark()
        return self.lane

    def _worked(self, usage):
        """Seconds of host work since the last mark: processor time, stretched by crowding."""
        return self.share * (usage.ru_utime + usage.ru_stime - self.cpu)

    def _mark(self):
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        self.switches, self.cpu = usage.ru_nvcsw, usage.ru_utime + usage.ru_stime

    def _sleep_until(self, end):
        left = end - now()
        if left > 0:
            time.sleep(left)
        self.lane = max(self.lane, end)
        self._mark()

    # -- kernels ---------------------------------------------------------------------------------
    def kernel(self, note: tuple[Any, ...]) -> compute.Note:
        """A kernel has run: hold the rank until the device would be done; its note, restamped."""
        note = compute.Note._make(note)
        seconds = self.cluster.device.time(
            compute.flops(note.operator, note.shapes),
            compute.traffic(note.operator, note.shapes, note.dtype),
            str(note.dtype).removeprefix("torch."),
        ) * self.faults.kernel_factor(self.rank, self.kernels)
        self.kernels += 1
        usage = resource.getrusage(resource.RUSAGE_THREAD)
        begin = self.lane
        if usage.ru_nvcsw != self.switches:
            begin = max(begin, note.start - self._worked(usage))
        end = max(begin + seconds, note.end)
        if end > begin + seconds:
            self.late[note.operator.overloadpacket.__name__] += end - begin - seconds  # pyright: ignore[reportArgumentType]
        start = max(begin, min(note.start, end - seconds))
        self._sleep_until(end)
        return note._replace(start=start, end=end)

    # -- collectives -----------------------------------------------------------------------------
    def issue(
        self,
        name: str,
        payload: int,
        members: tuple[int, ...],
        axis: str,
        parts: Sequence[int] = (),
    ) -> Flight:
        """This rank hands a collective to its group now; its `Flight`. parts : bytes to each
        member, of an all-to-all that was given these."""
        shift = members[1] - members[0] if name in PEER else None
        slot = self.issue_times.slot(axis, members, shift)
        if name == EQUAL:
            payload = self._exchanged(slot, payload / len(members))  # pyright: ignore[reportAssignmentType]
        latency, volume = self._cost(slot, "send" if name == "recv" else name, payload)
        number = self.numbers[slot.index]
        self.numbers[slot.index] += 1
        flight = Flight((slot.index, number), name, self.now())
        with self.lock:
            self._advance(flight.start)
            self.flights[flight.key] = flight
            self.issue_times.post(
                slot,
                members.index(self.rank),
                number,
                flight.start,
                latency,
                volume,
                parts,
            )
        return flight

    def _exchanged(self, slot, parts):
        return self.cluster.exchanged(parts, slot.members, self.world_size)

    def _cost(self, slot, name, payload):
        """(seconds of latency, bytes of volume) of a collective of a slot."""
        link, factor = self._link(slot), self.faults.link_factor(slot.members)
        hops, volume = self.cluster.collective_cost(name, payload, len(slot.members), link)
        return hops * link.latency * factor, volume * factor

    def wait(self, flight: Flight, inner: dist.Work, timeout: timedelta | None = None) -> bool:
        """Wait for the real collective, then until the model says that it is done."""
        self.now()
        entered, ready = now(), inner.is_completed()
        done = inner.wait() if timeout is None else inner.wait(timeout)
        if flight.name in SILENT:  # gloo says of these that they are done only once waited for
            ready = now() - entered < QUICK
        real = 0.0 if ready else now()
        end = self.end_of(flight)
        if real > end:
            self.late[flight.name] += real - end  # pyright: ignore[reportArgumentType]
            self.late_communication += real - end
            flight.end = end = real
            self._stamp(flight)
        if end > self.lane:
            self._sleep_until(end)
        else:
            self._mark()
        return done

    def end_of(self, flight: Flight) -> float:
        """The time (s) at which a collective ends; blocks until that time is certain."""
        pause = 1e-4
        while True:
            with self.lock:
                self._advance(now())
                if flight.end is not None:
                    return flight.end
                flow = self.under_way.get(flight.key)
                expected = None if flow is None else _expected_end(flow)
            if expected is None:  # a member has yet to issue it
                pause = min(2 * pause, 2e-3)
            else:
                pause = max(1e-5, expected - now())
            time.sleep(pause)

    def is_done(self, flight: Flight) -> bool:
        """Whether the collective has ended by the model."""
        with self.lock:
            self._advance(now())
            return flight.end is not None

    def future(self, flight: Flight, inner: dist.Work) -> torch.futures.Future:
        """A future that is done when the emulated collective is (DDP waits on futures)."""
        future = torch.futures.Future()
        real = inner.get_future()

        def finish():
            inner.wait()
            self.end_of(flight)
            future.set_result(real.value())

        threading.Thread(target=finish, daemon=True).start()
        return future

    def _link(self, slot):
        if slot.link is None:
            slot.link = self.cluster.link(slot.members, self.world_size, slot.shift)
        return slot.link

    def _advance(self, until):
        """Begin what is complete, end what is over, up to a time."""
        self.issue_times.refresh()
        for slot in self.issue_times.slots:
            self._begin(slot)
        while (upcoming := self.flows.next_time()) is not None and upcoming <= until:
            flow = self.flows.step()
            if flow is None:
                continue
            slot, number = flow.owner
            slot.next, slot.busy, slot.free = number + 1, False, flow.end
            self.under_way.pop((slot.index, number), None)
            flight = self.flights.pop((slot.index, number), None)
            if flight is not None:
                flight.end = flow.end
                self.communication += flight.end - flight.start
                self._stamp(flight)
            self._begin(slot)

    def _begin(self, slot):
        if slot.busy:
            return
        found = self.issue_times.complete(slot, slot.next)
        if found is None:
            return
        slot.busy = True
        ready, latency, volume = found
        if parts := self.issue_times.parts(slot, slot.next):
            latency, volume = self._cost(slot, EQUAL, self._exchanged(slot, parts))
        queued = self.cluster.queued if slot.free > ready else 1.0
        link = self._link(slot)
        kind = slot.axis, link.family, slot.shift
        self.under_way[slot.index, slot.next] = self.flows.add(
            (slot, slot.next), kind, link, queued * latency, queued * volume, max(ready, slot.free)
        )

    @staticmethod
    def _stamp(flight):
        if flight.row is not None:
            flight.row[2] = flight.end

    # -- copies to and from the host ---------------------------------------------------------------
    def copies(self, row: list[Any]) -> None:
        """A copy begins, the row of which is as `Recorder.issued` makes it."""
        start, size, way = row[1], row[4], row[6]
        begin = max(start, self.busy.get(way, 0.0))
        self.busy[way] = self.due[id(row)] = begin + size / self.cluster.device.host_rate

    def await_copy(self, row: list[Any]) -> None:
        """It has really ended: hold the rank until it would have by the model."""
        self.now()
        end, real = self.due.pop(id(row)), row[2]
        if real > end:
            self.late[row[0]] += real - end
        row[2] = end = max(end, real)
        self._sleep_until(end)

    # -- life ------------------------------------------------------------------------------------
    def align(self) -> None:
        """All ranks' lane clocks go on from the same time, the last rank's: a step begins."""
        ranks = tuple(range(self.world_size))
        slot, self.starts = self.issue_times.slot("tpviz/start", ranks), self.starts + 1
        board.write("waiting for all ranks to begin a step of an emulated run")
        self.issue_times.post(slot, self.rank, self.starts, now(), 0.0, 0.0)
        while (found := self.issue_times.complete(slot, self.starts)) is None:
            time.sleep(1e-4)
        self.lane = found[0]
        self._mark()
        board.write("running user code")

    def close(self) -> None:
        """Wait until every collective in flight has ended."""
        for flight in list(self.flights.values()):
            board.write(f"waiting for the end of {flight.name}, issued by this rank")
            self.end_of(flight)
        board.write("running user code")

    def meta(self, steps: Sequence[float], walls: Sequence[float]) -> dict[str, Any]:
        """What a trace says of its pacing; seconds of each step by lane clock and by the wall's."""
        total, each = sum(self.late.values()), max(len(steps), 1)
        communication = self.communication + self.late_communication
        late = {
            "seconds": total / each,
            "share": total / sum(steps) if sum(steps) else 0.0,
            "share_of_communication": self.late_communication / max(communication, 1e-12),
            "behind": sum(walls) / sum(steps) - 1 if sum(steps) else 0.0,
            "events": [f"{n} ({1e3 * s / each:.1f} ms)" for n, s in self.late.most_common(3)],
        }
        return {"badge": "emulated", "cluster": self.cluster.caption, "late": late}


def _expected_end(flow):
    """When a flow ends if nothing changes."""
    if flow.end is not None:
        return flow.end
    if not flow.rate:  # silent still, or alone on its links
        return flow.start + flow.left / flow.link.bandwidth
    return flow.updated + flow.left / flow.rate

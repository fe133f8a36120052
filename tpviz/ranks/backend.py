"""The instrumented backend: a process group that does what gloo or NCCL does, and says what it did.

Importing this module registers the torch.distributed backend ``"tpviz"``. Each group is a Python
`ProcessGroup` around an ordinary one, so DTensor, DDP, FSDP and pipelining run on it unmodified.
While a recorder is active every collective becomes a communication event, and every wait a wait
event; always, the status board learns what this rank is in, so that a hang can be named.
"""

import contextlib
import functools
import inspect
import json
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from tpviz.cluster.exchanges import EQUAL, UNEQUAL
from tpviz.core.trace.agreement import Call, clash, sentence
from tpviz.core.trace.members import members_text

from . import adapters, board, places
from .compute import leave_alone
from .devices import inner_kind
from .operations import BLOCKING, OPERATIONS, PEER, terms, unequal
from .works import (
    AroundWork,
    DoneWork,
    SilentGroup,
    StagedWork,
    by_nccl,
    can_scatter,
    needs_staging,
    scatter,
    staged,
)

if TYPE_CHECKING:
    from .pacing import Flight, Pacer
    from .recorder import Recorder

recorder: "Recorder | None" = None  # the active one of this process
pacer: "Pacer | None" = None  # the active one of this process
comparing = False  # whether members compare their calls before they make them (`heed_debug_level`)
silent = False  # whether groups made now move nothing (tpviz.ranks.fake)


class TracedWork(AroundWork):
    """The handle of one collective: waits for the inner work, and stamps completion and waiting."""

    place: "places.PendingWait | None" = None  # what it waits for

    def __init__(
        self,
        inner: dist.Work,
        row: list[Any] | None,
        listener: "Recorder | None",
        text: str,
        flight: "Flight | None" = None,
    ):
        super().__init__(inner)
        self.row, self.listener, self.text = row, listener, text
        self.waited = False
        self.flight, self.pacer = flight, pacer if flight else None

    def wait(self, timeout: timedelta | None = None) -> bool:
        board.write("waiting in " + self.text)
        places.wait(None if timeout else self.place)
        self.waited = True
        listener = self.listener if self.listener is recorder else None
        start = listener.clock.now() if listener else 0.0
        if self.flight:
            done = self.pacer.wait(self.flight, self.inner, timeout)  # pyright: ignore[reportOptionalMemberAccess]
        else:
            done = self.inner.wait() if timeout is None else self.inner.wait(timeout)
        places.go()
        if listener:
            listener.completed(self.row)  # pyright: ignore[reportArgumentType]
            listener.waited(self.row, start)  # pyright: ignore[reportArgumentType]
        board.write("left " + self.text)
        return done

    def wait_at_end_of_backward(self) -> None:
        """Wait at the end of backward: DDP waits there in C++, where no wait is recorded."""
        if torch._C._current_graph_task_id() >= 0:  # in backward
            torch.autograd.Variable._execution_engine.queue_callback(self._wait_once)

    def _wait_once(self) -> None:
        if not self.waited:
            self.wait()

    def get_future(self) -> torch.futures.Future:
        if torch._C._current_graph_task_id() < 0:  # else DDP waits for it before backward ends
            places.unseen()  # it may call back
        if self.flight:
            return self.pacer.future(self.flight, self.inner)  # pyright: ignore[reportOptionalMemberAccess]
        return self.inner.get_future()

    def is_completed(self) -> bool:
        done = self.inner.is_completed()
        return done and (not self.flight or self.pacer.is_done(self.flight))  # pyright: ignore[reportOptionalMemberAccess]

    def synchronize(self) -> None:
        self.wait()


class TracedGroup(dist.ProcessGroup):
    """One process group: forwards each operation of `OPERATIONS` to ``inner``, and reports it."""

    def __init__(
        self,
        inner: dist.ProcessGroup | SilentGroup,
        members: tuple[int, ...],
        description: str = "",
        store: Any = None,  # where members compare their calls
    ):
        super().__init__(inner.rank(), inner.size())  # pyright: ignore[reportCallIssue]
        self.inner, self.members = inner, members
        self._description, self._name = description, ""
        self._axis = ""
        self.is_of_ddp = False  # see `adapters`
        self.counts = {}  # how many collectives so far, per set of members
        self.number = 1  # among the groups with this axis and these members
        self.store = store
        self.timeout: timedelta | None = None  # in which its collectives fail; None: they never do
        self._places: places.GroupPlace | None = None

    # What torch asks of a Python group; names differ between releases.
    def getBackendName(self) -> str:
        return "tpviz"

    def name(self) -> str:
        return "tpviz"

    def getRank(self) -> int:
        return self.inner.rank()

    def getSize(self) -> int:
        return self.inner.size()

    @property
    def group_name(self) -> str:
        return self._name

    pg_name = group_name

    @property
    def group_desc(self) -> str:
        return self._description

    def getGroupName(self) -> str:
        return self._name

    def getGroupDesc(self) -> str:
        return self._description

    def _set_group_name(self, name):
        self._name = name
        self.inner._set_group_name(name)

    setGroupName = _set_group_name

    def _set_group_desc(self, description):
        self._description = description
        self.inner._set_group_desc(description)
        if description == "default_pg":  # of a new world
            adapters.alike.clear()
        key = self._plain_axis, self.members
        self.number = adapters.alike[key] = adapters.alike.get(key, 0) + 1

    setGroupDesc = _set_group_desc

    @property
    def moved_by(self) -> str:
        """What `torch.distributed.get_backend` says of this group, see `adapters`."""
        return dist.Backend(inner_kind())

    @property
    def _device_types(self):
        return self.inner._device_types

    @property
    def axis(self) -> str:
        """This group's mesh axis: as `_naming_axes` saw, else by DeviceMesh's "mesh_<axis>"; of no
        mesh "world", and for the second group with equal members "world (group 2)", as its order is
        its own. A mesh that is made again, as for another model, has the same axes."""
        plain = self._axis or self._plain_axis
        return plain if self.number == 1 or plain != "world" else f"{plain} (group {self.number})"

    @property
    def _plain_axis(self):
        description = self._description
        return description.removeprefix("mesh_") if description.startswith("mesh_") else "world"

    def _forward(self, method, collective, payload_of, args, kwargs, how=None):
        members = self._members(method, collective, args)
        counter = members, collective in PEER
        seq = self.counts[counter] = self.counts.get(counter, -1) + 1
        payload = payload_of(len(self.members), *args)
        parts = unequal(args) if collective == EQUAL else []
        if parts:
            collective, payload = UNEQUAL, payload - parts[self.inner.rank()]
        text = _describe(collective, seq, self.axis, members, payload)
        listener, row, said, begun = recorder, None, "", time.perf_counter()
        compared = comparing and self.store and collective not in PEER
        if compared or listener is not None:
            said = terms(collective, args, _options(args, kwargs), self.members, how)
        telling = time.perf_counter() - begun
        if compared:
            self._compare(Call(collective, payload, said), seq)
        board.write("issuing " + text)
        if listener is not None:
            begun = time.perf_counter() - telling
            row = listener.issued(collective, payload, members, self.axis, seq, said, parts)
            listener.own_seconds += time.perf_counter() - begun
        flight = pacer.issue(collective, payload, members, self.axis, parts) if pacer else None
        place = self._place(method, collective, members, args)
        work = self._call(method, args, kwargs)
        if flight:
            flight.row = row
        elif listener is not None and work is not None:
            self._follow(work, row, listener, args, kwargs)
        if work is None:
            return None
        traced = TracedWork(work, row, listener, text, flight)
        traced.place = place
        if self.is_of_ddp and listener is not None:
            traced.wait_at_end_of_backward()
        return traced

    def _compare(self, call, seq):
        """Raise ``RuntimeError`` if another member's ``seq``-th collective is not this one's: each
        compares with the member that was first, so that nobody waits who would not anyway."""
        me = self.members[self.inner.rank()]
        first = self.store.compare_set(f"tpviz/call/{seq}", "", json.dumps([me, *call]))
        other, *theirs = json.loads(first)
        calls = {me: call, other: Call(*theirs)}
        ranks = tuple(sorted(calls))
        if len(ranks) == 2 and clash(calls[ranks[0]], calls[ranks[1]]):
            both = calls[ranks[0]], calls[ranks[1]]
            said = sentence(seq, both, ranks, self.axis, members_text(self.members))
            raise RuntimeError(f"ranks disagree: {said}")

    def follow_silently(
        self,
        kind: tuple[str, Callable[..., int]],
        tensors: torch.Tensor | Sequence[torch.Tensor],
        how: Any,
        sizes: Sequence[int] = (),
    ) -> TracedWork | None:
        """Report a collective that bypasses this group, as functional ones on fake tensors do; how:
        its reduction or its root. sizes : of an all-to-all's parts, where they are given."""
        return self._forward("allreduce", *kind, ([tensors], tensors, (), sizes), {}, how)

    def _call(self, method, args, kwargs):
        if pacer and can_scatter(method, args):
            return scatter(self.inner, args)  # pyright: ignore[reportArgumentType]
        operation = getattr(self.inner, method)
        if needs_staging(args):
            return staged(method, operation, args, kwargs)
        work = operation(*args, **kwargs)
        return DoneWork() if method in BLOCKING else work

    def _follow(self, work, row, listener, args, kwargs):
        """Have the end stamped where it happens, not where somebody waits for it.

        A blocking call waits at once, so its wait will do; so it must for gloo's send, recv and
        reduce_scatter, which have no future. A silent group is followed like one that moves bytes.
        """
        if isinstance(work, DoneWork) and not isinstance(self.inner, SilentGroup):
            return listener.completed(row)
        stamp = listener.clock.completion(work) if by_nccl(args) else None
        if stamp is not None:
            listener.completed(row, stamp)
        elif row[0] not in PEER and _is_async(args, kwargs):
            moving = work.inner if isinstance(work, StagedWork) else work
            with contextlib.suppress(RuntimeError):
                moving.get_future().add_done_callback(
                    lambda _: listener.completed(row, listener.clock.seen())
                )

    def _place(self, method, collective, members, args):
        if self._places is None:  # the first call: only now does the group have its name
            self._places = places.GroupPlace(self._name, self.members, self.timeout)
        if collective not in PEER:
            return self._places.issue(collective)
        pair = members if len(members) == 2 and method != "recv_anysource" else (-1, -1)
        return self._places.issue(collective, pair, args[-1] if len(args) > 1 else 0)

    def _members(self, method, collective, args):
        if method == "recv_anysource":
            if pacer or silent:
                raise ValueError(
                    "an emulated or captured program needs the sender: give recv a src"
                )
            return self.members
        if collective not in PEER or len(args) < 2:
            return self.members
        me, peer = self.members[self.inner.rank()], self.members[args[1]]
        return (me, peer) if collective == "send" else (peer, me)


def _operation(method, collective, payload_of):
    def operation(self, *args, **kwargs):
        return self._forward(method, collective, payload_of, args, kwargs)

    operation.__name__ = method
    return operation


def _blocking(operation):
    @functools.wraps(operation)
    def blocking(self, *args, **kwargs):
        operation(self, *args, **kwargs).wait()

    return blocking


def _passed_on(name):
    def passed_on(self, *args):
        return getattr(self.inner, name)(*args)

    passed_on.__name__ = name
    return passed_on


for _method in (
    *("abort", "shutdown", "set_timeout", "_start_coalescing", "_end_coalescing"),
    *("_get_backend", "_set_default_backend"),
):
    setattr(TracedGroup, _method, _passed_on(_method))
for _method, (_collective, _payload) in OPERATIONS.items():
    _forwarding = _operation(_method, _collective, _payload)
    setattr(TracedGroup, _method, _blocking(_forwarding) if _method in BLOCKING else _forwarding)
for _kind in TracedGroup, TracedWork:
    leave_alone(*filter(inspect.isfunction, vars(_kind).values()))


def _describe(collective, seq, axis, members, payload):
    ranks = ",".join(map(str, members))
    return f"{collective} #{seq} on axis {axis} (ranks {ranks}), {payload} bytes"


def _options(args, kwargs):
    return kwargs.get("opts", args[-1] if args else None)


def _is_async(args, kwargs):
    """Whether the caller may not wait at once: its options say so, or it gave none."""
    return getattr(_options(args, kwargs), "asyncOp", True)


def heed_debug_level() -> None:
    """From now on members compare their calls if torch's debug level is DETAIL, else they do not;
    looked at when a group is made and when a job begins, since each look takes microseconds."""
    global comparing
    comparing = dist.get_debug_level().name == "DETAIL"  # pyright: ignore[reportPrivateImportUsage]


def is_recorded(group: dist.ProcessGroup | None = None) -> bool:
    """Whether collectives of ``group`` (default: the world) pass through this backend."""
    return isinstance(group or dist.group.WORLD, TracedGroup)


def _create(options, _):
    rank, size, store = options.group_rank, options.group_size, options.store
    members = tuple(options.global_ranks_in_group) or tuple(range(size))
    if silent:
        return TracedGroup(SilentGroup(rank, size), members)
    heed_debug_level()
    inner = dist.ProcessGroup(store, rank, size)
    kind = dist.ProcessGroup.BackendType
    gloo = dist.ProcessGroupGloo(store, rank, size, options.timeout)
    inner._set_default_backend(kind.GLOO)
    inner._register_backend(torch.device("cpu"), kind.GLOO, gloo)
    if torch.cuda.is_available() and inner_kind() == "nccl":
        nccl = dist.ProcessGroupNCCL(
            dist.PrefixStore("nccl", store),  # pyright: ignore[reportPrivateImportUsage]
            rank,
            size,
            dist.ProcessGroupNCCL.Options(),
        )
        inner._register_backend(torch.device("cuda"), kind.NCCL, nccl)
    group = TracedGroup(inner, members, store=store)
    group.timeout = options.timeout
    return group


dist.Backend.register_backend("tpviz", _create, extended_api=True, devices=["cpu", "cuda"])

"""The intervals of one Kineto file that are computation, communication and copies, on a GPU and on
gloo.

All functions take a profile (``events`` with start and end in seconds, ``rank``, ``groups``) and a
function (thread, time) -> phase, and yield the columns of events as dicts; with them goes "issued",
when the host asked for it, None where the file does not say.
"""

from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from tpviz.core.trace.columns import UNKNOWN
from tpviz.core.trace.ledger import wire_bytes

from .names import collective, communication, is_nccl, item_bytes

if TYPE_CHECKING:
    from .kineto import _Profile

ELEMENTS = 2**56
"""Most elements of a message: their bytes still fit an int64."""


def spans_at(
    events: Iterable[dict[str, Any]], value: Callable[[dict[str, Any]], Any]
) -> Callable[[tuple[Any, Any], float], Any]:
    """A function (thread, time) -> the value of the outermost event there, None for none.

    Only events whose value is not empty count; within one thread they nest, and are in order.
    """
    spans = defaultdict(list)
    for e in events:
        found = value(e)
        if found and not (spans[e["tid"]] and e["start"] < spans[e["tid"]][-1][1]):
            spans[e["tid"]].append((e["start"], e["end"], found))

    def at(thread, time):
        index = bisect_right(spans[thread], time, key=lambda s: s[0]) - 1
        return spans[thread][index][2] if index >= 0 and time < spans[thread][index][1] else None

    return at


def axis(description: str, name: str) -> str:
    """The axis of a group: DeviceMesh says "mesh_<axis>", torch its first "default_pg"."""
    if description.startswith("mesh_"):
        return description.removeprefix("mesh_")
    if description in ("", "undefined"):
        return f"group {name}" if name else UNKNOWN
    return "world" if description == "default_pg" else description


def group(args: dict[str, Any], profile: "_Profile") -> tuple[str, list[int]]:
    """(axis, global ranks or []) of the group in ``args``, else of the file's only group."""
    if not {"Process Group Name", "Process Group Ranks", "Process Group Description"} & args.keys():
        return _only_group(profile)
    name = str(args.get("Process Group Name", ""))
    known = profile.groups.get(name, {})
    description = args.get("Process Group Description") or known.get("pg_desc", "")
    ranks = str(args.get("Process Group Ranks", ""))
    if not ranks.strip("[] ") or "..." in ranks:  # Kineto cuts long lists short
        ranks = known.get("ranks") or _strided(args)
    else:
        ranks = [int(r) for r in ranks.strip("[] ").split(",")]
    return axis(description, name), ranks


def _strided(args):
    size, start = args.get("Group size", 0), args.get("Global rank start", -1)
    stride = args.get("Global rank stride", -1)
    return list(range(start, start + size * stride, stride)) if start >= 0 and stride > 0 else []


def _only_group(profile):
    """(axis, ranks) of the one group of several ranks in the file; unknown if there is a choice.
    Of groups of the same ranks that is the one which is not the world."""
    groups = [g for g in profile.groups.values() if len(g.get("ranks") or []) > 1]
    if len({tuple(g["ranks"]) for g in groups}) != 1:
        return UNKNOWN, []
    axes = {axis(g.get("pg_desc") or "", str(g.get("pg_name", ""))) for g in groups}
    others = sorted(axes - {"world"}) or ["world"]
    return others[0] if len(others) == 1 else UNKNOWN, groups[0]["ranks"]


def payload(args: dict[str, Any]) -> int:
    """Bytes of the full tensor of a collective: the larger of input and output; -1 where the
    arguments do not say."""
    elements = max(args.get("In msg nelems", -1), args.get("Out msg nelems", -1))
    size = item_bytes(str(args.get("dtype", "")))
    return elements * size if elements >= 0 and (size or not elements) else -1


def comm_fields(
    name: str, rank: int, axis_name: str, ranks: list[int], nbytes: int
) -> dict[str, Any]:
    """The columns of a comm event that follow from its group; -1 stands for unknown bytes."""
    if name in ("send", "recv") and len(ranks) == 2:  # a message's members are "sender,receiver"
        other = ranks[0] if ranks[1] == rank else ranks[1]
        ranks = [rank, other] if name == "send" else [other, rank]
    nbytes = 0 if name == "barrier" else nbytes
    wire = wire_bytes(name, nbytes, len(ranks))
    return {
        "kind": "comm",
        "name": name,
        "lane": f"comm/{axis_name}",
        "axis": axis_name,
        "members": ",".join(map(str, ranks)),
        "bytes": nbytes,
        "wire_bytes": float(wire) if wire >= 0 else -1.0,
    }


# -- on a GPU --------------------------------------------------------------------------------------
COPIES = ("gpu_memcpy", "gpu_memset")
_LAUNCH = ("_runtime", "_driver")  # of CUDA, HIP, XPU, MTIA
_ISSUE = (
    "record_param_comms"  # the operator torch wraps a collective's issue in, with its arguments
)


def gpu_events(
    profile: "_Profile", phase_at: Callable[[tuple[Any, Any], float], str]
) -> Iterator[dict[str, Any]]:
    """Yield events for kernels (a lane per stream), collectives (per group) and copies. The phase
    is that of the launching thread. If a file has several devices, each has its own lanes."""
    launch = {
        e["args"]["correlation"]: e
        for e in profile.events
        if e["cat"].endswith(_LAUNCH) and "correlation" in e["args"]
    }
    work = [e for e in profile.events if e["cat"] == "kernel" or e["cat"] in COPIES]
    known = {name: communication(name) for name in {e["name"] for e in work if not _copies(e)}}
    calls, lane = _HostCalls(profile), _lanes(work, known)
    for e in work:
        at = launch.get(e["args"].get("correlation"))
        thread, time = (at["tid"], at["start"]) if at else (e["tid"], e["start"])
        fields = {
            "start": e["start"],
            "end": e["end"],
            "phase": phase_at(thread, time),
            "issued": at["start"] if at else None if launch else e["start"],
            "name": e["name"],
            "lane": lane(e),
        }
        if _copies(e):
            size = e["args"].get("bytes")
            yield {**fields, "kind": "copy", "bytes": -1 if size is None else size}
        elif known[e["name"]]:
            yield _collective(e, fields, known[e["name"]], calls.of(e, thread, time), profile)
        else:
            yield {**fields, "kind": "compute"}


def _copies(event):
    return event["cat"] in COPIES


def _lanes(work, known):
    """A function event -> lane: "compute" is the busiest stream of a device, and copies have one
    lane; of collectives it is what goes after the group."""
    device = {id(e): e["args"].get("device") for e in work}
    streams = defaultdict(Counter)
    for e in work:
        if not _copies(e) and not known[e["name"]]:
            streams[device[id(e)]][e["args"].get("stream")] += 1
    main = {d: max(count, key=count.__getitem__) for d, count in streams.items()}
    devices = sorted({d for d in device.values() if d is not None}, key=str)

    def lane(event):
        on, stream = device[id(event)], event["args"].get("stream")
        more = f" of device {on}" if on in devices[1:] else ""
        if _copies(event):
            return f"copy{more}"
        if known[event["name"]]:
            return more
        if stream == main[on]:
            return f"compute{more}"
        return f"compute/stream {stream}{more}"

    return lane


class _HostCalls:
    """What the host called, for a kernel: the arguments and the name of a collective."""

    def __init__(self, profile):
        issues = [e for e in profile.events if e["name"] == _ISSUE]
        self.by_id = {_external(e): e["args"] for e in issues if _external(e) is not None}
        self.arguments = spans_at(issues, lambda e: e["args"])
        self.name = spans_at(profile.events, _called)

    def of(self, event, thread, time):
        """The arguments of the collective, with "Collective name" where that is known."""
        issue = self.by_id.get(_external(event)) or self.arguments(thread, time) or {}
        name = self.name(thread, time) or self.name(event["tid"], event["start"])
        return {**({"Collective name": name} if name else {}), **issue, **event["args"]}


def _called(event):
    """The collective that an annotation such as "nccl:all_to_all" names."""
    backend, _, name = event["name"].partition(":")
    return collective(name) if backend.endswith("ccl") and "annotation" in event["cat"] else None


def _external(event):
    """The number a kernel shares with the operator that launched it, in either spelling."""
    args = event["args"]
    return args.get("External id", args.get("external id"))


def _collective(event, fields, recognised, args, profile):
    name = collective(str(args.get("Collective name", ""))) or recognised
    axis, ranks = group(args, profile)
    found = {**fields, **comm_fields(name, profile.rank, axis, ranks, payload(args))}
    found["lane"] += fields["lane"]
    if "Seq" in args and ranks:
        found["seq"] = args["Seq"]
    return {**found, "stream": event["args"].get("stream"), "by_name": not is_nccl(event["name"])}


# -- on gloo, and on the CPU -----------------------------------------------------------------------
_WRAPPERS = ("autograd::", "torch::autograd::")


def gloo_events(
    profile: "_Profile", phase_at: Callable[[tuple[Any, Any], float], str]
) -> Iterator[dict[str, Any]]:
    """gloo's collectives, with the phase and the order in which they were issued."""
    collectives = [e for e in profile.events if _is_gloo(e)]
    for e, at in zip(collectives, _issues(profile.events, collectives)):
        yield {
            "start": e["start"],
            "end": e["end"],
            "order": at["start"],
            "phase": phase_at(at["tid"], at["start"]),
            **_gloo(e, at, profile),
        }


def cpu_events(
    profile: "_Profile", phase_at: Callable[[tuple[Any, Any], float], str]
) -> Iterator[dict[str, Any]]:
    """Yield the columns of compute events for operators on the CPU."""
    threads = defaultdict(list)
    for e in profile.events:
        if e["cat"] == "cpu_op" or _is_gloo(e):
            threads[e["tid"]].append(e)
    for thread in threads.values():
        for e in _outermost(thread):
            yield {
                "start": e["start"],
                "end": e["end"],
                "name": e["name"].removeprefix("aten::"),
                "kind": "compute",
                "phase": phase_at(e["tid"], e["start"]),
            }


def _is_gloo(event):
    return event["cat"] == "user_annotation" and event["name"].startswith("gloo:")


def _is_issue(event):
    return event["name"] == _ISSUE or event["name"].partition("::")[0].endswith(
        ("c10d", "c10d_functional")
    )


def _issues(events, collectives):
    """For each gloo collective the operator that issued it, or itself where the file does not say.

    gloo works each kind off in the order of issue.
    """
    with_args = [e for e in events if e["name"] == _ISSUE and e["cat"] == "cpu_op"]
    kinds = {_kind(e["name"]) for e in collectives}
    waiting = defaultdict(deque)
    for e in with_args or [e for e in events if e["cat"] == "cpu_op" and _is_issue(e)]:
        kind = _kind(e["args"].get("Collective name", e["name"]))
        # torch 2.13's gloo does a reduce_scatter as an all_reduce, and annotates it as one.
        waiting["all_reduce" if kind == "reduce_scatter" and kind not in kinds else kind].append(e)
    for e in collectives:
        queue = waiting[_kind(e["name"])]
        # Collectives issued before the profile began are in no queue.
        yield queue.popleft() if queue and queue[0]["start"] <= e["start"] else e


def _kind(name):
    return collective(name.removeprefix("gloo:"))


def _gloo(event, issue, profile):
    args = issue["args"]
    axis, ranks = group(args, profile)
    name = _kind(args.get("Collective name", issue["name"])) or event["name"].removeprefix("gloo:")
    nbytes = payload(args)
    if nbytes < 0:  # profiled with record_shapes: the tensors gloo was given, on this rank
        dims, types = (_listed(event["args"].get(n)) for n in ("Input Dims", "Input type"))
        given = sum(_count(d) * item_bytes(str(t)) for d, t in zip(dims, types))
        nbytes = given * (max(1, len(ranks)) if name == "all_gather" else 1) or -1
    return comm_fields(name, profile.rank, axis, ranks, nbytes)


def _listed(value):
    return value if isinstance(value, list) else []


def _count(dims):
    """Elements of a tensor of these sizes; none of an input that is no tensor."""
    sizes = [d for d in _listed(dims) if isinstance(d, int) and 0 <= d <= ELEMENTS]
    return prod(sizes) if sizes and len(sizes) == len(dims) else 0


def _outermost(thread):
    """The operators of a thread that lie in no other, leaving out wrappers of more than compute.

    Wrappers are autograd's nodes and any operator a collective is issued in: what counts are the
    operators inside them. What lies inside the issue, or inside gloo's own work, belongs to the
    communication.
    """
    inside, holds = [], set()
    for index, e in enumerate(thread):
        while inside and thread[inside[-1]]["end"] <= e["start"]:
            inside.pop()
        if _is_issue(e) or _is_gloo(e):
            holds.update(inside)
        inside.append(index)
    until = float("-inf")
    for index, e in enumerate(thread):
        if e["start"] < until:
            continue
        communicates = _is_issue(e) or _is_gloo(e)
        wrapper = index in holds or e["name"].startswith(_WRAPPERS) or "::" not in e["name"]
        if communicates or not wrapper:
            until = e["end"]
        if not communicates and not wrapper:
            yield e

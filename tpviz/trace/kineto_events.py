"""The intervals of one Kineto file that are computation and communication, on a GPU and on gloo.

All functions take a profile (``events`` with start and end in seconds, ``rank``, ``groups``) and a
function (thread, time) -> phase, and yield the columns of events as dicts.
"""

import re
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from .ledger import wire_bytes

if TYPE_CHECKING:
    from .kineto import _Profile

ELEMENTS = 2**56
"""Most elements of a message: their bytes still fit an int64."""

# -- what torch, gloo and NCCL call collectives, groups and number types ---------------------------
# NCCL has renamed its kernels three times (``ncclAllReduceRingLLKernel_sum_f32``,
# ``ncclKernel_AllReduce_RING_LL_Sum_float``, ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``), and
# readers that know one spelling silently find no communication in the others; so names are read by
# their parts here. Longer spellings first: "reduce" begins "reducescatter".
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "broadcast": "broadcast",
    "barrier": "barrier",
    "sendrecv": "send",
    "send": "send",
    "recv": "recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
_NCCL_KERNEL = re.compile(r"nccl.*Kernel")
_NCCL_PREFIX = re.compile(r"nccl(Symk?)?(Dev)?(Kernel)?_?")
# C++ spellings (operator inputs) and c10's (``dtype`` of a collective).
_ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "longint", "int64_t", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "int32_t", "unsignedint"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "shortint", "c10::half", "c10::bfloat16"), 2),
    **dict.fromkeys(
        (
            "byte",
            "char",
            "bool",
            "unsignedchar",
            "signedchar",
            "float8_e4m3fn",
            "float8_e5m2",
            "c10::float8_e4m3fn",
            "c10::float8_e5m2",
        ),
        1,
    ),
}


def collective(name: str) -> str | None:
    """tpviz's name of a collective in torch's spellings: "_allgather_base" -> "all_gather".

    None where there is none. NCCL's SendRecv kernel, which serves send, recv and all_to_all alike,
    reads as "send".
    """
    short = name.rpartition("::")[2].lower().replace("_", "")
    return next((ours for prefix, ours in _COLLECTIVES.items() if short.startswith(prefix)), None)


def is_nccl(kernel: str) -> bool:
    """Whether a GPU kernel is NCCL's (or RCCL's, which keeps the names)."""
    return _NCCL_KERNEL.match(kernel) is not None


def nccl_collective(kernel: str) -> str | None:
    """tpviz's name of what an NCCL kernel does: "ncclDevKernel_AllGather_RING_LL(...)"; or None."""
    return collective(_NCCL_PREFIX.sub("", kernel, count=1).partition("(")[0])


def item_bytes(dtype: str) -> int:
    """Bytes of one element; 0 for a type not known."""
    return _ITEM_BYTES.get(dtype.replace(" ", "").lower(), 0)


def axis(description: str, name: str) -> str:
    """The axis of a group: DeviceMesh says "mesh_<axis>", torch its first "default_pg"."""
    if description.startswith("mesh_"):
        return description.removeprefix("mesh_")
    if description in ("", "undefined"):
        return f"group {name}" if name else ""
    return "world" if description == "default_pg" else description


def group(args: dict[str, Any], groups: dict[str, dict[str, Any]]) -> tuple[str, list[int]]:
    """(axis, global ranks or []) of the group in the ``args``; ``groups``: pg_config by name."""
    name = str(args.get("Process Group Name", ""))
    known = groups.get(name, {})
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


def payload(args: dict[str, Any]) -> int:
    """Bytes of the full tensor of a collective: the larger of what goes in and what comes out."""
    elements = max(0, args.get("In msg nelems", 0), args.get("Out msg nelems", 0))
    return elements * item_bytes(str(args.get("dtype", "")))


def comm_fields(
    name: str, rank: int, axis_name: str, ranks: list[int], nbytes: int
) -> dict[str, Any]:
    """The columns of a comm event that follow from its group."""
    if name in ("send", "recv") and len(ranks) == 2:  # a message's members are "sender,receiver"
        other = ranks[0] if ranks[1] == rank else ranks[1]
        ranks = [rank, other] if name == "send" else [other, rank]
    size = max(1, len(ranks))
    return {
        "kind": "comm",
        "name": name,
        "lane": f"comm/{axis_name}" if axis_name else "comm",
        "axis": axis_name,
        "members": ",".join(map(str, ranks)),
        "bytes": nbytes,
        "wire_bytes": float(wire_bytes(name, nbytes, size)),
    }


_LAUNCH = ("cuda_runtime", "cuda_driver", "hip_runtime")
_WRAPPERS = ("autograd::", "torch::autograd::")
_ISSUE = (
    "record_param_comms"  # the operator torch wraps a collective's issue in, with its arguments
)


def gpu_events(
    profile: "_Profile", phase_at: Callable[[tuple[Any, Any], float], str]
) -> Iterator[dict[str, Any]]:
    """Kernels by stream, NCCL's by group; the phase is that of the thread that launched them."""
    launch = {
        e["args"]["correlation"]: e
        for e in profile.events
        if e["cat"] in _LAUNCH and "correlation" in e["args"]
    }
    issue = {_external(e): e["args"] for e in profile.events if e["name"] == _ISSUE}
    kernels = [e for e in profile.events if e["cat"] == "kernel"]
    streams = Counter(e["args"].get("stream") for e in kernels if not is_nccl(e["name"]))
    main = max(streams, key=streams.__getitem__, default=None)
    for e in kernels:
        at = launch.get(e["args"].get("correlation"))
        fields = {
            "start": e["start"],
            "end": e["end"],
            "phase": phase_at(at["tid"], at["start"]) if at else "",
            **({"issued": at["start"]} if at else {}),
        }
        if is_nccl(e["name"]):
            args = {**issue.get(_external(e), {}), **e["args"]}
            yield {**fields, **_nccl(e["name"], args, profile)}
        else:
            stream = e["args"].get("stream")
            yield {
                **fields,
                "name": e["name"],
                "kind": "compute",
                "lane": "compute" if stream == main else f"compute/stream {stream}",
            }


def _external(event):
    """The number a kernel shares with the operator that launched it, in either spelling."""
    args = event["args"]
    return args.get("External id", args.get("external id"))


def _nccl(kernel, args, profile):
    name = collective(str(args.get("Collective name", ""))) or nccl_collective(kernel)
    axis, ranks = group(args, profile.groups)
    fields = comm_fields(name or kernel.partition("(")[0], profile.rank, axis, ranks, payload(args))
    return {**fields, "seq": args["Seq"]} if "Seq" in args else fields


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
    """Operators on the CPU."""
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
        # What was issued before the profile began comes out of no queue.
        yield queue.popleft() if queue and queue[0]["start"] <= e["start"] else e


def _kind(name):
    return collective(name.removeprefix("gloo:"))


def _gloo(event, issue, profile):
    args = issue["args"]
    axis, ranks = (
        group(args, profile.groups) if "Process Group Name" in args else _only_group(profile)
    )
    name = _kind(args.get("Collective name", issue["name"])) or event["name"].removeprefix("gloo:")
    nbytes = payload(args)
    if not nbytes:  # profiled with record_shapes: the tensors gloo was given, on this rank
        dims, types = (_listed(event["args"].get(n)) for n in ("Input Dims", "Input type"))
        nbytes = sum(_count(d) * item_bytes(str(t)) for d, t in zip(dims, types))
        nbytes *= max(1, len(ranks)) if name == "all_gather" else 1
    return comm_fields(name, profile.rank, axis, ranks, nbytes)


def _listed(value):
    return value if isinstance(value, list) else []


def _count(dims):
    """Elements of a tensor of these sizes; none of an input that is no tensor."""
    sizes = [d for d in _listed(dims) if isinstance(d, int) and 0 <= d <= ELEMENTS]
    return prod(sizes) if sizes and len(sizes) == len(dims) else 0


def _only_group(profile):
    """(axis, ranks) of the one group of several ranks in the file; nothing if there is a choice."""
    groups = [g for g in profile.groups.values() if len(g.get("ranks") or []) > 1]
    if len({tuple(g["ranks"]) for g in groups}) != 1:
        return "", []
    axes = [axis(g.get("pg_desc") or "", str(g.get("pg_name", ""))) for g in groups]
    return next((a for a in axes if a != "world"), "world"), groups[0]["ranks"]


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

"""The intervals of one Kineto file that are computation and communication, on a GPU and on gloo.

All functions take a profile (``events`` with start and end in seconds, ``rank``, ``groups``) and a
function (thread, time) -> phase, and yield the columns of events as dicts.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from math import prod
from typing import TYPE_CHECKING, Any

from . import kineto_names as names
from .kineto_shapes import ELEMENTS

if TYPE_CHECKING:
    from .kineto import _Profile

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
    streams = Counter(e["args"].get("stream") for e in kernels if not names.is_nccl(e["name"]))
    main = max(streams, key=streams.__getitem__, default=None)
    for e in kernels:
        at = launch.get(e["args"].get("correlation"))
        fields = {
            "start": e["start"],
            "end": e["end"],
            "phase": phase_at(at["tid"], at["start"]) if at else "",
        }
        if names.is_nccl(e["name"]):
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
    name = names.collective(str(args.get("Collective name", ""))) or names.nccl_collective(kernel)
    axis, ranks = names.group(args, profile.groups)
    fields = names.comm_fields(
        name or kernel.partition("(")[0], profile.rank, axis, ranks, names.payload(args)
    )
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
    return names.collective(name.removeprefix("gloo:"))


def _gloo(event, issue, profile):
    args = issue["args"]
    axis, ranks = (
        names.group(args, profile.groups) if "Process Group Name" in args else _only_group(profile)
    )
    name = _kind(args.get("Collective name", issue["name"])) or event["name"].removeprefix("gloo:")
    nbytes = names.payload(args)
    if not nbytes:  # profiled with record_shapes: the tensors gloo was given, on this rank
        dims, types = (_listed(event["args"].get(n)) for n in ("Input Dims", "Input type"))
        nbytes = sum(_count(d) * names.item_bytes(str(t)) for d, t in zip(dims, types))
        nbytes *= max(1, len(ranks)) if name == "all_gather" else 1
    return names.comm_fields(name, profile.rank, axis, ranks, nbytes)


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
    axes = [names.axis(g.get("pg_desc") or "", str(g.get("pg_name", ""))) for g in groups]
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

"""Export for HolisticTraceAnalysis (HTA): a folder with one Kineto-like file per rank.

HTA knows GPU traces only, so computations and communications are written as GPU kernels, on one
stream per lane, and communications take NCCL's kernel names, "ncclDevKernel_AllReduce", from which
HTA tells that they communicate and `load_trace` what they do. Waits and steps are host events,
which HTA's overlap ignores.

HTA 0.5 counts in whole microseconds: a file with fractions has its starts rounded up and its ends
down, which moves an overlap by points where kernels are short. So times are rounded here instead,
in such a way that the time in each state (computing, communicating, both, neither) stays right over
the whole trace: what one interval gains by rounding, the next of its state gives back.

>>> to_hta(trace, "out/hta")                                             # doctest: +SKIP
>>> TraceAnalysis(trace_dir="out/hta").get_comm_comp_overlap()          # doctest: +SKIP
"""

import re
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tpviz.core.trace.members import members_list

from .files import as_texts, path_of, write_events
from .names import communication

if TYPE_CHECKING:
    from tpviz.core.trace.table import Trace

_COMPUTE_STREAM, _COMM_STREAM, _COPY_STREAM = 7, 20, 6
_BITS = {1: "compute", 2: "comm"}
# HTA would take a computation of such a name for a copy, a synchronisation or a communication.
_MISREAD = re.compile(r"nccl|Memcpy|Memset|dma|.*(Memcpy|Memset|Sync)")


def to_hta(trace: "Trace", folder: str | PathLike[str]) -> Path:
    """Write ``rank{r}.json.gz`` for every rank into ``folder`` (made if missing); returns it.

    HTA's overlap of a rank is then `overlap` of that rank, rounded by HTA to 0.01 point. Raises
    ValueError if the folder holds other trace files, which HTA would read as ranks of this run, and
    for an empty trace.
    """
    folder = path_of(folder)
    if not len(trace):
        raise ValueError(f"{folder}: the trace is empty, and HTA reads no empty traces")
    folder.mkdir(parents=True, exist_ok=True)
    names = {rank: f"rank{rank}.json.gz" for rank in trace.ranks}
    _check_folder(folder, names.values())
    streams, groups = _streams(trace), _groups(trace)
    world_size = max(trace.fact("world_size"), max(names) + 1)
    for rank, name in names.items():
        info = {"backend": "nccl", "rank": rank, "world_size": world_size}
        info |= {"pg_count": len(groups), "pg_config": list(groups.values())}
        # HTA looks for the first '"rank": ' in the file, so the information goes first.
        head = {"schemaVersion": 1, "distributedInfo": info}
        write_events(folder / name, head, as_texts(_events(trace, rank, streams, groups)))
    return folder


def _check_folder(folder, names):
    found = (p.name for p in folder.iterdir() if p.name.endswith((".json", ".gz")))
    others = sorted(set(found) - set(names))
    if others:
        raise ValueError(
            f"{folder} holds other traces ({', '.join(others[:5])}), which HTA would read as "
            "ranks of this run; give an empty folder"
        )


def _streams(trace):
    """{lane: stream number}: 7, 8, ... for compute, 20, 21, ... for communication."""
    kinds = {"compute": _COMPUTE_STREAM, "comm": _COMM_STREAM}
    return {
        (kind, lane): first + i
        for kind, first in kinds.items()
        for i, lane in enumerate(
            sorted(
                set(trace["lane"][trace["kind"] == kind].tolist()),
                key=lambda name: (name != "compute", name),
            )
        )
    }


def _groups(trace):
    """{(axis, members): pg_config entry} of the groups that communicate."""
    comm = trace["kind"] == "comm"
    pairs = sorted(set(zip(trace["axis"][comm].tolist(), trace["members"][comm].tolist())))
    return {
        (axis, members): {
            "pg_name": str(number),
            "pg_desc": "default_pg" if axis == "world" else f"mesh_{axis}" if axis else "undefined",
            "pg_size": len(members_list(members)),
            "ranks": members_list(members),
        }
        for number, (axis, members) in enumerate(pairs)
    }


def _events(trace, rank, streams, groups):
    rows = list(trace.select(rank=rank))
    starts, ends = whole_microseconds(trace, rank)
    for number, (event, start, end) in enumerate(zip(rows, starts, ends), start=1):
        common = {"ph": "X", "ts": start, "dur": end - start, "pid": rank}
        if event.kind == "copy":
            name = event.name if "Mem" in event.name else "Memcpy"
            args = {"stream": _COPY_STREAM, "correlation": number, "device": 0}
            if event.bytes >= 0:
                args["bytes"] = event.bytes
            yield {**common, "cat": "gpu_memcpy", "tid": _COPY_STREAM, "name": name, "args": args}
        elif event.kind in ("compute", "comm"):
            stream = streams[event.kind, event.lane]
            yield {
                **common,
                "cat": "kernel",
                "tid": stream,
                **_kernel(event, stream, number, groups),
            }
        else:
            host = "user_annotation" if event.kind == "step" else "cpu_op"
            yield {**common, "cat": host, "name": event.name, "tid": 1, "args": {}}


def _kernel(event, stream, number, groups):
    args = {"stream": stream, "correlation": number, "device": 0}
    if event.kind == "comm":
        return {"name": kernel_name(event.name), "args": {**args, **_comm_args(event, groups)}}
    return {"name": _safe(event.name), "args": {**args, "flops": event.flops}}


def _comm_args(event, groups):
    group = groups[event.axis, event.members]
    args = {
        "Collective name": event.name,
        "In msg nelems": event.bytes,
        "Out msg nelems": event.bytes,
        "dtype": "Byte",
        **({"Group size": group["pg_size"]} if group["ranks"] else {}),
        "Process Group Name": group["pg_name"],
        "Process Group Description": group["pg_desc"],
        "Process Group Ranks": str(group["ranks"]),
    }
    return {**args, "Seq": event.seq} if event.seq >= 0 else args


def kernel_name(collective: str) -> str:
    """An NCCL-style kernel name: "all_reduce" -> "ncclDevKernel_AllReduce"."""
    return "ncclDevKernel_" + "".join(word.capitalize() for word in collective.split("_"))


def _safe(name):
    misread = _MISREAD.match(name) or communication(name)
    return "op:" + name.lower() if misread else name or "op"


def whole_microseconds(trace: "Trace", rank: int) -> tuple[list[int], list[float]]:
    """Starts (int) and ends of the rank's events in microseconds, keeping the time in each state.

    The times are cut at every start and end. In order, each interval gets the whole number of
    microseconds nearest to its length plus what rounding still owes its state, so each of the four
    states is right to 0.5 µs in all, order is kept, and no time moves by more than 2 µs. HTA wants
    whole *starts* only, so two ends then take up what is still owed: fractions, as the traces of
    short kernels need them.
    """
    mask = trace["rank"] == rank
    kind = trace["kind"][mask]
    cuts, index = np.unique(
        np.concatenate([trace["start"][mask], trace["end"][mask]]), return_inverse=True
    )
    first, last = index[: len(kind)], index[len(kind) :]
    state = _states(kind, first, last, len(cuts))
    steps, owed = [], np.zeros(4)
    for piece, s in zip(np.diff(cuts) * 1e6, state):
        owed[s] += piece
        steps.append(max(0, round(owed[s])))  # pyright: ignore[reportArgumentType]
        owed[s] -= steps[-1]
    at = round(float(cuts[0]) * 1e6) + np.append(0, np.cumsum(steps, dtype=int))
    ends = at[last].astype(float)
    ending = np.where(first < last, last, -1)
    _pay(owed, state, np.array(steps, int), ending, kind, ends)
    return at[first].tolist(), ends.tolist()


def _states(kind, first, last, count):
    """What goes on after each cut: bit 0 computing, bit 1 communicating."""
    state = np.zeros(count, int)
    for bit, name in _BITS.items():
        change = np.zeros(count, int)
        np.add.at(change, first[kind == name], 1)
        np.add.at(change, last[kind == name], -1)
        state += bit * (np.cumsum(change) > 0)
    return state


def _pay(owed, state, steps, ending, kind, ends):
    """Move the ends of the longest span of "both", then of only communicating, by what is owed."""
    room = np.append(steps[1:], 2) >= 2
    for s in (3, 2):
        after = state[1:]
        fits = (state[:-1] == s) & (after != s) & (steps >= 2) & room
        # Communication that runs into a computation would overlap it.
        fits &= (after == 0) if s == 2 else True
        if not fits.any():
            continue
        piece = np.flatnonzero(fits)[steps[fits].argmax()]
        stops = [name for bit, name in _BITS.items() if s & bit and not after[piece] & bit]
        ends[(ending == piece + 1) & np.isin(kind, stops)] += owed[s]
        owed[after[piece]] += owed[s]
        owed[s] = 0.0

"""What torch, gloo and NCCL call collectives, groups and number types, in tpviz's words.

NCCL has renamed its kernels three times (``ncclAllReduceRingLLKernel_sum_f32``,
``ncclKernel_AllReduce_RING_LL_Sum_float``, ``ncclDevKernel_AllReduce_Sum_f32_RING_LL``), and
readers that know one spelling silently find no communication in the others; so names are read by
their parts here.
"""

import re
from typing import Any

from .ledger import wire_bytes

# Longer spellings first: "reduce" begins "reducescatter".
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

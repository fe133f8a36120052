"""What profiles call collectives, the kernels that do them, and the types of their numbers.

>>> COMM_KERNELS["my_ring_sum"] = "all_reduce"  # a kernel of one's own, for the next `load_trace`
>>> communication("void mine::my_ring_sum<float>(float*)")
'all_reduce'
>>> del COMM_KERNELS["my_ring_sum"]
"""

import re

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
    "sendrecv": "send_recv",
    "send": "send",
    "recv": "recv",
    "reduce": "reduce",
    "gather": "gather",
    "scatter": "scatter",
}
_NCCL = r"nccl\w*Kernel"
COMM_KERNELS: dict[str, str] = {
    _NCCL: "",  # and RCCL, which keeps the names
    r"msccl|(?i:oneccl|\bccl(::|_)|\bhccl|\bhcom_)": "",
    r"deep_ep::.*(dispatch|combine)|\bEp(Dispatch|Combine)": "all_to_all",  # and MORI's
    r"cross_device_reduce": "all_reduce",  # vLLM, SGLang, aiter
    r"nvshmem|rocshmem|multimem_|userbuffers_": "",
    r"(?i:all[-_]?reduce|all[-_]?gather|reduce[-_]?scatter|all[-_]?to[-_]?all)": "",
    r"^collective-permute|(?i:^mpi_i?(send|recv|bcast|barrier|gather|scatter|reduce))": "",
}
"""Which GPU kernels communicate, for `tpviz.load_trace`: {regular expression: collective}.

An expression is searched in the kernel's name without "void", template arguments and parameters;
the first that is found counts. "" reads the collective off the name. Add your own:
``tv.COMM_KERNELS["my_ring_sum"] = "all_reduce"``. Patterns as of late 2025, from the libraries'
kernels in public profiles; a trace says how many kernels were told by them in ``meta["notes"]``."""

_PREFIX = re.compile(r"nccl(Symk?)?(Dev)?(Kernel)?_?")
_DECORATION = re.compile(r"\(anonymous namespace\)::|^void\s+")
# Triton's generated kernels are named after every operator around them; `to_hta` marks with "op:".
_NEVER = re.compile(r"triton_\w*fused|op:")
_SPELLED = re.compile("|".join(list(_COLLECTIVES)[:5]))

# C++ spellings (operator inputs) and c10's (``dtype`` of a collective).
_ITEM_BYTES = {
    **dict.fromkeys(("double", "long", "longint", "int64_t", "complexfloat"), 8),
    **dict.fromkeys(("float", "int", "int32_t", "unsignedint"), 4),
    **dict.fromkeys(("half", "bfloat16", "short", "shortint", "c10::half", "c10::bfloat16"), 2),
    **dict.fromkeys(("byte", "char", "bool", "unsignedchar", "signedchar"), 1),
    **dict.fromkeys((f"{c}float8_{k}" for c in ("", "c10::") for k in ("e4m3fn", "e5m2")), 1),
}


def collective(name: str) -> str | None:
    """tpviz's name of a collective in torch's spellings: "_allgather_base" -> "all_gather".

    None where there is none. NCCL's SendRecv kernel serves send, recv and all_to_all alike, and
    reads as none of them: "send_recv".
    """
    short = name.rpartition("::")[2].lower().replace("_", "")
    return next((ours for prefix, ours in _COLLECTIVES.items() if short.startswith(prefix)), None)


def communication(kernel: str) -> str | None:
    """tpviz's name of what a GPU kernel communicates, by `COMM_KERNELS`; None for a computation.

    A kernel that communicates, but does not say what, keeps its own name.
    """
    base = re.split(r"[<(]", _DECORATION.sub("", kernel), maxsplit=1)[0]
    for pattern, name in COMM_KERNELS.items():
        if re.search(pattern, base) and not _NEVER.match(base):
            return name or _spelled(base) or base
    return None


def _spelled(base: str):
    found = collective(_PREFIX.sub("", base, count=1)) if is_nccl(base) else None
    inside = _SPELLED.search(re.sub("[-_]", "", base.lower()))
    return found or (_COLLECTIVES[inside[0]] if inside else None)


def is_nccl(kernel: str) -> bool:
    """Whether a GPU kernel is NCCL's (or RCCL's, which keeps the names)."""
    return re.match(_NCCL, kernel) is not None


def item_bytes(dtype: str) -> int:
    """Bytes of one element; 0 for a type not known."""
    return _ITEM_BYTES.get(dtype.replace(" ", "").lower(), 0)

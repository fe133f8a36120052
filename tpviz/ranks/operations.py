"""The one table of process-group operations: method -> (collective, payload bytes of a call).

payload is the full tensor: what an all_reduce reduces, the output of an all_gather, the input of a
reduce_scatter. Method names differ between torch releases (2.11 says ``_allgather_base``, 2.13
``all_gather_single``), so both are here. Each payload function takes the group's size, then the
method's arguments. `terms` says what else all members must agree on.
"""

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import torch.distributed as dist


def flat(value: Any) -> Sequence[torch.Tensor]:
    """The tensors in nested lists and tuples: asked by every collective, so no generator."""
    if isinstance(value, torch.Tensor):
        return (value,)
    if isinstance(value, (list, tuple)):
        return [tensor for v in value for tensor in flat(v)]
    return ()


def _bytes(value):
    """Bytes of all tensors in nested lists."""
    return sum(tensor.numel() * tensor.element_size() for tensor in flat(value))


def _first(size, tensors, *_):
    return _bytes(tensors)


def _second(size, outputs, inputs, *_):
    return _bytes(inputs)


def _gathered(size, outputs, inputs, *_):
    return size * _bytes(inputs)


def _gathered_from(size, inputs, *_):
    return size * _bytes(inputs)


def _scattered(size, outputs, *_):
    return size * _bytes(outputs)


def _nothing(size, *_):
    return 0


OPERATIONS = {
    "allreduce": ("all_reduce", _first),
    "allreduce_coalesced": ("all_reduce", _first),
    "broadcast": ("broadcast", _first),
    "reduce": ("reduce", _first),
    "allgather": ("all_gather", _first),
    "allgather_coalesced": ("all_gather", _gathered),
    "_allgather_base": ("all_gather", _first),
    "all_gather_single": ("all_gather", _first),
    "allgather_into_tensor_coalesced": ("all_gather", _first),
    "all_gather_single_coalesced": ("all_gather", _first),
    "reduce_scatter": ("reduce_scatter", _second),
    "_reduce_scatter_base": ("reduce_scatter", _second),
    "reduce_scatter_single": ("reduce_scatter", _second),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", _second),
    "reduce_scatter_single_coalesced": ("reduce_scatter", _second),
    "gather": ("gather", _gathered),
    "scatter": ("scatter", _scattered),
    "alltoall": ("all_to_all", _second),
    "alltoall_base": ("all_to_all", _second),
    "all_to_all_single": ("all_to_all", _second),
    "send": ("send", _first),
    "recv": ("recv", _first),
    "recv_anysource": ("recv", _first),
    "barrier": ("barrier", _nothing),
    "monitored_barrier": ("barrier", _nothing),
}

BLOCKING = {"monitored_barrier"}  # returns when it is over, and gives no handle

# Functional collectives, by name without "_" or "_out" at the end: payload from what is sent.
FUNCTIONAL = {
    "all_reduce": ("all_reduce", _first),
    "all_reduce_coalesced": ("all_reduce", _first),
    "all_gather_into_tensor": ("all_gather", _gathered_from),
    "all_gather_into_tensor_coalesced": ("all_gather", _gathered_from),
    "reduce_scatter_tensor": ("reduce_scatter", _first),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter", _first),
    "all_to_all_single": ("all_to_all", _first),
    "broadcast": ("broadcast", _first),
}

PEER = {"send", "recv"}


def unequal(args: Sequence[Any]) -> list[int]:
    """The bytes that go to each rank of an all-to-all of parts that its caller gave the sizes of;
    [] where they are equal."""
    if len(args) < 4 or not isinstance(args[3], (list, tuple)) or not args[3]:
        return []
    each = _bytes(args[1][:1])
    return [each * rows for rows in args[3]]


_ROOTED = {"broadcast", "scatter", "gather", "reduce"}
_REDUCING = {"all_reduce", "reduce_scatter", "reduce"}
_REDUCTIONS = {op.value: name.lower() for name, op in dist.ReduceOp.RedOpType.__members__.items()}


def terms(
    collective: str, args: Sequence[Any], options: Any, members: Sequence[int], how: Any = None
) -> str:
    """What all members of a collective must agree on besides its size, as a trace has it.

    options : torch's own, the last argument of the call. how : of a functional collective, which
    has none, its reduction or its root. "" where it cannot be told.

    >>> terms("broadcast", [torch.ones(2)], None, (4, 6), how=1)
    'float32 (root 6)'
    """
    text = next((_name(tensor.dtype) for tensor in flat(args)), "")
    if collective in _REDUCING:
        if how is None:
            reduction = getattr(options, "reduceOp", None)
            if reduction is None:
                return ""
            how = _REDUCTIONS[reduction.op.value]
        text = f"{how} of {text}"
    if collective in _ROOTED:
        root = how if isinstance(how, int) else getattr(options, "rootRank", None)
        return "" if root is None else f"{text} (root {members[root]})"
    tagged = collective in PEER and len(args) > 2 and args[2]
    return f"{text} (tag {args[2]})" if tagged else text


@cache
def _name(dtype):
    return str(dtype).removeprefix("torch.")


IN_PLACE = {"all_reduce", "broadcast", "reduce", "send"}  # read the first argument, too

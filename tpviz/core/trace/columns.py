"""One row of a trace, its columns, and how columns are searched."""

from typing import Any, NamedTuple

import numpy as np


class Event(NamedTuple):
    """One interval on one lane of one rank.

    kind: ``compute`` | ``comm`` | ``copy`` (to or from a device's memory, or within it) | ``wait``
    (compute lane blocked on the event ``waits_for``) | ``step`` (the span of a whole training step,
    on lane "step"). lane: ``compute``, ``comm/<axis>``, ``copy``, ``copy/to-host`` and
    ``copy/from-host`` (of `tpviz.core.copies`), ``step``. phase: forward, backward, sync,
    recompute, optimizer or "". bytes: payload, the full tensor of the collective; of a kernel, what
    it reads and writes; of a copy, what it moves; -1 where unknown. wire_bytes: what one rank sends
    on a ring, or -1. axis: mesh axis of the group, "unknown" if a profile does not say. members:
    its global ranks, as `members_text` writes them ("0,2"), "" where unknown. Groups outside of a
    mesh with equal members are numbered by their axes: "world", "world (group 2)", ... seq: the
    number of the collective within that group (the same on every member), -1 for none. id is unique
    in a trace; waits_for is the id of an event or -1. dtype: of a kernel, such as "float32", or "".
    terms: what else all members of a collective must agree on, "sum of float32" or "float32 (root
    2)"; "" where unknown.
    """

    id: int = -1
    rank: int = 0
    lane: str = "compute"
    kind: str = "compute"
    name: str = ""
    phase: str = ""
    layer: str = ""
    microbatch: int = -1
    chunk: int = -1
    step: int = -1
    start: float = 0.0
    end: float = 0.0
    flops: int = 0
    bytes: int = 0
    wire_bytes: float = 0.0
    axis: str = ""
    members: str = ""
    seq: int = -1
    waits_for: int = -1
    dtype: str = ""
    terms: str = ""


FEW = 64
UNKNOWN = "unknown"
"""The axis of a collective whose group a profile does not name."""


def codes(column: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(distinct values, index of each row's value among them) of a column of texts.

    Columns such as ``lane`` have few values: looking for these one by one takes a fraction of the
    time that sorting a million texts takes.

    >>> codes(np.array(["b", "a", "b"]))[1].tolist()
    [0, 1, 0]
    """
    values, found, left = [], np.zeros(len(column), np.int64), np.arange(len(column))
    while len(left):
        if len(values) == FEW:
            return np.unique(column, return_inverse=True)
        same = column[left] == column[left[0]]
        found[left[same]] = len(values)
        values.append(column[left[0]])
        left = left[~same]
    return np.array(values, column.dtype), found


def equals(name: str, column: np.ndarray, value: Any) -> np.ndarray:
    """Boolean array: where a column is ``value`` or one of a list; ``ValueError`` for others."""
    try:
        if isinstance(value, (list, tuple, set)):
            return np.isin(column, list(value))
        return np.broadcast_to(column == value, column.shape)
    except (TypeError, ValueError):
        raise ValueError(f"{name}={value!r} is no value or list of values") from None


_TYPES = {str: np.str_, int: np.int64, float: np.float64}
COLUMNS = {name: _TYPES[kind] for name, kind in Event.__annotations__.items()}

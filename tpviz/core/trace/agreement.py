"""Whether the members of each group made the same calls, in size, operation, root and dtype.

Collectives on which members disagree move wrong bytes, write beyond a tensor or never end. Legal
differences are no disagreement: ranks may send unequal parts in an all_to_all, and a message may be
received into more room than it takes.

>>> clash(Call("broadcast", 400), Call("broadcast", 800))
('400 bytes', '800')
"""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .columns import codes
from .critical import runs

if TYPE_CHECKING:
    from .table import Trace

MOST = 100
"""So many disagreements of a trace are kept."""
UNEQUAL = ("all_to_all", "all_to_all_v")
"""Collectives whose members may each pass another number of bytes."""
MESSAGE = ("send", "recv")


class Call(NamedTuple):
    """One group member's record of a collective: its columns ``name``, ``bytes``, ``terms``."""

    name: str
    bytes: int
    terms: str = ""


def clash(one: Call, other: Call) -> tuple[str, str] | None:
    """What two members say of a collective that cannot be the same; None where they agree.

    What is not known agrees with anything; so do messages with tags of their own, which may be
    received in another order.
    """
    names = one.name, other.name
    message = set(names) == set(MESSAGE)
    if names[0] in MESSAGE and not message:  # received from anyone: each has a sender of its own
        return None
    if one.name != other.name and not message:
        return names
    if message and ("tag" in one.terms or "tag" in other.terms):
        return None
    sizes = one.bytes, other.bytes
    fits = message and sizes[names.index("send")] <= sizes[names.index("recv")]
    if sizes[0] != sizes[1] and -1 not in sizes and not fits and one.name not in UNEQUAL:
        return f"{sizes[0]} bytes", str(sizes[1])
    if one.terms != other.terms and one.terms and other.terms:
        return one.terms, other.terms
    return None


def sentence(
    number: int,
    calls: tuple[Call, Call],
    ranks: tuple[int, int],
    axis: str,
    members: str,
) -> str:
    """Who says what of a group's ``number``-th collective; the two calls `clash`."""
    name = calls[0].name if calls[0].name == calls[1].name else "collective"
    if {call.name for call in calls} == set(MESSAGE):
        name = "message"
    said = zip(clash(*calls) or ("", ""), ranks)
    words = ", ".join(f"{what} on rank {rank}" for what, rank in said)
    return f"{name} #{number}: {words} (axis {axis}, ranks {members})"


def disagreements(trace: "Trace") -> list[str]:
    """A `sentence` for each collective of a trace on which two members disagree, the first first.

    Compared is what was recorded: rows of the same group (axis and members) with the same number.
    """
    rows = np.flatnonzero((trace["kind"] == "comm") & (trace["seq"] >= 0))
    if not len(rows):
        return []
    texts = {name: codes(trace[name][rows]) for name in ("members", "axis", "name", "terms")}
    (known, members), (_, axis) = texts["members"], texts["axis"]
    names, name = texts["name"]
    message = np.isin(names, MESSAGE)[name]
    seq, rank = trace["seq"][rows], trace["rank"][rows]
    group = (members * (int(axis.max()) + 1) + axis) * 2 + message
    order = np.lexsort((rank, seq, group))
    same = (np.diff(group[order]) == 0) & (np.diff(seq[order]) == 0)
    if (same & (np.diff(rank[order]) == 0)).any():  # a rank's n-th of a key matches others' n-th
        _, turn = runs([group, seq, rank])
        order = np.lexsort((rank, turn, seq, group))
        same = (np.diff(group[order]) == 0) & (np.diff(seq[order]) == 0)
        same &= np.diff(turn[order]) == 0
    begins = np.flatnonzero(np.append(True, ~same))
    wide = np.isin(names, UNEQUAL)[name]
    differ = np.zeros(len(begins), bool)
    for column in (np.where(message, -1, name), np.where(wide, 0, trace["bytes"][rows])):
        differ |= _differ(column[order], begins)
    differ |= _differ(texts["terms"][1][order], begins)
    differ &= known[members[order[begins]]] != ""
    ends = np.append(begins[1:], len(order))
    parts = [rows[order[a:b]] for a, b in zip(begins[differ], ends[differ])]
    parts.sort(key=lambda part: trace["start"][part].min())
    return list(dict.fromkeys(filter(None, (_said(trace, part) for part in parts))))


def _differ(column, begins):
    return np.minimum.reduceat(column, begins) != np.maximum.reduceat(column, begins)


def _said(trace: "Trace", rows: np.ndarray):
    """The sentence about rows of one collective, or None."""
    first, *others = sorted(rows, key=lambda row: trace["rank"][row])
    one = _call(trace, first)
    for row in others:
        other = _call(trace, row)
        if clash(one, other):
            place = str(trace["axis"][row]), str(trace["members"][row])
            ranks = int(trace["rank"][first]), int(trace["rank"][row])
            return sentence(int(trace["seq"][row]), (one, other), ranks, *place)
    return None


def _call(trace, row):
    return Call(*(trace[name][row].item() for name in Call._fields))

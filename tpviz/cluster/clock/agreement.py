"""Whether the ranks of a captured program make the same calls on each group: else it cannot run.

Recorded ranks are compared alone: all others are as one of these, moved along axes on which the
members of a group move with them.
"""

from collections import defaultdict
from functools import cached_property
from typing import TYPE_CHECKING
from weakref import WeakSet

import numpy as np

from tpviz.core.trace.agreement import Call, clash, sentence
from tpviz.core.trace.members import members_list

from .program import is_message, place

if TYPE_CHECKING:
    from .program import Capture


_known: "WeakSet[Capture]" = WeakSet()  # replayed again and again, and checked once


def checked(capture: "Capture") -> "Capture":
    """The capture; ``ValueError``, with the two ranks and their calls, where members of a group
    disagree: in size, operation, root, dtype, or in how many collectives they issue at all."""
    if capture not in _known:
        _check(capture)
        _known.add(capture)
    return capture


def _check(capture):
    programs = {rank: _GroupCalls(trace) for rank, trace in capture.traces.items()}
    for rank, program in programs.items():
        for group, calls in program.of_group.items():
            members = members_list(group[1])
            firsts = {capture.model[member]: member for member in reversed(members)}
            for source, other in firsts.items():
                if other == rank:
                    continue
                theirs = _there(capture, programs[source], source, other, group)
                if theirs != calls:
                    _compare(group, (rank, calls), (other, theirs))


class _GroupCalls:
    """The calls of a recorded rank on each of its groups: (axis, members, whether a message)."""

    def __init__(self, trace):
        rows = np.flatnonzero(trace["kind"] == "comm")
        rows = rows[np.argsort(trace["start"][rows], kind="stable")]
        names, sizes, terms, axes, members = (
            trace[column][rows].tolist() for column in (*Call._fields, "axis", "members")
        )
        found = defaultdict(list)
        for axis, text, *call in zip(axes, members, names, sizes, terms):
            found[axis, text, is_message(call[0])].append(call)
        self.of_group = dict(found)

    @cached_property
    def by_kind(self):
        """{(axis, number of members, whether a message): the groups like that}."""
        found = defaultdict(list)
        for group in self.of_group:
            found[_kind(group)].append(group)
        return found


def _kind(group):
    axis, text, message = group
    return axis, len(members_list(text)), message


def _there(capture, program, source, rank, group):
    """What ``rank``, which is as ``source``, calls on a group of another rank."""
    wanted = tuple(members_list(group[1]))
    for own in program.by_kind.get(_kind(group), ()):
        if place(capture.mesh, source, rank, members_list(own[1]), own[2]) == wanted:
            return program.of_group[own]
    return []


def _compare(group, *sides):
    """Raise where the calls of two ranks on a group, (rank, calls) each, do not go together."""
    axis, text, message = group
    (rank, calls), (other, theirs) = sides
    for number, pair in enumerate(zip(calls, theirs)):
        if pair[0] != pair[1] and clash(one := Call(*pair[0]), two := Call(*pair[1])):
            said = sentence(number, (one, two), (rank, other), axis, text)
            raise ValueError(f"this program cannot run, since its ranks disagree: {said}")
    if len(calls) != len(theirs):
        (most, more), (least, fewer) = sorted(sides, key=lambda side: -len(side[1]))
        name = more[len(fewer)][0]
        what = "messages" if message else "collectives"
        raise ValueError(
            f"this program never ends: rank {most} issues {name} #{len(fewer)} on axis {axis} of "
            f"ranks {text}, and rank {least} issues {len(fewer)} {what} there"
        )

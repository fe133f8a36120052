"""The clocks of a trace: ranks of several hosts get one time if their clocks were compared.

A clock is compared at moments: at its own ``time`` (s) it was ``ahead`` (s) of a reference clock,
give or take ``error`` (s). Between moments the line through the first and the last holds: clocks of
hosts drift apart by some millionths, evenly.

>>> moments = [{"time": 1000.0, "ahead": 990.0, "error": 1e-4},
...            {"time": 1010.0, "ahead": 990.5, "error": 2e-4}]
>>> times = np.array([1000.0, 1005.0])
>>> ahead(times, moments).tolist(), within(moments, times)
([990.0, 990.25], 0.0002)
>>> refuse_several({0: ["a", "1f"], 1: ["b", "2e"]})  # doctest: +ELLIPSIS
Traceback (most recent call last):
ValueError: ranks 0 (a) and 1 (b) are on 2 clocks, whose offset nobody measured, ...
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .members import members_text

DRIFT = 1e-3
"""Seconds a second by which two clocks drift apart at most: NTP slews each by 500 millionths."""
UNMEASURED = (
    "whose offset nobody measured, so their events have no common time line: record them in "
    "tv.launch or tv.run, which measure it, or merge the ranks of each host alone. Ledgers, losses "
    "and tv.verify need no clock"
)


def ahead(times: np.ndarray, moments: Sequence[Mapping[str, float]]) -> np.ndarray:
    """Seconds by which a clock is ahead of the reference at its own ``times`` (s), of any shape."""
    first, last = moments[0], moments[-1]
    span = last["time"] - first["time"]
    drift = (last["ahead"] - first["ahead"]) / span if span > 0 else 0.0
    return first["ahead"] + drift * (np.asarray(times) - first["time"])


def within(moments: Sequence[Mapping[str, float]], times: np.ndarray) -> float:
    """Seconds by which `ahead` may be wrong at ``times`` (s): the larger error of the first and the
    last moment, the largest distance from their line of a moment between them, and `DRIFT` for
    times that are not between them."""
    at = np.array([moment["time"] for moment in moments])
    residual = np.abs(ahead(at, moments) - [moment["ahead"] for moment in moments]).max()
    outside = np.maximum(at[0] - times, times - at[-1]).max(initial=0.0)
    return max(moments[0]["error"], moments[-1]["error"]) + float(residual + DRIFT * outside)


def on_reference(
    columns: Mapping[str, np.ndarray],
    memory: Mapping[int, Mapping[str, Any]],
    hosts: Mapping[int, Sequence[str]],
    offsets: Mapping[int, Mapping[str, Any]],
) -> tuple[dict[str, np.ndarray], dict[int, Any], dict[int, list[str]], dict[str, float]]:
    """(columns, memory, hosts, {mark of a clock: seconds within which it is known}) of the ranks'
    traces, with the times of ranks whose clock was compared moved to the reference clock.

    memory, hosts : as `Trace.meta` has them. offsets : {rank: {"to": mark of the reference,
    "moments": [...]}}. Raises ``ValueError`` unless the clocks of all ranks are one, or were
    compared with one. Ranks of one clock stay on it.
    """
    times, memory, known = {n: columns[n].copy() for n in ("start", "end")}, dict(memory), {}
    moved = {rank: list(host) for rank, host in hosts.items()}
    if len({clock for _, clock in hosts.values()}) > 1:
        for rank in sorted(offsets.keys() & hosts.keys()):
            offset, rows = offsets[rank], columns["rank"] == rank
            moments = offset["moments"]
            name, clock = hosts[rank]
            error = within(moments, np.concatenate([of[rows] for of in times.values()]))
            known[clock] = max(error, known.get(clock, 0.0))
            for of in times.values():
                of[rows] -= ahead(of[rows], moments)
            if rank in memory:
                at = np.asarray(memory[rank]["time"])
                memory[rank] = {**memory[rank], "time": (at - ahead(at, moments)).tolist()}
            moved[rank] = [name, offset["to"]]
    refuse_several(moved)
    return {**columns, **times}, memory, moved, known


def refuse_several(hosts: Mapping[int, Sequence[str]], why: str = UNMEASURED) -> None:
    """Raise ``ValueError`` that names the hosts if {rank: [name, clock]} has two clocks; it ends
    with ``why``."""
    ranks: dict[str, list[int]] = {}
    for rank, (_, clock) in sorted(hosts.items()):
        ranks.setdefault(clock, []).append(rank)
    if len(ranks) < 2:
        return
    names = {clock: dict.fromkeys(hosts[rank][0] for rank in own) for clock, own in ranks.items()}
    several = [", ".join(name) for name in names.values()]
    if len(set(several)) < len(several):  # time namespaces of one host
        several = [f"{name}, clock {clock}" for name, clock in zip(several, names)]
    *first, last = (f"{members_text(own)} ({who})" for own, who in zip(ranks.values(), several))
    raise ValueError(f"ranks {', '.join(first)} and {last} are on {len(ranks)} clocks, {why}")


def badge_words(known: Mapping[str, float]) -> str:
    """What a badge adds of clocks known within so many seconds, besides the reference's."""
    if not known:
        return ""
    return f"; {len(known) + 1} hosts, clocks within {max(known.values()) * 1e3:.2g} ms"

"""Errors of ranks, worded for the person who wrote the function that ran there.

``hosts`` is of each rank its host's name, where the world has several hosts; else it is empty.
"""

import linecache
import os
import re
import signal
import traceback
from collections.abc import Collection, Iterable, Sequence
from typing import Any

from . import sources
from .frames import RankFailure


class RankError(RuntimeError):
    """A rank raised, died or could not start; a ``RuntimeError``.

    Attributes
    ----------
    rank : the rank it began with.
    traceback : that rank's traceback as text, "" if it died without one.
    others : what every other rank was doing, rank -> text.
    ranks : of each rank that raised, its `RankFailure`: ``error.ranks[1].variables`` are the local
        variables of rank 1's function, ``print(error.ranks[1])`` shows those of all its frames.
    """

    ranks: dict[int, RankFailure]

    def __init__(
        self,
        message: str,
        rank: int,
        traceback: str = "",
        others: dict[int, str] | None = None,
    ):
        super().__init__(message)
        self.rank, self.traceback, self.others = rank, traceback, others or {}
        self.ranks = {}


class RankTimeoutError(TimeoutError):
    """Ranks did not finish in time; a ``TimeoutError``.

    Attributes
    ----------
    states : what each rank was doing, rank -> text.
    """

    def __init__(self, message: str, states: dict[int, str]):
        super().__init__(message)
        self.states = states


class Interrupted(KeyboardInterrupt):
    """A launch was stopped; says what the ranks were doing, in a line."""

    def _render_traceback_(self):
        """What IPython shows in place of every frame between the cell and the ranks."""
        return [f"KeyboardInterrupt: {self}"]


Hosts = Sequence[str]


def interrupted(states: dict[int, str], hosts: Hosts = ()) -> Interrupted:
    """The `Interrupted` error of a launch that was stopped. states : rank -> what it was doing."""
    return Interrupted("; ".join(["the ranks were stopped", *_alike(states, hosts)]))


def raised(
    rank: int,
    failure: dict[str, str],
    others: dict[int, str],
    reason: str = "",
    hosts: Hosts = (),
) -> RankError:
    """The error for a rank that raised ``failure`` (type, message, traceback as text)."""
    text = with_source(failure["traceback"]).rstrip()
    head = _because(reason, f"{named([rank], hosts)} {_in_full(failure)}")
    hint = ""
    if failure["type"] in ("ModuleNotFoundError", "AttributeError"):
        hint = "\n(Ranks keep the modules they have loaded; tpviz.restart() loads edited code.)"
    return RankError(f"{head}\n\n{text}{hint}{listed(others, hosts=hosts)}", rank, text, others)


def died(
    rank: int, how: str, others: dict[int, str], reason: str = "", hosts: Hosts = ()
) -> RankError:
    """The error for a rank whose process ended without an answer. how : as `end_of` says it."""
    head = _because(reason, f"{named([rank], hosts)} {how}")
    return RankError(f"{head}{listed(others, hosts=hosts)}", rank, "", others)


def timed_out(
    timeout: float,
    states: dict[int, str],
    what: str = "finish",
    reason: str = "",
    hosts: Hosts = (),
) -> RankTimeoutError:
    """The error for ranks that were still busy after ``timeout`` seconds."""
    head = _because(reason, f"ranks did not {what} within the time-out of {timeout:g} s")
    return RankTimeoutError(f"{head}{listed(states, 'State of each rank', hosts)}", states)


def deadlock(reason: str, states: dict[int, str], hosts: Hosts = ()) -> RankTimeoutError:
    """The `RankTimeoutError` of ranks that would never finish, before the time-out."""
    head = f"{reason}: a deadlock, so the ranks were stopped before the time-out"
    return RankTimeoutError(f"{head}{listed(states, 'State of each rank', hosts)}", states)


def _because(reason: str, head: str) -> str:
    return f"{reason}: {head}" if reason else head


def reason(
    vain: dict[int, list[int]],
    texts: dict[int, str],
    finished: Collection[int],
    hosts: Hosts = (),
) -> str:
    """A sentence on why ranks cannot go on; "" if all can.

    vain : rank -> those for which it waits in vain.
    texts : of each of these ranks, what it has written on the board.
    """
    waits: dict[tuple[str, str, bool], list[int]] = {}
    for rank, peers in sorted(vain.items()):
        gone = [peer for peer in peers if peer in finished]
        key = texts[rank].removeprefix("waiting in "), named(gone or peers, hosts), bool(gone)
        waits.setdefault(key, []).append(rank)
    done = [
        f"{peers} finished and never join{'' if ',' in peers else 's'} {call}, in which "
        f"{named(ranks, hosts)} wait{'s' * (len(ranks) == 1)}"
        for (call, peers, gone), ranks in waits.items()
        if gone
    ]
    return (
        done[0]
        if done
        else "; ".join(
            f"{named(ranks, hosts)} wait{'s' * (len(ranks) == 1)} for {peers} in {call}"
            for (call, peers, _), ranks in waits.items()
        )
    )


# Collectives in which all members have as many bytes, and messages.
_EQUAL = "all_reduce broadcast reduce all_gather reduce_scatter gather scatter send recv".split()
_CALL = re.compile(r"(\w+) (#\d+ .*), (\d+) bytes")


def clash(texts: dict[int, str], hosts: Hosts = ()) -> str:
    """The sizes of one collective, or of a message at its two ends, where ranks disagree on them,
    by what each has written on the board; else ""."""
    sizes: dict[tuple[str, str], dict[str, list[int]]] = {}
    for rank, text in sorted(texts.items()):
        call = _CALL.search(text)
        if call and call[1] in _EQUAL:
            kind = "message" if call[1] in ("send", "recv") else call[1]
            sizes.setdefault((kind, call[2]), {}).setdefault(call[3], []).append(rank)
    for (kind, call), found in sizes.items():
        if len(found) > 1:
            sides = [f"{size} bytes on {named(ranks, hosts)}" for size, ranks in found.items()]
            return f"{kind} {call} has {' and '.join(sides)}"
    return ""


_LOST = re.compile("connection (closed|reset|refused)|broken pipe|socket closed", re.IGNORECASE)


def follows(failure: dict[str, str] | None) -> bool:
    """Whether a rank failed only because another one closed its connections."""
    return bool(failure and _LOST.search(failure["message"]))


def in_short(failure: dict[str, str] | None) -> str:
    """One line about a rank that failed; None stands for a rank that died."""
    if failure is None:
        return "died"
    return _in_full(failure).splitlines()[0]


def _in_full(failure: dict[str, str]) -> str:
    return f"raised {failure['type']}: {failure['message']}".removesuffix(": ")


def end_of(exitcode: int | None) -> str:
    """How a process ended, in words: ``"was killed by SIGKILL (signal 9)"``."""
    if exitcode is None or exitcode >= 0:
        return f"ended by itself with exit code {exitcode} before it had finished"
    try:
        name = signal.Signals(-exitcode).name
    except ValueError:
        name = "a signal"
    hint = "; the system does that when memory runs out" if name == "SIGKILL" else ""
    return f"was killed by {name} (signal {-exitcode}{hint})"


def listed(states: dict[int, str], title: str = "The other ranks", hosts: Hosts = ()) -> str:
    """A line per state, with the ranks in it, under a title; nothing when there is no rank."""
    if not states:
        return ""
    return f"\n\n{title}:" + "".join(f"\n  {line}" for line in _alike(states, hosts))


def _alike(states: dict[int, str], hosts: Hosts) -> list[str]:
    """A line for all ranks in the same state."""
    alike: dict[str, list[int]] = {}
    for rank, text in sorted(states.items()):
        alike.setdefault(text, []).append(rank)
    return [f"{named(ranks, hosts)}: {text}" for text, ranks in alike.items()]


def named(ranks: Sequence[int], hosts: Hosts = ()) -> str:
    """``"ranks 0, 1 on alpha, rank 2 on beta"``."""
    of: dict[str, list[int]] = {}
    for rank in ranks:
        of.setdefault(hosts[rank] if hosts else "", []).append(rank)
    return ", ".join(
        f"rank{'s' * (len(mine) > 1)} {', '.join(map(str, mine))}{f' on {host}' if host else ''}"
        for host, mine in of.items()
    )


def with_source(text: str) -> str:
    """Add source lines that only the caller has (notebook cells) to a rank's traceback."""
    lines = text.splitlines()
    out: list[str] = []
    for line, after in zip(lines, lines[1:] + [""]):
        out.append(line)
        frame = re.match(r'  File "(.+)", line (\d+), in ', line)
        if frame and not after.startswith("    "):
            source = linecache.getline(frame[1], int(frame[2])).strip()
            out += [f"    {source}"] if source else []
    return "\n".join(out)


# -- where a rank is in the user's code ------------------------------------------------------------
_FRAME = re.compile(r'  File "(.+)", line (\d+) in (.+)')


def user_line(path: str | os.PathLike[str]) -> str:
    """``", at script.py:12 in step"``: the innermost frame outside libraries, or ""."""
    try:
        with open(path, errors="replace") as file:
            dump = file.read().rpartition("(most recent call first):")[2]
    except OSError:
        return ""
    return _innermost(_FRAME.findall(dump))


def raised_at(error: BaseException) -> str:
    """As `user_line`, for an exception that was caught."""
    frames = traceback.extract_tb(error.__traceback__)
    return _innermost((f.filename, f.lineno, f.name) for f in reversed(frames))


def _innermost(frames: Iterable[tuple[str, Any, str]]) -> str:
    for name, line, function in frames:
        if sources.of_user(name):
            cell = "ipykernel" in name or name.startswith("<ipython")
            where = f"line {line} of a cell," if cell else f"{os.path.basename(name)}:{line}"
            return f", at {where} in {function}"
    return ""

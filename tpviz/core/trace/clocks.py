"""Whether all ranks of a trace used one clock; otherwise their times cannot be compared.

>>> refuse_several({0: ["a", "1f"], 1: ["b", "2e"]})  # doctest: +ELLIPSIS
Traceback (most recent call last):
ValueError: ranks 0 (a) and 1 (b) are on 2 clocks, whose offset nobody measured, ...
"""

from collections.abc import Mapping, Sequence

from .members import members_text


def refuse_several(hosts: Mapping[int, Sequence[str]]) -> None:
    """Raise ``ValueError`` that names the hosts if {rank: [name, clock]} has two clocks."""
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
    raise ValueError(
        f"ranks {', '.join(first)} and {last} are on {len(ranks)} clocks, whose offset "
        "nobody measured, so their events have no common time line: merge the ranks of each host "
        "alone. Ledgers, losses and tv.verify need no clock"
    )

"""Groups of ranks as short texts, the form they have in a trace's column ``members``.

>>> members_list("0..1016:8")[-2:]
[1008, 1016]
"""

import re
from collections.abc import Iterable

from tpviz.core import limits

MANY = 16
"""Groups larger than this, in even steps, are written "0..1016:8", for a column of short texts."""


def members_text(ranks: Iterable[int]) -> str:
    """The text of a group's ranks, in the given order; evenly spaced ranks become a range.

    >>> members_text([0, 2]), members_text(range(0, 1024, 8))
    ('0,2', '0..1016:8')
    """
    ranks = list(ranks)
    if len(ranks) > MANY:
        steps = range(ranks[0], ranks[-1] + 1, max(ranks[1] - ranks[0], 1))
        if list(steps) == ranks:
            return f"{ranks[0]}..{ranks[-1]}:{steps.step}"
    return ",".join(map(str, ranks))


_EVEN = re.compile(r"(\d{1,9})\.\.(\d{1,9}):([1-9]\d{0,8})")
_LISTED = re.compile(r"\d{1,9}(,\d{1,9})*")


def members_list(text: str) -> list[int]:
    """The ranks that `members_text` wrote; [] for an empty text.

    Raises ``ValueError`` for another text, and for ranks beyond `tpviz.limits.RANKS`.
    """
    even = _EVEN.fullmatch(text)
    if even:
        first, last, step = map(int, even.groups())
        ranks = range(first, last + 1, step)
    else:
        ranks = [int(rank) for rank in text.split(",")] if _LISTED.fullmatch(text) else []
        last = max(ranks, default=0)
    if last >= limits.RANKS or (text and not ranks):
        raise ValueError(
            f"{text[:60]!r} is no group of ranks below {limits.RANKS}, written as "
            "'0,2' or '0..1016:8'"
        )
    return list(ranks)

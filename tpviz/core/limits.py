"""What one file or one call may ask for; errors that refuse more name the constant here.

Each can be set to another value before the call:

>>> import tpviz.limits
>>> tpviz.limits.FILE_BYTES = 2 << 30
"""

RANKS = 1 << 17
"""Ranks of a trace, a mesh or a group; devices of a cluster."""
EVENTS = 10_000_000
"""Events of one trace file."""
FILE_BYTES = 2 << 30
"""Bytes of one trace file, after decompression."""
DROPPED_BYTES = 256 << 20
"""Bytes of the files dropped onto a view together: they pass through the browser."""
TEXT = 1 << 16
"""Characters of one text in a file."""
TABLE_BYTES = 8 << 30
"""Bytes of a trace's text columns, which have room for their longest text in every row."""
MEMBERS = 1 << 24
"""Ranks of all distinct groups of one trace, together."""
DEPTH = 64
"""Lists or objects within one another in the ``meta`` of a trace."""


def check(what: str, size: int, name: str, or_more: bool = False) -> int:
    """``size``, unless it is above the limit ``name``: ``ValueError`` with both numbers.

    or_more : whether ``size`` is only a lower bound.
    """
    most = globals()[name]
    if size > most:
        allow = (
            f"set tpviz.limits.{name} to more"
            if or_more
            else f"tpviz.limits.{name} = {size} before the call allows it"
        )
        raise ValueError(
            f"{what} {size}{' or more' * or_more}, which is more than the limit of {most}: {allow}"
        )
    return size

"""How many ranks may be started here; asked also where none can be, as in a page."""

import os

from tpviz.core.checks import whole_number

DEFAULT_MAX_RANKS = 16


def max_ranks() -> int:
    """How many ranks ``launch`` may start: ``TPVIZ_MAX_RANKS``, or 16. Raises ``ValueError``."""
    text = os.environ.get("TPVIZ_MAX_RANKS", str(DEFAULT_MAX_RANKS))
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"TPVIZ_MAX_RANKS={text!r} is not a number of ranks; use 1 or more")
    return int(text)


def check_world_size(world_size: int) -> int:
    """``world_size`` if that many ranks may be started; else ``ValueError`` with the numbers."""
    most, world_size = max_ranks(), whole_number("world_size", world_size)
    if world_size > most:
        raise ValueError(
            f"world_size={world_size} is more than the {most} ranks allowed here; use 1 to {most}, "
            f"or set TPVIZ_MAX_RANKS={world_size} in the environment"
        )
    return world_size

"""What the Python that runs this has: one in a page has no torch, no processes and no threads."""

import time
from importlib.util import find_spec

thread_time = getattr(time, "thread_time", time.process_time)
"""CPU time of this thread, s; of the process where it cannot have another thread."""


def has_torch() -> bool:
    """Whether torch is installed; it is not loaded."""
    return find_spec("torch") is not None

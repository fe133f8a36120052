"""Locks of files against other processes, as of ``fcntl.flock``; where none can be, none."""

from importlib.util import find_spec
from typing import IO, Any

if find_spec("fcntl"):
    from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock

    def lock(file: IO[Any], shared: bool = False, wait: bool = True) -> None:
        """Lock a file until it is closed, ``shared`` with others that only read.

        Raises ``BlockingIOError`` where another has it and we do not ``wait``.
        """
        flock(file, (LOCK_SH if shared else LOCK_EX) | (0 if wait else LOCK_NB))

else:

    def lock(file: IO[Any], shared: bool = False, wait: bool = True) -> None:
        """Nothing: no other process has the file."""

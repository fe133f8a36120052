"""Locks of files against other processes, as of ``fcntl.flock``; where none can be, none."""

from typing import IO, Any

try:  # rather than asked whether it is there: JupyterLite's kernel has an empty module of its name
    from fcntl import LOCK_EX, LOCK_NB, LOCK_SH, flock
except ImportError:

    def lock(file: IO[Any], shared: bool = False, wait: bool = True) -> None:
        """Nothing: no other process has the file."""

else:

    def lock(file: IO[Any], shared: bool = False, wait: bool = True) -> None:
        """Lock a file until it is closed, ``shared`` with others that only read.

        Raises ``BlockingIOError`` where another has it and we do not ``wait``.
        """
        flock(file, (LOCK_SH if shared else LOCK_EX) | (0 if wait else LOCK_NB))

"""What the fork server does besides forking; importing this module there sets it up.

It leaves the caller's session, since Jupyter kills and interrupts kernels by process group, and
when the caller is gone it kills ranks that are left and removes the caller's temporary files. That
goes for the seconds in which it imports torch too, when it does not yet listen to its caller.
"""

import atexit
import ctypes
import gc
import mmap
import os
import re
import shutil
import signal
from time import monotonic, sleep

from .processes import kill_below

# Set by the caller while it starts the server: its process id, and directories to remove.
CLEANUP_DIRS = "TPVIZ_CLEANUP_DIRS"
_ORPHANED_WITHIN = 1.0  # seconds
_LOOK_EVERY = 0.5  # seconds between two looks at the caller while torch is being imported
_THRESHOLDS = gc.get_threshold()

_is_server = False


def _serve():
    global _is_server
    cleanup_dirs = os.environ.pop(CLEANUP_DIRS, None)
    if cleanup_dirs:
        _is_server = True
        gc.set_threshold(*_THRESHOLDS[:2], 1000)  # looking at all takes 0.3 s and finds little
        os.setsid()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # what came so far was blocked, see `server`
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        parent, *folders = cleanup_dirs.split(os.pathsep)
        server, parent = os.getpid(), int(parent)  # not getppid: the caller may be gone already
        atexit.register(_sweep, server, parent, folders)
        signal.signal(signal.SIGALRM, lambda *_: _look(server, parent, folders))
        signal.setitimer(signal.ITIMER_REAL, _LOOK_EVERY, _LOOK_EVERY)


def _look(server, parent, cleanup_dirs):
    if os.getpid() == server and os.getppid() != parent:
        _sweep(server, parent, cleanup_dirs)
        os._exit(0)


def loaded() -> None:
    """Called once the server has imported everything; it now notices when its caller ends."""
    if _is_server:
        gc.set_threshold(*_THRESHOLDS)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _sweep(server, parent, cleanup_dirs):
    if os.getpid() != server or _lives_on(parent):
        return  # a rank, or a fork server that its living parent stops: the parent tidies up
    kill_below(server)
    for folder in cleanup_dirs:
        shutil.rmtree(folder, ignore_errors=True)


def _lives_on(parent):
    # The server hears that the parent's files are closed a moment before it is orphaned.
    until = monotonic() + _ORPHANED_WITHIN
    while os.getppid() == parent:
        if monotonic() > until:
            return True
        sleep(0.01)
    return False


def give_back_memory() -> None:
    """Give back free heap, and pages of shared libraries that ranks may never need.

    The latter stay in the system's page cache and come back at the next touch; but a limit on
    memory, such as Binder's, counts them while they are mapped (40 to 60 MB after importing torch).
    Only mappings without a single page of their own are taken, so nothing written can be lost.
    """
    try:
        with open("/proc/self/smaps") as file:
            mappings = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", file.read())
        libc = ctypes.CDLL(None, use_errno=True)
        madvise, trim = libc.madvise, libc.malloc_trim
    except (OSError, AttributeError):
        return  # not Linux: nothing is gained, nothing is lost
    trim(0)
    for mapping in mappings:
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) r-.p \S+ \S+ [1-9]\d* +/", mapping)
        if head and re.search(r"^Anonymous: +0 kB$", mapping, re.MULTILINE):
            start, end = int(head[1], 16), int(head[2], 16)
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


_serve()

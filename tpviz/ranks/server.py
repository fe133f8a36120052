"""The fork server that ranks are started from, and this process's private directory.

``multiprocessing`` owns the server; we choose what it preloads, tell it what to remove should we
be killed, and keep it from running the user's script again.
"""

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe, forkserver, resource_tracker, util
from multiprocessing.connection import Connection
from types import ModuleType
from typing import Any

from . import forkserver_hooks, worker_bootstrap
from .processes import set_environment

_PRELOADED = [f"tpviz.ranks.{n}" for n in ("forkserver_hooks", "worker_bootstrap", "worker")]
_CACHE = "TORCHINDUCTOR_CACHE_DIR"
_LONGEST = 107  # bytes in the path of a Unix socket on Linux: sun_path has 108, and ends in 0
_ROOM = 1 << 20  # bytes for what ranks share and print; a file with more is emptied between jobs
_home = None  # (process id, path): a forked child must not use, nor remove, its parent's
_life = None  # a pipe whose writing end closes when this process ends, and not before


def home() -> str:
    """This process's private directory for all that ranks need, made when missing."""
    global _home
    _fill_standard_streams()
    if _home is None or not os.path.isdir(_home[1]):
        _home = os.getpid(), tempfile.mkdtemp(prefix="tpviz-")
    return _home[1]


def _fill_standard_streams():
    """Where the caller's are closed, pipes would get their numbers, and ranks lose these pipes."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number free


def full() -> str:
    """A sentence if the disk for temporary files has too little room for ranks; else ""."""
    folder = tempfile.gettempdir()
    free = shutil.disk_usage(folder).free
    if free >= _ROOM:
        return ""
    return (
        f"{folder} has {free:,} bytes free, and ranks need {_ROOM:,} there for what they share and "
        "print (remove files, or set TMPDIR to another folder and start Python again)"
    )


def remove_home() -> None:
    """Remove the private directory, if this process made one."""
    global _home
    if _home is not None and _home[0] == os.getpid():
        shutil.rmtree(_home[1], ignore_errors=True)
    _home = None


def cleanup_dirs() -> list[str]:
    """Directories to delete once this process has ended: ours and multiprocessing's."""
    return [home(), util.get_temp_dir()]


def life() -> Connection:
    """The read end of a pipe that reaches end-of-file exactly when this process ends."""
    global _life
    _life = _life or Pipe(duplex=False)
    return _life[0]


def surroundings() -> tuple[dict[str, str], list[str], str | None]:
    """What a rank shares with its caller: environment, import path, working directory."""
    try:
        cwd = os.getcwd()
    except FileNotFoundError:
        cwd = None
    return dict(os.environ), list(sys.path), cwd


def ensure() -> None:
    """Start the fork server with torch loaded, unless one is running.

    Raises ``RuntimeError`` where the working directory is gone: no Python starts there; and where
    the path of its socket would be too long.
    """
    server: Any = forkserver._forkserver
    if surroundings()[2] is None and server._forkserver_pid is None:
        raise RuntimeError("the working directory no longer exists; os.chdir to one that does")
    if not os.path.exists(server._forkserver_address or util.get_temp_dir()):
        stop()  # whoever cleans up temporary files has removed its socket: nothing reaches it
    _check_socket(util.get_temp_dir())
    forkserver.set_forkserver_preload(_PRELOADED)
    changes = {forkserver_hooks.CLEANUP_DIRS: os.pathsep.join([str(os.getpid()), *cleanup_dirs()])}
    # One thread each: thread pools made in the server would be copied into every rank.
    changes |= dict.fromkeys(worker_bootstrap.THREADS, "1")
    # Importing torch's compiler makes its cache directory; ours is removed with the rest.
    changes[_CACHE] = os.environ.get(_CACHE, os.path.join(home(), "torch-cache"))
    resource_tracker.ensure_running()  # or it would be started below, and end the blocking
    with _environment(changes), _no_interrupt_inherited():
        forkserver.ensure_running()


def _check_socket(folder):
    """Refuse a folder for temporary files in which multiprocessing's socket has too long a name."""
    length = len(os.fsencode(folder)) + len("/listener-12345678")
    if length > _LONGEST:
        raise RuntimeError(
            f"ranks start from a socket in {folder}, whose path would have {length} bytes; at most "
            f"{_LONGEST} are possible. Set TMPDIR to a folder whose path is shorter by "
            f"{length - _LONGEST} or more, such as /tmp, and start Python again"
        )


def kill() -> None:
    """End the fork server's process at once; whoever waits for a new rank from it hears so."""
    server: Any = forkserver._forkserver
    if server._forkserver_pid is not None:
        with suppress(ProcessLookupError):
            os.kill(server._forkserver_pid, signal.SIGKILL)


def stop() -> None:
    """End the fork server, so that the next ranks load edited modules; ranks must be gone.

    Its socket's folder is made anew too, where it is missing.
    """
    kill()  # children that others started from it would keep it alive past a polite request
    server: Any = forkserver._forkserver
    with suppress(ChildProcessError, TypeError):  # TypeError: there was none
        os.waitpid(server._forkserver_pid, 0)
    with suppress(OSError, TypeError):
        os.unlink(server._forkserver_address)
    _forget_server()
    os.makedirs(util.get_temp_dir(), mode=0o700, exist_ok=True)


def _forget_server():
    """What multiprocessing knows of its fork server, as before the first start."""
    server: Any = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        os.close(server._forkserver_alive_fd)
    server._forkserver_pid = server._forkserver_alive_fd = server._forkserver_address = None


def forget_after_fork() -> None:
    """In a forked child: the server is the parent's, and only the parent may keep it alive."""
    global _home, _life
    for end in _life or ():
        end.close()
    _home = _life = None
    _forget_server()


@contextmanager
def blank_main() -> Iterator[None]:
    """Hide the user's script while processes start.

    ``multiprocessing`` would run the script again in each rank, to define names that we ship by
    value anyway; it looks at ``sys.modules["__main__"]``, and finds an empty module here.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def _no_interrupt_inherited():
    """Inside, this thread's SIGINT waits, and so does that of a process started here: one sent to
    the whole process group, as Ctrl-C is, would end the server before it has left the group."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def _environment(changes):
    saved = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        set_environment(saved)

"""A learner's progress: tries and solved exercises, in a JSON file of theirs.

The file is ``tpviz/progress.json`` in the user's data folder (``XDG_DATA_HOME``, else
``~/.local/share``), or what ``TPVIZ_PROGRESS`` names. Kernels that grade at the same time write it
in turn, and always as a whole. What cannot be read is put aside; where nothing can be written,
grading goes on, and says so.
"""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import NamedTuple

from .locks import lock

PATIENCE = 2.0
"""Seconds to wait for another kernel that writes."""


class Done(NamedTuple):
    """Attempts up to the first right one, and whether there was one."""

    tries: int = 0
    solved: bool = False


def file() -> Path:
    """Where progress is kept. Raises OSError where there is no home, or something else there."""
    named = os.environ.get("TPVIZ_PROGRESS")
    data = os.environ.get("XDG_DATA_HOME") or "~/.local/share"
    try:
        path = Path(os.path.realpath(Path(named or f"{data}/tpviz/progress.json").expanduser()))
    except RuntimeError as error:
        raise OSError(str(error)) from None
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no file")
    return path


def load() -> tuple[dict[str, Done], str]:
    """{exercise: `Done`}, and what is wrong with the file, if anything is."""
    try:
        return _read(file()), ""
    except (OSError, ValueError, RecursionError) as error:
        return {}, f"Your progress cannot be read: {error}"


def record(name: str, passed: bool) -> str:
    """Count an attempt at an exercise that is not solved yet; the words for a learner whose
    progress is not kept, or whose file was damaged, else nothing."""
    said = ""
    try:
        path = file()
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path):
            try:
                done = _read(path)
            except (ValueError, RecursionError) as error:
                done, said = {}, f"{error}. It is kept as {_put_aside(path)}; a new one begins."
            before = done.get(name, Done())
            if not before.solved:
                _write(path, done | {name: Done(before.tries + 1, passed)})
    except OSError as error:
        return f"Your progress is not kept: {error}. Set TPVIZ_PROGRESS to a file you can write."
    return said


def _read(path):
    """{exercise: `Done`}. Raises ValueError for a damaged file, OSError for one that is not
    readable."""
    if not path.exists():
        return {}
    try:
        found = {name: Done(**row) for name, row in json.loads(path.read_bytes()).items()}
        good = all(type(d.tries) is int and type(d.solved) is bool for d in found.values())
    except (ValueError, TypeError, AttributeError, RecursionError):
        good = False
    if not good:
        raise ValueError(f"{path} is damaged")
    return found


def _write(path, done):
    """The whole file, or as before."""
    handle, new = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as stream:
            json.dump({name: d._asdict() for name, d in done.items()}, stream, indent=1)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(new, path)
    finally:
        Path(new).unlink(missing_ok=True)


def _put_aside(path):
    """The new path of a damaged file."""
    names = (path.with_name(f"{path.name}.damaged-{n}") for n in count(1))
    aside = next(name for name in names if not name.exists())
    path.rename(aside)
    return aside


@contextmanager
def _locked(path) -> Iterator[None]:
    """Raises OSError where another kernel does not end."""
    end = time.monotonic() + PATIENCE
    with path.with_name(f"{path.name}.lock").open("w") as held:
        while True:
            try:
                lock(held, wait=False)
                break
            except BlockingIOError:
                if time.monotonic() > end:
                    raise OSError(f"another kernel has locked {path}") from None
                time.sleep(0.01)
        yield

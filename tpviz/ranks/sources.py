"""Files of the user's modules that ranks have loaded: when one is edited, ranks are replaced.

Ranks are kept alive and import a module once, so after an edit they would run the old text. Looked
at are modules of the user's own: not Python's, installed ones, tpviz's, nor those that the fork
server has loaded already.
"""

import os
import sys
import sysconfig
from collections.abc import Iterable
from time import time
from typing import NamedTuple

_LIBRARY = sysconfig.get_paths()["stdlib"], os.path.dirname(os.path.dirname(__file__))
_LIBRARIES = tuple(os.path.join(folder, "") for folder in _LIBRARY)
_INSTALLED = f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}"


def of_user(path: str) -> bool:
    """Whether a file of code is the user's own."""
    installed = any(folder in path for folder in _INSTALLED)
    return not installed and not path.startswith((*_LIBRARIES, "<frozen"))


class Source(NamedTuple):
    """A file as it was when a rank loaded it: time of its last change in nanoseconds, bytes."""

    path: str
    changed: int
    size: int


class Loaded:
    """Keeps track, in a rank, of the source files it loads from now on."""

    def __init__(self):
        self._last = next(reversed(sys.modules))  # new ones come after it
        self._seen: set[str] = set()

    def since(self, begun: float) -> list[Source]:
        """Files of modules that are new since the last call; ``begun``: when their job began, a
        time in seconds. One that was changed later may have been loaded before that: its numbers
        are 0."""
        found: list[Source] = []
        for name in reversed(sys.modules):
            if name == self._last:
                break
            if name not in self._seen:
                self._seen.add(name)
                found += _of(sys.modules[name], begun)
        return found


def _of(module, begun):
    spec = getattr(module, "__spec__", None)  # code that torch.compile writes has none
    path = getattr(spec, "origin", None)
    if not getattr(spec, "has_location", False) or not isinstance(path, str) or not of_user(path):
        return []
    source = _now(path)
    if source and begun * 1e9 < source.changed < time() * 1e9:
        source = Source(path, 0, 0)
    return [source] if source else []


def edited(sources: Iterable[Source]) -> list[str]:
    """Names of the files that differ now; not of one that is gone, which nothing could load."""
    return sorted({os.path.basename(s.path) for s in sources if _now(s.path) not in (None, s)})


def _now(path):
    try:
        stat = os.stat(path)
    except OSError:
        return None
    return Source(path, stat.st_mtime_ns, stat.st_size)

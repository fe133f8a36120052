"""Finds out which rank wrote each trace file of a folder.

>>> ranks_of(Path("run"), [(Path("run/rank1/trace.json"), {}), (Path("run/rank0/trace.json"), {})])
([1, 0], [])
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .shapes import Rank, fitting

_NAMED = re.compile(r"rank[_-]?(\d+)")
# What torch.profiler.tensorboard_trace_handler writes: the worker (by default host and process) and
# the time in nanoseconds or milliseconds.
_TENSORBOARD = re.compile(r"(?P<worker>.+)\.\d+\.pt\.trace\.json(\.gz)?")


def ranks_of(
    root: Path, loaded: Sequence[tuple[Path, dict[str, Any]]], pattern: str | None = None
) -> tuple[list[int], list[str]]:
    """(rank of each file, sentences on what was assumed), of (path, loaded JSON object) pairs.

    root : the folder. pattern : a regular expression with the rank as its first group, searched in
    the path within the folder; without one the rank is what ``distributedInfo`` says, or the
    number after "rank" in the name or else in the folders' names, or the place of TensorBoard's
    worker among the others. Raises ValueError for files (of several) that name no rank.
    """
    where = [path.relative_to(root).as_posix() if path != root else path.name for path, _ in loaded]
    if pattern is not None:
        found = [_by_pattern(path, name, pattern) for (path, _), name in zip(loaded, where)]
    else:
        found = [_said(path, name, data) for (path, data), name in zip(loaded, where)]
    known = [rank for rank in found if rank is not None]
    if len(known) == len(found):
        return known, []
    if len(found) == 1:
        return [0], []
    workers = [_TENSORBOARD.fullmatch(path.name) for path, _ in loaded]
    if all(workers) and not known:
        return _in_order(root, [worker["worker"] for worker in workers if worker])
    raise ValueError(
        f"{loaded[found.index(None)][0]}: names no rank, neither in distributedInfo nor in its "
        "name; name the files of a run rank0.json, rank1.json, ..., or say where the rank stands "
        r"in the path, as a regular expression: load_trace(path, rank=r'worker(\d+)')"
    )


def _by_pattern(path, name, pattern):
    try:
        match = re.search(pattern, name)
        rank = match and match[1]
    except (re.error, IndexError, TypeError) as error:
        raise ValueError(
            f"rank={pattern!r} is no regular expression with a group for the rank, such as "
            rf"'worker(\d+)': {error}"
        ) from None
    if rank is None:
        raise ValueError(f"{path}: rank={pattern!r} is not found in {name!r}")
    return fitting(Rank(digits=True), rank, f"{path}: rank={pattern!r}: ")


def _said(path, name, data):
    info = data.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    if rank is None:
        named = _NAMED.search(path.name) or _NAMED.search(name)
        rank = named and named[1]
    return None if rank is None else fitting(Rank(digits=True), rank, f"{path}: rank: ")


def _in_order(root, workers):
    order = sorted(set(workers), key=lambda w: [(len(n), n) for n in re.split(r"(\d+)", w)])
    if len(order) < len(workers):
        twice = next(w for w in order if workers.count(w) > 1)
        raise ValueError(
            f"{root}: {workers.count(twice)} profiles of {twice}; a folder is one run, with one "
            "file per rank: put the files of each time in a folder of their own"
        )
    listed = ", ".join(f"{rank} is {worker}" for rank, worker in enumerate(order[:4]))
    return [order.index(w) for w in workers], [f"ranks by the order of the files' names: {listed}"]

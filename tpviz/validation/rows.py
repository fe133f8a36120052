"""Published measurements that ship with the package, as they stand in their sources."""

import csv
import gzip
import io
from functools import lru_cache
from pathlib import Path

from .split import Group

DATA = Path(__file__).parent / "data"
FILES = ("measured", "failed", "memory", "collective")
"""Kinds of rows: steps, configurations that did not run, memory peaks, collectives and GEMMs."""


def group_of(row: dict[str, str]) -> Group:
    """The group of rows that one is split with: (source, model, n_gpus).

    A row of memory has a case instead of a model; SimuMax's cases begin with their model's name.
    """
    model = row.get("model") or row["case"]
    if row["source"] == "simumax_b200_real" and "model" not in row:
        model = f"{'-'.join(model.split('_')[:2])}-{row['layers']}layers"
    return row["source"], model, int(row["n_gpus"] or 0)


@lru_cache(maxsize=len(FILES))
def table(kind: str) -> tuple[dict[str, str], ...]:
    """All rows of a kind of `FILES`, as text by column."""
    text = gzip.decompress((DATA / f"{kind}.csv.gz").read_bytes()).decode()
    return tuple(csv.DictReader(io.StringIO(text, newline="")))

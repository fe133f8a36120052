"""Published measurements of training runs, which ship with the package: `published`.

Every row is a fact with its source: repository and file, or page. Columns are as in the sources;
data/SOURCES.md says under which licences they stand and what is doubtful about them.

>>> (found,) = published(model="gpt-39B")
>>> found.source, found.n_gpus, found.layout, found.step
('megatron_sc21_table1', 512, 'tp 8, pp 2, dp 32, mbs 4, full recompute', 14.4535)
"""

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import lru_cache
from math import inf, isnan, prod
from os import PathLike
from pathlib import Path
from typing import Any

from tpviz import models
from tpviz.core.checks import one_of
from tpviz.core.tables import html_table, show_bytes, show_seconds, text_table

from .split import Group

DATA = Path(__file__).parent / "data"
FILES = ("measured", "failed", "memory", "collective")
"""Kinds of rows: steps, configurations that did not run, memory peaks, collectives and GEMMs."""
NEEDED = ("source", "layers", "hidden", "global_batch", "micro_batch", "n_gpus", "tp", "pp")
"""Columns without which rows describe no run."""
RENAMED = {"url_or_repo": "url", "case": "model", "platform": "gpu"}
"""Columns of the files -> fields, where they differ."""
FRAMEWORKS = {
    "nanotron": ("ultrascale",),
    "FSDP": ("mosaic", "torchtitan"),
    "Megatron-LM": ("megatron", "bigscience", "dgxc", "nemo", "simumax", "llama3_paper"),
}
"""Frameworks of runs, by how names of sources begin."""
WORDS = {"gpt3": "gpt", "bloom": "gpt"}
"""Family of `tpviz.models` -> a word in the names that sources give to it, where it is another."""
GIGA = {"gb": 1e9, "gib": 2.0**30}
BINARY = ("ultrascale",)
"""Sources whose GB are 2^30 bytes, by how their names begin: nanotron's helpers.py logs so."""


@dataclass(frozen=True)
class PublishedRow:
    """One run of a source; 0, None or "" is what the source does not state.

    kind : of `FILES`. url : repository and file, or page. kv_heads : of grouped queries.
    global_batch, micro_batch : sequences of a step, and of one microbatch of one replica.
    experts, top_k, moe_ffn, shared_ffn : experts of an MLP, those of a token, the width of one, and
    that of what all tokens go through besides. etp : ranks of tp that share an expert.
    zero : stage of ZeRO, 3 for PyTorch's FSDP; recompute : "none", "selective" or "full".
    step : seconds of a step. peak : bytes, the largest allocation of a rank; where a source says
    gigabytes of a node or of a process, those.
    part : "fit" or "test" (`tpviz.evidence.published.split`), "" for rows from elsewhere.
    """

    kind: str
    source: str
    model: str
    gpu: str
    n_gpus: int = 0
    layers: int = 0
    hidden: int = 0
    global_batch: int = 0
    micro_batch: int = 0
    tp: int = 0
    pp: int = 0
    dp: int = 0
    heads: int = 0
    kv_heads: int | None = None
    ffn: int | None = None
    seq: int = 0
    vocab: int = 0
    cp: int = 1
    ep: int = 1
    etp: int | None = None
    experts: int = 0
    top_k: int | None = None
    moe_ffn: int | None = None
    shared_ffn: int | None = None
    vpp: int = 1
    zero: int | None = None
    recompute: str = ""
    sp: int | None = None
    dtype: str = ""
    step: float | None = None
    peak: float | None = None
    part: str = ""
    url: str = ""
    notes: str = ""

    @property
    def framework(self) -> str:
        """Of `FRAMEWORKS`, or "other"."""
        return framework_of(self.source)

    @property
    def microbatches(self) -> float:
        """Microbatches of a replica in a step; not whole where the sizes do not divide, 0.0 where
        they are not stated."""
        return self.global_batch / (self.dp * self.micro_batch or inf)

    @property
    def layout(self) -> str:
        """How the run was split, in short."""
        axes = {name: getattr(self, name) for name in ("tp", "pp", "dp", "cp", "ep", "etp", "vpp")}
        words = [f"{name} {n}" for name, n in axes.items() if n and n > 1]
        words += [f"mbs {self.micro_batch}"] * bool(self.micro_batch)
        words += [f"ZeRO-{self.zero}"] * bool(self.zero)
        words += [f"{self.recompute} recompute"] * (self.recompute in ("full", "selective"))
        return ", ".join(words + ["sp"] * bool(self.sp))


class PublishedRows(tuple[PublishedRow, ...]):
    """Rows; a notebook shows them as a table."""

    def to_table(self) -> list[list[str]]:
        """Rows of strings, header first."""
        head = ["source", "model", "gpu", "GPUs", "layout", "dtype", "measured"]
        body = [
            [r.source, r.model, r.gpu, f"{r.n_gpus}", r.layout, r.dtype, _said(r)] for r in self
        ]
        return [head, *body]

    def __repr__(self):
        return "\n".join(text_table(self.to_table(), right=(3,)))

    def _repr_html_(self):
        return html_table(self.to_table(), "class='tpviz-lab'")


def published(
    model: str | None = None,
    gpus: int | str | None = None,
    *,
    source: str | None = None,
    kind: str = "measured",
) -> PublishedRows:
    """Rows of published runs.

    model, source : part of the name; model also a name of `tpviz.models` ("llama3 8B"): rows of
    such sizes. gpus : their number, or part of their name. kind : "measured" steps, "failed"
    configurations, or "memory" peaks. Raises ``ValueError`` where there is none, with the names
    that exist, near ones first.
    """
    one_of("kind", kind, FILES[:3])
    rows = _shipped(kind)
    name, wanted = ("n_gpus", gpus) if isinstance(gpus, int) else ("gpu", gpus)
    for what, value in (("source", source), ("model", model), (name, wanted)):
        if value is None:
            continue
        known = {getattr(row, what) for row in rows}
        match = {k for k in known if k == value or (isinstance(value, str) and value in k)}
        like = _of_sizes(value, rows) if what == "model" and isinstance(value, str) else []
        if not match and not like:
            names = ", ".join(map(str, sorted(known)))
            plain = {str(k).lower(): str(k) for k in known}
            near = [plain[k] for k in get_close_matches(str(value).lower(), plain, 3)]
            nearest = f" near ones are {', '.join(near)};" * bool(near)
            raise ValueError(f"no {kind} row has {what}={value!r}:{nearest} there are {names}")
        rows = [row for row in rows if getattr(row, what) in match or row in like]
    return PublishedRows(rows)


def _of_sizes(name: str, rows: Iterable[PublishedRow]) -> list[PublishedRow]:
    """Rows of the sizes of that model of `tpviz.models`, with a vocabulary that may be padded."""
    if not (known := models.spelled(name)):
        return []
    family, _, size = known.partition(" ")
    w, word = models.presets()[family](size), WORDS.get(family, family.rstrip("0123456789"))
    sizes = w.layers, w.hidden, w.heads, w.mlp_width
    return [
        row
        for row in rows
        if word in row.model.lower()
        and (row.layers, row.hidden, row.heads, row.ffn or w.mlp_width) == sizes
        and (not row.vocab or w.vocab <= row.vocab < 1.1 * w.vocab)
    ]


def framework_of(source: str) -> str:
    """The framework of a source's runs: of `FRAMEWORKS`, or "other"."""
    known = (name for name, starts in FRAMEWORKS.items() if source.startswith(starts))
    return next(known, "other")


def read(rows: Any) -> Sequence[Mapping[str, Any]]:
    """Rows as cells by column: of a CSV file, gzip'd or not, or of an iterable of mappings.

    Raises ``ValueError`` where there are none, or columns are missing; ``OSError`` as opening does.
    """
    if isinstance(rows, (str, PathLike)):
        data = Path(rows).read_bytes()
        try:
            data = gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
            found = list(csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline="")))
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error, csv.Error) as error:
            raise ValueError(f"{rows} is no CSV file, plain or gzip'd: {error}") from None
    else:
        rows = rows.to_dict("records") if hasattr(rows, "to_dict") else rows
        if not isinstance(rows, Iterable) or isinstance(rows, Mapping):
            raise ValueError(f"rows={rows!r}: give the path of a CSV file, or rows in a list")
        found = list(rows)
    if not found:
        raise ValueError("no rows: a CSV file has its columns' names in the first line")
    for number, row in enumerate(found, 1):
        if not isinstance(row, Mapping):
            raise ValueError(f"row {number} is {row!r}: give mappings of columns to values")
        missing = [name for name in NEEDED if name not in row]
        missing += ["model"] * ("model" not in row and "case" not in row)
        if missing:
            raise ValueError(
                f"row {number} has no column {', '.join(missing)}: it has "
                f"{', '.join(map(str, row))}; see tv.published() for the columns"
            )
    return found


def row_of(cells: Mapping[str, Any]) -> PublishedRow:
    """A row of a CSV file as a `PublishedRow`. Raises ``ValueError`` for a cell that is no such
    number."""
    text = {RENAMED.get(k, k): _text(v) for k, v in cells.items() if isinstance(k, str)}
    found: dict[str, Any] = {
        f.name: _whole(f.name, text.get(f.name, ""), f.default)
        if f.type in (int, int | None)
        else text.get(f.name, "")
        for f in fields(PublishedRow)
    }
    memory = "mem_max_allocated_bytes" in text
    found["kind"] = "memory" if memory else "failed" if text.get("unit") == "failed" else "measured"
    split = [found[name] for name in ("tp", "pp", "cp")]
    if not found["dp"] and found["n_gpus"] and all(split):
        found["dp"] = max(1, found["n_gpus"] // prod(split))
    if memory:
        found["zero"] = _whole("dist_opt", text.get("dist_opt", ""), None)
        chunk = _whole("vpp_layers_per_chunk", text.get("vpp_layers_per_chunk", ""), None)
        if chunk and found["layers"] and found["pp"]:
            found["vpp"] = max(1, found["layers"] // (chunk * found["pp"]))
    found["kv_heads"] = found["kv_heads"] or _kv_heads(found["notes"], found["model"])
    found["step"], found["peak"] = _step(text, found), _peak(text)
    return PublishedRow(**found)


def _kv_heads(notes: str, model: str):
    """What notes say of a model: "kv_heads=8", "8 (8b, 70b)", "8 (70b) or 16 (405b)"; else None."""
    case = r"(\d+)\b(?:\s*\(([^)]*)\))?"
    told = re.search(rf"kv_heads={case}(?:(?:,|/|\s+or)\s*\d+\s*\([^)]*\))*", notes)
    for number, labels in re.findall(case, told[0]) if told else ():
        sizes = "|".join(map(re.escape, re.findall(r"[\w.]+", labels)))
        if not sizes or re.search(rf"(?<![\w.])({sizes})(?!\w)", model, re.I):
            return int(number)
    return None


def group_of(row: Mapping[str, str]) -> Group:
    """The group of rows that one is split with: (source, model, n_gpus).

    A row of memory has a case instead of a model; SimuMax's cases begin with their model's name.
    """
    model = row.get("model") or row["case"]
    if row["source"] == "simumax_b200_real" and "model" not in row:
        model = f"{'-'.join(model.split('_')[:2])}-{row['layers']}layers"
    return row["source"], model, int(row["n_gpus"] or 0)


@lru_cache(maxsize=len(FILES))
def table(kind: str) -> tuple[dict[str, str], ...]:
    """All shipped rows of a kind of `FILES`, as text by column."""
    text = gzip.decompress((DATA / f"{kind}.csv.gz").read_bytes()).decode()
    return tuple(csv.DictReader(io.StringIO(text, newline="")))


@lru_cache(maxsize=3)
def _shipped(kind: str):
    return tuple(row_of(cells) for cells in table(kind))


def _text(value: Any):
    """A cell as text, "" where it is empty: None, and NaN of a data frame."""
    return (
        "" if value is None or (isinstance(value, float) and isnan(value)) else str(value).strip()
    )


def _number(name: str, text: str):
    """A cell as a number above 0, or 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < inf:
        raise ValueError(f"{name}={text!r} is no number of 0 or more")
    return value


def _whole(name: str, text: str, default: Any):
    """A cell as a whole number, ``default`` where it is empty."""
    if not text:
        return default
    value = _number(name, text)
    if value != int(value):
        raise ValueError(f"{name}={text!r} is no whole number")
    return int(value)


def _step(text: Mapping[str, str], found: Mapping[str, Any]):
    """Seconds of a step: the notes say them, or the measured value in its unit."""
    if told := re.search(r"\bstep_s=([^;\s]+)", text.get("notes", "")):
        return _number("step_s", told[1]) or None
    unit, tokens = text.get("unit", ""), found["global_batch"] * found["seq"]
    if not text.get("measured") or unit not in ("s/step", "ms/step", "tokens/s/gpu"):
        return None
    value = _number("measured", text["measured"])
    if unit == "tokens/s/gpu":
        return tokens / (value * found["n_gpus"]) if value and found["n_gpus"] and tokens else None
    return value * (1e-3 if unit == "ms/step" else 1.0) or None


def _peak(text: Mapping[str, str]):
    """Bytes of the peak: a column of its own, or in the notes."""
    if exact := text.get("mem_max_allocated_bytes"):
        return _number("mem_max_allocated_bytes", exact) or None
    told = re.search(r"\b(?:mem|real_alloc)_(gi?b)=([\d.]+)", text.get("notes", ""))
    if not told:
        return None
    binary = text.get("source", "").startswith(BINARY)
    return _number("memory", told[2]) * GIGA["gib" if binary else told[1]]


def _said(row: PublishedRow):
    if row.kind == "memory":
        return show_bytes(round(row.peak)) if row.peak else ""
    return "failed" if row.kind == "failed" else show_seconds(row.step) if row.step else ""

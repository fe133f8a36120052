"""docs/when-communication-limits.md: its code runs, and its tables have what the code computes."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest

import tpviz as tv

TEXT = (Path(__file__).parents[2] / "docs/when-communication-limits.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.S)


def row(start):
    """The numbers of the table's row that begins like this."""
    [line] = [line for line in TEXT.splitlines() if line.startswith(f"| {start}")]
    return [float(cell.strip(" %").replace(",", "")) for cell in line.strip("|").split("|")[1:]]


def test_real_numbers(capsys):
    exec(BLOCKS[0], {})
    table = zip(
        *(row(name) for name in ("data parallelism, ZeRO-3", "tensor parallelism, n", "pipeline:"))
    )
    printed = [
        re.findall(r"[\d,]*\d", line.partition(":")[2])
        for line in capsys.readouterr().out.splitlines()
    ]
    assert [[float(n.replace(",", "")) for n in line] for line in printed] == [
        [*each] for each in table
    ]


def test_edges_by_simulation(monkeypatch):
    monkeypatch.setattr(tv, "run", lambda *_, **__: SimpleNamespace(overlap=lambda: 0.0))
    names = {}
    for block in BLOCKS[1:]:
        exec(block, names)  # with the page's own asserts
    assert [100 * share for share in names["hidden"].values()] == pytest.approx(
        row("communication hidden"), abs=0.5
    )
    assert [*names["ratios"].values()] == pytest.approx(row("communication over"), abs=0.005)

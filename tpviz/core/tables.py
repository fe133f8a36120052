"""Words as text and as HTML: tables of ledgers, searches, labs and figures, and caveats.

>>> html_table([["axis", "bytes"], ["tp", "<8"]], "class='mine'")
"<table class='mine'><tr><th>axis</th><th>bytes</th></tr><tr><td>tp</td><td>&lt;8</td></tr></table>"
"""

import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from html import escape
from itertools import repeat
from typing import Any

Columns = Sequence[tuple[str, Callable[..., str]]]
"""(header, function from a row's items to the cell) of each column of a table."""


def table(columns: Columns, rows: Iterable[tuple[Any, ...]]) -> list[list[str]]:
    """Rows of strings, header first.

    >>> table([("n", str), ("square", lambda n: f"{n * n}")], [(2,), (3,)])
    [['n', 'square'], ['2', '4'], ['3', '9']]
    """
    cells = [cell for _, cell in columns]
    return [[head for head, _ in columns], *([cell(*row) for cell in cells] for row in rows)]


def text_table(rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> list[str]:
    """Rows of strings as lines of text; ``right``: the columns that stand at the right.

    >>> text_table([["axis", "bytes"], ["tp", "8"]], right=[1])
    ['axis  bytes', 'tp        8']
    """
    widths = [max(map(len, column)) for column in zip(*rows)]
    sides = [str.rjust if k in right else str.ljust for k in range(len(widths))]
    lines = [[side(cell, w) for side, cell, w in zip(sides, row, widths)] for row in rows]
    return ["  ".join(line).rstrip() for line in lines]


def listed(words: Sequence[str], between: str = ", ", most: int = 8) -> str:
    """The first ``most`` words, joined; if there are more, with the number that was left out.

    >>> listed(["a", "b", "c"], most=2)
    'a, b, and 1 more'
    """
    more = [f"and {len(words) - most} more"] if len(words) > most else []
    return between.join([*words[:most], *more])


def html_table(
    rows: Iterable[Iterable[str]], attributes: str, styles: Iterable[str] | None = None
) -> str:
    """Rows of strings, header first, as an HTML table. styles : CSS of each column's cells."""
    styled = repeat("") if styles is None else [f" style='{style}'" for style in styles]

    def line(tag, row):
        cells = (f"<{tag}{style}>{escape(cell)}</{tag}>" for cell, style in zip(row, styled))
        return f"<tr>{''.join(cells)}</tr>"

    head, *body = rows
    return f"<table {attributes}>{line('th', head)}{''.join(line('td', r) for r in body)}</table>"


def grouped(cell: str) -> str:
    """A whole number with thousands separators; any other text unchanged.

    >>> grouped("12288"), grouped("tp")
    ('12,288', 'tp')
    """
    return f"{int(cell):,}" if cell.isdigit() else cell


def show_seconds(value: float, digits: int = 3) -> str:
    """12.3 ms, 450 µs, 1.2 s."""
    for unit, scale in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.{digits}g} {unit}"
    return f"{value / 1e-9:.{digits}g} ns" if value else "0 s"


def quiet(badge: str, words: str) -> str:
    """A badge and its sentence, as HTML: a caveat, which is no error."""
    frame = "border:1px dashed currentColor;border-radius:9px;padding:0 8px"
    return (
        "<div class='tpv-quiet' style='font-size:12px;line-height:1.7'>"
        f"<span style='{frame}'>{escape(badge)}</span> {escape(words)}</div>"
    )


def in_notebook() -> bool:
    """Whether this is a notebook's kernel, where HTML can be shown."""
    ipython = sys.modules.get("IPython")
    shell = ipython and ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


def show_apart(values: Iterable[float]) -> list[str]:
    """`show_seconds` of each value, with enough digits (up to 7) to tell different values apart.

    >>> show_apart([293.1e-6, 293.4e-6, 1e-3])
    ['293.1 µs', '293.4 µs', '1 ms']
    """
    values = list(values)
    told: list[str] = []
    for digits in range(3, 8):
        told = [show_seconds(value, digits) for value in values]
        if len(set(told)) == len({f"{value:.6e}" for value in values}):
            break
    return told


def show_bytes(value: float, unit: str = "B") -> str:
    """1.5 kB, 2 MB: decimal; of another unit likewise.

    >>> show_bytes(25_165_824), show_bytes(3e9, "FLOP"), show_bytes(0)
    ('25.2 MB', '3 GFLOP', '0 B')
    """
    for prefix, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= scale * 0.9995:
            return f"{value / scale:.3g} {prefix}{unit}"
    return f"{value:.4g} {unit}"

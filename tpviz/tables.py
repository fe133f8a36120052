"""Words as HTML, for notebooks and pages: tables of ledgers, searches and figures, and caveats.

>>> html_table([["axis", "bytes"], ["tp", "<8"]], "class='mine'")
"<table class='mine'><tr><th>axis</th><th>bytes</th></tr><tr><td>tp</td><td>&lt;8</td></tr></table>"
"""

import sys
from collections.abc import Iterable
from html import escape
from itertools import repeat


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

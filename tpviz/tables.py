"""Tables of words as HTML, for notebooks and pages: one way for ledgers, searches and figures.

>>> html_table([["axis", "bytes"], ["tp", "<8"]], "class='mine'")
"<table class='mine'><tr><th>axis</th><th>bytes</th></tr><tr><td>tp</td><td>&lt;8</td></tr></table>"
"""

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

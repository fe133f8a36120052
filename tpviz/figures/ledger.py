"""The ledger of a formula beside the measured one, with a tick where they are equal."""

from html import escape
from typing import TYPE_CHECKING

from tpviz.tables import html_table

if TYPE_CHECKING:
    from tpviz.trace.ledger import Ledger

HEADER = [
    *("axis", "collective", "phase"),
    *("count", "measured", "payload bytes", "measured", "wire bytes", "measured"),
    "equal",
]


def ledger_table(expected: "Ledger", measured: "Ledger | None" = None) -> list[list[str]]:
    """Rows of strings, header first. measured None: not measured yet, its cells stay empty."""
    formula, seen = ({row[:3]: row[3:] for row in led or ()} for led in (expected, measured))
    table = [HEADER]
    for key in sorted(formula.keys() | seen.keys()):
        mine, theirs = formula.get(key), seen.get(key)
        if measured is None:
            verdict = ""
        else:
            verdict = "✓" if mine == theirs else "✗"
        cells = [
            cell
            for i in range(3)
            for cell in (_number(mine, i), "" if measured is None else _number(theirs, i))
        ]
        table.append([*key, *cells, verdict])
    return table


def _number(values, i):
    return f"{values[i]:.10g}" if values else "0"


def ledger_html(expected: "Ledger", measured: "Ledger | None" = None) -> str:
    """The table as HTML under a line that says whether formula and measurement agree."""
    head, *rows = ledger_table(expected, measured)
    if not rows:
        return (
            "<p class='tpv-ledger'>No communication: neither by formula nor measured.</p>"
            if measured is not None
            else "<p class='tpv-ledger'>No communication, by formula.</p>"
        )
    if measured is None:
        line = "Ledger of one step of a rank, by formula. Run to measure it."
    elif expected == measured:
        line = "Ledger of one step of rank 0: formula and measurement are equal ✓"
    else:
        line = "Ledger of one step of rank 0: formula and measurement differ ✗. " + "; ".join(
            expected.diff(measured, ("the formula", "the measurement"))
        )
    table = html_table(
        [head, *(map(_grouped, row) for row in rows)],
        "style='border-collapse:collapse'",
        map(_side, range(len(head))),
    )
    return f"<div class='tpv-ledger'><p style='margin:6px 0'><b>{escape(line)}</b></p>{table}</div>"


def _side(column):
    return f"padding:1px 12px;text-align:{'left' if column < 3 else 'right'}"


def _grouped(cell):
    """12,288 instead of 12288."""
    return f"{int(cell):,}" if cell.isdigit() else cell

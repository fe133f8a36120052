"""The ledger of a formula beside the measured one, with a tick where they are equal."""

from html import escape

from tpviz.core.tables import grouped, html_table
from tpviz.core.trace.ledger import Ledger

from .svg import scrolled

KEY, NUMBERS = ("axis", "collective", "phase"), ("count", "payload bytes", "wire bytes")


def ledger_table(expected: Ledger, measured: Ledger | None = None) -> list[list[str]]:
    """Rows of strings, header first. measured None: not measured yet, and without columns."""
    formula, seen = ({row[:3]: row[3:] for row in led or ()} for led in (expected, measured))
    if measured is None:
        rows = [[*key, *(_number(formula[key], i) for i in range(3))] for key in sorted(formula)]
        return [[*KEY, *NUMBERS], *rows]
    table = [[*KEY, *(head for name in NUMBERS for head in (name, "measured")), "equal"]]
    for key in sorted(formula.keys() | seen.keys()):
        mine, theirs = formula.get(key), seen.get(key)
        cells = [_number(values, i) for i in range(3) for values in (mine, theirs)]
        table.append([*key, *cells, "✓" if mine == theirs else "✗"])
    return table


def _number(values, i):
    return f"{values[i]:.10g}" if values else "0"


def ledger_html(expected: Ledger, measured: Ledger | None = None, hint: str = "") -> str:
    """The table as HTML under a line that says whether formula and measurement agree. hint : what
    to do for a measurement where there is none."""
    head, *rows = ledger_table(expected, measured)
    if not rows:
        why = ", by formula" if measured is None else ": neither by formula nor measured"
        return f"<p class='tpv-ledger'>No communication{why}.</p>"
    if measured is None:
        line = f"Ledger of one step of a rank, by formula. {hint}"
    elif expected == measured:
        line = "Ledger of one step of rank 0: formula and measurement are equal ✓"
    else:
        line = "Ledger of one step of rank 0: formula and measurement differ ✗. " + "; ".join(
            expected.diff(measured, ("the formula", "the measurement"))
        )
    sides = ["left"] * len(KEY) + ["right"] * (len(head) - len(KEY))
    styles = [f"padding:1px 7px;text-align:{side}" for side in sides]
    rows = [head, *(map(grouped, row) for row in rows)]
    table = html_table(rows, "style='border-collapse:collapse'", styles)
    above = f"<p style='margin:6px 0'><b>{escape(line)}</b></p>"
    return f"<div class='tpv-ledger'>{above}{scrolled(table)}</div>"

"""Why one strategy is faster than another, in words: the difference of their predicted parts."""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING

from tpviz.cost import show_seconds

if TYPE_CHECKING:
    from tpviz.strategy import Strategy

    from .predict import Prediction
    from .ranking import Row


def why(rows: "Sequence[Row]") -> list[str]:
    """Sentences about the first of ranked `search.Row`s: its time, and how it beats other kinds.

    It is compared with its `rivals`.
    """
    best, others = rows[0], rivals(rows)
    p = best.prediction
    how = "predicted" if best.simulated is None else "simulated"
    lines = [
        f"{best.strategy.short} is the fastest of {len(rows)} strategies: "
        f"{show_seconds(best.step_time)} a step, {how}."
    ]
    if not others:
        shares = ", ".join(f"{show_seconds(s)} {name}" for name, s in p.parts.items() if s)
        return lines + [f"It spends {shares}; nothing of another kind fits."]
    return lines + [
        f"Against {row.strategy.short} ({show_seconds(row.step_time)}) "
        f"{because(p, row.prediction)}."
        for row in others
    ]


def least(rows: "Sequence[Row]") -> list[str]:
    """The same where communication alone is the objective: the first, the next, the best step."""
    best = rows[0]
    lines = [
        "Ranked by communication alone, the schemes' own formulas: "
        f"{best.strategy.short} is the first of {len(rows)} strategies, "
        f"{show_seconds(best.communication)} a step."  # pyright: ignore[reportArgumentType]
    ]
    more = (row for row in rows if row.communication > best.communication * (1 + 1e-9))  # pyright: ignore[reportOptionalOperand]
    lines += [
        f"The next that sends longer is {row.strategy.short}, {show_seconds(row.communication)}."  # pyright: ignore[reportArgumentType]
        for row in islice(more, 1)
    ]
    fastest = min(rows, key=lambda row: row.predicted)
    same = fastest.predicted >= best.predicted * (1 - 1e-9)
    lines.append(
        "Its whole step is predicted to take "
        f"{show_seconds(best.predicted)}, "
        + (
            "the least of all."
            if same
            else f"that of {fastest.strategy.short} {show_seconds(fastest.predicted)}."
        )
    )
    return lines


def kind(strategy: "Strategy") -> tuple[str, ...]:
    """The axes in use: strategies that share them are of one kind."""
    return tuple(axis for axis, size in strategy.axes.items() if size > 1)


def because(mine: "Prediction", other: "Prediction") -> str:
    """ "it spends 3.1 ms less in exposed communication on dp, but 1 ms more in compute".

    Parts are compute, each axis's exposed communication (latency included) and bubble, so the
    differences sum to that of the predicted steps. Those below a tenth of the largest go unsaid.
    """
    gains = sorted(_differences(mine, other).items(), key=lambda item: -abs(item[1]))
    gains = [(name, s) for name, s in gains if abs(s) >= 0.1 * abs(gains[0][1]) and s]
    less = [f"{show_seconds(s)} less in {name}" for name, s in gains if s > 0]
    more = [f"{show_seconds(-s)} more in {name}" for name, s in gains if s < 0]
    if not gains:
        return "the formulas see no difference"
    faster = mine.step_time <= other.step_time
    words = [_join(half) for half in ((less, more) if faster else (more, less)) if half]
    end = "" if faster else ", by formula; the simulation puts it first because links are shared"
    return f"it spends {', but '.join(words)}{end}"


def _differences(mine, other):
    """{part: seconds that ``mine`` spends less}."""
    found = {"compute": other.parts["compute"] - mine.parts["compute"]}
    for axis in dict.fromkeys((*other.exposed, *mine.exposed)):
        found[f"exposed communication on {axis}"] = other.exposed.get(axis, 0.0) - mine.exposed.get(
            axis, 0.0
        )
    return found | {"bubble": other.parts["bubble"] - mine.parts["bubble"]}


def rivals(rows: "Sequence[Row]") -> "list[Row]":
    """The first row of another kind than the best's, and the best of each kind with one axis."""
    seen, found = {kind(rows[0].strategy)}, []
    for row in rows:
        this = kind(row.strategy)
        if this not in seen and (not found or len(this) <= 1):
            found.append(row)
        seen.add(this)
    return found


def _join(words):
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last

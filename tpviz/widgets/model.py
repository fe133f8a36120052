"""The model's pane of ``explore``: what formulas say of the knobs as they stand. Runs nothing."""

from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING

import ipywidgets

from tpviz.figures.svg import amount, seconds

from .model_svg import memory_svg, parts_svg

if TYPE_CHECKING:
    from tpviz.cluster import Device
    from tpviz.mesh import Mesh
    from tpviz.verbs.predict import Prediction

COVERED = (
    "<p class='tpv-covered' style='margin:6px 0'><i>The prediction is covered until you guess "
    "(or skip the guess).</i></p>"
)


class ModelPane(ipywidgets.VBox):
    """Predicted step time in parts, memory against the device's, bytes and link of every axis."""

    def __init__(self):
        self.picture, self.warning, self.axes = (ipywidgets.HTML() for _ in range(3))
        self.picture.add_class("tpviz-predicted")
        super().__init__([self.picture, self.warning, self.axes])
        self.clear()

    def clear(self) -> None:
        """Show nothing: there is no cluster to predict for."""
        self.picture.value = self.warning.value = self.axes.value = ""
        self.layout.display = "none"

    def show(self, prediction: "Prediction", mesh: "Mesh", covered: bool = False) -> None:
        """Draw a `Prediction` of a strategy whose mesh this is; ``covered`` keeps times secret."""
        device, memory = prediction.cluster.device, prediction.memory()
        slow = prediction.cluster.slow_motion
        drawn = COVERED if covered else fitted(parts_svg(prediction.parts, prediction.badge, slow))
        self.picture.value = drawn + fitted(memory_svg(memory, device.memory, device.name))
        self.warning.value = memory_warning(sum(memory.values()), device)
        self.axes.value = axes_html(prediction, mesh, covered)
        self.layout.display = ""


def memory_warning(total: float, device: "Device") -> str:
    """HTML that says by how much a rank's memory is exceeded, or ""."""
    if total <= device.memory:
        return ""
    words = (
        f"A rank needs {amount(total)}, {device.name} has {amount(device.memory)}: split the "
        f"parameters over at least {-(-total // device.memory):.0f} x as many ranks (tp, ZeRO), or "
        "make the batch smaller. On such devices this would run out of memory."
    )
    return message(words)


def message(words: str, colour: str = "#D55E00") -> str:
    """A text that wants attention, as HTML."""
    return (
        f"<div class='tpv-message' role='alert' style='border-left:4px solid {colour};"
        f"padding:4px 8px;white-space:pre-wrap;line-height:1.4'>{escape(words)}</div>"
    )


def fitted(svg: str) -> str:
    """An SVG that shrinks where its column is narrow."""
    return svg.replace("<svg ", "<svg style='max-width:100%;height:auto' ", 1)


def axes_table(prediction: "Prediction", mesh: "Mesh") -> list[list[str]]:
    """Rows of strings, header first: per mesh axis its link and what a step sends, full speed."""
    slow = prediction.cluster.slow_motion
    rows = [["axis", "ranks", "link", "hop", "sent", "exposed", "hidden"]]
    wire = {}
    for row in prediction.ledger():
        wire[row.axis] = wire.get(row.axis, 0.0) + row.wire_bytes
    for axis, size in mesh.axes.items():
        link = prediction.cluster.axis_link(mesh, axis) if size > 1 else None
        exposed, hidden = (
            times.get(axis, 0.0) / slow for times in (prediction.exposed, prediction.hidden)
        )
        rows.append(
            [
                axis,
                str(size),
                f"{amount(link.bandwidth * slow)}/s" if link else "",
                seconds(link.latency / slow) if link else "",
                amount(wire.get(axis, 0.0)),
                seconds(exposed),
                seconds(hidden),
            ]
        )
    return rows


def axes_html(prediction: "Prediction", mesh: "Mesh", covered: bool = False) -> str:
    """`axes_table` as HTML; ``covered`` leaves the times out."""
    rows = axes_table(prediction, mesh)
    return table_html([row[: len(row) - 2 * covered] for row in rows])


def table_html(rows: Sequence[Sequence[str]]) -> str:
    """Rows of strings, header first, as an HTML table; all but the first column to the right."""

    def line(tag, cells):
        sides = ["left"] + ["right"] * (len(cells) - 1)
        return (
            "<tr>"
            + "".join(
                f"<{tag} style='padding:1px 8px;white-space:nowrap;text-align:{side}'>"
                f"{escape(str(cell))}</{tag}>"
                for cell, side in zip(cells, sides)
            )
            + "</tr>"
        )

    head, *body = rows
    return (
        "<table style='border-collapse:collapse;line-height:1.4'>"
        + line("th", head)
        + "".join(line("td", row) for row in body)
        + "</table>"
    )

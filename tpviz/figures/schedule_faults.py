"""A schedule that cannot run -> scene: what is wrong with it, and its lines."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from . import schedule as figure
from .microscope_svg import wrapped
from .schedule import LETTERS, LINE
from .svg import text

if TYPE_CHECKING:
    from tpviz.schedules import Schedule


def faults_scene(schedule: "Schedule", faults: Sequence[str]) -> dict[str, Any]:
    """A scene as `schedule.schedule_scene` gives, without lanes: ``says`` tells what is wrong.

    faults : sentences; the picture is the schedule as it was written.
    """
    says = "\n".join([f"{schedule.name} cannot run:", *(f"• {fault}" for fault in faults)])
    top = 44 + LINE * sum(len(wrapped(line, LETTERS)) for line in says.splitlines())
    y, out = top + 4, []
    for line in str(schedule).splitlines():
        for i, part in enumerate(wrapped(line, LETTERS)):
            y += 18
            out.append(text(12 if i == 0 else 40, y, part, "muted", 13))
    return {
        "title": repr(schedule).strip("<>"),
        "badge": "cannot run",
        "width": figure.WIDTH,
        "top": top,
        "height": y + 16,
        "common": "".join(out),
        "facts": [["faults", str(len(faults))]],
        "says": says,
        "stops": [float(figure.LEFT)],
        "captions": ["cannot run"],
        "rows": [],
        "lane": 0,
        "head": top,
        "foot": top,
    }

"""A schedule that cannot run -> scene: what is wrong with it, and its lines."""

from . import schedule as figure
from .microscope_svg import wrapped
from .palette import svg_style
from .svg import text

LETTERS, LINE = 150, 18


def faults_scene(schedule, faults):
    """A scene as `schedule.schedule_scene` gives, of sentences instead of a picture.

    faults : what is wrong, a list of sentences.
    """
    count = f"{len(faults)} fault{'s' * (len(faults) != 1)}"
    y, out = figure.TOP + 14, []
    out.append(text(12, y, f"{schedule.name} cannot run: {count}", size=14, weight=700))
    for fault in faults:
        for i, line in enumerate(wrapped(fault, LETTERS)):
            y += LINE
            out.append(text(16 if i == 0 else 28, y, line if i else f"• {line}", size=12.5))
    y += LINE
    for line in str(schedule).splitlines():
        for i, part in enumerate(wrapped(line, LETTERS)):
            y += LINE
            out.append(text(12 if i == 0 else 40, y, part, "muted", 12))
    return {
        "title": schedule.name, "badge": "cannot run", "width": figure.WIDTH, "top": figure.TOP,
        "height": y + 16, "style": svg_style("page"), "common": "".join(out), "facts": [],
        "says": f"{schedule.name} cannot run: {' '.join(f'{line}.' for line in faults)}",
        "stops": [float(figure.LEFT)], "captions": ["cannot run"], "rows": [], "lane": 0,
        "foot": y}

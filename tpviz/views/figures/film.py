"""A step of a film (`tpviz.views.widgets.base.Film`) as a picture that stands alone: with what a
page shows around it."""

from typing import Any

from .legend import legend
from .svg import VIEW, alone, check_step, table


def film_svg(
    scene: dict[str, Any], step: int = 0, theme: str = "auto", said: str = "", over: str = ""
) -> str:
    """The whole SVG of a step; theme "light", "dark" or "auto".

    said : its sentence, where that is not the scene's own. over : SVG on top of the picture. Raises
    ``ValueError`` for a step that does not exist.
    """
    check_step(scene, step)
    body, height, caption = scene["common"], scene["height"], scene["captions"][step]
    frame = scene["frames"][step] if "frames" in scene else ""
    body += frame if isinstance(frame, str) else "".join(scene["pieces"][at] for at in frame)
    body += over
    if "legend" in scene:
        marks, y = legend(scene["legend"], 0, height + 6, VIEW)
        body, height = body + marks, y + 18
    if "table" in scene:
        under, y = table(0, height + 14, scene["table"])
        body, height = body + under, y + 8
    words = scene.get("says", scene.get("words", []))[step : step + 1]
    numbers = scene["numbers"][step] if "numbers" in scene else scene.get("facts", ())
    rows = [
        scene.get("finding"),
        caption,
        *([said] if said else words),
        "; ".join(map(" ".join, numbers)),
    ]
    whole = {**scene, "height": height, "width": max(scene["width"], 560)}
    side = 12 if scene["width"] == VIEW else 0
    label = f"{scene['title']}, {caption}"
    return alone(whole, "\n".join(filter(None, rows)), body, theme, label, side)

"""The legend under a picture: a mark and its words for everything that is drawn.

>>> legend([("forward", "forward"), ("exposed", "exposed communication")], 10, 0, 200)[1]
18
"""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from .lanes import mark
from .svg import SMALL, swatch, text
from .tokens import INKS

Mark = str | dict[str, str] | Callable[[float, float], str]
"""A name for `lanes.mark`, also as of `keyed`, or what draws at the top left corner (x, y) of the
mark's box."""


class Look(NamedTuple):
    """Sizes in px: width and height of a mark; gap to its words; width of a letter; space to the
    next item; how far the words stand below the top of the mark; size of letters. A line is broken
    where less than ``room`` is left after an item's words."""

    width: float = 14
    height: float = 11
    gap: float = 5
    letter: float = 7.2
    space: float = 15
    down: float = 9.5
    size: float = SMALL
    room: float = 5
    token: str = "fg"


USUAL = Look()


def key_of(ink: str, kind: str, label: str = "") -> dict[str, Any]:
    """What a scene says of a colour. label : where its words are not those of the ink."""
    look = INKS[ink]
    return {"key": ink, "label": label or look.label, "pattern": look.pattern, "kind": kind}


def legend(
    items: Iterable[tuple[Mark, str]],
    x: float,
    y: float,
    right: float,
    look: Look = USUAL,
    left: float | None = None,
) -> tuple[str, float]:
    """(the legend as SVG, y of its last line).

    items : (mark, words) each. x, y : px of the first mark's top left corner; right : where lines
    end; left : where those after the first begin, None as that. A line is 18 px.
    """
    left, out = x if left is None else left, ""
    for drawn, words in items:
        wide = look.width + look.gap + look.letter * len(words)
        if x + wide + look.room > right:
            x, y = left, y + 18
        out += drawing(drawn, x, y, look.width, look.height)
        out += text(x + look.width + look.gap, y + look.down, words, look.token, look.size)
        x += wide + look.space
    return out, y


def drawing(drawn: Mark, x: float, y: float, width: float, height: float) -> str:
    """A mark of a legend, as SVG."""
    if not isinstance(drawn, dict):
        return mark(drawn, x, y, width, height) if isinstance(drawn, str) else drawn(x, y)
    if drawn["kind"]:
        return mark(drawn["kind"], x, y, width, height)
    return swatch(x, y, width, height, drawn["key"], drawn["pattern"])


def keyed(items: Iterable[tuple[str, str, str]]) -> list[list[Any]]:
    """(ink, its pattern, words) each as a legend that a page shows and `legend` draws."""
    return [
        [{"key": ink, "kind": "idle" * (ink == "idle"), "pattern": pattern}, words]
        for ink, pattern, words in items
    ]

"""The legend under a picture: a mark and its words for everything that is drawn.

>>> legend([("forward", "forward"), ("exposed", "exposed communication")], 10, 0, 200)[1]
18
"""

from collections.abc import Callable, Iterable
from typing import Any

from .lanes import MARKS, mark
from .svg import swatch, text
from .tokens import INKS

Mark = str | dict[str, str] | Callable[[float, float], str]
"""A name for `lanes.mark`, also as of `keyed`, or what draws at the top left corner (x, y) of the
mark's box."""


HIGH, LETTER, BETWEEN = 11, 7.5, 15
"""px: of a mark; of a letter, about; from an item to the next."""


def key_of(ink: str, kind: str, label: str = "") -> dict[str, Any]:
    """What a scene says of a colour. label : where its words are not those of the ink."""
    look = INKS[ink]
    return {"key": ink, "label": label or look.label, "pattern": look.pattern, "kind": kind}


def legend(
    items: Iterable[tuple[Mark, str]], x: float, y: float, right: float, wide: float = 14
) -> tuple[str, float]:
    """(the legend as SVG, y of its last line).

    items : (mark, words) each. x, y : px of the first mark's top left corner; right : where lines
    end; wide : px of a mark. A line is 18 px.
    """
    left, out = x, ""
    for drawn, words in items:
        long = wide + 5 + LETTER * len(words)
        if x + long + 5 > right:
            x, y = left, y + 18
        out += drawing(drawn, x, y, wide, HIGH) + text(x + wide + 5, y + 9.5, words)
        x += long + BETWEEN
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
        [{"key": ink, "kind": ink if ink in MARKS else "", "pattern": pattern}, words]
        for ink, pattern, words in items
    ]

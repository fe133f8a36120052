"""What every chart of a study has to be; its tests call it for each chart and theme."""

import json
from collections.abc import Callable, Collection
from typing import Any

import pytest

from tpviz.figures.palette import BACKGROUND, TEXT


def assert_plain(
    scene: dict[str, Any], draw: Callable[[str], Any], theme: str, badges: Collection[str], alt: str
) -> None:
    """``draw(theme)`` is a plain figure, the same each time, without network or a template of
    plotly's; it shows all ``badges`` and the scene's notes, and has the text ``alt``."""
    scene, figure = json.loads(json.dumps(scene)), draw(theme)
    assert type(figure).__name__ == "Figure" and "http" not in figure.to_json()
    assert figure.to_json() == draw(theme).to_json()
    said = [note.text for note in figure.layout.annotations]
    assert badges and {f"<b>{badge}</b>" for badge in badges} <= set(said)
    for note in scene["notes"]:
        assert _one_line(note) in _one_line(" ".join(said))
    assert figure.layout.meta["alt"] == alt
    assert figure.layout.paper_bgcolor == BACKGROUND[theme] == figure.layout.plot_bgcolor
    assert figure.layout.font.color == TEXT[theme]
    assert figure.layout.template.layout.to_plotly_json() == {}
    with pytest.raises(ValueError, match="theme='auto' is not one of 'light', 'dark'"):
        draw("auto")


def _one_line(text):
    """Without what breaking lines puts in, hyphens' own too."""
    return " ".join(text.replace("<br>", " ").split()).replace("- ", "-")

"""The picture that stands for a view: CSS alone shows it, or the widget."""

import pytest

from tpviz.views.widgets.base import View
from tpviz.views.widgets.still import STYLE

LIVES = "<div class='tpv-lives'><div class='tpv'>the view</div></div>"
DEAD = """<div class='tpv-lives'><div class='jupyter-widgets-error-widget icon-error'>Click to show
javascript error.</div></div>"""
KNOBS = f"<div class='tpv-lives'>knobs{DEAD}</div>"


@pytest.mark.browser
@pytest.mark.parametrize("output", ["jp-OutputArea-child", "output_area"])
@pytest.mark.parametrize(
    "widget, shown",
    [(LIVES, "widget"), (DEAD, "picture"), (KNOBS, "picture"), ("", "picture")],
    ids=["alive", "dead", "knobs of a dead picture", "no kernel"],
)
def test_one_of_picture_and_widget_is_seen(tab, output, widget, shown):
    """A page that cannot load the widget's code has an error in its place: the picture stays."""
    assert seen(tab, output, f"<style>{STYLE}</style>its picture", widget) == [shown]


@pytest.mark.browser
@pytest.mark.parametrize("output", ["jp-OutputArea-child", "output_area"])
def test_a_page_that_drops_the_pictures_style_has_that_of_the_widget(tab, output):
    """Voila's classic template showed both."""
    assert seen(tab, output, "its picture", f"<style>{View._css}</style>{LIVES}") == ["widget"]


def seen(tab, output, picture, widget):
    tab.set_content(
        f"<div id='picture' class='{output}'><div class='tpv-still'>{picture}</div></div>"
        f"<div id='widget' class='{output}'>{widget or 'no widget'}</div>"
    )
    return [name for name in ("picture", "widget") if tab.locator(f"#{name}").is_visible()]

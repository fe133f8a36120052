"""The picture that stands for a view: CSS alone shows it, or the widget."""

import pytest
from axe_playwright_python.sync_playwright import Axe

from tpviz.views.figures.svg import document, image, scrolled, text
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
def test_a_picture_that_scrolls_does_so_by_keys(tab):
    """Where the column is narrower than its text allows; axe-core finds nothing serious."""
    svg = document(900, 90, [text(10, 40, "a picture")], "a picture")
    tab.set_viewport_size({"width": 500, "height": 400})
    tab.set_content(
        f"<html lang='en'><title>t</title><main>{image(svg, 'a picture')}{scrolled(svg)}</main>"
    )
    for place in range(2):
        tab.keyboard.press("Tab")
        frame = tab.locator("[tabindex]").nth(place)
        assert frame.evaluate("node => node === document.activeElement")
        assert frame.evaluate("node => node.scrollWidth > node.clientWidth")
    found = Axe().run(tab).response["violations"]
    assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []


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

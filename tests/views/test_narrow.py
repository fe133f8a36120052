"""Every view in windows of three widths: one order of its parts, a headline that says something, a
scrubber as wide as its row, a card that covers nothing."""

import re

import pytest
from synthetic import synthetic_trace
from test_legible import CHARTS, FRAMED, VIEWS

import tpviz as tv

COUNTED = {"step", "steps", "stage", "at", "of", "the", "end", "after", "s", "ms", "µs"}
"""Words that say where a film stands, and nothing of its picture."""
TURNED = "() => new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
# Parts of the rail that show, as they follow one another down the page, and the picture's foot.
ORDER = """() => {
  const names = [".tpv-stage", ".tpv-now", ".tpv-metrics", ".tpv-tools", ".tpv-controls"];
  const shown = names.flatMap((name) => {
    const box = document.querySelector(name)?.getBoundingClientRect();
    return box?.height ? [[name, box.top]] : [];
  });
  return shown.sort((a, b) => a[1] - b[1]).map(([name]) => names.indexOf(name));
}"""
SHORT = """() => [...document.querySelectorAll(".tpv-tools > input[type=range]")].map((node) =>
  [node, node.parentNode].map((one) => one.getBoundingClientRect().width))
  .filter(([own, row]) => own < Math.min(300, 0.98 * row))"""
# What a card that is open covers: marks, words and controls of the view, not its own.
UNDER = """() => {
  const card = document.querySelector(".tpv-tip"), a = card.getBoundingClientRect();
  if (!card.checkVisibility({ visibilityProperty: true })) return ["no card"];
  const names = "svg path, svg text, .tpv-legend span, button, .tpv-now, .tpv-summary, dd";
  return [...document.querySelectorAll(names)].filter((node) => node.checkVisibility())
    .filter((node) => {
      const b = node.getBoundingClientRect();
      const wide = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const high = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      return !card.contains(node) && b.width && wide > 1 && high > 1;
    }).map((node) => node.textContent || node.localName);
}"""


def opened(view, tab, path):
    """A page of a view, its motion reduced: what plays stands still."""
    tab.emulate_media(reduced_motion="reduce")
    tab.goto(getattr(view, "picture", view).to_html(path).as_uri())
    tab.locator(".tpv[data-ready]").wait_for()


def at(tab, width):
    """The page at a width, drawn anew."""
    tab.set_viewport_size({"width": width, "height": 900})
    tab.evaluate(TURNED)


@pytest.mark.browser
@pytest.mark.parametrize("name", [name for name in VIEWS if name not in CHARTS])
def test_parts_of_a_view_and_its_headline(name, tab, tmp_path):
    """Picture, sentence, numbers, controls; beside the picture, below it, and in a notebook. The
    sentence is no count."""
    opened(VIEWS[name](), tab, tmp_path / "a.html")
    said = re.findall(r"[^\W\d_]+", tab.locator(".tpv-now").text_content())
    assert len([word for word in said if word.lower() not in COUNTED]) >= 4
    for framed in (False, True):
        for width in (1440, 900, 400):
            at(tab, width)
            order = tab.evaluate(ORDER)
            assert order == sorted(order), (framed, width)
            assert tab.evaluate(SHORT) == [], (framed, width)  # scrubbers
        tab.evaluate(FRAMED)


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 700])
def test_an_open_card_covers_nothing(width, tab, tmp_path):
    """Of an event chosen by click or key; once it was there, its room stays."""
    opened(tv.Timeline(synthetic_trace({"dp": 4, "tp": 2})), tab, tmp_path / "a.html")
    at(tab, width)
    picture, view = tab.locator(".tpv-scroll > svg"), tab.locator(".tpv")
    for key in ("Home", "ArrowRight", "ArrowDown", "End"):
        picture.press(key)
        assert tab.evaluate(UNDER) == [], key
    high = view.bounding_box()["height"]
    picture.press("Escape")
    tab.evaluate(TURNED)
    assert not tab.locator(".tpv-tip").is_visible()
    assert view.bounding_box()["height"] == high

"""The gallery: one file that plays without a network, and whose pictures are those of this code."""

import gzip
import json
import re
from base64 import b64decode
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from pictures import check_heights

from tpviz.views import gallery

DOCS = Path(__file__).resolve().parents[1] / "docs"
FIRST_MOTION = 2_000  # ms, from opening the file
CONTROLS = ":is(button, input, select, a, [tabindex='0']):not([hidden] *, [hidden])"
MOVES = "() => document.querySelector('.tpv-playing') && performance.now()"


def test_it_is_of_this_code():
    """The pictures that no run is in are what the script would write now."""
    there = places((DOCS / "gallery.html").read_text())
    for name in ("blocks", "grid", "schedules", "context", "experts", "tiles", "mesh"):
        [drawn] = places(getattr(gallery, name)())
        assert drawn in there, f"{name}: run make gallery"
    assert "](docs/gallery.html)" in (DOCS.parent / "README.md").read_text()


@pytest.mark.browser
def test_everything_plays_and_every_slider_changes_its_picture(tab):
    tab.goto((DOCS / "gallery.html").as_uri())
    assert tab.wait_for_function(MOVES).json_value() < FIRST_MOTION
    places = tab.locator(".tpv-place")
    assert places.count() == 11
    for i in range(places.count()):
        place = places.nth(i)
        place.scroll_into_view_if_needed()
        place.locator("[data-ready]").wait_for()
        for knob in place.locator(".tpv-knobs :is(input, select)").all():
            names, drawn = knob.locator("option").all_inner_texts(), [look(place)]
            stops = len(names) or int(knob.get_attribute("max")) + 1
            for at in range(stops):
                knob.select_option(index=at) if names else knob.fill(str(at))
                tab.evaluate("() => new Promise(done => requestAnimationFrame(() => done()))")
                drawn.append(look(place))
            assert len(set(drawn)) == stops
            assert not any(name.isdigit() for name in names)  # a slider has numbers, a menu names
    ids = tab.evaluate("() => [...document.querySelectorAll('[id]')].map(node => node.id)")
    assert len(ids) == len(set(ids))


@pytest.mark.browser
@pytest.mark.parametrize("width", [1440, 900])
def test_no_control_changes_a_height(width, tab):
    """What is below a view never jumps: the tallest state has its place from the start."""
    tab.set_viewport_size({"width": width, "height": 900})
    tab.emulate_media(reduced_motion="reduce")
    tab.goto((DOCS / "gallery.html").as_uri())
    tab.wait_for_function("() => document.querySelectorAll('[data-ready]').length === 11")
    assert check_heights(tab) > 100


@pytest.mark.browser
def test_anybody_can_use_it(tab):
    """axe-core finds nothing serious; at 200 % nothing is beside the window; Tab reaches all."""
    tab.goto((DOCS / "gallery.html").as_uri())
    tab.wait_for_function("() => document.querySelectorAll('[data-ready]').length === 11")
    for scheme in ("light", "dark"):
        tab.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        found = Axe().run(tab).response["violations"]
        assert [v["id"] for v in found if v["impact"] in ("serious", "critical")] == []
    tab.set_viewport_size({"width": 720, "height": 450})  # a window of 1,440 x 900
    assert tab.evaluate("() => document.documentElement.scrollWidth") == 720
    everything = tab.locator(CONTROLS)
    reached = set()
    for _ in range(everything.count() + 20):
        tab.keyboard.press("Tab")
        here = "(all) => all.indexOf(document.activeElement)"
        reached.add(everything.evaluate_all(here))
    assert reached >= {*range(everything.count())}


def places(html):
    """What the places of views hold; zlib's versions pack it differently."""
    scripts = re.findall(r"data-view='\w+'><script type='text/plain'>([^<]*)<", html)
    return [json.loads(gzip.decompress(b64decode(script))) for script in scripts]


def look(place):
    """The picture's words: what playing does not change."""
    words = place.locator(".tpv-title, .tpv-picture").all_inner_texts()
    words += place.locator(".tpv-title").evaluate_all("all => all.map(title => title.title)")
    return re.sub(r"\s+", " ", " ".join(words))

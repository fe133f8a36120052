"""For the tests of the widgets: what those of figures and labs make up, and pages without
Python."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "figures"), str(TESTS / "labs")]
PAGE = "<!doctype html><meta charset=utf-8><link rel=icon href='data:,'><style>{}</style>{}{}"


@pytest.fixture(scope="session")
def _tabs(chromium):
    """{motion: a tab for it}, made when first asked for: a new tab takes longer than a page."""
    tabs = {}
    yield tabs
    for tab in tabs.values():
        tab.context.close()


@pytest.fixture
def page_of(chromium, _tabs, tmp_path):
    """Opens a page of views of a kind, each with a state of its traits, and gives its tab once all
    are drawn. In the end its console has said nothing."""
    from tpviz.figures.assets import stylesheet
    from tpviz.figures.page import place, scripts

    used, problems = [], []

    def hear(message):
        if message.type in ("error", "warning"):
            problems.append(message.text)

    def hear_error(error):
        problems.append(str(error))

    def opened(kind, states, motion="no-preference"):
        file = tmp_path / "page.html"
        file.write_text(
            PAGE.format(stylesheet(), "".join(place(kind, s) for s in states), scripts([kind]))
        )
        if motion not in _tabs:
            context = chromium.new_context(reduced_motion=motion, offline=True)
            _tabs[motion] = context.new_page()
        tab = _tabs[motion]
        used.append(tab)
        tab.on("console", hear)
        tab.on("pageerror", hear_error)
        tab.mouse.move(0, 0)  # an earlier test may have left it on what is to be drawn
        tab.goto(file.as_uri())
        tab.locator(f".tpv-{kind}[data-ready]").nth(len(states) - 1).wait_for()
        return tab

    yield opened
    for tab in used:
        tab.goto("about:blank")
        tab.remove_listener("console", hear)
        tab.remove_listener("pageerror", hear_error)
    assert problems == []

"""What tests of the evidence make up, and pages without Python."""

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(TESTS / "evidence"))
PAGE = "<!doctype html><meta charset=utf-8><link rel=icon href='data:,'><style>{}</style>{}{}"


@pytest.fixture
def page_of(tab, tmp_path):
    """Opens a page of views of a kind, each with a state of its traits, and gives its tab once all
    are drawn."""
    from tpviz.views.figures.assets import stylesheet
    from tpviz.views.figures.page import place, scripts

    def opened(kind, states, motion="no-preference"):
        file = tmp_path / "page.html"
        file.write_text(
            PAGE.format(stylesheet(), "".join(place(kind, s) for s in states), scripts([kind]))
        )
        tab.emulate_media(reduced_motion=motion)
        tab.goto(file.as_uri())
        tab.locator(f".tpv-{kind}[data-ready]").nth(len(states) - 1).wait_for()
        return tab

    return opened

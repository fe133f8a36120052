"""For the tests of the widgets: the made-up traces of tests/figures, and pages without Python."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "figures"))
PAGE = "<!doctype html><meta charset=utf-8><link rel=icon href='data:,'><style>{}</style>{}{}"


@pytest.fixture
def page_of(chromium, tmp_path):
    """Opens a page of views of a kind, each with a state of its traits, and gives its tab once all
    are drawn. In the end its console has said nothing."""
    from tpviz.figures.assets import stylesheet
    from tpviz.figures.page import place, scripts

    contexts, problems = [], []

    def opened(kind, states, motion="no-preference"):
        file = tmp_path / "page.html"
        file.write_text(
            PAGE.format(stylesheet(), "".join(place(kind, s) for s in states), scripts([kind]))
        )
        contexts.append(chromium.new_context(reduced_motion=motion, offline=True))
        tab = contexts[-1].new_page()
        tab.on("console", lambda m: m.type in ("error", "warning") and problems.append(m.text))
        tab.on("pageerror", lambda error: problems.append(str(error)))
        tab.goto(file.as_uri())
        tab.locator(f".tpv-{kind}[data-ready]").nth(len(states) - 1).wait_for()
        return tab

    yield opened
    for context in contexts:
        context.close()
    assert problems == []

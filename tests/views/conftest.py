"""Pages without Python."""

import pytest

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


@pytest.fixture
def one_height(tab):
    """Moves an exported view's slider at two widths: nothing changes its height, and the picture
    and its slider are seen together. moved : called at each stop."""

    def check(knob, stops, moved=lambda: None):
        for width in (1440, 900):
            tab.set_viewport_size({"width": width, "height": 900})
            high = set()
            for at in stops:
                tab.get_by_label(knob, exact=True).fill(str(at))
                tab.evaluate("() => new Promise(done => requestAnimationFrame(done))")
                moved()
                boxes = [tab.locator(name).bounding_box() for name in (".tpv", ".tpv-knobs")]
                high.add((boxes[0]["height"], boxes[1]["y"] + boxes[1]["height"] - boxes[0]["y"]))
            [(_, foot)] = high
            assert foot < 900

    return check

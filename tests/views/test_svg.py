import numpy as np
import pytest

from tpviz.views.figures.svg import amount, bars_path, document, fitted, image, seconds, text, ticks


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 s"),
        (2.5, "2.5 s"),
        (0.0123, "12.3 ms"),
        (4.5e-4, "450 µs"),
        (3e-9, "3 ns"),
        (0.9999, "1 s"),
    ],
)
def test_seconds(value, shown):
    assert seconds(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1500, "1.5 kB"),
        (2e6, "2 MB"),
        (3.21e9, "3.21 GB"),
        (4e12, "4 TB"),
    ],
)
def test_amount(value, shown):
    assert amount(value) == shown


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (0.013, 0.0271), (0.0, 3e-6), (5.0, 1234.5)])
def test_ticks_are_round_and_inside(low, high):
    found = ticks(low, high)
    assert 3 <= len(found) <= 17
    assert all(low - 1e-12 <= t <= high + 1e-9 for t in found)
    step = found[1] - found[0]
    assert f"{step:e}"[0] in "125"
    assert ticks(1.0, 1.0) == [1.0]


def test_a_path_has_a_box_per_bar():
    path = bars_path(np.array([0.0, 10.0]), np.array([5.0, 10.0]), 3, 8)
    assert path == "M0.00,3h5.00v8h-5.00zM10.00,3h0.30v8h-0.30z"


def test_documents_escape_words_and_keep_ids_of_pictures_apart():
    """What a page does not show draws nothing, so no picture may use another's patterns."""
    seen = set()
    for words, theme in (("a<b", "dark"), ("a<c", "dark"), ("a<b", "light")):
        body = text(0, 0, words) + "<g id='tpv-dots' fill='url(#tpv-dots)'/>"
        svg = document(10, 10, body, 'say "hi" & bye', theme, "1 < 2")
        assert f"{words.replace('<', '&lt;')}</text>" in svg and "<desc>1 &lt; 2</desc>" in svg
        assert "&quot;hi&quot; &amp; bye" in svg
        name = svg.split("<g id='")[1].split("'")[0]
        assert f"id='{name}' fill='url(#{name})'" in svg
        seen.add(name)
    assert len(seen) == 3


def test_the_same_picture_twice_in_a_notebook_has_ids_of_its_own_and_a_file_stays_as_it_was():
    twice = "<g id='tpv-dots'/>", ""
    assert document(10, 10, *twice, "page") != document(10, 10, *twice, "page")
    assert document(10, 10, *twice, "dark") == document(10, 10, *twice, "dark")


@pytest.mark.parametrize(("own", "most"), [(676, 946), (1000, 1050), (1200, 1200)])
def test_a_picture_grows_where_there_is_room(own, most):
    svg = document(own, 10, [], "a picture")
    assert f"height:auto;max-width:{most}px" in fitted(svg)
    assert f"min-width:{own}px;max-width:{most}px" in fitted(svg, 0)
    assert f"min-width:600px;max-width:{most}px" in image(document(own, 10, [], "one"), "", 600)

import pytest

import tpviz as tv
from tpviz.views.figures.assets import module
from tpviz.views.widgets import MicroscopeView
from tpviz.views.widgets.base import View


@pytest.fixture(scope="module")
def ring():
    return tv.microscope(world_size=3)


@pytest.fixture
def view(ring):
    return MicroscopeView(ring)


def test_repr_and_words(ring, view):
    assert (
        repr(view)
        == repr(MicroscopeView(ring))
        == ("<MicroscopeView ring all_reduce on 3 ranks, step 2 of 4>")
    )
    view.step = 4
    assert repr(view).endswith("the end, after 4 steps>")
    assert view.describe() == f"{ring.describe()} Shown: the end, after 4 steps."
    assert len(view.to_table()) == 1 + len(ring.messages)


def test_the_animation_has_the_recorded_sends(ring, view):
    """Step by step, what travels in the picture is what the trace says was sent."""
    for number, step in enumerate(view.scene["steps"]):
        sent = ring.trace.select(kind="comm", name="send", step=number)
        shown = sorted((f"{m['sender']},{m['receiver']}", m["place"], m["bytes"]) for m in step)
        assert shown == sorted(zip(*(sent[c].tolist() for c in ("members", "chunk", "bytes"))))


def test_the_static_twin_shows_the_step(view):
    assert "step 2 of 4" in view.to_svg()
    view.step = 2
    assert "step 3 of 4" in view.to_svg()
    assert view.to_svg(step=0, theme="dark") != view.to_svg()


def test_show_opens_where_sums_are_under_way_and_raises_the_generation(ring, view):
    view.step, before = 3, view.generation
    view.show(ring)
    assert (view.step, view.generation) == (1, before + 1)


def test_empty_and_wrong(ring):
    empty = MicroscopeView()
    assert (repr(empty), empty.to_svg(), empty.to_table()) == (
        "<MicroscopeView empty>",
        "",
        [["step"]],
    )
    assert "without" in empty.describe()
    with pytest.raises(ValueError, match=r"the result of tv.microscope\(...\), not 'ring'"):
        MicroscopeView("ring")
    with pytest.raises(TypeError, match="did you mean 'autoplay'"):
        MicroscopeView(ring, autoply=True)


def test_the_module_stands_alone():
    text = module("microscope")
    assert "import " not in text
    assert text.count("export default") == 1
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert issubclass(MicroscopeView, View)

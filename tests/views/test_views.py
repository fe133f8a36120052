import shutil
import subprocess
import threading
from base64 import b64encode
from html import escape

import ipywidgets
import pytest
import traitlets
from synthetic import synthetic_trace

from tpviz.core.mesh import Mesh
from tpviz.core.trace import Trace
from tpviz.views.figures.assets import FOLDER, module, stylesheet
from tpviz.views.widgets import MeshView, Timeline
from tpviz.views.widgets.base import View, shown

OWNERSHIP = [
    {
        "name": "up.weight",
        "shape": [8, 4],
        "splits": [{"dim": 0, "axis": "tp"}],
        "notation": "W[F_tp, D]",
    },
    {"name": "norm.bias", "shape": [4], "splits": [], "notation": "b[D]"},
]


@pytest.fixture
def timeline():
    return Timeline(synthetic_trace())


@pytest.fixture
def mesh():
    return MeshView(Mesh({"dp": 2, "tp": 2}), OWNERSHIP)


def test_repr_is_the_same_every_time(timeline, mesh):
    assert repr(timeline) == repr(Timeline(synthetic_trace())) == "<Timeline 4 ranks, 200 events>"
    assert repr(mesh) == "<MeshView dp 2 x tp 2, 4 ranks, rank 0>"
    assert (repr(Timeline()), repr(MeshView())) == ("<Timeline empty>", "<MeshView empty>")


def test_unknown_arguments_are_refused_with_the_nearest_name():
    with pytest.raises(
        TypeError, match="Timeline has no argument 'critcal'; did you mean 'critical'"
    ):
        Timeline(synthetic_trace(), critcal=True)
    with pytest.raises(TypeError, match="MeshView has no argument 'xyz'; it takes badge, mesh"):
        MeshView(Mesh({"tp": 2}), xyz=1)


def test_what_is_no_trace_or_mesh_is_refused_with_advice():
    with pytest.raises(ValueError, match=r"needs a Trace, not a list; Trace.merge\(traces\)"):
        Timeline([synthetic_trace()])
    with pytest.raises(ValueError, match=r"needs a Mesh such as .* not {'tp': 4}"):
        MeshView({"tp": 4})


def test_a_picture_that_cannot_be_drawn_is_refused(timeline):
    with pytest.raises(ValueError, match="width=0 px leaves the lanes no room: use more than 97"):
        timeline.to_svg(width=0)
    with pytest.raises(ValueError, match="parameter 'W' is not in this view; it has none"):
        MeshView(Mesh({"tp": 2})).to_svg(parameter="W")


def test_a_trace_without_events_is_an_error():
    with pytest.raises(ValueError, match="nothing to draw"):
        Timeline(Trace.from_events([]))


def test_views_have_their_static_twins(timeline, mesh):
    for view in (timeline, mesh):
        assert view.to_svg(theme="dark").startswith("<svg")
        assert len(view.to_table()) > 1
        assert "rank" in view.describe()
    for empty in (Timeline(), MeshView()):
        assert empty.to_svg() == ""
        assert len(empty.to_table()) == 1
        assert "without" in empty.describe()


def test_shown_as_a_picture_with_words_and_as_a_widget(timeline, monkeypatch):
    outputs = []
    show = lambda data, *more, **how: outputs.append(data | how)
    monkeypatch.setattr("IPython.display.publish_display_data", show)
    timeline._ipython_display_()
    still, live = outputs
    assert escape(timeline.describe()) in still["text/html"]
    assert b64encode(timeline.to_svg().encode()).decode() in still["text/html"]
    assert live["text/plain"] == repr(timeline)
    assert "application/vnd.jupyter.widget-view+json" in live
    Timeline()._ipython_display_()
    assert "<img" not in outputs[2]["text/html"] and "without a trace" in outputs[2]["text/html"]
    timeline.close()
    timeline._ipython_display_()
    assert "<img" in outputs[4]["text/html"] and "display:none" not in outputs[4]["text/html"]
    assert len(outputs) == 5


def test_generation_rises_last_and_once(timeline):
    order = []
    timeline.observe(
        lambda change: order.append(change.name), ["scene", "rank", "selected", "generation"]
    )
    before = timeline.generation
    timeline.show(synthetic_trace({"tp": 2}))
    assert order[-1] == "generation"
    assert order.count("generation") == 1
    assert timeline.generation == before + 1
    assert "scene" in order


def test_what_is_chosen_shows_in_the_static_twin(timeline, mesh):
    timeline.rank = 2
    assert "memory of rank 2" in timeline.to_svg()
    timeline.rank = 7  # linked to a mesh with more ranks than the trace
    assert "memory of rank 0" in timeline.to_svg()
    mesh.rank, mesh.parameter = 3, "norm.bias"
    assert "Rank 3 is at" in mesh.describe()
    assert ">norm.bias</text>" in mesh.to_svg()
    mesh.show(Mesh({"tp": 2}), OWNERSHIP[:1])
    assert (mesh.rank, mesh.parameter) == (0, "up.weight")


def test_a_failing_callback_is_shown_and_logged(timeline, caplog):
    class Broken(View):
        @shown
        def press(self):
            raise RuntimeError("no such rank")

        def _words(self):
            return "x"

    view = Broken()
    view.press()
    assert view.error == "RuntimeError: no such rank"
    assert view.generation == 1
    assert "callback of <Broken empty> failed" in caplog.text
    timeline.show_error("text")
    assert timeline.error == "text"
    timeline.show(synthetic_trace())
    assert timeline.error == ""


def test_updates_from_many_threads_lose_nothing(timeline):
    trace, before = synthetic_trace({"tp": 2}, layers=1, steps=1), timeline.generation
    threads = [threading.Thread(target=timeline.show, args=(trace,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert timeline.generation == before + 8


def test_views_take_no_figure_widget_and_no_network():
    assert issubclass(Timeline, ipywidgets.DOMWidget)
    for name in ("timeline", "mesh"):
        text = module(name)
        assert len(text.encode()) < 50_000
        assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
        assert "import " not in text
        assert text.count("export default") == 1
    assert "url(" not in stylesheet()


def test_synced_traits_are_the_ones_the_browser_reads():
    synced = {n for n in Timeline.class_trait_names(sync=True) if not n.startswith("_")}
    assert {"scene", "rank", "selected", "autoplay", "error", "generation"} <= synced
    assert isinstance(MeshView.parameter, traitlets.Unicode)


@pytest.mark.parametrize("name", ["timeline", "mesh"])
def test_javascript_parses(name, tmp_path):
    node = shutil.which("node")
    if node is None:
        pytest.skip("node is not installed: the browser tests cover the JavaScript")
    file = tmp_path / "view.mjs"
    file.write_text(module(name))
    assert subprocess.run([node, "--check", file], capture_output=True, text=True).stderr == ""


def test_javascript_files_stay_small():
    for file in FOLDER.glob("*.js"):
        assert len(file.read_text().splitlines()) < 300, file.name

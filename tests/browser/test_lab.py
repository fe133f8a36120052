"""The first notebooks in a real JupyterLab: all cells run, views draw and answer, no console error.

Under Lab's default setting; what the other one changes is tried with ``explore``.

Screenshots go to out/screenshots, for a person to look at.
"""

import pytest
from lab_page import lab_page, only, written

import tpviz as tv
from tpviz.views.widgets.dropped import CHUNK

pytestmark = pytest.mark.browser

TIMELINE, MESH = ".tpv-timeline[data-ready]", ".tpv-mesh[data-ready]"
RESULT = ".tpviz-result"


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_start(chromium, lab, tmp_path):
    """Views draw; a dropped trace is opened; the guess is kept; explore runs; keys work."""
    shown = "tv.Timeline(", "tv.Guess(", "tv.explore(", "tv.check("
    notebook = only(lab, "00_start.ipynb", *shown)
    with lab_page(chromium, lab.url, notebook) as page:
        first = page.view(TIMELINE)
        page.screenshot("start-timeline.png", first)
        play_with_keys(first)
        keeps_its_width(page, first)
        drop_a_trace(first, tmp_path)
        guess(page)
        page.screenshot("start-guess.png", page.locator(".tpviz-guess").first)
        explore(page)
        assert page.locator(RESULT).count() == 2
        page.screenshot("start-exercise.png", page.locator(RESULT).first)


def play_with_keys(timeline):
    """Space plays and pauses, arrows step from event to event: a new generation each time."""
    svg = timeline.locator("svg[role=application]")
    svg.focus()
    svg.press("Space")
    timeline.locator("button", has_text="Pause").wait_for()
    svg.press("Space")
    timeline.locator("button", has_text="Play").wait_for()
    before = timeline.generation()
    svg.press("ArrowRight")
    before = timeline.wait_past(before)
    said = timeline.locator(".tpv-live").text_content()
    svg.press("ArrowRight")
    timeline.wait_past(before)
    assert timeline.locator(".tpv-live").text_content() != said


def keeps_its_width(page, timeline):
    """Lab hides its panels when its theme changes: what is drawn then is drawn again."""
    svg = timeline.locator("svg[role=application]")
    before = svg.get_attribute("width")
    assert float(before) > 800
    page.darken()
    page.screenshot("start-dark.png", timeline)
    page.page.wait_for_function(
        "([svg, width]) => svg.getAttribute('width') === width", arg=[svg.element_handle(), before]
    )


def drop_a_trace(timeline, folder):
    """Its bytes go to the kernel in pieces; what is no trace is said, and the picture stays."""
    drop = """(view, [name, text]) => {
        const dataTransfer = new DataTransfer();
        dataTransfer.items.add(new File([text], name));
        view.dispatchEvent(new DragEvent("drop", {dataTransfer, bubbles: true, cancelable: true}));
    }"""
    trace = tv.simulate(tv.Megatron(tp=4), tv.GPT(), tv.clusters.nvswitch(4), steps=25)
    text = trace.to_chrome(folder / "run.json").read_text()
    assert len(text) > 2 * CHUNK
    timeline.root.evaluate(drop, ["run.json", text])
    timeline.locator(".tpv-badge", has_text="simulated").wait_for()
    timeline.locator(".tpv-metrics", has_text="median of 25").wait_for()
    timeline.root.evaluate(drop, ["cut.json", text[:1000]])
    timeline.locator(".tpv-error", has_text="cut.json: breaks at line 1").wait_for()


def guess(page):
    """What is no number is refused in the view; a committed guess stays."""
    box = page.locator(".tpviz-guess").first  # explore has some too
    field, button = box.locator("input"), box.locator("button")
    field.fill("many")
    button.click()
    box.get_by_text("a guess is a number").wait_for()
    field.fill("4")
    button.click()
    box.get_by_text("committed").wait_for()
    assert field.is_disabled()


def explore(page):
    """A slider redraws what follows from formulas; Run puts a new trace into the timeline."""
    box = page.locator(".jp-OutputArea-output", has=page.locator(".tpv-mesh"))
    mesh = page.view(MESH, box)
    before = mesh.generation()
    tp = box.locator(".noUi-handle").first
    tp.focus()
    tp.press("ArrowLeft")  # from 4: 3 does not divide the heads
    mesh.wait_past(before)
    assert mesh.locator("[data-rank]").count() == 2
    assert not box.locator(".tpv-timeline").is_visible()
    box.get_by_role("button", name="skip the guess").click()
    box.locator("button:enabled", has_text="Run").click()
    timeline = page.view(".tpv-timeline[data-ready]", box)
    box.get_by_text("measured: Megatron(tp=2").wait_for(timeout=60_000)
    page.screenshot("start-explore.png", mesh)
    page.screenshot("start-measured.png", timeline)


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_meshes(chromium, lab):
    """Click and arrow keys choose a rank in the mesh; a timeline of the learner's own program."""
    notebook = only(lab, "01_ranks_meshes_collectives.ipynb", "tv.MeshView(", "tv.Timeline(")
    with lab_page(chromium, lab.url, notebook) as page:
        mesh = page.view(MESH)
        before = mesh.generation()
        mesh.locator("[data-rank='3']").click()
        before = mesh.wait_past(before)
        assert mesh.locator("[data-rank='3']").get_attribute("aria-selected") == "true"
        page.screenshot("meshes-mesh.png", mesh)
        mesh.locator("svg[role=listbox]").press("ArrowLeft")
        mesh.wait_past(before)
        assert mesh.locator("[data-rank='2']").get_attribute("aria-selected") == "true"
        timeline = page.view(TIMELINE)
        play_with_keys(timeline)
        page.screenshot("meshes-timeline.png", timeline)


PROBE = """
import threading, ipywidgets
slider, label = ipywidgets.IntSlider(), ipywidgets.Label()
label.add_class("probe")
def moved(change):
    label.value += f"[{threading.current_thread().name}]"
slider.observe(moved, "value")
ipywidgets.VBox([slider, label])
"""
HEARD = "n => document.querySelector('.probe').textContent.split('[').length > n"


@pytest.mark.parametrize("lab", ["perCommTarget"], indirect=True)
def test_a_failing_cell_is_said(chromium, lab):
    """Else every test here would wait for the cells after it, and say nothing of why."""
    texts = "import sys\nprint('no error', file=sys.stderr)", "missing", "1"
    notebook = written(lab, "failing.ipynb", *texts)
    with lab_page(chromium, lab.url, notebook, run=False) as page:
        with pytest.raises(AssertionError, match="name 'missing' is not defined"):
            page.run_all(timeout_s=20)


def test_the_two_settings_differ_in_their_threads(chromium, lab):
    """Widget callbacks get a thread of their own with one setting, and not with the other."""
    with lab_page(chromium, lab.url, written(lab, "probe.ipynb", PROBE)) as page:
        handle = page.locator(".noUi-handle")
        handle.focus()
        for moves in range(1, 11):  # the first ones may come before Lab has made the thread
            handle.press("ArrowRight")
            page.page.wait_for_function(HEARD, arg=moves, timeout=10_000)
        threads = page.locator(".probe").text_content()
        assert ("subshell" in threads) == (lab.comms != "disabled")

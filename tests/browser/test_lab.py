"""Both notebooks in a real JupyterLab: all cells run, views draw and answer, no console error.

Screenshots go to out/screenshots, for a person to look at.
"""

import nbformat
import pytest
from conftest import SCREENSHOTS
from lab_page import lab_page

pytestmark = pytest.mark.browser

TIMELINE, MESH = ".tpv-timeline[data-ready]", ".tpv-mesh[data-ready]"
RESULT = ".tpviz-result"


@pytest.fixture
def start(browser, lab):
    with lab_page(browser, lab.url, "00_start.ipynb") as page:
        page.run_all()
        yield page
        assert page.problems == []


@pytest.fixture
def meshes(browser, lab):
    with lab_page(browser, lab.url, "01_ranks_meshes_collectives.ipynb") as page:
        page.run_all()
        yield page
        assert page.problems == []


def test_start(start, lab):
    """The notebook's views draw; the guess is kept; explore answers to knobs and runs; keys work."""
    first = start.view(TIMELINE)
    start.screenshot(SCREENSHOTS / f"start-timeline-{lab.comms}.png", first)
    play_with_keys(first)
    guess(start)
    start.screenshot(SCREENSHOTS / f"start-guess-{lab.comms}.png", start.page.locator(".tpviz-guess"))
    explore(start, lab)
    assert start.page.locator(RESULT).count() == 2
    start.screenshot(SCREENSHOTS / f"start-exercise-{lab.comms}.png", start.page.locator(RESULT).first)


def play_with_keys(timeline):
    """Space plays and pauses, arrows step from event to event; each step is a new generation."""
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


def guess(start):
    """A committed guess is fixed, and what is no number is refused in the view."""
    box = start.page.locator(".tpviz-guess")
    field, button = box.locator("input"), box.locator("button")
    field.fill("many")
    button.click()
    box.get_by_text("a guess is a number").wait_for()
    field.fill("4")
    button.click()
    box.get_by_text("committed").wait_for()
    assert field.is_disabled()


def explore(start, lab):
    """A slider redraws the formula's mesh; Run puts a new measured trace into the timeline."""
    box = start.page.locator(".jp-OutputArea-output", has=start.page.locator(".tpv-mesh"))
    mesh, timeline = start.view(MESH, box), start.view(".tpv-timeline", box)
    before, seen = mesh.generation(), timeline.text_content()
    handle = box.locator(".noUi-handle").first
    handle.focus()
    handle.press("ArrowLeft")
    mesh.wait_past(before)
    before = timeline.generation()
    box.get_by_role("button", name="Run").click()
    timeline.wait_past(before, timeout_s=60)
    box.get_by_text("measured").first.wait_for()
    assert timeline.text_content() != seen
    start.screenshot(SCREENSHOTS / f"start-explore-{lab.comms}.png", box)


def test_meshes(meshes, lab):
    """Click and arrow keys choose a rank in the mesh; the timeline and the hang's message are there."""
    mesh = meshes.view(MESH)
    before = mesh.generation()
    mesh.locator("[data-rank='3']").click()
    before = mesh.wait_past(before)
    assert mesh.locator("[data-rank='3']").get_attribute("aria-selected") == "true"
    meshes.screenshot(SCREENSHOTS / f"meshes-mesh-{lab.comms}.png", mesh)
    mesh.locator("svg[role=listbox]").press("ArrowLeft")
    mesh.wait_past(before)
    assert mesh.locator("[data-rank='2']").get_attribute("aria-selected") == "true"
    timeline = meshes.view(TIMELINE)
    play_with_keys(timeline)
    meshes.screenshot(SCREENSHOTS / f"meshes-timeline-{lab.comms}.png", timeline)
    hang = meshes.page.get_by_text("rank 2: finished").first
    meshes.screenshot(SCREENSHOTS / f"meshes-hang-{lab.comms}.png", hang)


PROBE = """
import threading, ipywidgets
slider, label = ipywidgets.IntSlider(), ipywidgets.Label()
def moved(change):
    label.value += f"[{threading.current_thread().name}]"
slider.observe(moved, "value")
ipywidgets.VBox([slider, label])
"""


def test_the_two_settings_differ_in_their_threads(browser, lab):
    """Callbacks run on a thread of their own with one setting, on the main thread with the other."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(PROBE)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, lab.folder / "probe.ipynb")
    with lab_page(browser, lab.url, "probe.ipynb") as page:
        page.run_all()
        handle = page.page.locator(".noUi-handle")
        handle.focus()
        for _ in range(3):
            handle.press("ArrowRight")
        said = page.page.locator(".widget-label", has_text="][").text_content()
        assert ("subshell" in said) == (lab.comms != "disabled")

"""AxoNN's cube, step by step, in a real JupyterLab.

Screenshots of both themes go to out/screenshots, for a person to look at.
"""

import nbformat
import pytest
from lab_page import lab_page

pytestmark = pytest.mark.browser

CUBE = "import tpviz as tv\ntv.GridView(tv.AxoNN(x=2, y=2, z=2), tv.GPT(batch=8), rank=5)"
VIEW = ".tpv-blocks[data-ready]"
DRAWN_ANEW = "([picture, old]) => picture.innerHTML !== old"
THEME = "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})"


def test_cube(chromium, lab):
    """Keys step and play; a click looks from another rank; knobs redraw, light, or say why not."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CUBE)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, lab.folder / "axonn.ipynb")
    with lab_page(chromium, lab.url, "axonn.ipynb") as page:
        view = page.view(VIEW)
        box = page.locator(".jp-OutputArea-output", has=page.locator(".tpv-blocks")).first
        keys_step(page, view, lab)
        click_chooses(view)
        plays(page, view)
        knobs(page, view, box, lab)
        in_the_dark(page, view, lab)


def lit(view):
    """Names of the known schemes that are lit."""
    return view.locator("[data-lit='true']").evaluate_all("all => all.map(e => e.dataset.case)")


def wait_lit(view, names):
    """Until these are lit; a slider may have the picture drawn twice."""
    view.root.page.wait_for_function(
        "([picture, names]) => [...picture.querySelectorAll('[data-lit=true]')]"
        ".map(e => e.dataset.case).join() === names",
        arg=[view.root.element_handle(), ",".join(names)])


def keys_step(page, view, lab):
    """Arrows step to a gather: its four groups flow, the next weight is sent for."""
    svg = view.locator("svg[role=application]")
    svg.focus()
    before = view.generation()
    svg.press("ArrowRight")
    view.wait_past(before)
    assert view.root.get_attribute("data-step") == "1"
    assert svg.locator("[data-rank]").count() == 8
    assert svg.locator("[data-group='z']").count() == 4
    assert "all-gather of W over z" in view.locator(".tpv-live").text_content()
    assert "Sent for ahead: W of out." in svg.text_content()
    assert lit(view) == ["near Colossal-AI 3D"]
    page.screenshot(f"cube-gather-{lab.comms}.png", view)


def click_chooses(view):
    """A rank to look from, through the kernel; a step of the strip, in the page."""
    svg, before = view.locator("svg[role=application]"), view.generation()
    seen = svg.inner_html()
    svg.locator("[data-rank='2']").click()
    view.root.page.wait_for_function(DRAWN_ANEW, arg=[svg.element_handle(), seen])
    assert view.wait_past(before + 1) > before  # the click, and the kernel's picture
    assert "weights of rank 2" in svg.text_content()
    svg.locator("[data-step='18']").click()
    view.root.page.wait_for_selector(f"{VIEW}[data-step='18']")


def plays(page, view):
    """Space plays and pauses; what communicates flows meanwhile."""
    svg = view.locator("svg[role=application]")
    svg.focus()
    svg.press("Space")
    page.page.wait_for_selector(f"{VIEW}.tpv-playing")
    page.page.wait_for_selector(f"{VIEW}[data-step='19']", timeout=15_000)
    flowing = view.locator(".tpv-flow").first
    assert flowing.evaluate("line => getComputedStyle(line).animationName") == "tpv-flow"
    svg.press("Space")
    view.locator("button", has_text="Play").wait_for()


def knobs(page, view, box, lab):
    """Sliders reach a grid that has a name, and one that does not fit; a check box redraws."""
    def slider(name):
        row = box.locator(f".widget-inline-hbox:has(> .widget-label:text-is('{name}'))")
        return row.locator(".noUi-handle").first

    before = view.generation()
    for name in ("x", "y"):
        slider(name).focus()
        slider(name).press("ArrowLeft")
        before = view.wait_past(before)
    wait_lit(view, ["ZeRO-2-like"])
    box.get_by_label("keep").uncheck()
    wait_lit(view, ["FSDP (ZeRO-3)"])
    box.get_by_label("oag").uncheck()
    view.locator(".tpv-title", has_text="overlap=('oar', 'ors')").wait_for()
    page.screenshot(f"cube-fsdp-{lab.comms}.png", box)
    slider("z").focus()
    slider("z").press("ArrowRight")
    view.locator(".tpv-error").get_by_text("batch=8 does not split evenly").wait_for()
    page.screenshot(f"cube-refused-{lab.comms}.png", box)


def in_the_dark(page, view, lab):
    page.page.evaluate(THEME, "JupyterLab Dark")
    page.page.wait_for_selector("body[data-jp-theme-light='false']", state="attached")
    page.page.wait_for_selector("#jupyterlab-splash", state="detached")
    page.screenshot(f"cube-dark-{lab.comms}.png", view)

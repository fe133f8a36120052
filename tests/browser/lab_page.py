"""Driving one notebook in JupyterLab: open it, run it, look at it.

Loading Lab, starting a kernel and importing torch take longer than most tests, so notebooks follow
one another in one page and one kernel, which is emptied after each.
"""

import ast
from base64 import b64encode
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
from playwright.sync_api import Error

from tpviz.views.figures.tokens import BACKGROUND

SCREENSHOTS = Path(__file__).parents[2] / "out" / "screenshots"

# Lab's own widget manager, of a notebook without kernel; heard late, maybe when the next is open.
NO_KERNEL = "Cannot read properties of null (reading 'kernel')"
CODE_CELL = ".jp-Notebook .jp-CodeCell"
PROMPTS = f"{CODE_CELL} .jp-InputArea-prompt"
KERNELS = "async () => (await fetch('/api/kernels')).json()"
OPEN = """async ([path, id, starts]) => {
    await window.jupyterapp.restored;
    const kernel = id ? {id} : undefined;
    const how = {path, kernel, kernelPreference: starts ? undefined : {shouldStart: false}};
    window.opened = await window.jupyterapp.commands.execute("docmanager:open", how);
}"""
SAVE = "() => window.opened.context.save()"
KERNEL_READY = """() => {
    const kernel = window.opened?.sessionContext?.session?.kernel;
    return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
# A kernel that is still at work is of a test that failed: it is ended.
LEAVE = """async code => {
    const {opened} = window, {session} = opened.sessionContext;
    if (session?.kernel?.status !== "idle")
        await session?.shutdown();
    else
        await session.kernel.requestExecute({code, silent: true, store_history: false}).done;
    opened.dispose();
}"""
EMPTY = "import ipywidgets; ipywidgets.Widget.close_all(); get_ipython().reset(new_session=False)"
RUN_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
DRAWN_ANEW = "([picture, old]) => picture.innerHTML !== old"
CHARTS = "div:has(+ details .tpviz-lab) > img.tpv-image"
GROUND = """async (chart, png) => {
    const image = new Image(), canvas = new OffscreenCanvas(1, 1).getContext("2d");
    image.src = "data:image/png;base64," + png;
    await image.decode();
    canvas.drawImage(image, -2, -image.height / 2); // Lab's edges have shadows
    const pixel = [...canvas.getImageData(0, 0, 1, 1).data.slice(0, 3)];
    return "#" + pixel.map(n => n.toString(16).padStart(2, "0").toUpperCase()).join("");
}"""
THEME = "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})"
ASTRAY = """() => [...document.querySelectorAll(".tpv-metrics")].filter(
    list => list.checkVisibility() && getComputedStyle(list).display !== "grid").length"""
NAMELESS = ".jp-OutputArea-output:has(.tpv-column) .noUi-handle:not([aria-label])"
# Lab shows what a cell writes to stderr alike; a traceback begins in red.
ERROR = ".jp-OutputArea-output[data-mime-type$='stderr']:has(.ansi-red-fg)"
ALL_DONE = """([prompts, error]) => {
    const texts = [...document.querySelectorAll(prompts)].map(p => p.textContent);
    const done = texts.length > 0 && texts.every(t => /\\[\\d+\\]/.test(t));
    return done || document.querySelector(error) !== null;
}"""


class LabPage:
    """A page with one notebook; ``problems`` collects what the browser's console calls an error."""

    def __init__(self, page):
        self.page, self.problems, self.locator = page, [], page.locator
        page.on("console", self._hear)
        page.on("pageerror", self._hear_error)

    def _hear(self, message):
        where = message.location.get("url", "")
        if message.type == "error" and not where.startswith(
            "attachment:"
        ):  # JupyterLab finds it later
            self.problems.append(f"{message.text} ({where})")

    def _hear_error(self, error):
        if str(error) != NO_KERNEL:
            self.problems.append(str(error))

    def deafen(self):
        """Hear no more: the page goes on to another notebook."""
        self.page.remove_listener("console", self._hear)
        self.page.remove_listener("pageerror", self._hear_error)

    def open(self, url, notebook, kernel=True):
        """Open a notebook in the page, with the kernel that is there, or with none."""
        if not self.page.url.startswith(url):
            self.page.goto(f"{url}/lab?reset")
            self.page.wait_for_function("window.jupyterapp !== undefined")
        kernels = self.page.evaluate(KERNELS) if kernel else []
        self.page.evaluate(OPEN, [notebook, kernels[0]["id"] if kernels else None, kernel])
        self.page.wait_for_selector(CODE_CELL)

    def leave(self):
        """Close the notebook, empty the kernel, and go back to Lab's light theme."""
        self.page.evaluate(LEAVE, EMPTY)
        if self.page.locator("body[data-jp-theme-light='false']").count():
            self._theme("Light")

    def save(self):
        """Save the notebook."""
        self.page.evaluate(SAVE)

    def run_all(self, timeout_s=45):
        """Run all cells and wait until each code cell has its number; fail with the first error."""
        self.page.wait_for_function(KERNEL_READY)  # until then, Lab would ask for a kernel
        self.page.evaluate(RUN_ALL)
        self.page.wait_for_function(ALL_DONE, arg=[PROMPTS, ERROR], timeout=timeout_s * 1000)
        errors = self.page.locator(ERROR).all_inner_texts()
        assert not errors, errors[0]

    def view(self, selector, inside=None):
        """The first view that matches, once it is drawn."""
        found = (inside or self.page).locator(selector).first
        found.wait_for()
        return View(found)

    def charts(self, words, name):
        """The page's charts are these: {what: a word of its text}, in their order; they stand on
        our ground of Lab's theme, light or dark."""
        charts = self.locator(CHARTS)
        for number, (what, word) in enumerate(words.items()):
            chart = charts.nth(number)
            chart.wait_for()
            assert word in chart.evaluate("chart => atob(chart.src.split(',')[1])")
            self.screenshot(f"{name}-{what.replace(' ', '-')}.png", chart)
        assert charts.count() == len(words)
        for darken in (False, True):
            if darken:
                self.darken()
                self.screenshot(f"{name}-dark.png", charts.last)
            for chart in charts.all():
                own = chart.evaluate(GROUND, b64encode(chart.screenshot()).decode())
                assert own == BACKGROUND["dark" if darken else "light"], own

    def darken(self):
        """Lab's dark theme."""
        self._theme("Dark")

    def _theme(self, name):
        self.page.evaluate(THEME, f"JupyterLab {name}")
        light = str(name == "Light").lower()
        self.page.wait_for_selector(f"body[data-jp-theme-light='{light}']", state="attached")
        self.page.wait_for_selector("#jupyterlab-splash", state="detached")

    def screenshot(self, name, around=None):
        """A picture of the window, with ``around`` (a view or a locator) scrolled into it."""
        if around is not None:
            getattr(around, "root", around).scroll_into_view_if_needed()
        self.page.screenshot(path=str(SCREENSHOTS / name))


class View:
    """One of our views: finds parts of it, and waits for its ``data-generation`` to grow."""

    def __init__(self, root):
        self.root = root
        self.locator, self.text_content = root.locator, root.text_content

    def generation(self):
        """How often the view has been drawn anew; 0 before the first time."""
        return int(self.root.get_attribute("data-generation") or 0)

    def wait_past(self, generation, timeout_s=15):
        """Wait until the view has drawn something newer; returns its generation."""
        self.root.page.wait_for_function(
            "([view, old]) => Number(view.dataset.generation) > old",
            polling="raf",
            arg=[self.root.element_handle(), generation],
            timeout=timeout_s * 1000,
        )
        return self.generation()

    # what blocks and the cube have in common: ranks to click, a strip of steps to play
    def look_from(self, rank, says):
        """A click on a rank, through the kernel, and the picture says so."""
        svg, before = self.locator("svg[role=application]"), self.generation()
        seen = svg.inner_html()
        svg.locator(f"[data-rank='{rank}']").click()
        self.root.page.wait_for_function(DRAWN_ANEW, arg=[svg.element_handle(), seen])
        assert self.wait_past(before + 1) > before  # the click, and the kernel's picture
        assert says in svg.text_content()

    def click_step(self, step):
        """A click on a step of the strip, in the page alone."""
        self.locator(f"[data-step='{step}']").first.click()
        self._at(step).wait_for()

    def plays(self, until, meanwhile=lambda: None):
        """Space plays until a step is reached, and pauses."""
        svg = self.locator("svg[role=application]")
        svg.focus()
        svg.press("Space")
        self.root.page.wait_for_selector(".tpv-blocks.tpv-playing")
        self._at(until).wait_for(timeout=15_000)
        meanwhile()
        svg.press("Space")
        self.locator("button", has_text="Play").wait_for()
        assert "tpv-playing" not in self.root.get_attribute("class")

    def _at(self, step):
        return self.root.page.locator(f".tpv-blocks[data-step='{step}']").first


def written(lab, name, *texts):
    """The name of a new notebook with a code cell of each text."""
    notebook = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, texts)])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, lab.folder / name)
    return name


def only(lab, notebook, *shown):
    """The name of a copy of a notebook with the statements that have one of the texts ``shown``,
    the name that their cell ends in, and the statements that these need.

    Where all notebooks run, the rest runs too; here it is about what is drawn."""
    book, needed = nbformat.read(lab.folder / notebook, as_version=4), set()
    for cell in reversed(book.cells):
        if cell.cell_type == "code":
            kept, here = [], any(one in cell.source for one in shown)
            for statement in reversed(ast.parse(cell.source).body):
                text = ast.get_source_segment(cell.source, statement)
                made, used = _names(statement)
                name = here and isinstance(getattr(statement, "value", None), ast.Name)
                if made & needed or name or any(one in text for one in shown):
                    kept.insert(0, text)
                    needed = needed - made | used
            cell.source = "\n".join(kept)
    book.cells = [cell for cell in book.cells if cell.source]
    copy = notebook.replace(".ipynb", "_pictures.ipynb")
    nbformat.write(book, lab.folder / copy)
    return copy


def _names(statement):
    """The names that a statement makes, and those that it uses."""
    made, used = set(), set()
    for node in ast.walk(statement):
        if isinstance(node, ast.alias):
            made.add((node.asname or node.name).split(".")[0])
        elif isinstance(node, ast.Name):
            (made if isinstance(node.ctx, ast.Store) else used).add(node.id)
    name = getattr(statement, "name", None)  # a function or a class keeps its others to itself
    return {name} if name else made, used


def close_pages(browser, url):
    """Close Lab's page, if there is one; the next notebook loads Lab anew."""
    for context in browser.contexts:
        if any(page.url.startswith(url) for page in context.pages):
            context.close()


@contextmanager
def lab_page(browser, url, notebook, timeout_s=45, run=True, kernel=True):
    """A page with ``notebook`` opened and run; at the end the browser's console must be clean.

    When something fails, a picture of the page stays in out/screenshots.
    """
    pages = [page for context in browser.contexts for page in context.pages]
    page = next((page for page in pages if page.url.startswith(url)), None)
    page = page or browser.new_context(viewport={"width": 1400, "height": 1000}).new_page()
    lab = LabPage(page)
    try:
        lab.open(url, notebook, kernel)
        if run:
            lab.run_all(timeout_s)
        yield lab
        assert not lab.problems, "\n".join(lab.problems)
        assert not lab.page.evaluate(ASTRAY), "numbers are not beside their labels"
        assert not lab.locator(NAMELESS).count(), "sliders beside a view have no names"
        lab.leave()
    except BaseException:
        lab.screenshot(f"failure-{notebook}.png")
        with suppress(Error):
            lab.leave()
        page.context.close()
        raise
    finally:
        lab.deafen()

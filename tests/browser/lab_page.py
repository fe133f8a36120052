"""Driving one notebook in JupyterLab: open it, run it, look at it."""

from contextlib import contextmanager
from pathlib import Path

import nbformat

SCREENSHOTS = Path(__file__).parents[2] / "out" / "screenshots"

CODE_CELL = ".jp-Notebook .jp-CodeCell"
PROMPTS = f"{CODE_CELL} .jp-InputArea-prompt"
KERNEL_READY = """() => {
    const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
    return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
RUN_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
DRAWN_ANEW = "([picture, old]) => picture.innerHTML !== old"
THEME = "name => window.jupyterapp.commands.execute('apputils:change-theme', {theme: name})"
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
        page.on(
            "console",
            lambda message: (
                message.type == "error"
                and self.problems.append(f"{message.text} ({message.location.get('url', '')})")
            ),
        )
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def open(self, url, notebook):
        self.page.goto(f"{url}/lab/tree/{notebook}?reset")
        self.page.wait_for_selector(CODE_CELL)

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

    def plots(self, words, name):
        """The page's plots are these and are drawn: {what: a word of its text}, in their order."""
        plots = self.locator(".js-plotly-plot")
        assert plots.count() == len(words)
        for number, (what, word) in enumerate(words.items()):
            plot = plots.nth(number)
            assert plot.locator(".main-svg").first.is_visible()
            assert word in plot.text_content()
            self.screenshot(f"{name}-{what.replace(' ', '-')}.png", plot)

    def darken(self):
        """Lab's dark theme."""
        self.page.evaluate(THEME, "JupyterLab Dark")
        self.page.wait_for_selector("body[data-jp-theme-light='false']", state="attached")
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


def without_ranks(lab, notebook, words=("run=", "tv.run(", "tv.verify(", "tv.check(")):
    """The name of a copy of a notebook without the cells that start ranks: those have any of the
    ``words``. Where all notebooks run, they run too; here it is about what is drawn."""
    whole = nbformat.read(lab.folder / notebook, as_version=4)
    whole.cells = [
        cell
        for cell in whole.cells
        if cell.cell_type != "code" or not any(word in cell.source for word in words)
    ]
    copy = notebook.replace(".ipynb", "_pictures.ipynb")
    nbformat.write(whole, lab.folder / copy)
    return copy


@contextmanager
def lab_page(browser, url, notebook, timeout_s=45):
    """A page with ``notebook`` opened and run; at the end the browser's console must be clean.

    When something fails, a picture of the page stays in out/screenshots.
    """
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    lab = LabPage(context.new_page())
    try:
        lab.open(url, notebook)
        lab.run_all(timeout_s)
        yield lab
        assert lab.problems == []
    except BaseException:
        lab.screenshot(f"failure-{notebook}.png")
        raise
    finally:
        context.close()

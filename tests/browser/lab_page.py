"""Driving one notebook in JupyterLab: open it, run it, look at it."""

from contextlib import contextmanager
from pathlib import Path

SCREENSHOTS = Path(__file__).parents[2] / "out" / "screenshots"

CODE_CELL = ".jp-Notebook .jp-CodeCell"
PROMPTS = f"{CODE_CELL} .jp-InputArea-prompt"
KERNEL_READY = """() => {
    const kernel = window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel;
    return kernel?.connectionStatus === "connected" && kernel.status === "idle";
}"""
RUN_ALL = "() => { window.jupyterapp.commands.execute('notebook:run-all-cells'); }"
ERROR = ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']"
ALL_DONE = """([prompts, error]) => {
    const texts = [...document.querySelectorAll(prompts)].map(p => p.textContent);
    const done = texts.length > 0 && texts.every(t => /\\[\\d+\\]/.test(t));
    return done || document.querySelector(error) !== null;
}"""


class LabPage:
    """A page with one notebook; ``problems`` collects what the browser's console calls an error."""

    def __init__(self, page):
        self.page, self.problems, self.locator = page, [], page.locator
        page.on("console", lambda message: message.type == "error" and self.problems.append(
            f"{message.text} ({message.location.get('url', '')})"))
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
            "([view, old]) => Number(view.dataset.generation) > old", polling="raf",
            arg=[self.root.element_handle(), generation], timeout=timeout_s * 1000)
        return self.generation()


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

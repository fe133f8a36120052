"""Driving one notebook in JupyterLab: open it, run it, look at it."""

from contextlib import contextmanager

CODE_CELL = ".jp-Notebook .jp-CodeCell"
PROMPTS = f"{CODE_CELL} .jp-InputArea-prompt"
ERROR = ".jp-OutputArea-output[data-mime-type='application/vnd.jupyter.error']"
ALL_DONE = """prompts => {
    const texts = [...document.querySelectorAll(prompts)].map(p => p.textContent);
    return texts.length > 0 && texts.every(t => /\\[\\d+\\]/.test(t));
}"""


class LabPage:
    """A page with one notebook; ``problems`` collects what the browser's console calls an error."""

    def __init__(self, page):
        self.page, self.problems = page, []
        page.on("console", lambda message: message.type == "error" and self.problems.append(
            f"{message.text} ({message.location.get('url', '')})"))
        page.on("pageerror", lambda error: self.problems.append(str(error)))

    def open(self, url, notebook):
        self.page.goto(f"{url}/lab/tree/{notebook}?reset")
        self.page.wait_for_selector(CODE_CELL)

    def run_all(self, timeout_s=90):
        """Run all cells and wait until every code cell has its number; fail with the first error
        shown."""
        self.page.click("text=Run >> nth=0")
        self.page.click('[data-command="runmenu:run-all"]')
        self.page.wait_for_function(ALL_DONE, arg=PROMPTS, timeout=timeout_s * 1000)
        errors = self.page.locator(ERROR).all_inner_texts()
        assert not errors, errors[0]

    def view(self, selector, inside=None):
        """The first view that matches, once it is drawn."""
        found = (inside or self.page).locator(selector).first
        found.wait_for()
        return View(found)

    def screenshot(self, path, around):
        """A picture of the whole window with ``around`` (a view or a locator) scrolled into it."""
        path.parent.mkdir(parents=True, exist_ok=True)
        getattr(around, "root", around).scroll_into_view_if_needed()
        self.page.screenshot(path=str(path))


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
def lab_page(browser, url, notebook):
    """A fresh page with ``notebook`` open in the Lab at ``url``."""
    context = browser.new_context(viewport={"width": 1400, "height": 1000})
    try:
        lab = LabPage(context.new_page())
        lab.open(url, notebook)
        yield lab
    finally:
        context.close()

"""The pages in the browser as their tests and their benchmark open them: the planner's built,
served and turned; a notebook of the JupyterLite site run."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tpviz.views.plans.planning import Planning

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))

import build_lab
import build_planner
from build_planner import PINNED, write_page

NUMPY = "TPVIZ_PYODIDE_NUMPY"
"""The variable with the path of NumPy's wheel for Pyodide, where it is given."""
WHICH = Path(os.environ.get("TPVIZ_PYODIDE", PINNED))
"""The file that says which Pyodide is tried."""
build = partial(build_planner.build, pyodide=WHICH)
PATIENCE = 90_000
"""Milliseconds for Python to start in the page, on a busy machine."""
SETTLED = """() => {
  const { settled, generation } = document.getElementById("planner").dataset;
  return settled === generation;
}"""
STARTED = "#planner[data-generation]"


def wheel() -> Path | None:
    """NumPy's wheel, or None where it is not given."""
    return Path(named) if (named := os.environ.get(NUMPY)) else None


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *told: Any) -> None:
        """Nothing."""


class _Asked(_Quiet):
    """Answers the calls of a `Planning`, for a page whose Python is this one."""

    planning: Planning

    def do_POST(self) -> None:
        """A method and its arguments; None is a new `Planning`."""
        name, *given = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if name is None:
            type(self).planning = Planning()
        said = json.dumps(name and getattr(self.planning, name)(*given)).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)


PYODIDE = """// Stands in for Pyodide: calls go to the Python that serves the page.
const ask = (...asked) => {
  const request = new XMLHttpRequest();
  request.open("POST", "/", false);
  request.send(JSON.stringify(asked));
  if (request.status !== 200) throw new Error(request.responseText);
  return { text: request.responseText, destroy() {} };
};
const planning = { get: (_, name) => (...given) => ask(name, ...given) };
const modules = {
  json: { dumps: ({ text }) => text },
  "tpviz.views.plans.planning": { Planning: () => ask(null) && new Proxy({}, planning) },
};
export const loadPyodide = async () => ({
  loadedPackages: { numpy: "here" }, toPy: (told) => told, pyimport: (name) => modules[name],
});
"""


def without_pyodide(folder: Path) -> Path:
    """The page in a folder, to be `served` with its ``python`` here, as Pyodide is not there."""
    (folder / "pyodide").mkdir(parents=True)
    (folder / "pyodide/pyodide.mjs").write_text(PYODIDE)
    return write_page(folder).parent


@contextmanager
def served(folder: Path, python: bool = False) -> Iterator[str]:
    """The address of a server of static files on this machine, until the end."""
    handler = _Asked if python else _Quiet
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def refusing(browser: Any, url: str) -> Iterator[tuple[Any, list[str]]]:
    """(page, addresses of requests to elsewhere): a tab in a context of its own, without cache, in
    which all requests but to this address are refused."""
    refused, context = [], browser.new_context()

    def route(request):
        if request.request.url.startswith(url):
            request.continue_()
        else:
            refused.append(request.request.url)
            request.abort()

    context.route("**/*", route)
    try:
        yield context.new_page(), refused
    finally:
        context.close()


@contextmanager
def opened(browser: Any, url: str) -> Iterator[tuple[Any, list[str], float]]:
    """(page, addresses of requests to elsewhere, seconds until Python answered): the page,
    `refusing` all requests to elsewhere."""
    with refusing(browser, url) as (page, refused):
        begun = time.perf_counter()
        page.goto(url)
        page.wait_for_selector(STARTED, timeout=PATIENCE)
        yield page, refused, time.perf_counter() - begun


def dragged(page: Any, name: str, by: int) -> float:
    """Milliseconds until the page shows what a slider that is moved by so many stops gives; then
    its controls have settled."""
    page.wait_for_function(SETTLED)
    taken = page.evaluate(
        """async ([name, by]) => {
          const page = document.getElementById("planner");
          const slider = page.querySelector(`[name="${name}"]`);
          const [before, begun] = [page.dataset.generation, performance.now()];
          slider.value = Number(slider.value) + by;
          slider.dispatchEvent(new Event("input", { bubbles: true }));
          while (page.dataset.generation === before) await new Promise(requestAnimationFrame);
          return performance.now() - begun;
        }""",
        [name, by],
    )
    page.wait_for_function(SETTLED)
    return taken


LITE = Path(__file__).parents[1] / "out/lite/bin/python"
"""The environment in which ``make site`` builds the JupyterLite site."""


def build_lite(folder: Path) -> Path:
    """The JupyterLite site in this folder, built as by ``make site`` in the environment that this
    makes."""
    command = [LITE, build_lab.__file__, "--to", folder, "--pyodide", WHICH]
    command += ["--numpy", numpy] if (numpy := wheel()) else []
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(LITE.parents[3])})
    return folder


@contextmanager
def running(browser: Any, url: str, notebook: str) -> Iterator[tuple[Any, list[str]]]:
    """(page, addresses of requests to elsewhere): a notebook of the JupyterLite site at this
    address, all of whose cells are being run; `refusing` all requests to elsewhere."""
    with refusing(browser, url) as (page, refused):
        page.goto(f"{url}lab/index.html?path={notebook}")
        page.wait_for_selector(".jp-Notebook", timeout=PATIENCE)
        page.wait_for_selector("text=Python (Pyodide) | Idle", timeout=PATIENCE)
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_text("Run All Cells", exact=True).click()
        yield page, refused


__all__ = ["LITE", "NUMPY", "WHICH", "build", "build_lab", "build_lite", "dragged", "opened"]
__all__ += ["refusing", "running", "served", "wheel", "without_pyodide"]

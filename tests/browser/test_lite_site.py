"""The JupyterLite site: what is on it; and that in Chromium, nothing loaded from elsewhere, a
kernel starts and imports tpviz as far as NumPy, and runs whole notebooks where NumPy's wheel is
given. The site is built as by ``make site``, in the environment that this makes."""

import hashlib
import json
import re
import shutil
from contextlib import contextmanager

import planner_page
import pytest
from planner_page import LITE, build_lab, build_lite, running

if not LITE.exists():
    pytest.skip("no out/lite, which make site fills", allow_module_level=True)
pytestmark = [pytest.mark.browser, pytest.mark.slow]
NOTEBOOK, IN_PART = "08_beat_the_cluster.ipynb", "00_start.ipynb"
FAILED = ", ".join(f"[data-mime-type='application/vnd.jupyter.{n}']" for n in ("error", "stderr"))
RAN = """() => {
  const cells = [...document.querySelectorAll(".jp-CodeCell .jp-InputPrompt")];
  return cells.length && cells.every((cell) => /\\d/.test(cell.textContent));
}"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    if not shutil.which("npm"):
        pytest.skip("no npm, of which Pyodide is fetched")
    return build_lite(tmp_path_factory.mktemp("site") / "lab")


def strings(value):
    """All strings in JSON."""
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from strings(one)
    elif isinstance(value, str):
        yield value


def test_its_wheels_and_notebooks_are_on_it(site):
    lock = json.loads((site / "pyodide/pyodide-lock.json").read_text())["packages"]
    assert lock.keys() >= {
        "tpviz",
        "ipywidgets",
        "anywidget",
        "psygnal",
        "ipython",
        "pyodide-kernel",
    }
    away = {name for name, one in lock.items() if one["file_name"].startswith("https://")}
    assert away == ({"numpy"} if planner_page.wheel() is None else set())
    for name in lock.keys() - away:
        wheel = (site / "pyodide" / lock[name]["file_name"]).read_bytes()
        assert hashlib.sha256(wheel).hexdigest() == lock[name]["sha256"], name
    assert {one for entry in lock.values() for one in entry["depends"]} <= lock.keys()
    asked = (build_lab.FILES / "lab.txt").read_text()
    hashes = re.findall(r"--hash=sha256:(\w{64})", asked)
    assert len(hashes) == asked.count("==") and {*hashes} <= {e["sha256"] for e in lock.values()}
    for notebook in build_lab.NOTEBOOKS:
        assert (site / "files" / notebook.name).read_text() == notebook.read_text()
    listed = json.loads((site / "api/contents/all.json").read_text())["content"]
    assert {entry["path"] for entry in listed} == {path.name for path in build_lab.NOTEBOOKS}


def test_its_settings_name_no_other_site(site):
    config = json.loads((site / "jupyter-lite.json").read_text())["jupyter-config-data"]
    kernel = config["litePluginSettings"]["@jupyterlite/pyodide-kernel-extension:kernel"]
    assert kernel["disablePyPIFallback"] is True
    assert [text for text in strings(config) if re.match(r"(https?:)?//", text)] == []


@contextmanager
def opened(chromium, site, notebook):
    """(page, addresses of requests to elsewhere), all of whose cells are being run."""
    with planner_page.served(site) as url, running(chromium, url, notebook) as page_and_refused:
        yield page_and_refused


def test_a_kernel_starts_and_imports_tpviz(chromium, site):
    if planner_page.wheel():
        pytest.skip("NumPy is there: whole notebooks are run")
    with opened(chromium, site, NOTEBOOK) as (page, refused):
        said = page.locator(".jp-CodeCell .jp-OutputArea-output:visible").first
        said.wait_for(timeout=planner_page.PATIENCE)
        assert [address.rpartition("/")[2][:6] for address in refused] == ["numpy-"]
        assert "site-packages/tpviz/" in said.inner_text()
        assert said.inner_text().strip().endswith("No module named 'numpy'")


@pytest.mark.parametrize("notebook", [NOTEBOOK, IN_PART])
def test_its_notebooks_run(chromium, site, notebook):
    """No cell fails; what needs ranks is left out, and says so."""
    if not planner_page.wheel():
        pytest.skip(f"{planner_page.NUMPY} does not name NumPy's wheel for Pyodide")
    with opened(chromium, site, notebook) as (page, refused):
        page.wait_for_function(RAN, timeout=2 * planner_page.PATIENCE)
        failed = page.locator(FAILED)
        assert failed.all_text_contents() == [] and refused == []
        said = page.locator(".jp-CodeCell .jp-OutputArea-output").all_text_contents()
        assert any("Not run here" in one for one in said) == (notebook == IN_PART)
        assert page.locator(".jp-CodeCell .tpviz-guess").count()

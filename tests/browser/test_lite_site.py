"""The JupyterLite site: what is on it; and that in Chromium, nothing loaded from elsewhere, a
kernel starts and imports tpviz as far as NumPy, which is there only where its wheel is given."""

import hashlib
import json
import re
import shutil
import time

import planner_page
import pytest

pytest.importorskip("jupyterlite_core")
import build_lab

pytestmark = [pytest.mark.browser, pytest.mark.slow]
NOTEBOOK = "08_beat_the_cluster.ipynb"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Its folder, and NumPy's wheel or None."""
    if not shutil.which("npm"):
        pytest.skip("no npm, of which Pyodide is fetched")
    return build_lab.build(tmp_path_factory.mktemp("site") / "lab", planner_page.wheel()).parent


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
    assert (site / "files" / NOTEBOOK).read_text() == build_lab.NOTEBOOKS[0].read_text()
    listed = json.loads((site / "api/contents/all.json").read_text())["content"]
    assert [entry["path"] for entry in listed] == [NOTEBOOK]


def test_its_settings_name_no_other_site(site):
    config = json.loads((site / "jupyter-lite.json").read_text())["jupyter-config-data"]
    kernel = config["litePluginSettings"]["@jupyterlite/pyodide-kernel-extension:kernel"]
    assert kernel["disablePyPIFallback"] is True
    assert [text for text in strings(config) if re.match(r"(https?:)?//", text)] == []


def test_a_kernel_starts_and_imports_tpviz(chromium, site):
    with (
        planner_page.served(site) as url,
        planner_page.refusing(chromium, url) as (page, refused),
    ):
        page.goto(f"{url}lab/index.html?path={NOTEBOOK}")
        page.wait_for_selector(".jp-Notebook", timeout=planner_page.PATIENCE)
        said = page.locator(".jp-CodeCell .jp-OutputArea-output").first
        end = time.monotonic() + planner_page.PATIENCE / 1000
        while not said.is_visible() and time.monotonic() < end:  # until a kernel takes the cell
            page.locator(".jp-CodeCell .cm-content").first.click()
            page.keyboard.press("Shift+Enter")
            page.wait_for_timeout(5_000)
        said = said.inner_text()
        if planner_page.wheel() is None:
            assert [address.rpartition("/")[2][:6] for address in refused] == ["numpy-"]
            assert "site-packages/tpviz/" in said
            assert said.strip().endswith("No module named 'numpy'")
            pytest.skip(f"its cells: {planner_page.NUMPY} does not name NumPy's wheel for Pyodide")
        assert refused == [] and "Error" not in said

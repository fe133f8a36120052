"""The planner's page in Chromium, nothing loaded from elsewhere: the numbers are those of Python
here. How fast it is, and how large: ``bench/bench_planner_page.py``."""

import gzip
import json
import shutil

import planner_page
import pytest

from tpviz.views.plans.planning import Planning

pytestmark = pytest.mark.browser
BYTES = 25e6
"""Of the page with all that it loads, compressed."""
SAME = 1e-12
"""Of a number: another C library rounds its logarithms otherwise."""


@pytest.fixture(scope="module")
def without_numpy(tmp_path_factory):
    """The page as it is deployed: NumPy is elsewhere."""
    if not shutil.which("npm"):
        pytest.skip("no npm, of which Pyodide is fetched")
    return planner_page.build(tmp_path_factory.mktemp("deployed"), None).parent


@pytest.fixture(scope="module")
def whole(tmp_path_factory, without_numpy):
    """The page with all that it needs."""
    if not planner_page.wheel():
        pytest.skip(f"{planner_page.NUMPY} does not name NumPy's wheel for Pyodide")
    return planner_page.build(tmp_path_factory.mktemp("whole"), planner_page.wheel()).parent


def sizes(folder):
    """{file: bytes, compressed}."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): len(gzip.compress(path.read_bytes())) for path in files}


def test_its_lock_has_hashes_and_nothing_of_ours_that_it_cannot_use(without_numpy):
    lock = json.loads((without_numpy / "pyodide/pyodide-lock.json").read_text())
    assert lock["packages"].keys() == {"numpy", "tpviz"}
    assert all(len(entry["sha256"]) == 64 for entry in lock["packages"].values())
    assert lock["packages"]["numpy"]["file_name"].startswith("https://")
    assert sum(sizes(without_numpy).values()) < BYTES - 5e6  # of which NumPy has 3 MB


def test_numpy_with_another_hash_is_refused(without_numpy, tmp_path):
    (wrong := tmp_path / "numpy.whl").write_bytes(b"another")
    with pytest.raises(ValueError, match=r"numpy\.whl has sha256 \w+, and must have \w+"):
        planner_page.build(tmp_path / "page", wrong)


def test_where_numpy_cannot_be_loaded_the_page_says_so(chromium, without_numpy):
    """Pyodide runs in its worker, checks our wheel and loads it; NumPy alone is missing."""
    with (
        planner_page.served(without_numpy) as url,
        planner_page.opened(chromium, url) as (page, refused, _),
    ):
        assert [address.rpartition("/")[2][:6] for address in refused] == ["numpy-"]
        said = "NumPy could not be loaded: see the console"
        assert page.locator("#planner .error").inner_text() == said
        assert page.locator("#planner .facts").is_hidden()


def test_numbers_in_the_page_are_those_here(chromium, whole):
    here = Planning()
    scene = here.scene()
    with (
        planner_page.served(whole) as url,
        planner_page.opened(chromium, url) as (page, refused, _),
    ):
        seen = page.locator("#planner")
        assert float(seen.get_attribute("data-seconds")) == pytest.approx(scene["seconds"], SAME)
        assert page.locator(".facts").inner_text() == scene["facts"]
        for name, by in {"tp": 1, "microbatches": -1, "GPUs": 1}.items():
            control = {c["name"]: c for c in here.controls()}[name]
            planner_page.dragged(page, name, by)
            scene = here.turn(name, control["at"] + by)
            shown = float(seen.get_attribute("data-seconds"))
            assert shown == pytest.approx(scene["seconds"], SAME)
            assert page.locator(".gave").inner_text() == scene["gave"]
        assert page.locator(".error").inner_text() == ""
        assert refused == []
    assert sum(sizes(whole).values()) < BYTES

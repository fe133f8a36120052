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
EVENT, WRITTEN = 50, 300
"""Milliseconds after which a page has seen that its address changed; has written it."""
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


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Of the page, whose Python is the one here."""
    folder = planner_page.without_pyodide(tmp_path_factory.mktemp("here"))
    with planner_page.served(folder, python=True) as url:
        yield url


@pytest.fixture
def page(chromium):
    """A tab that may ask this machine, with a clipboard of its own."""
    context = chromium.new_context()
    yield context.new_page()
    context.close()


def settled(page, address, again=True):
    """What the page shows at an address, once all is drawn and its address is written."""
    if again:
        page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector(planner_page.STARTED)
    return shown(page)


def shown(page):
    page.wait_for_timeout(EVENT)
    page.wait_for_function(planner_page.SETTLED)
    page.wait_for_timeout(WRITTEN)
    return page.evaluate(
        """() => ({
          seconds: document.getElementById("planner").dataset.seconds,
          facts: document.querySelector(".facts").textContent,
          error: document.querySelector(".error").textContent,
          ...Object.fromEntries([...document.querySelectorAll("fieldset label")].map((one) => {
            const input = one.querySelector("input, select");
            const words = input.ariaValueText ?? input.selectedOptions[0].text;
            return [input.name, words];
          })),
        })"""
    )


def test_a_link_opens_its_plan(page, address):
    first = settled(page, address)
    assert first["model"] == "llama2 70B" and page.url == address
    link = f"{address}#planner&planner.model=llama2 7B&planner.GPUs=100&planner.tp=4&planner.sp=yes"
    link += "&planner.cat=1&other.pp=4&planner.schedule=&planner.run+by=nobody"
    seen = settled(page, link)
    assert {name: seen[name] for name in ("model", "GPUs", "tp")} == {
        "model": "llama2 7B",
        "GPUs": "96",
        "tp": "4",
    }
    assert (seen["run by"], seen["error"]) == (first["run by"], "")
    assert page.url.endswith("nobody"), "a page that was only opened writes nothing"
    assert settled(page, f"{address}#%E0%A4%A=1&planner.model=%28&=&&planner") == first


def test_what_a_reader_moves_is_in_the_address(page, address):
    first = settled(page, address)
    visited = page.evaluate("history.length")
    page.locator("[name=strategy]").select_option("AxoNN")
    shown(page)
    planner_page.dragged(page, "GPUs", -2)
    seen, link = shown(page), page.url
    assert "#planner&planner.GPUs=" in link and "planner.strategy=AxoNN" in link
    assert page.evaluate("history.length") == visited
    assert settled(page, link) == seen
    assert page.url == link
    page.evaluate("location.hash = '#planner'")  # a link within the page
    assert shown(page) == seen and page.url == link
    page.evaluate("location.hash = '#planner&planner.GPUs=512'")  # a link that says a state
    assert shown(page) == first
    page.locator("[name=AdamW]").select_option(index=1)
    assert shown(page) != first and "planner.AdamW" in page.url
    page.locator("[name=AdamW]").select_option(index=0)  # as at first
    assert shown(page) == first and page.url == f"{address}#planner"


def test_in_a_frame_its_address_stays(page, address):
    page.goto(address)
    page.set_content(f"<iframe width=1200 height=800 src='{address}#planner&planner.tp=4'>")
    inside = page.frame_locator("iframe")
    inside.locator("[name=tp]").fill("0")
    [_, of_frame] = page.frames
    of_frame.wait_for_function(planner_page.SETTLED)
    page.wait_for_timeout(WRITTEN)
    assert of_frame.url == f"{address}#planner&planner.tp=4"


def test_open_in_notebook_has_the_cell_that_makes_the_plan(page, address):
    seen = settled(
        page, f"{address}#planner&planner.GPUs=64&planner.AdamW=all in 16 bits&planner.seq=2048"
    )
    page.get_by_role("button", name="open in notebook").click()
    cell = page.locator(".tpv-cell")
    assert cell.is_visible()
    made = {}
    exec(cell.text_content(), made)
    assert made["view"].prediction.step_time == float(seen["seconds"])
    assert made["view"].states.label == "all in 16 bits"
    assert seen["facts"].partition(")")[2] in made["view"].facts.value

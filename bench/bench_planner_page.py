"""The pages in Chromium: the planner's seconds to the first number, the answer to a first drag,
bytes; and a notebook's seconds to the first view on the JupyterLite site.

TPVIZ_PYODIDE_NUMPY=<NumPy's wheel for Pyodide> python bench/bench_planner_page.py

The JupyterLite site is built in the environment that ``make site`` makes, and left out without it.

Each page is new, in a context without a cache, and served from this machine.
"""

import gzip
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from chromium import CHROMIUM, CHROMIUM_FLAGS
from harness import report, row, timing
from planner_page import (
    LITE,
    NUMPY,
    PATIENCE,
    build,
    build_lite,
    dragged,
    opened,
    running,
    served,
    wheel,
)
from playwright.sync_api import sync_playwright

PAGES, DRAGS = 10, {"tp": 1, "pp": 1, "GPUs": 1, "batch": 1}
FIRST, DRAG, BYTES = 10.0, 100.0, 25e6  # s, ms, bytes
OPENED, VIEW, NOTEBOOK, VIEWED = 3, ".jp-OutputArea .tpv-column", "08_beat_the_cluster.ipynb", 30.0


def first_views(browser: Any, folder: Path) -> list[float]:
    """Seconds from a notebook's address to its first view, which the reader has asked to run."""
    found = []
    with served(build_lite(folder)) as url:
        for _ in range(OPENED):
            begun = time.perf_counter()
            with running(browser, url, NOTEBOOK) as (page, _):
                page.wait_for_selector(VIEW, timeout=PATIENCE)
                found.append(time.perf_counter() - begun)
    return found


def main() -> None:
    """Measure, and report."""
    numpy = wheel()
    if numpy is None:
        print(f"{NUMPY} does not name NumPy's wheel for Pyodide: nothing is measured")
        return
    with tempfile.TemporaryDirectory() as scratch, sync_playwright() as playwright:
        folder = build(Path(scratch, "page"), numpy).parent
        files = [path.read_bytes() for path in folder.rglob("*") if path.is_file()]
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        first, drags = [], {name: list[float]() for name in DRAGS}
        with served(folder) as url:
            for number in range(PAGES):
                with opened(browser, url) as (page, _, seconds):
                    first.append(seconds)
                    names = [*DRAGS][number % len(DRAGS) :] + [*DRAGS][: number % len(DRAGS)]
                    for place, name in enumerate(names):  # each knob is the first in some pages
                        taken = dragged(page, name, DRAGS[name]) / 1000
                        if place == 0:
                            drags[name].append(taken)
        views = first_views(browser, Path(scratch, "lab")) if LITE.exists() else []
        browser.close()
    report(
        "planner_page",
        f"The planner's page in Chromium, {PAGES} times",
        [
            timing("first number", first, "s", bound=FIRST),
            *(timing(f"first drag, {n}", each, bound=DRAG) for n, each in drags.items()),
            *([timing("JupyterLite: first view", views, "s", bound=VIEWED)] if views else []),
            row("all files", sum(len(gzip.compress(f)) for f in files) / 1e6, "MB", BYTES / 1e6),
        ],
    )


if __name__ == "__main__":
    main()

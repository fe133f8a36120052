"""Draw the README's first picture, and that of notebook 00, from runs on an emulated cluster:
``make picture``."""

import json
import sys
from base64 import b64encode
from pathlib import Path

import tpviz as tv
from tpviz.views import gallery

DOCS = Path(__file__).parent
sys.path.insert(0, str(DOCS.parent / "tests"))

from chromium import CHROMIUM, CHROMIUM_FLAGS  # noqa: E402

NOTEBOOK = DOCS.parent / "notebooks" / "00_start.ipynb"
NAME, WIDTH = "first.png", 840


def main() -> None:
    """Two data-parallel halves, each of two tensor-parallel ranks; one step, after a warm-up."""
    strategy = next(iter(gallery.PARALLELISM.values()))
    trace = tv.run(strategy, gallery.WORKLOAD, gallery.box(), steps=1)
    path = DOCS / "img" / "first_run.svg"
    path.parent.mkdir(exist_ok=True)
    path.write_text(tv.Timeline(trace).to_svg(width=WIDTH))
    print(f"{path.relative_to(Path.cwd())}: {len(trace)} events, {trace.badge}")
    attach()
    tv.shutdown()


def attach() -> None:
    """Put the timeline that notebook 00 makes into its first cell, as a PNG: JupyterLab shows no
    attached SVG."""
    strategy, box = tv.Megatron(tp=4), tv.clusters.nvlink_pairs(pairs=2).scale_model(hidden=32)
    trace = tv.run(strategy, tv.GPT(), tv.in_slow_motion(strategy, tv.GPT(), box))
    png = b64encode(photograph(tv.Timeline(trace).to_svg(width=WIDTH, theme="light"))).decode()
    book = json.loads(NOTEBOOK.read_text())
    book["cells"][0]["attachments"] = {NAME: {"image/png": png}}
    NOTEBOOK.write_text(json.dumps(book, indent=1, ensure_ascii=False) + "\n")
    print(f"{NOTEBOOK.name}: {len(png) // 1000} kB")


def photograph(svg: str) -> bytes:
    """A picture as PNG, by Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        page.set_content(f"<body style='margin:0'>{svg}</body>")
        png = page.locator("svg").first.screenshot(type="png")
        browser.close()
    return png


if __name__ == "__main__":
    main()

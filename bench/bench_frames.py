"""The frames of each view that plays, in Chromium: how many a second, the longest, what one costs.

Plays the views of docs/gallery.html and a timeline of 5,000 events, each for some seconds; a mesh
goes to another rank at every frame. What a frame costs is processor time of the page's main thread:
script, style and layout; and all of it, with painting.
"""

import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import mean, quantiles
from typing import Any

from bench_timeline import CHROMIUM, CHROMIUM_FLAGS, made_up_trace
from harness import report, row, timing

import tpviz as tv
from tpviz.core.mesh import Mesh
from tpviz.views.figures.page import page as page_of

GALLERY = Path(__file__).resolve().parents[1] / "docs" / "gallery.html"
ROUNDS, SECONDS = 5, 3
KINDS = "all => all.map(place => place.dataset.view)"
READY = "() => !document.querySelector('.tpv-place:not(:has([data-ready]))')"
WORK, ALL = ("ScriptDuration", "RecalcStyleDuration", "LayoutDuration"), ("TaskDuration",)
PLAY = """async (place, seconds) => {
  for (const on of document.querySelectorAll(".tpv-playing button[aria-label=Pause]")) on.click();
  const play = place.querySelector("button[aria-label=Play]"), view = place.querySelector(".tpv");
  const ranks = place.querySelector("svg[role=listbox]");
  const key = (key) => ranks.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  if (!play && !ranks) return [];
  const frame = () => new Promise(requestAnimationFrame), taken = [], start = await frame();
  let before = start, moves = 0;
  while (before - start < 1000 * seconds) {
    if (!play) key(moves++ % 8 < 7 ? "ArrowRight" : "Home");
    else if (!view.classList.contains("tpv-playing")) play.click();
    const now = await frame();
    taken.push((now - before) / 1000);
    before = now;
  }
  place.querySelector("button[aria-label=Pause]")?.click();
  return taken;
}"""


def played(page: Any, session: Any, place: Any, seconds: float) -> list[list[float]]:
    """Seconds of each frame of a view, and, mean of a frame, of script, style and layout and of the
    main thread; [[], ...] of a view that does not play."""

    def spent():
        found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        return [sum(found[name] for name in names) for names in (WORK, ALL)]

    page.bring_to_front()
    place.scroll_into_view_if_needed()
    before = spent()
    frames = place.evaluate(PLAY, seconds)
    return [frames, *([(b - a) / max(len(frames), 1)] for a, b in zip(before, spent()))]


def opened(browser: Any, path: Path) -> dict[str, tuple[Any, Any, Any]]:
    """{kind and number: arguments of `played`} of a page's views."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_function(READY)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    places, seen, found = page.locator(".tpv-place"), defaultdict(int), {}
    for i, kind in enumerate(places.evaluate_all(KINDS)):
        seen[kind] += 1
        found[f"{kind} {seen[kind]}"] = page, session, places.nth(i)
    return found


def rows_of(name: str, runs: list[list[list[float]]]) -> Iterator[dict[str, Any]]:
    """A view's frames a second and its slow frames, and what one costs, of several `played`."""
    frames, work, whole = ([*chain.from_iterable(each)] for each in zip(*runs))
    yield row(f"{name}: frames", 1 / mean(frames), "/s")
    yield row(f"{name}: 99 of 100 frames within", 1e3 * quantiles(frames, n=100)[98], "ms")
    yield row(f"{name}: longest frame", 1e3 * max(frames), "ms")
    yield timing(f"{name}: script, style and layout of a frame", work)
    yield timing(f"{name}: main thread of a frame", whole)


def main() -> None:
    """Measure and report."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        timeline, mesh = Path(folder) / "timeline.html", Path(folder) / "mesh.html"
        timeline.write_text(page_of(made_up_trace()))
        tv.MeshView(Mesh({"dp": 2, "pp": 2, "tp": 2})).to_html(mesh)
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        views: dict[str, tuple[Any, Any, Any]] = {}
        for path in (GALLERY, timeline, mesh):  # alone, for a page's views share the chosen rank
            views |= opened(browser, path)
        runs = {
            name: [played(*view, SECONDS) for _ in range(ROUNDS)] for name, view in views.items()
        }
        browser.close()
    found = [line for name, each in runs.items() if each[0][0] for line in rows_of(name, each)]
    report("frames", "Views that play, in Chromium", found)


if __name__ == "__main__":
    sys.exit(main())

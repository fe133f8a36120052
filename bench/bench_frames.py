"""The frames of each view in Chromium, while it plays and while its knob is dragged: how long they
take, and what one costs. Chromium draws in software here (``--disable-gpu``).

    python bench/bench_frames.py [CHECKOUT]

Plays the views of docs/gallery.html and a timeline of 5,000 events, each for some seconds; a mesh
goes to another rank at every frame. A knob moves at every frame. What a frame costs is processor
time of the page's main thread: script, style and layout; and all of it, with painting. An empty
page says how often the browser draws at most. CHECKOUT : a folder with another revision, whose
views take turns with these; the ratios are here over there.
"""

import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any

from bench_timeline import CHROMIUM, CHROMIUM_FLAGS, made_up_trace
from harness import report, row, timing

import tpviz as tv
from tpviz.core.mesh import Mesh
from tpviz.views.figures.page import page as page_of

HERE = Path(__file__).resolve().parents[1]
ROUNDS, SECONDS = 5, 3
WRITE = "--write"
KINDS = "all => all.map(place => place.dataset.view)"
READY = "() => !document.querySelector('.tpv-place:not(:has([data-ready]))')"
WORK, ALL = ("ScriptDuration", "RecalcStyleDuration", "LayoutDuration"), ("TaskDuration",)
PLAY = """async (place, [seconds, how]) => {
  for (const on of document.querySelectorAll(".tpv-playing button[aria-label=Pause]")) on.click();
  const play = place.querySelector("button[aria-label=Play]"), view = place.querySelector(".tpv");
  const ranks = place.querySelector("svg[role=listbox]");
  const knob = place.querySelector(".tpv-knobs :is(input, select)");
  const key = (key) => ranks.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true }));
  if (how === "knob" ? !knob : how === "play" && !play && !ranks) return [];
  const act = {
    play: () => { if (!view.classList.contains("tpv-playing")) play.click(); },
    choose: (move) => key(move % 8 < 7 ? "ArrowRight" : "Home"),
    knob: (move) => {
      const stops = (knob.options?.length ?? Number(knob.max) + 1) - 1, at = move % (2 * stops);
      knob.value = at > stops ? 2 * stops - at : at; // there and back
      knob.dispatchEvent(new Event("input"));
    },
    none: () => {},
  }[how === "play" && !play ? "choose" : how];
  const frame = () => new Promise(requestAnimationFrame), taken = [], start = await frame();
  for (let before = start, moves = 1; before - start < 1000 * seconds; moves++) {
    act(moves);
    const now = await frame();
    taken.push((now - before) / 1000);
    before = now;
  }
  place.querySelector("button[aria-label=Pause]")?.click();
  return taken;
}"""


def played(page: Any, session: Any, place: Any, how: str) -> list[list[float]]:
    """Seconds of each frame of a view, and, mean of a frame, of script, style and layout and of the
    main thread; [[], ...] of a view that does not play, or has no knob. how : "play", "knob" or
    "none"."""

    def spent():
        found = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
        return [sum(found[name] for name in names) for names in (WORK, ALL)]

    page.bring_to_front()
    place.scroll_into_view_if_needed()
    before = spent()
    frames = place.evaluate(PLAY, [SECONDS, how])
    return [frames, *([(b - a) / max(len(frames), 1)] for a, b in zip(before, spent()))]


def opened(browser: Any, path: Path) -> dict[str, tuple[Any, Any, Any]]:
    """{page, kind and number: arguments of `played`} of a page's views."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    page.goto(path.as_uri())
    page.wait_for_function(READY)
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    places, seen, found = page.locator(".tpv-place"), defaultdict(int), {}
    for i, kind in enumerate(places.evaluate_all(KINDS)):
        seen[kind] += 1
        found[f"{path.stem}, {kind} {seen[kind]}"] = page, session, places.nth(i)
    return found


def write(folder: Path) -> None:
    """The pages that are no part of the gallery: in the folder, of the tpviz that is imported."""
    (folder / "timeline.html").write_text(page_of(made_up_trace()))
    tv.MeshView(Mesh({"dp": 2, "pp": 2, "tp": 2})).to_html(folder / "mesh.html")


def views_of(browser: Any, checkout: Path, folder: Path) -> dict[str, tuple[Any, Any, Any]]:
    """{page, kind and number: arguments of `played`} of a checkout. folder : for other pages."""
    folder.mkdir()
    command = [sys.executable, __file__, WRITE, str(folder)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(checkout)})
    pages = checkout / "docs" / "gallery.html", folder / "timeline.html", folder / "mesh.html"
    found: dict[str, tuple[Any, Any, Any]] = {}
    for path in pages:  # alone, for a page's views share the chosen rank
        found |= opened(browser, path)
    return found


def rows_of(name: str, runs: list[list[list[float]]]) -> Iterator[dict[str, Any]]:
    """A view's frames, and what one costs, of several `played`."""
    frames, work, whole = ([*chain.from_iterable(each)] for each in zip(*runs))
    yield row(f"{name}: frames", 1 / mean(frames), "/s")
    yield timing(f"{name}: frame, median", frames)
    yield row(f"{name}: 95 of 100 frames within", 1e3 * quantiles(frames, n=20)[18], "ms")
    yield row(f"{name}: longest frame", 1e3 * max(frames), "ms")
    yield timing(f"{name}: script, style and layout of a frame", work)
    yield timing(f"{name}: main thread of a frame", whole)


def compared(name: str, here: list[Any], there: list[Any]) -> Iterator[dict[str, Any]]:
    """Frames a second and the main thread's time of a frame, here over there: medians of rounds."""
    rates = [mean(a[0]) / mean(b[0]) for a, b in zip(there, here)]
    costs = [a[2][0] / b[2][0] for a, b in zip(here, there)]
    yield row(f"{name}: frames a second, here over there", median(rates), "x", samples=rates)
    yield row(f"{name}: main thread of a frame, here over there", median(costs), "x", samples=costs)


def main() -> None:
    """Measure and report."""
    from playwright.sync_api import sync_playwright

    checkouts = dict(zip(("", " (there)"), [HERE, *(Path(arg).resolve() for arg in sys.argv[1:2])]))
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        blank = browser.new_page()
        session = blank.context.new_cdp_session(blank)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})
        views = [
            views_of(browser, path, Path(folder) / str(number))
            for number, path in enumerate(checkouts.values())
        ]
        found = [*rows_of("empty page", [played(blank, session, blank.locator("body"), "none")])]
        for name, how in ((n, h) for n in views[0] for h in ("play", "knob")):
            sides = {which: at[name] for which, at in zip(checkouts, views) if name in at}
            runs = defaultdict(list)
            for turn in range(ROUNDS):
                for which in sides if turn % 2 else [*sides][::-1]:
                    runs[which].append(played(*sides[which], how))
            runs = {which: each for which, each in runs.items() if each[0][0]}
            for which, each in runs.items():
                found += rows_of(f"{name}, {how}{which}", each)
            if len(runs) == 2:
                found += compared(f"{name}, {how}", *(runs[which] for which in checkouts))
        browser.close()
    report("frames", "Views that play, in Chromium with software rendering", found)


if __name__ == "__main__":
    if sys.argv[1:2] == [WRITE]:
        write(Path(sys.argv[2]))
    else:
        main()

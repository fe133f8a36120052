"""Our views in marimo, tried in Chromium: ``make hub-check``.

marimo goes into an environment of its own beside .venv. A small notebook has a run on two real
ranks, its ledger, its timeline, and a view that Python draws anew when one clicks on a rank.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

from beside import environment, watched
from playwright.sync_api import Error, sync_playwright

from hub import answers, free_ports, wait

PACKAGE = "marimo==0.25.2"
NOTEBOOK = """import marimo

app = marimo.App(width="full")


@app.cell
def _():
    import marimo as mo
    import tpviz as tv

    small = tv.GPT(layers=1, hidden=16, heads=4, seq=8, batch=4, vocab=32)
    trace = tv.run(tv.Megatron(tp=2), small, steps=1, progress=False)
    return mo, small, trace, tv


@app.cell
def _(trace):
    trace.ledger()


@app.cell
def _(mo, trace, tv):
    mo.ui.anywidget(tv.Timeline(trace))


@app.cell
def _(mo, small, tv):
    blocks = mo.ui.anywidget(tv.BlocksView(tv.ATP(mesh=(2, 2)), small).picture)
    blocks
    return (blocks,)


@app.cell
def _(blocks, mo):
    mo.md(f"chosen in Python: rank {blocks.value['rank']}")
"""


def main() -> None:
    """Exit code 1, with what is wrong, where something is."""
    start = monotonic()
    try:
        with watched("marimo") as (folder, env):
            python = environment(folder / "venv", PACKAGE) / "python"
            print(f"marimo: {PACKAGE} installed, {monotonic() - start:.0f} s", flush=True)
            (folder / "small.py").write_text(NOTEBOOK)
            with served(folder, env, python) as address:
                look(address)
            print(f"marimo: views are drawn and answer, {monotonic() - start:.0f} s", flush=True)
    except (subprocess.SubprocessError, AssertionError, OSError, Error) as error:
        sys.exit(f"marimo: FAILED: {error}")


@contextmanager
def served(folder: Path, env: dict[str, str], python: Path) -> Iterator[str]:
    """The address of the notebook, when marimo answers; it ends with the block."""
    [port] = free_ports(1)
    how = ["--headless", "--no-token", "--host=127.0.0.1", f"--port={port}"]
    server = subprocess.Popen(
        [python, "-m", "marimo", "run", "small.py", *how],
        cwd=folder,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        start_new_session=True,
    )
    address = f"http://127.0.0.1:{port}/"
    try:
        wait(lambda: server.poll() is not None or answers(address), 90, "no marimo")
        yield address
    finally:
        server.send_signal(signal.SIGINT)
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def look(address: str) -> None:
    """The views are drawn, the timeline answers a key, and a click on a rank reaches Python."""
    from chromium import CHROMIUM, CHROMIUM_FLAGS
    from lab_page import View

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        page = browser.new_page(viewport={"width": 1280, "height": 1600})
        page.set_default_timeout(60_000)
        page.goto(address)
        timeline = View(page.locator(".tpv-timeline[data-ready]"))
        timeline.root.wait_for()
        page.get_by_text("all_reduce").first.wait_for()
        svg, before = timeline.locator("svg[role=application]"), timeline.generation()
        svg.focus()
        svg.press("ArrowRight")
        assert timeline.wait_past(before) > before
        View(page.locator(".tpv-blocks[data-ready]")).look_from(2, "not on rank 2")
        page.get_by_text("chosen in Python: rank 2").wait_for()
        browser.close()


if __name__ == "__main__":
    main()

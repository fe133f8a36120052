"""Voila: a notebook as a page with a kernel of its own, where the views live too."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time

import nbformat
import pytest

VOILA = shutil.which("voila")
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(VOILA is None, reason="no voila: pip install voila anywidget"),
]
CELLS = (
    "import tpviz as tv\ntv.Timeline(tv.simulate(tv.Megatron(tp=2), tv.GPT(), "
    "tv.clusters.nvswitch(2)))",
    "tv.ScheduleView('1f1b', p=2, m=2)",
)
VIEWS = ".tpv-timeline[data-ready]", ".tpv-schedule[data-ready]"


@pytest.fixture
def voila(tmp_path):
    """The address of a Voila that serves a notebook, with this Python as its kernel."""
    kernel = tmp_path / "data/kernels/python3"
    kernel.mkdir(parents=True)
    argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(
        json.dumps({"argv": argv, "display_name": "Python 3", "language": "python"})
    )
    book = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, CELLS)])
    book.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, tmp_path / "views.ipynb")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = tmp_path / "voila.log"
    command = [VOILA, "views.ipynb", "--no-browser", f"--port={port}", "--Voila.ip=127.0.0.1"]
    own = {"JUPYTER_PATH": str(tmp_path / "data"), "JUPYTER_CONFIG_DIR": str(tmp_path / "config")}
    with log.open("w") as out:
        server = subprocess.Popen(
            command, cwd=tmp_path, env={**os.environ, **own}, stdout=out, stderr=out,
            start_new_session=True,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 60
        while "is running at" not in log.read_text():
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=20)


def test_views_live_in_voila(chromium, voila):
    """They are drawn, answer to a key, and no script fails."""
    page, errors = chromium.new_page(), []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        page.goto(voila)
        for selector in VIEWS:
            page.locator(selector).wait_for(timeout=60_000)
        assert page.locator(".jupyter-widgets-error-widget").count() == 0
        assert not page.locator(".tpv-still").first.is_visible()
        timeline = page.locator(VIEWS[0])
        timeline.locator("svg[role=application]").press("ArrowRight")
        page.wait_for_function(
            "view => Number(view.dataset.generation) > 1", arg=timeline.element_handle()
        )
        assert errors == []
    finally:
        page.close()

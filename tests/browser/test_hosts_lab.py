"""JupyterLab on one host, ranks on another: a notebook runs, verifies and explores across them."""

import tempfile
from pathlib import Path

import pytest
from bed import hosts
from chromium import CHROMIUM, CHROMIUM_FLAGS
from lab_page import SCREENSHOTS, lab_page, written
from lab_server import Lab, start_lab, stop_lab
from test_explore_lab import guess
from test_use_hosts import cluster

pytest.importorskip("ipyparallel")
pytestmark = pytest.mark.browser

USE = """
import socket
import ipyparallel
import tpviz as tv
client = ipyparallel.Client({file!r})
client.wait_for_engines(1, timeout=60)
tv.use(client)
plan, gpt = tv.Megatron(tp=2) * tv.DataParallel(dp=2), tv.GPT(layers=1, hidden=16, heads=4, batch=4)
print("the notebook is on", socket.gethostname())
"""
RUN = """
trace = tv.run(plan, gpt)
print("ranks were on", {host for host, _ in trace.meta["hosts"].values()})
print("equal" if tv.verify(plan, gpt) else "not equal")
tv.Timeline(trace)
"""
EXPLORE = """
view = tv.explore(gpt, tv.clusters.nvswitch(4))
view.steps.value = 1
view
"""


@pytest.fixture
def browser_of(chromium, tmp_path):
    """Starts a browser that sees the network of a host."""
    started = []

    def start(host):
        program = tmp_path / "chromium"
        program.write_text(
            f'#!/bin/sh\nexec nsenter --net=/proc/{host.pid}/ns/net {CHROMIUM} "$@"\n'
        )
        program.chmod(0o755)
        kind = chromium.browser_type
        started.append(kind.launch(executable_path=str(program), args=CHROMIUM_FLAGS))
        return started[-1]

    yield start
    for browser in started:
        browser.close()


def test_a_notebook_on_one_host_has_its_ranks_on_another(browser_of):
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    with (
        hosts(2, delay=0.001, clocks=[0, 1000]) as bed,
        cluster(bed, of=bed.hosts[1:]) as file,
        tempfile.TemporaryDirectory(dir=SCREENSHOTS.parent) as folder,
    ):
        server, url = start_lab(Path(folder), bed[0].popen)
        try:
            lab = Lab(url, Path(folder) / "root", "disabled")
            notebook = written(lab, "hosts.ipynb", USE.format(file=file), RUN, EXPLORE)
            with lab_page(browser_of(bed[0]), url, notebook, timeout_s=120) as page:
                said = "\n".join(page.locator(".jp-OutputArea-output").all_inner_texts())
                assert "the notebook is on host0" in said
                assert "ranks were on {'host1'}" in said and "\nequal" in said
                assert "ranks run on host1 (engine 0" in said
                page.screenshot("hosts-lab.png", page.view(".tpv-timeline[data-ready]"))
                box = page.locator(".jp-OutputArea-output:has(.tpviz-predicted)")
                guess(box)
                box.get_by_role("button", name="Run").click()
                box.locator(".tpviz-revealed table").wait_for(timeout=90_000)
                assert page.view(".tpv-timeline[data-ready]", box)
                page.screenshot("hosts-lab-explored.png", box.locator(".tpviz-revealed"))
        finally:
            stop_lab(server)

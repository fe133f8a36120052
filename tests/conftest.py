"""What all tests share: their order, which are slow; CI skips no browser test; ranks are ended."""

import gc
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from chromium import CHROMIUM, CHROMIUM_FLAGS
from hypothesis import HealthCheck, settings
from slow import ALWAYS, SHARE, SLOW, draw, drawn

# A busy machine makes examples slowly: no fault of what is tested.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")


LONGEST = ["browser", "notebooks", "zoo"]
"""Folders that begin, so that processes side by side end together."""
EXECUTED = "test_passed_on.py"
"""The browser tests of notebooks as nbval left them: where it has not yet run one, they do."""


def pytest_configure(config):
    # What tests keep for others is millions of objects: 20 looks at all took an eighth of the time,
    # those while tests are collected 2 s.
    gc.set_threshold(700, 10, 1000)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as in a background job: tests interrupt
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.pluginmanager.hasplugin("nbval"):
        from executed import Recorder

        config.pluginmanager.register(Recorder())


def pytest_report_header():
    """Which of the slow tests are drawn."""
    return f"slow tests: CI runs {SHARE:.0%} of them, TPVIZ_DRAW={draw()}"


def _turn(item):
    """The tiny test is first; what looks at executed notebooks comes when they are."""
    folder, name = item.path.parent.name, item.path.name
    return name != "test_tiny.py", folder not in LONGEST or name == EXECUTED


@pytest.hookimpl(wrapper=True, tryfirst=True)  # marked before the unwanted are left out
def pytest_collection_modifyitems(items):
    of = draw()
    for item in items:
        file, function = item.path.as_posix(), getattr(item, "originalname", "")
        name = f"{file}::{function}" if function else file
        if item.get_closest_marker("slow") or file.endswith(SLOW) or name.endswith(SLOW):
            item.add_marker("slow")
            if not name.endswith(ALWAYS) and not drawn(item.nodeid.partition("[")[0], of):
                item.add_marker("sweep")
    if not CHROMIUM.exists():
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(f"no {CHROMIUM}: apt-get install chromium"))
    yield
    items.sort(key=_turn)  # after pytest has put those together that share a fixture's parameter


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """CI sets TPVIZ_REQUIRE_BROWSER=1: there a skipped browser test is a failed one, but for those
    that need NumPy's wheel for Pyodide, which no machine has by itself."""
    report = yield
    required = os.environ.get("TPVIZ_REQUIRE_BROWSER") == "1" and item.get_closest_marker("browser")
    if required and report.skipped and "TPVIZ_PYODIDE_NUMPY" not in str(report.longrepr):
        report.outcome = "failed"
        report.longrepr = f"skipped, but browser tests are required here: {report.longrepr}"
    return report


@pytest.fixture(scope="session")
def chromium():
    """One browser for all tests marked ``browser``: playwright runs once in a process."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=CHROMIUM_FLAGS)
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def bare_tab(chromium) -> Iterator[Any]:
    """A tab without network for all pages: a new one takes longer than most of them."""
    context = chromium.new_context(offline=True)
    yield context.new_page()
    context.close()


@pytest.fixture
def tab(bare_tab) -> Iterator[Any]:
    """The browser's tab, as new; in the end its console has said nothing."""
    problems = []

    def hear(message):
        if message.type in ("error", "warning"):
            problems.append(message.text)

    def hear_error(error):
        problems.append(str(error))

    bare_tab.set_viewport_size({"width": 1280, "height": 720})
    bare_tab.emulate_media(color_scheme="light", reduced_motion="no-preference")
    bare_tab.mouse.move(0, 0)
    bare_tab.on("console", hear)
    bare_tab.on("pageerror", hear_error)
    yield bare_tab
    bare_tab.goto("about:blank")
    bare_tab.remove_listener("console", hear)
    bare_tab.remove_listener("pageerror", hear_error)
    assert problems == []


@pytest.fixture(scope="session", autouse=True)
def _end_ranks():
    yield
    import sys

    launch = sys.modules.get("tpviz.ranks.launch")
    if launch:
        launch.shutdown()

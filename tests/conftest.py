"""What all tests share: the tiny one runs first, CI skips no browser test, ranks are ended.

Several workers (``pytest -n 2 --dist loadfile``) share the machine; a test marked ``quiet`` has it
for itself. On two cores they gain next to nothing: most tests start ranks that use both.
"""

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")
CHROMIUM_FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
                  "--disable-background-networking", "--disable-component-update",
                  "--disable-sync"]


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name != "test_tiny.py")  # a stable sort
    if not CHROMIUM.exists():
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(f"no {CHROMIUM}: apt-get install chromium"))


@pytest.hookimpl(wrapper=True, tryfirst=True)  # the time-out begins after the wait
def pytest_runtest_protocol(item):
    """All tests share one lock, which a quiet one wants alone. Everybody comes through the gate,
    where it waits: so no new test begins before it."""
    folder = item.config.cache.mkdir("quiet")
    alone = fcntl.LOCK_EX if item.get_closest_marker("quiet") else fcntl.LOCK_SH
    with ExitStack() as held:
        gate, machine = (held.enter_context(open(folder / n, "w")) for n in ("gate", "machine"))
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(machine, alone)
        fcntl.flock(gate, fcntl.LOCK_UN)
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """CI sets TPVIZ_REQUIRE_BROWSER=1: there a skipped browser test is a failed one."""
    report = yield
    required = os.environ.get("TPVIZ_REQUIRE_BROWSER") == "1" and item.get_closest_marker("browser")
    if required and report.skipped:
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


@pytest.fixture(scope="session", autouse=True)
def _end_ranks():
    yield
    import sys

    launch = sys.modules.get("tpviz.runtime.launch")
    if launch:
        launch.shutdown()

"""What all tests share: the tiny test first, browser tests required on demand, ranks ended at the end."""

import os

import pytest


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.path.name != "test_tiny.py")  # stable: the rest keeps its order


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item):
    """CI sets TPVIZ_REQUIRE_BROWSER=1: there a skipped browser test is a failed one."""
    report = yield
    required = os.environ.get("TPVIZ_REQUIRE_BROWSER") == "1" and item.get_closest_marker("browser")
    if required and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"browser tests are required here, but this one was skipped: {report.longrepr}"
    return report


@pytest.fixture(scope="session", autouse=True)
def _end_ranks():
    yield
    import sys

    launch = sys.modules.get("tpviz.runtime.launch")
    if launch:
        launch.shutdown()

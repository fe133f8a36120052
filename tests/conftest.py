"""What all tests share: ranks are ended when the tests are done."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def _end_ranks():
    yield
    import sys

    launch = sys.modules.get("tpviz.runtime.launch")
    if launch:
        launch.shutdown()

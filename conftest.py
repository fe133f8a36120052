"""No test or notebook counts as an attempt of whoever runs it, neither here nor in ranks; those of
one file stay in one process."""

import os
import tempfile
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:  # noqa: D103
    folder = tempfile.TemporaryDirectory(prefix="tpviz-progress-")
    config.add_cleanup(folder.cleanup)
    os.environ["TPVIZ_PROGRESS"] = os.path.join(folder.name, "progress.json")
    # torch's idle threads otherwise spin: where processes share cores, a notebook's cell that takes
    # 3 s of CPU time took 29. Read when torch is loaded, in kernels and scripts too.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file's tests share fixtures, those in JupyterLab a server: each stays in one process."""
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid):
            file = super()._split_scope(nodeid)
            waits = file.endswith("test_passed_on.py")  # EXECUTED in tests/conftest.py
            browser = file.startswith("tests/browser/") and not waits
            return "browser" if browser else file

    config.option.loadscopereorder = False  # as collected, not by their number of tests
    return Scheduling(config, log)

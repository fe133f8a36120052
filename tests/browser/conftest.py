"""A real JupyterLab for the browser tests: one server for all.

``commsOverSubshells`` (whether widget callbacks run on threads of their own) is set as a user
would.
"""

import json

import lab_page
import pytest
from lab_server import Lab, start_lab, stop_lab


def _write_setting(home, comms_over_subshells):
    """The user's setting of the thread behaviour to test; a page reads it when it loads."""
    folder = home / "jupyterlab_settings_dir/@jupyterlab/apputils-extension"
    folder.mkdir(parents=True, exist_ok=True)
    setting = {"commsOverSubshells": comms_over_subshells}
    (folder / "kernels-settings.jupyterlab-settings").write_text(json.dumps(setting))


@pytest.fixture(scope="session")
def _server(tmp_path_factory):
    """(url, folder) of a running Lab server; its kernels end with it."""
    folder = tmp_path_factory.mktemp("lab")
    server, url = start_lab(folder)
    yield url, folder
    stop_lab(server)


@pytest.fixture(scope="session", params=["perCommTarget", "disabled"])
def lab(request, _server, chromium):
    """A running Lab: its url, its folder of notebooks and its setting."""
    url, folder = _server
    _write_setting(folder / "home", request.param)
    lab_page.close_pages(chromium, url)
    yield Lab(url, folder / "root", request.param)
    lab_page.close_pages(chromium, url)

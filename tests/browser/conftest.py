"""A real JupyterLab for the browser tests.

One Lab server for all, on copies of the notebooks in a temporary folder with settings, history and
runtime files of its own; ``commsOverSubshells`` (whether widget callbacks run on threads of their
own) is set as a user would.
"""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import NamedTuple

import lab_page
import pytest

ROOT = Path(__file__).parents[2]


class Lab(NamedTuple):
    url: str
    folder: Path
    comms: str


def _write_defaults(folder):
    """Lab's defaults for this server: no news pop-up, all cells in the page."""
    folder.mkdir(parents=True)
    quiet = {"fetchNews": "false", "checkForUpdates": False}
    overrides = {
        "@jupyterlab/apputils-extension:notification": quiet,
        "@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"},
    }
    (folder / "overrides.json").write_text(json.dumps(overrides))


def _write_setting(home, comms_over_subshells):
    """The user's setting of the thread behaviour to test; a page reads it when it loads."""
    folder = home / "jupyterlab_settings_dir/@jupyterlab/apputils-extension"
    folder.mkdir(parents=True, exist_ok=True)
    setting = {"commsOverSubshells": comms_over_subshells}
    (folder / "kernels-settings.jupyterlab-settings").write_text(json.dumps(setting))


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_up(server, url, log, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"{url}/api", timeout=2):
                return
        except (urllib.error.URLError, OSError):
            if server.poll() is not None:
                break
            time.sleep(0.2)
    _stop(server)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


def _start(folder):
    """Start a Lab server on copies of the notebooks; returns (process, url)."""
    _write_defaults(folder / "app")
    shutil.copytree(ROOT / "notebooks", folder / "root", ignore=shutil.ignore_patterns(".*"))
    port, log = _free_port(), folder / "lab.log"
    own = {
        name: str(folder / "home" / name.lower())
        for name in (
            "JUPYTER_CONFIG_DIR",
            "JUPYTER_RUNTIME_DIR",
            "JUPYTER_DATA_DIR",
            "IPYTHONDIR",
            "JUPYTERLAB_SETTINGS_DIR",
            "JUPYTERLAB_WORKSPACES_DIR",
        )
    }
    with log.open("w") as output:
        server = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "jupyterlab",
                "--no-browser",
                "--allow-root",
                "--expose-app-in-browser",
                "--IdentityProvider.token=",
                "--ServerApp.ip=127.0.0.1",
                f"--ServerApp.port={port}",
                "--ServerApp.port_retries=0",
                f"--ServerApp.root_dir={folder / 'root'}",
                f"--LabApp.app_settings_dir={folder / 'app'}",
            ],
            env={**os.environ, **own},
            cwd=folder,
            start_new_session=True,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    url = f"http://127.0.0.1:{port}"
    _wait_until_up(server, url, log)
    return server, url


def _stop(server):
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


@pytest.fixture(scope="session")
def _server(tmp_path_factory):
    """(url, folder) of a running Lab server; its kernels end with it."""
    folder = tmp_path_factory.mktemp("lab")
    server, url = _start(folder)
    yield url, folder
    _stop(server)


@pytest.fixture(scope="session", params=["perCommTarget", "disabled"])
def lab(request, _server, chromium):
    """A running Lab: its url, its folder of notebooks and its setting."""
    url, folder = _server
    _write_setting(folder / "home", request.param)
    lab_page.close_pages(chromium, url)
    yield Lab(url, folder / "root", request.param)
    lab_page.close_pages(chromium, url)

"""A JupyterLab server for tests: on copies of the notebooks, with settings, history and runtime
files of its own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

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


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _wait_until_up(server, log, seconds=120):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and server.poll() is None:
        if "is running at" in log.read_text():
            return
        time.sleep(0.2)
    stop_lab(server)
    pytest.fail(f"JupyterLab did not start:\n{log.read_text()[-3000:]}")


def start_lab(folder, popen=subprocess.Popen):
    """Start a Lab server on copies of the notebooks, by ``popen``; returns (process, url)."""
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
        server = popen(
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
    _wait_until_up(server, log)
    return server, url


def stop_lab(server):
    """End a Lab server, and with it its kernels."""
    server.send_signal(signal.SIGTERM)
    try:
        server.wait(timeout=20)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()

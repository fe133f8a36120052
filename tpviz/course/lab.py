"""The notebooks as a learner gets them: copied into a folder, and opened in JupyterLab."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import webbrowser
from importlib.util import find_spec
from pathlib import Path

_PACKAGE = Path(__file__).parents[1]
NOTEBOOKS = (_PACKAGE / "notebooks", _PACKAGE.parent / "notebooks")
"""Where a wheel has them, and a clone."""
PAGES = ("glossary.md", "when-communication-limits.md")
"""Of docs, to which notebooks link."""
FIRST = "00_start.ipynb"
START_SECONDS, END_SECONDS = 120, 20


def copy_notebooks(folder: Path) -> None:
    """Copy them into ``folder``, and keep what is there already: it may have been worked on.

    Raises ValueError where the installation lacks some.
    """
    source = next((place for place in NOTEBOOKS if place.is_dir()), None)
    if source is None:
        raise ValueError("the notebooks are not installed: reinstall tpviz from its wheel")
    folders = source, source.parent / "docs"  # installed, or in a clone
    found = {p: [f / p for f in folders if (f / p).is_file()] for p in PAGES}
    if missing := [page for page, places in found.items() if not places]:
        raise ValueError(
            f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} neither in "
            f"{' nor in '.join(map(str, folders))}: reinstall tpviz from its wheel"
        )
    pages = [places[0] for places in found.values()]
    folder.mkdir(parents=True, exist_ok=True)
    for file in (*sorted(source.glob("*.ipynb")), *pages):
        copy = folder / file.name
        print(f"{'kept' if copy.exists() else 'copied'} {copy}")
        if not copy.exists():  # beside each other there
            text = file.read_text().replace("../notebooks/", "")
            for page in PAGES:
                text = text.replace(f"../docs/{page}", page)
            copy.write_text(text)


def open_lab(folder: Path, port: int | None = None, browser: bool = True) -> int:
    """Serve ``folder`` by JupyterLab, on this machine alone, until it is interrupted.

    Without a ``port`` JupyterLab takes the first free one from 8888. Where there is a screen, the
    first notebook is opened in the browser; its address is printed in any case. Returns the exit
    code. Raises ValueError where JupyterLab is missing or the port is in use.
    """
    if find_spec("jupyterlab") is None:
        raise ValueError('JupyterLab is not installed here: pip install "tpviz[lab]"')
    if port is not None:
        _check_free(port)
    server = subprocess.Popen(_command(folder, port), start_new_session=True)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        address = _address(server)
        print(f"\nThe notebooks are at {address}\nCtrl-C ends JupyterLab.", flush=True)
        if not (browser and _has_screen() and webbrowser.open(address)):
            print(f"Open this address in a browser{_from_elsewhere(address)}.", flush=True)
        return server.wait()
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, before)
        _end(server)


def _check_free(port):
    if not 1 <= port <= 65535:
        raise ValueError(f"--port {port}: use 1 to 65535")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ValueError(
                f"--port {port}: {error.strerror}; without --port a free one is taken"
            ) from None


def _command(folder, port):
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--log-level=WARN"]
    command += ["--ServerApp.ip=127.0.0.1", f"--ServerApp.root_dir={folder.resolve()}"]
    if port is not None:
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if os.geteuid() == 0:  # as in most containers, where JupyterLab would refuse
        command.append("--allow-root")
    return command


def _address(server):
    """Of the first notebook, with the key that a browser needs, as the server has written it."""
    from jupyter_core.paths import jupyter_runtime_dir

    file = Path(jupyter_runtime_dir(), f"jpserver-{server.pid}.json")
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            said = json.loads(file.read_text())
        except (OSError, ValueError):  # not yet, or half of it
            time.sleep(0.1)
            continue
        return f"{said['url']}lab/tree/{FIRST}?token={said['token']}"
    code = server.poll()
    ended = f"within {START_SECONDS} s" if code is None else f"and ended with code {code}"
    raise ValueError(f"JupyterLab did not start {ended}; what it said is above")


def _has_screen():
    """Elsewhere `webbrowser` would open a browser of text in this terminal, if there is one."""
    return sys.platform == "darwin" or any(
        os.environ.get(name) for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY")
    )


def _from_elsewhere(address):
    if "SSH_CONNECTION" not in os.environ:
        return ""
    port = address.split(":")[2].partition("/")[0]
    return (
        f"; on the machine where you sit, run this first:\n"
        f"    ssh -N -L {port}:127.0.0.1:{port} {socket.gethostname()}\n"
        "and leave it open"
    )


def _end(server):
    """End the server, which ends its kernels."""
    if server.poll() is None:
        server.terminate()
    try:
        server.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()

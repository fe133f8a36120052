"""What the checks share: an environment beside .venv, and a watch over the processes they start."""

import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

ROOT = Path(__file__).parents[1]
MARKER = "TPVIZ_CHECK"  # in the environment of what a check starts, and so of all that this starts


def environment(folder: Path, *packages: str) -> Path:
    """A virtual environment with ``packages`` that sees .venv's packages behind its own; its bin.

    So neither those packages nor what they need touches our pins, and torch is not installed again.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--python", folder / "bin/python", "install", "--quiet"]
    subprocess.run([*pip, "--no-compile", *packages], check=True, stdin=subprocess.DEVNULL)
    [site] = folder.glob("lib/*/site-packages")
    ours = sysconfig.get_path("purelib")
    (site / "beside.pth").write_text(f"import site; site.addsitedir({ours!r})\n")
    return folder / "bin"


@contextmanager
def watched(name: str) -> Iterator[tuple[Path, dict[str, str]]]:
    """(a new folder, an environment for processes); whoever is left in the end is ended.

    Homes and settings are in the folder, so neither the user's are read nor written. Raises
    AssertionError where something was left running.
    """
    with tempfile.TemporaryDirectory(prefix=f"tpviz-{name}-") as text:
        folder = Path(text)
        env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "JUPY", "IPY"))}
        env |= {"HOME": text, "OMP_WAIT_POLICY": "passive", MARKER: text}
        asked = [sys.executable, "-m", "pip", "cache", "dir"]
        cache = subprocess.run(asked, capture_output=True, text=True).stdout.strip()
        env |= {"PIP_CACHE_DIR": cache, "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            yield folder, env
        finally:
            left = running(text)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
        assert not left, f"processes left behind: {left}"


def run(cwd: Path, env: dict[str, str], limit: float, *command: object) -> str:
    """What a command says, errors too. Raises as ``subprocess.run`` where it fails, or takes more
    than ``limit`` seconds."""
    return subprocess.run(
        list(map(str, command)),
        cwd=cwd,
        env=env,
        check=True,
        timeout=limit,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ).stdout


def running(token: str, seconds: float = 10) -> dict[int, str]:
    """{process id: command} of what our marker names, ``seconds`` after all should have ended."""
    needle, deadline = f"{MARKER}={token}".encode(), monotonic() + seconds
    while (left := marked(needle)) and monotonic() < deadline:
        sleep(0.2)
    return left


def marked(needle: bytes) -> dict[int, str]:
    """{process id: command} of those with ``needle`` in their environment."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if needle in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
    return found

"""Would the notebooks run on Binder? Its pins in a fresh environment, one core, 2 GB.

    make binder-check                                        # all of them
    .venv/bin/python binder/check.py notebooks/00_start.ipynb

A new virtual environment gets repo2docker's base packages, then the pins of
``binder/environment.yml``, then ``binder/postBuild``. A JupyterLab server is started through
``binder/start`` on one core and each notebook in turn runs beside it; meanwhile the proportional
set size (PSS: shared pages counted once) of every process that came of it is summed, five times a
second. mybinder.org kills above 2 GB and gives one core.

The pins are installed by pip, from wherever it is configured to look: that conda-forge has these
versions, and what its builds weigh, is seen on Binder alone.
"""

import argparse
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIMIT_BYTES = 2_000_000_000
CELL_SECONDS, NOTEBOOK_SECONDS = 300, 1200
SAMPLE_SECONDS = 0.2
MARKER = "TPVIZ_BINDER_CHECK"
OWN_FOLDERS = ["JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"]


def main() -> int:
    """Install, run, measure; returns the exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", type=Path, help="all of them unless given")
    parser.add_argument("--limit", type=float, default=LIMIT_BYTES, help="bytes of PSS in all")
    args = parser.parse_args()
    notebooks = args.notebooks or sorted((ROOT / "notebooks").glob("*.ipynb"))
    with tempfile.TemporaryDirectory(prefix="tpviz-binder-") as folder:
        env = install(Path(folder))
        fit = [fits(notebook, env, Path(folder), args.limit) for notebook in notebooks]
    print(f"{sum(fit)} of {len(fit)} notebooks fit")
    return 0 if all(fit) else 1


def fits(notebook: Path, env: dict[str, str], folder: Path, limit: float) -> bool:
    """Run one notebook beside a server of its own, and print what it took."""
    started, token = time.perf_counter(), uuid.uuid4().hex
    peak, parts, failed = measure(notebook, {**env, MARKER: token}, token, folder)
    left = wait_until_gone(token)
    for pid in left:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    seconds = time.perf_counter() - started
    print(
        f"{notebook.name}, one core: {seconds:.0f} s, "
        f"peak PSS {peak / 1e6:.0f} MB of {limit / 1e6:.0f}"
    )
    for name, size in parts.most_common():
        print(f"  {size / 1e6:7.0f} MB  {name}")
    problems = [
        text
        for bad, text in [
            (failed, "the notebook failed"),
            (peak > limit, "too much memory for Binder"),
            (left, f"processes left behind: {sorted(left)}"),
        ]
        if bad
    ]
    print("\n".join(problems) or "fits", flush=True)
    return not problems


def install(folder: Path) -> dict[str, str]:
    """The environment that Binder would build; returns the environment variables to run in it."""
    venv = folder / "venv"
    env = {
        **os.environ,
        "VIRTUAL_ENV": str(venv),
        "PATH": f"{venv / 'bin'}:{os.environ['PATH']}",
        "JUPYTER_PREFER_ENV_PATH": "1",
    }
    env |= {name: str(folder / name.lower()) for name in OWN_FOLDERS}
    started = time.perf_counter()
    # Without pip, then filled by our own pip: works where Debian's python3-venv is missing too.
    call([sys.executable, "-m", "venv", "--without-pip", venv], env)
    pip = [sys.executable, "-m", "pip", "--python", venv / "bin" / "python", "install", "-q"]
    base = f"-r{ROOT / 'binder' / 'base.txt'}"
    call([*pip, "--no-compile", base, "pip", *pins()], env)  # most modules are never imported
    call([ROOT / "binder" / "postBuild"], env)
    print(f"installed in {time.perf_counter() - started:.0f} s")
    return env


def pins() -> list[str]:
    """What ``environment.yml`` pins, as pip names it."""
    text = (ROOT / "binder" / "environment.yml").read_text()
    found = re.findall(r"^ *- ([\w-]+==[\w.]+)$", text, re.M)
    return [pin.replace("pytorch-cpu==", "torch==") for pin in found]


def call(command: list[Any], env: dict[str, str]) -> None:
    """Run from the repository's root; raises CalledProcessError when it fails."""
    subprocess.run(
        [str(c) for c in command], cwd=ROOT, env=env, check=True, stdin=subprocess.DEVNULL
    )


def measure(
    notebook: Path, env: dict[str, str], token: str, folder: Path
) -> tuple[int, Counter[str], bool]:
    """Run the notebook beside a JupyterLab server on one core; (peak bytes, its parts, failed?)."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # inherited by all started below
    samples, done = [Counter()], threading.Event()  # the largest so far, last

    def sample():
        while not done.wait(SAMPLE_SECONDS):
            parts = pss_by_name(token)
            if parts.total() > samples[-1].total():
                samples.append(parts)

    sampler = threading.Thread(target=sample)
    sampler.start()
    server, failed = None, True
    try:
        server = start_server(env, folder)
        run = subprocess.run(
            [
                ROOT / "binder" / "start",
                "jupyter",
                "nbconvert",
                "--to",
                "notebook",
                "--execute",
                f"--ExecutePreprocessor.timeout={CELL_SECONDS}",
                "--output-dir",
                folder,
                notebook,
            ],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            timeout=NOTEBOOK_SECONDS,
        )
        failed = run.returncode != 0
    except subprocess.TimeoutExpired as error:
        print(error)
    finally:
        done.set()
        sampler.join()
        if server is not None:
            server.send_signal(signal.SIGTERM)
            server.wait(30)
    return samples[-1].total(), samples[-1], failed


def start_server(env: dict[str, str], folder: Path) -> subprocess.Popen[bytes]:
    """JupyterLab as Binder starts it, ready to answer."""
    root = ["--allow-root"] if os.getuid() == 0 else []
    log, address = folder / "server.log", f"http://127.0.0.1:{free_port()}"
    with log.open("w") as out:
        server = subprocess.Popen(
            [
                ROOT / "binder" / "start",
                "jupyter",
                "lab",
                "--no-browser",
                *root,
                "--IdentityProvider.token=",
                "--ServerApp.ip=127.0.0.1",
                f"--ServerApp.port={address.rpartition(':')[2]}",
                f"--ServerApp.root_dir={ROOT}",
            ],
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and server.poll() is None:
        if answers(f"{address}/lab"):
            return server
        time.sleep(0.2)
    server.kill()
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()}")


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(address: str) -> bool:
    """Whether the page at this address loads."""
    try:
        with urllib.request.urlopen(address, timeout=5) as reply:
            return reply.status == 200
    except (urllib.error.URLError, OSError):
        return False


def pss_by_name(token: str) -> Counter[str]:
    """Bytes of PSS of every process whose environment carries our token, summed by kind of process.

    The environment is inherited, so ranks count even where their parent has gone.
    """
    sizes: Counter[str] = Counter()
    for pid in marked(token):
        try:
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        pss = next((int(x.split()[1]) for x in rollup.splitlines() if x.startswith("Pss:")), 0)
        sizes[kind_of(words)] += 1024 * pss
    return sizes


def marked(token: str) -> set[int]:
    """Process ids whose environment carries our token."""
    needle = f"{MARKER}={token}".encode()
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if needle in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
            except OSError:
                continue
    return found


def kind_of(command: str) -> str:
    """What to call a process in the table."""
    names = {
        "jupyter-lab": "JupyterLab server",
        "ipykernel": "kernel",
        "nbconvert": "nbconvert",
        "forkserver": "fork server and ranks",
        "resource_tracker": "resource tracker",
    }
    return next((name for key, name in names.items() if key in command), "other")


def wait_until_gone(token: str, seconds: float = 10) -> set[int]:
    """Process ids that still run ``seconds`` after everything should have ended."""
    deadline = time.monotonic() + seconds
    while marked(token) and time.monotonic() < deadline:
        time.sleep(0.1)
    return marked(token)


if __name__ == "__main__":
    sys.exit(main())

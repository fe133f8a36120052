"""The core of the suite on the lowest and on the newest torch, each in an environment of its own.

Both legs go on at once: most of an installation is waiting for the network.

    python .ci/versions.py            both legs; an environment that is there already is used again
    python .ci/versions.py --install  only make the environments
    python .ci/versions.py --remove   and remove each environment (about 2 GB) after its leg

A leg whose Python is not on this machine is skipped, and that is said. torch comes without its GPU
packages: as the CPU wheel where an index that pip knows has one, else as the GPU build with
stand-ins (`no_gpu`).
"""

import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import PIPE
from time import monotonic
from typing import Any

import no_gpu

ROOT = Path(__file__).parents[1]
# name: (Python, torch); "newest" is the newest of these that pip's own settings let it install
LEGS = {"lowest": ("3.11", "==2.9.0"), "newest": ("3.13", ">=2.14,<=2.15.0")}
GPU_PACKAGE = re.compile(r"Requires-Dist: (nvidia|cuda|triton)")
TOOLS = ["pytest", "pytest-timeout", "hypothesis"]
OPTIONS = [
    "--override-ini=addopts=--strict-markers --strict-config -ra",
    "-q",
    "-p",
    "no:cacheprovider",
    "--durations=5",
    "-k not Llama and not shared_gpu and not those_of_the_program",  # variants, which the suite has
]
CORE = """
tests/test_tiny.py tests/test_conformance.py tests/test_peers.py tests/core/test_table.py
tests/ranks/test_recorder.py tests/ranks/test_launch_arguments.py
tests/verbs/test_verify.py tests/verbs/test_capture.py tests/verbs/test_simulate.py
tests/verbs/test_run.py
""".split()
Run = Callable[..., Any]
"""As ``subprocess.run``, of a command's words."""
LIMIT = 1300  # s for a leg, its installation included


def main(options):
    """Exit code 1 if a leg failed."""
    with ThreadPoolExecutor() as threads:
        passed = threads.map(lambda name: _leg(name, *LEGS[name], options), LEGS)
        failed = [name for name, good in zip(LEGS, passed) if not good]
    sys.exit(f"versions: FAILED: {', '.join(failed)}" if failed else 0)


def _leg(name, python, torch, options):
    title, start = f"versions: {name} torch{torch} on Python {python}", monotonic()

    def run(*command, **more):
        return subprocess.run(
            list(map(str, command)),
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            timeout=max(start + LIMIT - monotonic(), 0),
            **more,
        )

    interpreter = find(python)
    if interpreter is None:
        print(f"{title}: SKIPPED, no Python {python} on this machine", flush=True)
        return True
    folder = ROOT / ".versions" / "-".join([python, *re.findall(r"[\d.]+", torch)])
    try:
        if not (folder / "ready").exists():
            _install(run, interpreter, folder, torch)
        made = next(folder.glob("lib/*/site-packages/torch-*.dist-info")).stem
        print(f"{title}: {made} installed, {monotonic() - start:.0f} s", flush=True)
        if "--install" in options:
            return True
        done = run(folder / "bin/python", "-m", "pytest", *OPTIONS, *CORE, stdout=PIPE, text=True)
        print(done.stdout, flush=True)
    except subprocess.SubprocessError as error:
        done = error
    finally:
        if "--remove" in options:
            shutil.rmtree(folder, ignore_errors=True)
    passed = getattr(done, "returncode", 1) == 0
    words = "passed" if passed else f"FAILED ({getattr(done, 'returncode', done)})"
    print(f"{title}: {words}, {monotonic() - start:.0f} s in all", flush=True)
    return passed


def find(version: str) -> str | None:
    """An interpreter of this version: on the path or among pyenv's; None where there is none."""
    pyenv = (Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python")
    for candidate in [sys.executable, f"python{version}", *pyenv]:
        asking = "import sys; print('%d.%d' % sys.version_info[:2])"
        try:
            said = subprocess.run([candidate, "-c", asking], capture_output=True, text=True)
        except OSError:
            continue
        if said.stdout.strip() == version:
            return candidate
    return None


def environment(run: Run, interpreter: str, folder: Path, torch: str) -> Callable[..., None]:
    """A new environment in ``folder`` with this torch and no GPU packages; its ``pip install``."""
    shutil.rmtree(folder, ignore_errors=True)
    run(interpreter, "-m", "venv", "--without-pip", folder, check=True)

    def pip(*what):
        run(
            sys.executable,
            "-m",
            "pip",
            "--python",
            folder / "bin/python",
            "install",
            "--quiet",
            "--no-compile",  # most of torch and sympy is never imported
            *what,
            check=True,
        )

    pip("--no-deps", f"torch{torch}")
    (package,) = folder.glob("lib/*/site-packages/torch")
    if (package / "lib/libtorch_cuda.so").exists():
        no_gpu.stand_in(package / "lib")
        (metadata,) = package.parent.glob("torch-*.dist-info/METADATA")
        lines = metadata.read_text().splitlines(keepends=True)
        # Whatever needs torch would bring its GPU packages.
        metadata.write_text("".join(line for line in lines if not GPU_PACKAGE.match(line)))
    return pip


def _install(run, interpreter, folder, torch):
    pip = environment(run, interpreter, folder, torch)
    pins = [
        line
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if not line.startswith("torch==")
    ]
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(pins))
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    pip("-c", constraints, *ours, *TOOLS)
    (packages,) = folder.glob("lib/*/site-packages")
    (packages / "tpviz.pth").write_text(f"{ROOT}\n")  # as an editable installation would
    (folder / "ready").touch()


if __name__ == "__main__":
    main(sys.argv[1:])

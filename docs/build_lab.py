"""Write out/site/lab, a JupyterLite site: the notebooks, which run in a browser without ranks.

python docs/build_lab.py [--numpy numpy-....whl] [--pyodide pyodide.json]

Pyodide, tpviz and NumPy as in `build_planner`; all that a kernel imports besides is a wheel of pure
Python on the site itself, with its hash in planner/lab.txt and in the lock file, which Pyodide
checks. The kernel loads them as it starts, and asks no index of packages.
"""

import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

from build_planner import FILES, HERE, LOCK, PINNED, entry, main, runtime
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

NOTEBOOKS = sorted((HERE.parent / "notebooks").glob("*.ipynb"))
"""What needs ranks is left out as they run: ``tests/test_without_torch.py`` runs them so."""
EXTENSION = "@jupyterlite/pyodide-kernel-extension"
EXTENSIONS = EXTENSION, "@jupyter-widgets/jupyterlab-manager", "anywidget"
STARTUP = "tpviz/course/startup.py"
"""What IPython runs first, in our wheel."""
OF_KERNEL = "piplite-*", "ipykernel-*", "pyodide_kernel-*", "widgetsnbextension-4*"
"""Wheels that come with the kernel's extension."""
PAGE = {"sys_platform": "emscripten", "platform_system": "Emscripten"}


def build(folder: Path, numpy: Path | None, pyodide: Path = PINNED) -> Path:
    """Write the site into a folder, which is emptied first; returns its index.html. Raises as
    `build_planner.build`."""
    shutil.rmtree(folder, ignore_errors=True)
    labextensions = Path(sys.prefix) / "share/jupyter/labextensions"
    with tempfile.TemporaryDirectory() as scratch:
        _lite(Path(scratch), folder, labextensions)
    wheels = folder / "pyodide"
    lock = runtime(wheels, numpy, json.loads(pyodide.read_text()))
    python = ".".join(lock["info"]["python"].split(".")[:2])
    fetch = ["download", "--quiet", "--no-deps", "--only-binary=:all:", "--platform=any"]
    target = [f"--python-version={python}", "--implementation=py", "--abi=none"]
    asked = ["--require-hashes", "-r", str(FILES / "lab.txt"), "-d", str(wheels)]
    subprocess.run([sys.executable, "-m", "pip", *fetch, *target, *asked], check=True)
    for pattern in OF_KERNEL:
        for wheel in (labextensions / EXTENSION / "static/pypi").glob(f"{pattern}.whl"):
            shutil.copy(wheel, wheels)
    here = {_name(wheel): wheel for wheel in wheels.glob("*-none-any.whl")}
    known = {*here, *lock["packages"]}
    for name, wheel in here.items():
        lock["packages"][name] = entry(wheel, _needs(wheel, known, python))
    (wheels / LOCK).write_text(json.dumps(lock, indent=1))
    settings = folder / "jupyter-lite.json"
    whole = json.loads(settings.read_text())
    kernel = {
        "pyodideUrl": "./pyodide/pyodide.mjs",
        "disablePyPIFallback": True,
        "loadPyodideOptions": {
            "packages": sorted(known - {"numpy"}),
            "env": {"PYTHONSTARTUP": f"/lib/python{python}/site-packages/{STARTUP}"},
        },
    }
    plugins = whole["jupyter-config-data"].setdefault("litePluginSettings", {})
    plugins.setdefault(f"{EXTENSION}:kernel", {}).update(kernel)
    settings.write_text(json.dumps(whole, indent=1))
    return folder / "index.html"


def _lite(scratch: Path, folder: Path, labextensions: Path) -> None:
    """JupyterLab as static files, with the extensions named and the notebooks."""
    for notebook in NOTEBOOKS:
        shutil.copy(notebook, scratch)
    several = [str(labextensions / name) for name in EXTENSIONS]
    config = {
        "ignore_sys_prefix": ["federated_extensions"],
        "federated_extensions": several,
        "no_sourcemaps": True,
        "no_unused_shared_packages": True,
    }
    (scratch / "jupyter_lite_config.json").write_text(json.dumps({"LiteBuildConfig": config}))
    names = [f"--contents={notebook.name}" for notebook in NOTEBOOKS]
    command = [sys.executable, "-m", "jupyterlite_core", "build", *names]
    command += ["--output-dir", str(folder.resolve())]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stdout}{done.stderr}")


def _name(wheel: Path) -> str:
    return canonicalize_name(wheel.name.partition("-")[0])


def _needs(wheel: Path, known: set[str], python: str) -> list[str]:
    """Of what a wheel requires in a page of this Python, such as 3.14, what is on the site."""
    with zipfile.ZipFile(wheel) as archive:
        (path,) = [n for n in archive.namelist() if n.endswith(".dist-info/METADATA")]
        lines: Any = message_from_bytes(archive.read(path)).get_all("Requires-Dist", [])
    asked = [Requirement(line) for line in lines]
    page = {**PAGE, "python_version": python, "extra": ""}
    here = [one for one in asked if not one.marker or one.marker.evaluate(page)]
    return sorted({canonicalize_name(one.name) for one in here} & known)


if __name__ == "__main__":
    main(build, "the notebooks as static files", "lab")

"""Write out/site/planner, a page with the planner that runs in a browser: static files alone.

python docs/build_planner.py [--numpy numpy-....whl] [--pyodide pyodide.json]

Pyodide comes from npm: its version, its hash and its files that a page needs are in
planner/pyodide.json, or in another file of that form. tpviz is a wheel of this checkout. NumPy for
Pyodide is in Pyodide's own distribution alone. Its file is given, and must have the hash that
Pyodide's lock says; or the page loads it from there. The page's lock file has these two packages,
with their hashes, which Pyodide checks again as it loads them.
"""

import argparse
import base64
import hashlib
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tpviz.views.figures.page import document

HERE = Path(__file__).parent
FILES = HERE / "planner"
PINNED = FILES / "pyodide.json"
"""Which Pyodide is built; ``numpy_sha256`` in such a file is that of a NumPy that its lock does not
know, as somebody built it."""
LOCK = "pyodide-lock.json"
LEFT_OUT = "tpviz/notebooks/", "tpviz/evidence/t3_gpu/"
"""Of our wheel: what the page cannot use."""


def build(folder: Path, numpy: Path | None, pyodide: Path = PINNED) -> Path:
    """Write the page into a folder, which is emptied first; returns its index.html.

    numpy : NumPy's wheel for Pyodide; None: the page loads it from Pyodide's distribution.
    pyodide : the file that says which Pyodide. Raises ``ValueError`` where a file has not the hash
    that it must have, ``FileNotFoundError`` where it is not there.
    """
    shutil.rmtree(folder, ignore_errors=True)
    lock = runtime(folder / "pyodide", numpy, json.loads(pyodide.read_text()))
    (folder / "pyodide" / LOCK).write_text(json.dumps(lock, indent=1))
    return write_page(folder)


def runtime(folder: Path, numpy: Path | None, pinned: dict[str, Any]) -> dict[str, Any]:
    """Write Pyodide, our wheel and NumPy's, where it is given, into a folder; returns their lock.
    pinned : which Pyodide, as in `PINNED`. Raises as `build`."""
    folder.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        lock = _pyodide(Path(scratch), folder, pinned)
        wheel = _wheel(Path(scratch), folder)
    known = lock["packages"]["numpy"]
    known["sha256"] = pinned.get("numpy_sha256", known["sha256"])
    if numpy is None:
        known["file_name"] = pinned["distribution"] + known["file_name"]
    else:
        _check("sha256", known["sha256"], numpy)
        shutil.copy(numpy, folder / known["file_name"])
    lock["packages"] = {"numpy": known, "tpviz": entry(wheel, ["numpy"])}
    return lock


def write_page(folder: Path) -> Path:
    """The page's own files; returns its index.html."""
    for script in ("page.js", "worker.js"):
        shutil.copy(FILES / script, folder)
    index = folder / "index.html"
    index.write_text(_page(), encoding="utf-8")
    return index


def _pyodide(scratch: Path, folder: Path, pinned: dict[str, Any]) -> dict[str, Any]:
    """Pyodide's lock; what it needs to run is unpacked into a folder. Raises ``OSError`` where npm
    has no such package, or is not there."""
    command = ["npm", "pack", f"pyodide@{pinned['version']}", "--silent"]
    done = subprocess.run(command, cwd=scratch, capture_output=True, text=True)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    (packed,) = scratch.glob("pyodide-*.tgz")
    kind, _, digest = pinned["integrity"].partition("-")
    _check(kind, base64.b64decode(digest).hex(), packed)
    with tarfile.open(packed) as archive:
        for name in (*pinned["files"], LOCK):
            member = archive.extractfile(f"package/{name}")
            assert member is not None
            (folder / name).write_bytes(member.read())
    return json.loads((folder / LOCK).read_text())


def _wheel(scratch: Path, folder: Path) -> Path:
    """Our wheel in a folder, without what the page cannot use."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(scratch)]
    subprocess.run(command, cwd=HERE.parent, check=True, capture_output=True)
    (whole,) = scratch.glob("tpviz-*.whl")
    to = folder / whole.name
    with zipfile.ZipFile(whole) as old, zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as new:
        for item in old.infolist():
            if not item.filename.startswith(LEFT_OUT):
                new.writestr(item, old.read(item))
    return to


def entry(wheel: Path, depends: list[str]) -> dict[str, Any]:
    """A wheel in the lock file, and the names there of what it needs."""
    name, version, *_ = wheel.name.split("-")
    return {
        "name": name.replace("_", "-"),
        "version": version,
        "file_name": wheel.name,
        "install_dir": "site",
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "package_type": "package",
        "imports": [name],
        "depends": depends,
        "unvendored_tests": False,
    }


def _check(kind: str, digest: str, path: Path) -> None:
    """Raise ``ValueError`` unless a file has this hash."""
    found = hashlib.new(kind, path.read_bytes()).hexdigest()
    if found != digest:
        raise ValueError(f"{path.name} has {kind} {found}, and must have {digest}")


def _page() -> str:
    """The page: its places are filled by page.js."""
    needs = (
        "<noscript>The planner runs in your browser, and needs scripts. "
        "In a notebook it is tv.explore.</noscript>"
    )
    said = "<div class='said'><p class='facts'>Python is being loaded: some 10 MB, once.</p>"
    said += "<p class='gave' role='status' hidden></p><p class='error' role='alert' hidden></p>"
    said += "<p class='open' hidden><button title='the cell that makes this'>open in notebook"
    said += "</button></p><div class='tpv-cell' popover role='status'></div>"
    places = f"{said}</div><div class='controls'></div><div><div class='pictures'></div>"
    body = f"{needs}<div id='planner'>{places}<div class='axes'></div></div></div>"
    style = f"<style>{(FILES / 'planner.css').read_text()}</style>"
    script = "<script type='module' src='page.js'></script>"
    whole = document("How long would a training step take?", body)
    return whole.replace("</head>", f"{style}</head>").replace("</body>", f"{script}</body>")


def main(build: Callable[[Path, Path | None, Path], Path], what: str, name: str) -> None:
    """Read the arguments, and write a site: ``what`` it is, and its folder's name."""
    parser = argparse.ArgumentParser(description=what)
    parser.add_argument("--numpy", type=Path, help="NumPy's wheel for Pyodide")
    parser.add_argument("--pyodide", type=Path, default=PINNED, help="which Pyodide, a JSON file")
    parser.add_argument("--to", type=Path, default=HERE.parent / "out" / "site" / name)
    given = parser.parse_args()
    print(build(given.to, given.numpy, given.pyodide))
    if given.numpy is None:
        print("NumPy is loaded from Pyodide's distribution: --numpy puts it on the site")


if __name__ == "__main__":
    main(build, "the planner as a page of static files", "planner")

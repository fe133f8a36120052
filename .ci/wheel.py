"""What a release hands out: sdist and wheel in dist/, and the wheel tried in empty environments.

    make wheel                     build, look inside, and try on Python 3.11, 3.12 and 3.13
    python .ci/wheel.py 3.12       on this Python alone
    python .ci/wheel.py --tag v1.2.3   first compare a tag with version, changelog and CITATION.cff

The wheel is built from the unpacked sdist, so both are whole. Each environment has the newest torch
that pip finds there, and then ``tpviz[lab,mcp]`` of the wheel, without our constraints. In an empty
folder it runs the ten lines of the README, as they stand there, ``tpviz demo``, ``tpviz run``,
``tpviz lab``, whose server must have the first notebook, and ``tpviz mcp``, asked by a client;
nothing may be left running. torch comes without its GPU packages (`versions.environment`). A Python
that is not on this machine is a failure here.
"""

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from pathlib import Path
from time import monotonic, sleep

from beside import ROOT, run, watched
from versions import environment, find

DIST = ROOT / "dist"
PYTHONS = ["3.11", "3.12", "3.13"]
LIMIT = 600  # s for any one command
ADDRESS = re.compile(r"^The notebooks are at (\S+)/lab/tree/(\S+)\?token=(\w+)$", re.M)
CLIENT = """
import os, sys
import anyio
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


async def ask():
    server = StdioServerParameters(command=sys.argv[1], args=["mcp"], env=dict(os.environ))
    async with Client(stdio_client(server)) as client:
        asked = {"strategy": "Megatron(tp=2)", "cluster": "nvswitch(2)"}
        print((await client.call_tool("predict", asked)).structured_content)


anyio.run(ask)
"""


def main() -> None:
    """Exit code 1, with what is wrong, where something is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pythons", nargs="*", default=PYTHONS)
    parser.add_argument("--tag", help="of the release, such as v0.1.0")
    options = parser.parse_args()
    problems = wrong_of_tag(options.tag) if options.tag else []
    if not problems:
        sdist, wheel = build()
        problems = [f"{wheel.name} lacks {name}" for name in missing(wheel)]
        problems += [f"{wheel.name} has {name}" for name in unwanted(wheel)]
        print(f"{sdist.name}: {sdist.stat().st_size / 1e6:.1f} MB")
        print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.1f} MB", flush=True)
        problems += [words for python in options.pythons for words in tried(python, wheel)]
    sys.exit("\n".join(["wheel: FAILED", *problems]) if problems else 0)


# -- version ---------------------------------------------------------------------------------------
def wrong_of_tag(tag: str, root: Path = ROOT) -> list[str]:
    """Why the tree in ``root`` is not the release ``tag``; empty where it is."""
    said = (root / "tpviz/__init__.py").read_text()
    version = re.search(r'^__version__ = "(.+)"$', said, re.M)[1]
    headings = re.findall(r"^## (.+)$", (root / "CHANGELOG.md").read_text(), re.M)
    newest = headings[0] if headings else "nothing"
    wrong = [] if tag == f"v{version}" else [f"the tag is {tag}, and tpviz.__version__ {version}"]
    if not re.fullmatch(rf"{re.escape(version)} \(\d{{4}}-\d\d-\d\d\)", newest):
        wrong.append(f"CHANGELOG.md begins with {newest!r}, not with '{version} (YYYY-MM-DD)'")
    if f"\nversion: {version}\n" not in (root / "CITATION.cff").read_text():
        wrong.append(f"CITATION.cff is not of version {version}")
    return wrong


# -- build -----------------------------------------------------------------------------------------
def build(root: Path = ROOT, out: Path = DIST) -> tuple[Path, Path]:
    """(sdist, wheel), the wheel from the unpacked sdist, in a new folder ``out``."""
    shutil.rmtree(out, ignore_errors=True)
    _hatchling("sdist", root, out)
    [sdist] = out.glob("*.tar.gz")
    with tempfile.TemporaryDirectory(prefix="tpviz-sdist-") as folder:
        with tarfile.open(sdist) as archive:
            archive.extractall(folder, filter="data")
        [unpacked] = Path(folder).iterdir()
        _hatchling("wheel", unpacked, out)
    [wheel] = out.glob("*.whl")
    return sdist, wheel


def _hatchling(what, root, out):
    command = [sys.executable, "-m", "hatchling", "build", "-t", what, "-d", str(out)]
    subprocess.run(command, cwd=root, check=True, stdout=subprocess.DEVNULL)


def missing(wheel: Path) -> list[str]:
    """What git knows in tpviz/, and the notebooks and their pages, that the wheel has not."""
    sys.path.insert(0, str(ROOT))
    from tpviz.course.lab import PAGES

    git = ["git", "ls-files", "-z", "tpviz", "notebooks"]
    tree = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    wanted = {re.sub("^notebooks/", "tpviz/notebooks/", name) for name in tree.split("\0") if name}
    wanted |= {f"tpviz/notebooks/{page}" for page in PAGES}
    return sorted(wanted - set(zipfile.ZipFile(wheel).namelist()))


def unwanted(wheel: Path) -> list[str]:
    """Answers that the wheel would give away, and files that are nobody's."""
    names = zipfile.ZipFile(wheel).namelist()
    return [
        n
        for n in names
        if re.search(r"answers\.md|/solutions|/misconceptions|__pycache__|\.ipynb_checkpoints", n)
    ]


# -- try -------------------------------------------------------------------------------------------
def tried(python: str, wheel: Path) -> list[str]:
    """What goes wrong with the wheel on a Python, such as "3.12"; steps' seconds are printed."""
    interpreter = find(python)
    if interpreter is None:
        return [f"there is no Python {python} on this machine"]
    start, name = monotonic(), "the end"
    try:
        with watched("wheel") as (own, env):
            for name, step in STEPS.items():
                step(own, env, interpreter, wheel)
                print(f"wheel: Python {python}: {name}, {monotonic() - start:.0f} s", flush=True)
    except (subprocess.SubprocessError, AssertionError, OSError) as error:
        said = getattr(error, "stdout", None) or ""
        return [f"Python {python}, after or in {name}: {error}\n{said[-3000:]}"]
    return []


def install(own: Path, env: dict[str, str], interpreter: str, wheel: Path) -> None:
    """The newest torch, and the wheel with its lab, without constraints; pip finds no conflict."""

    def quietly(*command, check):
        subprocess.run(
            list(map(str, command)), env=env, stdin=subprocess.DEVNULL, timeout=LIMIT, check=check
        )

    pip = environment(quietly, interpreter, own / "venv", "")
    pip(f"tpviz[lab,mcp] @ {wheel.resolve().as_uri()}")
    _python(own, env, "-c", "import tpviz; assert 'site-packages' in tpviz.__file__")
    subprocess.run(
        [sys.executable, "-m", "pip", "--python", own / "venv/bin/python", "check"],
        env=env,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )


def ten_lines(own: Path, env: dict[str, str], *_: object) -> None:
    """The first program of the README, as a script that a reader would paste."""
    readme = (ROOT / "README.md").read_text()
    code = re.search(r"^## Ten lines\n\n```python\n(.*?)```", readme, re.M | re.S)[1]
    assert 8 <= sum(bool(line.strip()) for line in code.splitlines()) <= 10, code
    (own / "ten_lines.py").write_text(code)
    said = _python(own, env, "ten_lines.py")
    assert "all_reduce" in said, said


def demo(own: Path, env: dict[str, str], *_: object) -> None:
    """The demonstration, with its page."""
    said = _tpviz(own, env, "demo", "--steps", "3")
    assert "equals the formula" in said and (own / "out/demo/index.html").exists(), said


def command_line(own: Path, env: dict[str, str], *_: object) -> None:
    """One line of the README."""
    assert "all_reduce" in _tpviz(own, env, "run", "Megatron(tp=4)")


def lab(own: Path, env: dict[str, str], *_: object) -> None:
    """JupyterLab, without a browser: its page, the first notebook in it; an interrupt ends it."""
    log = own / "lab.log"
    with log.open("w") as out:
        command = [own / "venv/bin/tpviz", "lab", "--no-browser"]
        server = subprocess.Popen(
            command, cwd=own, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=out
        )
    try:
        deadline = monotonic() + 120
        while not (said := ADDRESS.search(log.read_text())):
            assert server.poll() is None and monotonic() < deadline, log.read_text()
            sleep(0.2)
        address, first, token = said.groups()
        page = _answer(f"{address}/lab/tree/{first}", token)
        assert "jupyter-config-data" in page, page[:500]
        notebook = json.loads(_answer(f"{address}/api/contents/{first}", token))["content"]
        assert any("import tpviz as tv" in cell["source"] for cell in notebook["cells"])
        server.send_signal(signal.SIGINT)
        assert server.wait(30) == 0, log.read_text()
    finally:
        server.kill()
        server.wait()


def mcp(own: Path, env: dict[str, str], *_: object) -> None:
    """The server for agents answers a client of the mcp package."""
    said = _python(own, env, "-c", CLIENT, own / "venv/bin/tpviz")
    assert "'label': 'predicted'" in said, said


STEPS = {
    "installed": install,
    "the README's ten lines": ten_lines,
    "tpviz demo": demo,
    "tpviz run": command_line,
    "tpviz lab": lab,
    "tpviz mcp": mcp,
}


def _python(own, env, *arguments):
    return run(own, env, LIMIT, own / "venv/bin/python", *arguments)


def _tpviz(own, env, *arguments):
    return run(own, env, LIMIT, own / "venv/bin/tpviz", *arguments)


def _answer(address, token):
    asked = urllib.request.Request(address, headers={"Authorization": f"token {token}"})
    with urllib.request.urlopen(asked, timeout=30) as reply:
        return reply.read().decode()


if __name__ == "__main__":
    main()

"""What a release hands out: its version, what is in the wheel, and how JupyterLab is opened."""

import os
import re
import shutil
import socket
import subprocess
import sys
import urllib.request
import webbrowser
import zipfile
from pathlib import Path

import pytest
import yaml

import tpviz
from tpviz.__main__ import main

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel():
    """`.ci/wheel.py`."""
    sys.path.insert(0, str(ROOT / ".ci"))
    try:
        import wheel
    finally:
        sys.path.remove(str(ROOT / ".ci"))
    return wheel


@pytest.fixture(scope="module")
def built(wheel, tmp_path_factory):
    """(sdist, wheel)."""
    return wheel.build(out=tmp_path_factory.mktemp("dist"))


def test_the_wheel_has_all_of_the_package_and_no_answers(wheel, built):
    _, made = built
    assert wheel.missing(made) == wheel.unwanted(made) == []
    names = set(zipfile.ZipFile(made).namelist())
    assert {"tpviz/cluster/coefficients.json", "tpviz/notebooks/00_start.ipynb"} <= names
    assert {Path(name).suffix for name in names} >= {".js", ".css", ".md", ".json", ".gz", ".pyi"}


def test_what_a_wheel_lacks_is_named(wheel, built, tmp_path):
    poor = tmp_path / "poor.whl"
    with zipfile.ZipFile(built[1]) as whole, zipfile.ZipFile(poor, "w") as less:
        for name in whole.namelist():
            if not name.endswith(("00_start.ipynb", "coefficients.json")):
                less.writestr(name, whole.read(name))
        less.writestr("tpviz/course/answers.md", "")
    lacks = ["tpviz/cluster/coefficients.json", "tpviz/notebooks/00_start.ipynb"]
    assert wheel.missing(poor) == lacks
    assert wheel.unwanted(poor) == ["tpviz/course/answers.md"]


def test_a_tag_is_the_version_of_all(wheel, tmp_path):
    (tmp_path / "tpviz").mkdir()
    for name in ("tpviz/__init__.py", "CHANGELOG.md", "CITATION.cff"):
        shutil.copy(ROOT / name, tmp_path / name)
    version = tpviz.__version__
    log = tmp_path / "CHANGELOG.md"
    log.write_text(re.sub(r"^## .*", f"## {version} (2026-12-24)", log.read_text(), flags=re.M))
    assert wheel.wrong_of_tag(f"v{version}", tmp_path) == []
    (wrong,) = wheel.wrong_of_tag("v9.9.9", tmp_path)
    assert "v9.9.9" in wrong and version in wrong
    log.write_text(log.read_text().replace("(2026-12-24)", "(unreleased)"))
    (wrong,) = wheel.wrong_of_tag(f"v{version}", tmp_path)
    assert f"'{version} (unreleased)'" in wrong
    cited = tmp_path / "CITATION.cff"
    cited.write_text(cited.read_text().replace(version, "0.0.9"))
    assert len(wheel.wrong_of_tag(f"v{version}", tmp_path)) == 2


def test_a_release_is_checked_before_it_is_published():
    """Targets and scripts of the workflow are there, and it asks for what each step needs."""
    release = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert release[True] == {"push": {"tags": ["v*"]}}  # YAML reads the key `on` as true
    assert release["permissions"] == {}
    build, publish = release["jobs"]["build"], release["jobs"]["publish"]
    [check] = [step["run"] for step in build["steps"] if "make wheel" in step.get("run", "")]
    assert 'TAG="$GITHUB_REF_NAME"' in check
    used = [step.get("uses", "").partition("@")[0] for step in build["steps"]]
    attests = used.index("actions/attest-build-provenance")
    assert attests > [step.get("run") for step in build["steps"]].index(check)
    assert build["permissions"] == {
        "contents": "read",
        "id-token": "write",
        "attestations": "write",
    }
    assert publish["needs"] == "build" and publish["permissions"]["id-token"] == "write"
    pythons = next(step["with"] for step in build["steps"] if "setup-python" in step["uses"])
    assert {"3.11", "3.12", "3.13"} == set(pythons["python-version"].split())


# -- tpviz lab -------------------------------------------------------------------------------------
@pytest.fixture
def own_jupyter(tmp_path, monkeypatch):
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_RUNTIME_DIR", "JUPYTER_DATA_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    monkeypatch.setenv("BROWSER", "a-browser")


def test_lab_opens_the_first_notebook_in_the_browser(tmp_path, monkeypatch, own_jupyter, capsys):
    """At a port that is free; what it has started ends with it."""
    asked, page = [], []

    def a_browser(address):
        asked.append(address)
        with urllib.request.urlopen(address, timeout=60) as reply:
            page.append(reply.read().decode())
        raise KeyboardInterrupt  # as Ctrl-C does

    monkeypatch.setattr(webbrowser, "open", a_browser)
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setenv("JUPYTER_PORT", str(taken))
        assert main(["lab", str(tmp_path / "course")]) == 0
    [address] = asked
    port = re.fullmatch(
        r"http://127\.0\.0\.1:(\d+)/lab/tree/00_start\.ipynb\?token=\w{20,}", address
    )
    assert port[1] != str(taken)
    assert "jupyter-config-data" in page[0] and "Login" not in page[0]
    assert f"The notebooks are at {address}\n" in capsys.readouterr().out
    with socket.socket() as gone:
        assert gone.connect_ex(("127.0.0.1", int(port[1]))) != 0


@pytest.fixture
def served(monkeypatch, own_jupyter):
    """`tpviz lab` with a server that ends at once, and a browser that opens nothing."""
    from tpviz.course import lab

    asked = []
    monkeypatch.setattr(lab, "_command", lambda *_: [sys.executable, "-c", ""])
    monkeypatch.setattr(lab, "_address", lambda _: "http://127.0.0.1:8899/lab/tree/00_start.ipynb")
    monkeypatch.setattr(webbrowser, "open", lambda address: asked.append(address))
    return asked


@pytest.mark.parametrize("told", [["--no-browser"], []], ids=["asked not to", "no screen"])
def test_lab_says_where_to_open_it(told, served, tmp_path, monkeypatch, capsys):
    for name in ("BROWSER", "DISPLAY", "WAYLAND_DISPLAY"):
        monkeypatch.delenv(name, raising=False)
    if told:
        monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setenv("SSH_CONNECTION", "192.0.2.1 22 192.0.2.2 22")
    assert main(["lab", str(tmp_path / "course"), *told]) == 0
    said = capsys.readouterr().out
    assert served == []
    assert "Open this address in a browser; on the machine where you sit, run this first:" in said
    assert f"ssh -N -L 8899:127.0.0.1:8899 {socket.gethostname()}\n" in said


def test_a_browser_that_does_not_open_is_said(served, tmp_path, capsys):
    assert main(["lab", str(tmp_path / "course")]) == 0
    assert len(served) == 1
    assert "Open this address in a browser.\n" in capsys.readouterr().out


def test_lab_without_jupyterlab_or_port_says_what_to_do(tmp_path, monkeypatch, capsys):
    from tpviz.course import lab

    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["lab", str(tmp_path / "course"), "--port", str(port)]) == 2
    said = capsys.readouterr().err
    assert f"--port {port}: Address already in use; without --port a free one is taken" in said
    assert main(["lab", str(tmp_path / "course"), "--port", "0"]) == 2
    assert "--port 0: use 1 to 65535" in capsys.readouterr().err
    monkeypatch.setattr(lab, "find_spec", lambda _: None)
    assert main(["lab", str(tmp_path / "course")]) == 2
    assert 'pip install "tpviz[lab]"' in capsys.readouterr().err


def test_a_lab_that_does_not_start_is_said(tmp_path, monkeypatch, own_jupyter, capfd):
    from tpviz.course import lab

    monkeypatch.setattr(lab, "_command", lambda *_: [sys.executable, "-c", "raise SystemExit(7)"])
    assert main(["lab", str(tmp_path / "course")]) == 2
    assert "JupyterLab did not start and ended with code 7" in capfd.readouterr().err


def test_a_terminated_lab_ends_its_server(tmp_path, own_jupyter):
    """SIGTERM, as from a system that shuts down."""
    code = (
        "import sys; from tpviz.__main__ import main; sys.exit(main(['lab', 'c', '--no-browser']))"
    )
    ours = subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        port = next(
            int(found[1])
            for line in ours.stdout
            if (found := re.match(r"The notebooks are at http://127\.0\.0\.1:(\d+)/", line))
        )
        ours.terminate()
        assert ours.wait(60) == 143
        with socket.socket() as gone:
            assert gone.connect_ex(("127.0.0.1", port)) != 0
    finally:
        ours.kill()
        ours.wait()
        ours.stdout.close()


def test_the_paper_cites_what_it_names():
    """Every reference is there, and is used; its count of published runs is the README's."""
    paper, keys = (ROOT / "paper.md").read_text(), (ROOT / "paper.bib").read_text()
    cited = set(re.findall(r"@(\w+)[;\]]", paper))
    assert cited == set(re.findall(r"^@\w+\{(\w+),", keys, re.M))
    [runs] = re.findall(r"([\d,]+)\s+training\s+steps", paper)
    assert f"{runs} training steps" in (ROOT / "README.md").read_text()
    assert len(list((ROOT / "notebooks").glob("*.ipynb"))) == 16 and "Sixteen notebooks" in paper

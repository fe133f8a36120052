"""Formulas, searches, views and a notebook of predictions give the same where torch, processes,
locks of files and a thread's clock are missing, as in a page."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import in_a_page
import pytest
from packaging.requirements import Requirement

from tpviz import search
from tpviz.cluster import clusters
from tpviz.core.workload import GPT

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    "part", ["formulas", "linked", "views", pytest.param("notebook", marks=pytest.mark.slow)]
)
def test_the_same_without_torch_and_processes(part, tmp_path, monkeypatch):
    monkeypatch.setenv("TPVIZ_PROGRESS", str(tmp_path / "progress.json"))
    pytest.importorskip("torch")  # and loads it
    command = [sys.executable, in_a_page.__file__, part]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as without:
        here = in_a_page.PARTS[part]()
        said, errors = without.communicate()
    assert without.returncode == 0, errors.decode()
    there = json.loads(said)
    assert there["loaded"] == []
    assert there["found"] == json.loads(json.dumps(here))


@pytest.mark.slow
def test_notebooks_leave_out_what_needs_ranks(tmp_path):
    """No cell fails where ranks lack; most notebooks have cells that need none."""
    command = [sys.executable, in_a_page.__file__, "notebooks"]
    places = {"IPYTHONDIR": str(tmp_path), "TPVIZ_PROGRESS": str(tmp_path / "progress.json")}
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **places})
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["found"]
    assert {name: one["errors"] for name, one in found.items() if one["errors"]} == {}
    assert min(one["whole"] for one in found.values()) >= 3
    assert [name for name, one in found.items() if not one["in part"]] == ["08_beat_the_cluster"]


def test_what_follows_from_a_left_out_statement_is_left_out(monkeypatch, capsys):
    from IPython.core.interactiveshell import InteractiveShell

    from tpviz.course import without_ranks

    monkeypatch.setattr(without_ranks, "LACKING", ("no_such_module",))
    shell, failed = InteractiveShell(), []
    without_ranks.install(shell)
    shell._showtraceback = lambda kind, value, lines: failed.append(str(value))
    shell.run_cell("kept = {}\nmade = 1")
    shell.run_cell(
        "import no_such_module as gone\nfree = 2\nmade = gone.do()\nkept[1] = made\nfree"
    )
    assert "Not run here: lines 1, 3 to 4 of this cell" in capsys.readouterr().out
    assert shell.user_ns["free"] == 2 and not {"gone", "made", "kept"} & shell.user_ns.keys()
    shell.run_cell("made + 1")
    assert "Not run here: this cell" in capsys.readouterr().out
    assert failed == []
    shell.run_cell("made = 5\nmade")
    shell.run_cell("gone\nnowhere + 1")
    assert failed == ["name 'nowhere' is not defined"]


def test_a_page_is_asked_to_install_what_it_can():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [Requirement(line) for line in project["dependencies"]]
    here = {one.name for one in asked if not one.marker or one.marker.evaluate()}
    page = {"sys_platform": "emscripten"}
    there = {one.name for one in asked if not one.marker or one.marker.evaluate(page)}
    assert there == {"numpy", "ipywidgets", "anywidget"}
    assert here - there == {"torch", "plotly", "cloudpickle"}


def test_what_needs_torch_says_so(monkeypatch):
    monkeypatch.setattr("tpviz.verbs.search.has_torch", lambda: False)
    with pytest.raises(ValueError, match="simulate=True needs torch, which is not installed"):
        search(GPT(), clusters.nvswitch(2), simulate=True)


def test_without_ranks_an_answer_is_asked_here(monkeypatch, tmp_path):
    from tpviz import check

    monkeypatch.setenv("TPVIZ_PROGRESS", str(tmp_path / "progress.json"))
    monkeypatch.setattr("tpviz.course.grade.has_torch", lambda: False)

    def beat_rule(layouts, batch, node):
        raise KeyError("no such layout")

    said = str(check("beat_rule", beat_rule))
    assert "KeyError: 'no such layout'" in said and "answers.py" not in said

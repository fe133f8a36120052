"""Formulas, searches, views and a notebook of predictions give the same where torch, processes,
locks of files and a thread's clock are missing, as in a page."""

import json
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

"""Texts of exercises stand in Markdown files, by the keys that the Python files use."""

import ast
from pathlib import Path

import pytest

from tpviz.course import catalogue, exercise, exercises, told
from tpviz.course.task import HINT_KINDS

FILES = sorted(told.FOLDER.glob("*.md"))


def tree_of(path):
    return ast.parse((Path(catalogue.__file__).parent / f"{path.stem}.py").read_text())


def strings(tree):
    return {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)}


def keys(path):
    """Of messages, by line."""
    lines = path.read_text().split("### messages\n")[1:]
    parts = [part.split("\n## ")[0].split("\n### ")[0] for part in lines]
    return [line[5:] for part in parts for line in part.splitlines() if line.startswith("#### ")]


def test_each_exercise_has_its_texts_in_the_file_of_its_module():
    found = {
        line.split(":")[0][3:]
        for p in FILES
        for line in p.read_text().splitlines()
        if line.startswith("## ")
    }
    assert found == {task.name for task in exercises()}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_message_is_said(path):
    """A message that no line of Python names is never seen."""
    if path.stem != "bugs":
        assert set(keys(path)) - {"silent"} <= strings(tree_of(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_key_has_its_message(path):
    calls = [n for n in ast.walk(tree_of(path)) if isinstance(n, ast.Call) and n.args]
    named = [
        n for n in calls if getattr(n.func, "id", "") in ("Mistake", "wasteful", "ran_along", "say")
    ]
    named += [n for n in calls if getattr(n.func, "attr", "") == "say"]
    said = {n.args[0].value for n in named if isinstance(n.args[0], ast.Constant)}
    assert said <= set(keys(path))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_tasks_and_hints_are_not_in_python(path):
    fields = {"title", "prompt", "starter", "success", *HINT_KINDS}
    kinds = {"Formula", "ChoiceQuestion", "RankProgram", "PlanExercise", "Diagnosis"}
    calls = [n for n in ast.walk(tree_of(path)) if isinstance(n, ast.Call)]
    calls = [n for n in calls if getattr(n.func, "id", "") in kinds]
    assert calls
    assert [k.arg for n in calls for k in n.keywords if k.arg in fields] == []


def test_lines_are_joined_paragraphs_are_kept_and_facts_are_filled_in(tmp_path, monkeypatch):
    (tmp_path / "one.md").write_text(
        "# Head\n\n### messages\n\n#### silent\n\nfor\nall\n\n## add: Add: two\n\nThe sum\nof {n}."
        "\n\nIt is whole.\n\n```python\ndef add(n):\n\n    return {n}\n```\n"
        "\n### concept\n\nA hint.\n\n### messages\n\n#### more\n\n{got:g} is\ntoo much\n"
    )
    monkeypatch.setattr(told, "FOLDER", tmp_path)
    told._all.cache_clear()
    try:
        assert told.told("add", n=2) == {
            "title": "Add: two",
            "prompt": "The sum of 2.\n\nIt is whole.",
            "starter": "def add(n):\n\n    return {n}",
            "concept": "A hint.",
            "messages": {"silent": "for all", "more": "{got:g} is too much"},
        }
    finally:
        told._all.cache_clear()


def test_what_is_filled_in_may_be_called_key():
    task = exercise("ring_time")
    assert task.messages and isinstance(task.say(next(iter(task.messages)), key=1), told.Words)
    with pytest.raises(KeyError):
        task.say("nothing like this")


def test_what_may_be_said_of_any_exercise_is_said():
    trees = [ast.parse(p.read_text()) for p in told.FOLDER.parent.glob("*.py")]
    calls = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Call) and n.args]
    named = [n for n in calls if getattr(n.func, "id", "") in ("said", "general")]
    said = {n.args[0].value for n in named if isinstance(n.args[0], ast.Constant)}
    assert said == set(told._general())

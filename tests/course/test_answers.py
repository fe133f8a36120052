"""The teachers' key is what the tests grade, complete, and outside of the package."""

import subprocess
from pathlib import Path

import answers
import pytest

from tpviz.course import check, exercise, exercises

ROOT = Path(__file__).parents[2]


def test_the_key_is_up_to_date():
    assert answers.KEY.read_text() == answers.text(), "run `make answers`"


def test_every_answer_is_code_to_paste():
    for task in exercises():
        names = {}
        exec(code := answers.answer(task), names)
        assert callable(names[task.name])
        assert not answers.OURS.search(code), task.name


@pytest.mark.parametrize("name", ["mlp_on_mesh", "find_straggler", "atp_owned", "t3_traffic"])
def test_what_is_pasted_passes(name, tmp_path):
    cell = tmp_path / "cell.py"
    cell.write_text(answers.answer(exercise(name)))
    names = {}
    exec(compile(cell.read_text(), str(cell), "exec"), names)
    result = check(name, names[name])
    assert result.passed, result.message


def test_no_answer_is_in_the_package():
    """Nor named there: what a learner's editor completes has none."""
    files = subprocess.run(["git", "ls-files", "tpviz", "notebooks"], cwd=ROOT, capture_output=True)
    texts = [(ROOT / name).read_text(errors="ignore") for name in files.stdout.decode().split()]
    assert len(texts) > 100
    assert not [text for text in texts if "teacher/answers" in text or "solutions_" in text]

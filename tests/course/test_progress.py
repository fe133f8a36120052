"""Progress: what counts, what is shown, and that nothing is lost or in the way of grading."""

import json
import multiprocessing
import os
import tempfile
from pathlib import Path

import pytest
import solutions_costs

import tpviz as tv
from tpviz.course import progress
from tpviz.course.catalogue import COURSE, EXERCISES
from tpviz.course.progress import Done, load, record


@pytest.fixture
def path(tmp_path, monkeypatch):
    path = tmp_path / "deep" / "progress.json"
    monkeypatch.setenv("TPVIZ_PROGRESS", str(path))
    return path


def test_tests_leave_the_learners_file_alone():
    assert progress.file().is_relative_to(os.path.realpath(tempfile.gettempdir()))


def test_the_file_is_in_the_data_folder(monkeypatch):
    monkeypatch.delenv("TPVIZ_PROGRESS")
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert progress.file() == Path.home().resolve() / ".local/share/tpviz/progress.json"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert progress.file() == Path("/data/tpviz/progress.json")


def test_a_user_without_a_home_can_learn(monkeypatch):
    def no_home(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", no_home)
    assert "home directory" in record("ring_time", True)
    assert "home directory" in load()[1]


def test_attempts_count_until_the_first_right_one(path):
    assert load() == ({}, "")
    for passed in (False, False, True, False, True):
        assert record("ring_time", passed) == ""
    assert load() == ({"ring_time": Done(3, True)}, "")
    assert [p.name for p in path.parent.iterdir() if not p.name.endswith(".lock")] == [path.name]


def test_checks_count_and_the_starter_does_not(path):
    starter = "def ring_time(payload, n, latency, bandwidth):\n    return payload / bandwidth"
    cell = path.parent.parent / "cell.py"
    cell.write_text(starter)
    names = {}
    exec(compile(starter, str(cell), "exec"), names)
    assert EXERCISES["ring_time"].starter == starter
    assert not tv.check("ring_time", names["ring_time"])
    assert load() == ({}, "")
    assert not tv.check("ring_time", lambda *sizes: 0.0)
    assert tv.check("ring_time", solutions_costs.ring_time)
    assert load() == ({"ring_time": Done(2, True)}, "")


def test_the_table(path):
    record("zero_bucket", True)
    record("zero_sent", False)
    table = tv.exercises(notebook="02")
    head, *rows = table.to_table()
    assert head == ["notebook", "exercise", "topic", "difficulty", "minutes", "tries", "solved"]
    cells = {row[1]: row for row in rows}
    assert list(cells) == [task.name for task in table] == list(COURSE["02_data_parallelism"])
    topic, level, minutes = COURSE["02_data_parallelism"]["zero_bucket"]
    assert cells["zero_bucket"][2:] == [
        topic,
        "●○○"[:level] + "○○"[level - 1 :],
        str(minutes),
        "1",
        "✓",
    ]
    assert cells["zero_sent"][-2:] == ["1", ""]
    assert cells["zero_step"][-2:] == ["", ""]
    assert repr(table).splitlines()[-1].startswith(f"1 of {len(table)} solved, about ")
    assert "<td>zero_bucket</td>" in table._repr_html_()
    assert len(tv.exercises()) == len(EXERCISES)
    assert {task.topic for task in tv.exercises(topic="mem")} == {"memory"}
    with pytest.raises(ValueError, match=r"notebook='99': there are 00_start, "):
        tv.exercises(notebook="99")
    with pytest.raises(ValueError, match=r"topic='tensor': there are data parallelism, "):
        tv.exercises("02", "tensor")


def test_every_exercise_is_rated():
    for task in EXERCISES.values():
        assert task.topic and 1 <= task.difficulty <= 3 and 5 <= task.minutes <= 60, task.name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"ring_time": 3}',
        '{"ring_time": {"tries": "3", "solved": true}}',
        '{"ring_time": {"tries": 3, "done": true}}',
        '{"ring_time": {"tries": true, "solved": true}}',
        b"\xff\xfe\x00".decode("latin-1"),
        "[" * 100_000,
    ],
    ids=range(10),
)
def test_a_damaged_file_is_put_aside_and_named(path, text):
    path.parent.mkdir()
    path.write_text(text, encoding="latin-1")
    known, said = load()
    assert not known and f"{path} is damaged" in said
    assert path.read_text(encoding="latin-1") == text  # looking changes nothing
    assert "is damaged" in repr(tv.exercises())
    for number in (1, 2):
        said = record("ring_time", True)
        aside = path.with_name(f"progress.json.damaged-{number}")
        assert str(aside) in said
        assert aside.read_text(encoding="latin-1") == text
        assert load() == ({"ring_time": Done(1, True)}, "")
        path.write_text(text, encoding="latin-1")


def test_exercises_of_another_version_are_kept(path):
    path.parent.mkdir()
    path.write_text(json.dumps({"of_tomorrow": {"tries": 2, "solved": True}}))
    record("ring_time", False)
    assert load()[0] == {"of_tomorrow": Done(2, True), "ring_time": Done(1, False)}


def test_grading_works_where_nothing_can_be_written(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TPVIZ_PROGRESS", str(tmp_path / "file" / "progress.json"))
    result = tv.check("ring_time", solutions_costs.ring_time)
    assert result.passed
    assert "Your progress is not kept: " in repr(result) and "TPVIZ_PROGRESS" in repr(result)
    assert "Your progress is not kept: " in result._repr_html_()
    assert len(tv.exercises()) == len(EXERCISES)


@pytest.mark.parametrize("bad", ["/dev/null", "/"])
def test_what_is_no_file_is_left_alone(monkeypatch, bad):
    monkeypatch.setenv("TPVIZ_PROGRESS", bad)
    assert "is not kept" in record("ring_time", True)
    assert "is no file" in load()[1]


def test_a_full_disk_leaves_the_file_as_it_was(path, monkeypatch):
    record("ring_time", False)
    before = path.read_bytes()

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left" in record("ring_time", True)
    assert path.read_bytes() == before
    assert {p.name for p in path.parent.iterdir()} == {path.name, f"{path.name}.lock"}


def test_a_lock_that_stays_does_not_stop_grading(path, monkeypatch):
    monkeypatch.setattr(progress, "PATIENCE", 0.05)
    record("ring_time", False)
    with progress._locked(path):
        assert "another kernel has locked" in record("ring_time", True)
    assert load()[0]["ring_time"] == Done(1, False)


def _attempts(name, times):
    for _ in range(times):
        assert record(name, False) == ""


def test_kernels_write_in_turn(path):
    context = multiprocessing.get_context("fork")
    names = ["ring_time", "ring_time", "zero_sent", "zero_step"]
    kernels = [context.Process(target=_attempts, args=(name, 20)) for name in names]
    for kernel in kernels:
        kernel.start()
    for kernel in kernels:
        kernel.join()
    assert [kernel.exitcode for kernel in kernels] == [0] * 4
    assert {n: d.tries for n, d in load()[0].items()} == {
        "ring_time": 40,
        "zero_sent": 20,
        "zero_step": 20,
    }

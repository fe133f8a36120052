"""The exercises on the bug zoos: every fault of a zoo has its words, and every place outside of the
layers too."""

from importlib import import_module

import pytest

from tpviz.course import bugs
from tpviz.course.zoo import ZOOS, Diagnosis

EXERCISES = [task for task in vars(bugs).values() if isinstance(task, Diagnosis)]


def test_there_are_six():
    names = ["atp_bugs", "axonn_bugs", "merak_bugs", "t3_bugs", "context_bugs", "experts_bugs"]
    assert sorted(task.name for task in EXERCISES) == sorted(names)


@pytest.mark.parametrize("task", EXERCISES, ids=lambda task: task.name)
def test_every_cause_has_its_evidence_and_every_place_a_word(task):
    import_module(f"tpviz.course.{task.zoo}")
    broken = ZOOS[task.zoo]
    assert list(task.shows) == list(broken.faults)
    assert tuple(task.outside) == broken.outside
    assert all(cause in task.prompt for cause in task.shows)

"""All exercises by name, in the order of the course, which `course.json` has: {notebook: {exercise:
(topic, difficulty from 1 to 3, minutes)}}. A file of `texts` belongs to the module of its name."""

import json
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from .task import Exercise
from .told import FOLDER

COURSE: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("course.json").read_text())
_MODULES = [import_module(f".{path.stem}", __package__) for path in sorted(FOLDER.glob("*.md"))]
_ALL = [value for module in _MODULES for value in vars(module).values()]
_BY_NAME = {value.name: value for value in _ALL if isinstance(value, Exercise)}
EXERCISES: dict[str, Exercise] = {
    name: replace(_BY_NAME[name], notebook=notebook, topic=topic, difficulty=hard, minutes=minutes)
    for notebook, rows in COURSE.items()
    for name, (topic, hard, minutes) in rows.items()
}


def exercise(name: str) -> Exercise:
    """The exercise called ``name``, which shows its task. Raises ValueError for other names."""
    if name not in EXERCISES:
        raise ValueError(f"no exercise is called {name!r}; there are {', '.join(EXERCISES)}")
    return EXERCISES[name]

"""What every shipped notebook promises: its skeleton, its size, and nothing stored by a run."""

import ast
import sys
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager

from tpviz.course import exercises

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))
SKELETON = [
    "# ",
    "**Question.**",
    "**You will be able to**",
    "## Predict",
    "## Run",
    "## Reveal",
    "## Change it",
    "## Exercises",
    "## Takeaways",
]


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=4)


def code(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def test_the_course_has_its_notebooks():
    assert [path.stem for path in NOTEBOOKS] == [
        "00_start",
        "01_ranks_meshes_collectives",
        "02_data_parallelism",
        "03_tensor_parallelism",
        "04_pipelines",
        "05_memory_and_precision",
        "06_overlap",
        "07_cost_models",
        "08_beat_the_cluster",
        "09_capstone",
        "10_atp",
        "11_axonn",
        "12_merak",
        "13_t3",
        "14_context",
        "15_experts",
    ]


def test_stored_without_outputs_and_widget_state(notebook):
    assert "widgets" not in notebook.metadata
    assert notebook.metadata.kernelspec.name == "python3"
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert not cell.metadata


def test_size(notebook):
    assert len(notebook.cells) <= 25
    assert max(len(source.splitlines()) for source in code(notebook)) <= 15


def test_the_skeleton_is_there_in_order(notebook):
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    places = [text.find(heading) for heading in SKELETON]
    assert places[0] == 0
    assert -1 not in places
    assert places == sorted(places)


def test_links_between_notebooks_lead_somewhere(notebook, path):
    links = [
        (part.split(")")[0], cell)
        for cell in notebook.cells
        for part in cell.source.split("](")[1:]
    ]
    assert links
    for link, cell in links:
        if link.startswith("attachment:"):
            assert link.removeprefix("attachment:") in cell.attachments
        else:
            assert (path.parent / link.partition("#")[0]).exists(), link


def test_lessons_end_in_asserts(notebook):
    assert sum("assert " in source for source in code(notebook)) >= 4


def test_every_guess_is_compared_where_the_reader_sees_it(notebook):
    """Jupyter shows a cell's last expression alone; `reveal` itself shows nothing."""
    calls = [ast.parse(source).body for source in code(notebook) if "guess.reveal(" in source]
    assert len(calls) == 1
    (body,) = calls
    silent = [ast.unparse(one) for one in body[:-1] if isinstance(one, ast.Expr)]
    assert not [one for one in silent if one.startswith("guess.reveal(")]


def test_slow_motion_is_chosen_for_the_reader(notebook):
    assert not [source for source in code(notebook) if "slow_motion=" in source]


def test_each_exercise_is_named_and_two_are_shown_with_their_starters(notebook, path):
    mine = [task for task in exercises() if task.notebook == path.stem]
    cells = code(notebook)
    shown = [task for task in mine if f'tv.exercise("{task.name}")' in cells]
    assert len(shown) == 2
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert [task.name for task in mine if task not in shown and f'"{task.name}"' not in text] == []
    for task in shown:
        attempt = next(source for source in cells if f'tv.check("{task.name}"' in source)
        assert task.starter in attempt


def test_the_kernel_of_the_notebooks_is_the_python_of_the_tests():
    assert KernelManager(kernel_name="python3").format_kernel_cmd()[0] == sys.executable

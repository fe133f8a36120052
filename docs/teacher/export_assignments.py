"""Assignments of the exercises, in nbgrader's cell metadata: ``make assignments``.

out/assignments/release/<notebook>/<notebook>.ipynb is for students: task, starter, and a cell that
grades. out/assignments/source has the same with hidden tests, which repeat the check with seeds
that are drawn anew for each export. These stand in out/assignments/withheld and nowhere else: the
feedback shows hidden tests to students. nbgrader's own folders have these names:
`nbgrader generate_assignment` makes the one of the other, and `nbgrader autograde` needs the first;
nbgrader_config.py beside them says how. Points are 10 times the difficulty.
"""

import argparse
import json
import re
import secrets
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from tpviz.course import Exercise, exercises

OUT = Path(__file__).parents[2] / "out/assignments"
HIDDEN = re.compile(r"### BEGIN HIDDEN TESTS\n.*?### END HIDDEN TESTS\n?", re.S)
SEEDS = 2  # withheld inputs for each exercise
CONFIG = '''"""Settings of nbgrader for these assignments; written anew with them."""
import os
import sys

c = get_config()  # noqa: F821
# For a new database nbgrader runs alembic by its name, which is found beside its own Python only
# where that environment was activated.
os.environ["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", "")])
c.CourseDirectory.root = os.path.dirname(os.path.abspath(__file__))
c.GenerateAssignment.force = True  # the release that was exported is replaced by nbgrader's own
c.ClearSolutions.enabled = False  # cells of answers hold the starter, no solution
# Where hidden tests find their seeds; a kernel that grades gets this environment.
os.environ["TPVIZ_WITHHELD"] = os.path.join(os.path.dirname(os.path.abspath(__file__)), "withheld")
# A cell that grades starts ranks, three times, and each of its checks ends by a time-out of its
# own; nbgrader's 30 s would end right answers on a machine that is busy.
c.Execute.timeout = 600
'''


# A function, so that no cell after it finds seeds. What answers print of their inputs is not kept.
TESTS = """result = tv.check("{name}", {name})
assert result, result.message
### BEGIN HIDDEN TESTS
def withheld(fn):
    import json, os
    from IPython.utils.capture import capture_output

    with open(os.path.join(os.environ["TPVIZ_WITHHELD"], "{stem}.json")) as file:
        seeds = json.load(file)["{name}"]
    with capture_output():
        right = [bool(tv.check("{name}", fn, seed=seed)) for seed in seeds]
    return all(right)

assert withheld({name}), "wrong for withheld inputs"
### END HIDDEN TESTS
"""


def cells_of(task: Exercise) -> list[NotebookNode]:
    """The task, the cell of the answer and the cell that grades."""
    name = task.name
    answer = nbformat.v4.new_code_cell(task.starter.rstrip())
    answer.metadata.nbgrader = _mark(name, solution=True)
    test = nbformat.v4.new_code_cell(TESTS.format(name=name, stem=task.notebook))
    test.metadata.nbgrader = _mark(f"check_{name}", points=10 * task.difficulty)
    text = nbformat.v4.new_markdown_cell(
        f"## {task.title}\n\n{task.prompt}\n\nDifficulty {task.difficulty} of 3, about "
        f"{task.minutes} minutes (an estimate), {10 * task.difficulty} points."
    )
    text.metadata.nbgrader = _mark(f"task_{name}", locked=True)
    return [text, answer, test]


def _mark(grade_id, solution=False, points=None, locked=False):
    """nbgrader's metadata of one cell, schema 3."""
    grade = points is not None
    mark = {"grade": grade, "solution": solution, "locked": locked or grade, "task": False}
    return NotebookNode(
        mark | ({"points": points} if grade else {}), grade_id=grade_id, schema_version=3
    )


def assignment(stem: str, tasks: list[Exercise]) -> NotebookNode:
    """The source notebook of the exercises of one notebook, with hidden tests."""
    start = nbformat.v4.new_code_cell("import tpviz as tv")
    start.metadata.nbgrader = _mark("start", locked=True)
    cells = [nbformat.v4.new_markdown_cell(f"# Assignment: {stem}"), start]
    for task in tasks:
        cells += cells_of(task)
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def released(source: NotebookNode) -> NotebookNode:
    """The students' notebook: the same without hidden tests."""
    book = nbformat.from_dict(source.copy())
    for cell in book.cells:
        cell.source = HIDDEN.sub("", cell.source).rstrip("\n")
    return book


def main() -> None:
    """Write the assignments of the notebooks named, or of all that have exercises."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("notebooks", nargs="*", help="such as 00_start; by default all")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    every = exercises()  # reads the file of progress
    for stem in options.notebooks or sorted({task.notebook for task in every}):
        tasks = [task for task in every if task.notebook == stem]
        if not tasks:
            parser.error(f"{stem} has no exercises")
        source = assignment(stem, tasks)
        seeds = {task.name: [secrets.randbelow(2**31) for _ in range(SEEDS)] for task in tasks}
        (options.out / "withheld").mkdir(parents=True, exist_ok=True)
        (options.out / "withheld" / f"{stem}.json").write_text(json.dumps(seeds))
        for kind, book in (("source", source), ("release", released(source))):
            folder = options.out / kind / stem
            folder.mkdir(parents=True, exist_ok=True)
            nbformat.write(book, folder / f"{stem}.ipynb")
        (options.out / "nbgrader_config.py").write_text(CONFIG)
        print(
            f"{stem}: {len(tasks)} exercises, {sum(10 * task.difficulty for task in tasks)} points"
        )


if __name__ == "__main__":
    main()

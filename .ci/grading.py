"""nbgrader tried on our assignments, from generate to feedback: ``make hub-check``.

nbgrader goes into an environment of its own beside .venv. A release is generated, five students
hand in what `submissions` says, and all is graded: the points must be those, and the feedback must
say what was wrong. Ranks of answers are real ones.
"""

import csv
import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from html import unescape
from pathlib import Path
from time import monotonic

import nbformat
from beside import ROOT, environment, run, watched

NBGRADER = "nbgrader==0.9.6"
ASSIGNMENT = "00_start"
POINTS = 20  # of its two exercises
LIMIT = 300  # s for one command
WRONG = {
    "mean_over_ranks": "import torch.distributed as dist\n\n\n"
    "def mean_over_ranks(x):\n    dist.all_reduce(x)\n    return x\n",
    "row_parallel": "def row_parallel(x, w):\n    return x @ w\n",
}
TOLD = {
    "mean_over_ranks": "You have the sum over the ranks, not the mean",
    "row_parallel": "Each rank returned only its partial sum",
}
"""What `tv.check` says of these, and feedback must."""


def main() -> None:
    """Exit code 1, with what is wrong, where something is."""
    start = monotonic()

    def done(what):
        print(f"grading: {what}, {monotonic() - start:.0f} s", flush=True)

    try:
        with watched("grading") as (folder, env), ThreadPoolExecutor() as beside:
            installed = beside.submit(environment, folder / "venv", NBGRADER)
            course, handed = folder / "course", submissions()
            script = ROOT / "docs/teacher/export_assignments.py"
            run(ROOT, env, LIMIT, sys.executable, script, ASSIGNMENT, "--out", course)
            python = installed.result() / "python"
            done(f"{NBGRADER} installed")
            nbgrader = [python, "-m", "nbgrader"]
            run(course, env, LIMIT, *nbgrader, "generate_assignment", ASSIGNMENT)
            hand_in(course, handed)
            done(f"released, and handed in by {len(handed)}")
            run(course, env, LIMIT, *nbgrader, "autograde", ASSIGNMENT)
            done("graded")
            exported = beside.submit(run, course, env, LIMIT, *nbgrader, "export")
            run(course, env, LIMIT, *nbgrader, "generate_feedback", ASSIGNMENT)
            exported.result()
            judge(course, handed)
            done("feedback and points are right")
    except (subprocess.SubprocessError, AssertionError, OSError) as error:
        said = getattr(error, "stdout", None) or ""
        sys.exit(f"grading: FAILED: {error}\n{said[-4000:]}")


def submissions() -> dict[str, tuple[dict[str, str], bool, int]]:
    """{student: (answers by exercise, whether the cells that grade are emptied, points due)}."""
    right = answer_key(ASSIGNMENT)
    assert right.keys() == WRONG.keys(), right.keys()
    first, second = right
    return {
        "right": (right, False, POINTS),
        "half": ({first: right[first], second: WRONG[second]}, False, POINTS // 2),
        "wrong": (WRONG, False, 0),
        "unanswered": ({}, False, 0),
        "tampered": (WRONG, True, 0),
    }


def answer_key(stem: str) -> dict[str, str]:
    """{exercise: code} of one notebook, from docs/teacher/answers.md."""
    text = (ROOT / "docs/teacher/answers.md").read_text()
    own = text.split(f"\n## {stem}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^### `(\w+)`.*?```python\n(.*?)```", own, re.M | re.S))


def hand_in(course: Path, handed: dict[str, tuple[dict[str, str], bool, int]]) -> None:
    """What students make of the released notebook, where nbgrader collects it."""
    for student, (answers, emptied, _) in handed.items():
        file = f"{ASSIGNMENT}/{ASSIGNMENT}.ipynb"
        book = nbformat.read(course / "release" / file, as_version=4)
        for cell in book.cells:
            name = cell.metadata.get("nbgrader", {}).get("grade_id", "")
            cell.source = answers.get(name, cell.source)
            if emptied and name.startswith("check_"):
                cell.source = "pass"
        copy = course / "submitted" / student / file
        copy.parent.mkdir(parents=True)
        nbformat.write(book, copy)


def judge(course: Path, handed: dict[str, tuple[dict[str, str], bool, int]]) -> None:
    """Raises AssertionError where points or feedback are not as they should be."""
    with (course / "grades.csv").open() as file:
        given = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    assert given == {student: points for student, (_, _, points) in handed.items()}, given
    print(f"grading: points of {POINTS}: {given}")
    withheld = json.loads((course / f"withheld/{ASSIGNMENT}.json").read_text())
    for student, (answers, _, points) in handed.items():
        page = feedback(course, student)
        seen = [seed for seeds in withheld.values() for seed in seeds if str(seed) in page]
        assert not seen, f"{student} sees withheld seeds {seen}"
        assert f"(Score: {float(points)} / {float(POINTS)})" in page, f"{student}: {page[:2000]}"
        for name in answers:  # a starter may be a typical mistake too
            told, due = TOLD[name] in page, answers[name] == WRONG[name]
            assert told == due, f"{student}, {name}: told {told}, to be told {due}"


def feedback(course: Path, student: str) -> str:
    """The text of a student's page."""
    html = (course / "feedback" / student / ASSIGNMENT / f"{ASSIGNMENT}.html").read_text()
    body = html[html.index("<body") :]
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]+>", "", body)))


if __name__ == "__main__":
    main()

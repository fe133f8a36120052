"""The teacher's kit: pages without network, slides, and assignments with hidden tests."""

import json
import os
import re
import sys
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tpviz.course import exercises

ROOT = Path(__file__).parents[2]
PICTURE = '<img alt="a picture" src="data:image/svg+xml;base64,PHN2Zy8+">'
STILL = f"<div class='tpv-still'><style>.tpv-still{{}}</style>{PICTURE}</div>"
LIVE = "application/vnd.jupyter.widget-view+json"


@pytest.fixture
def kit(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs/teacher")
    yield lambda name: import_module(name)
    for name in ("pages", "export_assignments"):
        sys.modules.pop(name, None)


@pytest.fixture
def book():
    shown = [
        new_output("display_data", {"text/html": STILL}),
        new_output("display_data", {LIVE: {"model_id": "1"}, "text/plain": "View()"}),
        new_output("display_data", {"text/html": STILL}),
    ]
    formula = r"$$T = \frac{n-1}{n}\,\alpha$$ and [a rank](../docs/glossary.md#rank)."
    cells = [
        new_markdown_cell(f"# Title\n\nText.\n\n## Part\n\n{formula}\n\n### Detail\n\nMore."),
        new_code_cell("1 + 1", outputs=shown),
        new_code_cell("2 + 2"),
    ]
    return new_notebook(cells=cells)


def test_pages_have_every_picture_and_need_no_network(kit, book):
    pages = kit("pages")
    for made in (pages.handout(book), pages.slides(book)):
        assert made.count("<img") == 2 and "View()" not in made and "tpv-still{" not in made
        assert "(n-1)/n α" in made and "$$" not in made
        assert 'href="glossary.html#rank"' in made
        assert not re.search(r"""(?:src|href)=["']?(?:https?:)?//""", made)
    assert LIVE in book.cells[1].outputs[1].data  # the notebook itself is as it was


def test_slides_begin_at_headings_and_at_a_second_cell_of_code(kit, book):
    pages = kit("pages")
    kinds = [cell.metadata.slideshow.slide_type for cell in pages.with_slide_types(book).cells]
    assert kinds == ["slide", "slide", "subslide", "-", "subslide"]
    assert pages.slides(book).count("<section>") == 4


@pytest.mark.parametrize("stem", ["00_start", "12_merak"])
def test_assignments_hide_their_seeds(kit, stem):
    export = kit("export_assignments")
    tasks = [task for task in exercises() if task.notebook == stem]
    source = export.assignment(stem, tasks)
    students = export.released(source)
    for made in (source, students):
        nbformat.validate(made)
        marks = [cell.metadata.nbgrader for cell in made.cells if "nbgrader" in cell.metadata]
        assert len({mark.grade_id for mark in marks}) == len(marks)
        points = sum(mark.points for mark in marks if mark.grade)
        assert points == sum(10 * task.difficulty for task in tasks)
        for cell in made.cells:
            if cell.cell_type == "code":
                compile(cell.source, stem, "exec")
    hidden = [cell.source for cell in source.cells if "seed=seed" in cell.source]
    assert len(hidden) == len(tasks)
    assert "seed" not in "".join(c.source for c in students.cells if c.cell_type == "code")


def test_hidden_tests_take_seeds_from_a_file_and_show_none(kit, tmp_path, monkeypatch, capsys):
    """nbgrader's feedback has their source, what they print, and the trace of their errors."""
    monkeypatch.setattr("sys.argv", ["export", "00_start", "--out", str(tmp_path)])
    kit("export_assignments").main()
    (tmp_path / "first.json").write_text((tmp_path / "withheld/00_start.json").read_text())
    kit("export_assignments").main()
    seeds = json.loads((tmp_path / "withheld/00_start.json").read_text())
    assert seeds != json.loads((tmp_path / "first.json").read_text())
    each = [str(seed) for several in seeds.values() for seed in several]
    assert len({*each}) == 4
    for kind in NBGRADER_FOLDERS:
        text = (tmp_path / kind / "00_start/00_start.ipynb").read_text()
        assert not [seed for seed in each if seed in text]
    book = nbformat.read(tmp_path / "source/00_start/00_start.ipynb", as_version=4)
    [cell] = [c for c in book.cells if 'tv.check("row_parallel"' in c.source]
    monkeypatch.setenv("TPVIZ_WITHHELD", str(tmp_path / "withheld"))

    def check(name, fn, seed=0):
        print(f"seed {seed}")
        return SimpleNamespace(message="") if seed == 0 else seed not in wrong

    names = {"tv": SimpleNamespace(check=check), "row_parallel": None}
    wrong = []
    exec(cell.source, names)
    wrong = seeds["row_parallel"][1:]
    with pytest.raises(AssertionError, match="wrong for withheld inputs"):
        exec(cell.source, names)
    assert capsys.readouterr().out.splitlines()[-2:] == ["seed 0"] * 2
    assert not [value for value in names.values() if value in (wrong, *wrong)]


def test_nbgrader_is_told_how(kit, tmp_path, monkeypatch):
    """It runs alembic by its name for a new database, would skip a release that exists, would
    replace a starter by a stub, and would give right answers no points where a cell's ranks take
    over 30 s to start: seen with nbgrader 0.9.6, which is not installed here."""
    monkeypatch.setattr("sys.argv", ["export", "00_start", "--out", str(tmp_path)])
    monkeypatch.setenv("PATH", "/elsewhere")
    kit("export_assignments").main()
    told = SimpleNamespace(**{n: SimpleNamespace() for n in NBGRADER})
    file = tmp_path / "nbgrader_config.py"
    code = compile(file.read_text(), str(file), "exec")
    exec(code, {"get_config": lambda: told, "__file__": str(file)})
    assert os.environ["PATH"] == f"{Path(sys.executable).parent}{os.pathsep}/elsewhere"
    assert told.CourseDirectory.root == str(tmp_path)
    assert told.GenerateAssignment.force and told.ClearSolutions.enabled is False
    assert told.Execute.timeout >= 600
    source, release = (tmp_path / kind / "00_start/00_start.ipynb" for kind in NBGRADER_FOLDERS)
    assert "HIDDEN TESTS" in source.read_text() and "def mean_over_ranks" in release.read_text()


NBGRADER = ("CourseDirectory", "GenerateAssignment", "ClearSolutions", "Execute")
NBGRADER_FOLDERS = ("source", "release")

"""The repository itself: clean notebooks, small files, documented names, a true README."""

import ast
import doctest
import json
import re
import runpy
import subprocess
import tomllib
from collections import Counter
from importlib import import_module
from pathlib import Path

import pytest
from slow import SHARE, SLOW, drawn

import tpviz
from tpviz.views.figures.assets import module

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
LONG_LINES = 500
# File -> why it may be longer than LONG_LINES. Empty is best.
LONG_FILES = {}
# {folder of tpviz: lines of Python at most}. A budget only goes down, but for a feature.
FLOORS = {
    # 31 for documents packed in a sequence, 150 for experts and who goes where, 28 for models,
    # 39 for heads of other sizes and two families
    # 117 for latent attention, 3 for parts of an all-to-all
    # 131 for kinds of blocks and Llama 4
    # 74 for groups of experts, biases, DeepSeek and Kimi
    # 13 for a Python without torch
    "core": 6_666,  # 101 for clocks of several hosts, 49 for copies to hosts
    # 30 for hosts with cores of their own
    "cluster": 4_005,  # 193 for all-to-alls of unequal parts, 34 for links to hosts
    # 54 for all-to-alls of unequal parts
    # 103 for clocks of several hosts, 46 for copies to hosts
    # 702 for the doctor of several hosts
    # 248 for a store with a key, and ports that other hosts do not reach
    # 52 for fewer questions in a warm call
    # 415 for a debugger's prompt in a rank, its variables after an error, and tabs of output
    # 7 to ask how many there may be where none are started
    # 70 for worlds that cells joined
    "ranks": 9_159,  # 950 for ranks on several hosts, 364 for `tpviz cluster`
    "files": 2_100,
    # 12,840 before parts of sequences in schemes and modules of one's own, and documents; 13,195
    # before hybrid sharding, 13,307 before experts, 121 for reshard_after_forward
    # 258 for gradients in few bits, 328 for latent attention and its cut
    # 169 for blocks that are not all alike
    # 454 for rounds of workers
    # classes of parameters, 148 for groups of experts and biases of loads
    # 211 for two levels
    # 390 for activations on the host, 19 for knobs that others leave without effect
    "schemes": 17_463,  # 14 for a file of heads, which latents and models import
    # 121 for gradients in few bits, 166 for hot experts in the residual
    # 24 for rounds of workers
    # 34 for loads where halves go in turn, 28 for searches without a find
    # 2 for clocks of several hosts
    # 128 to calibrate several hosts
    # 102 for what is written as in Python, 40 of them from the command line; 57 to write it
    # 2 without torch
    # 11 to say that rates are nominal
    "verbs": 5_764,  # 16 for links to hosts, 20 to check bytes after a router's choices
    # 2 for two levels
    "modules": 7_745,  # 6,450 before sequences over ranks, 7,108 before experts over ranks
    # 18 without torch
    "evidence": 11_478,  # 3 for FSDP2's knobs, 4 for links to hosts
    # 2 for unlike blocks in small
    # 415 for tools of agents, 80 for cells that make a view again
    # 249 for the planner in a page
    # 45 for knobs without effect and finds on the map
    # 137 for the planner's page in an address and in a cell
    # 75 for headlines that are findings, 45 for abbreviations that a view writes out
    "views": 18_270,  # 16,975 before a view of experts and loads from traces
    # 10,050 before notebook 14, and 10,690 before notebook 15: seven exercises on experts, a zoo
    # 143 for JupyterLab from an installed package, 25 of them from __main__
    # 46 for answers and files without ranks and locks
    # 512 for a public leaderboard
    # 110 for notebooks without ranks, as in a page
    "course": 12_028,  # 5 for a fault in rows that travel under other products
}
TOP = {"__init__", "__main__"}
JS_BYTES = 65_000  # of all views: 60,000 before rails, patterns, the map of plans, rooms
VIEW_BYTES = 35_000  # of one view, with all that it imports
ONLY_IN_PAGES = {"address.js", "host.js", "pack.js"}


def tracked():
    """Paths of the files git knows; skips where the tree is no git checkout."""
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_there_are_notebooks():
    assert (ROOT / "notebooks/00_start.ipynb") in NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda p: p.name)
def test_notebook_is_stored_clean(path):
    book = json.loads(path.read_text())
    assert "widgets" not in book["metadata"]
    assert book["metadata"]["kernelspec"]["name"] == "python3"
    first = book["cells"][0]
    assert first["cell_type"] == "markdown"
    assert "".join(first["source"]).startswith("# ")
    for cell in book["cells"]:
        if cell["cell_type"] == "code" and "keep_output" not in cell["metadata"].get("tags", []):
            assert cell["outputs"] == []
            assert cell["execution_count"] is None


def test_no_machine_paths_in_tracked_files():
    machine = re.compile(r"(?<![\w.])/(?:work|farm|root|home/\w+)/")
    hits = [
        f"{p.relative_to(ROOT)}:{i}: {line.strip()[:80]}"
        for p in tracked()
        for i, line in enumerate(text_of(p).splitlines(), 1)
        if machine.search(line) and p != Path(__file__)
    ]
    assert hits == []


def text_of(path):
    """The file's text, or nothing for a binary file."""
    try:
        return path.read_text()
    except UnicodeDecodeError:
        return ""


def test_files_are_short():
    code = [p for p in tracked() if p.suffix in (".py", ".js", ".css")]
    long = {
        str(p.relative_to(ROOT)): n
        for p in code
        if (n := len(p.read_text().splitlines())) > LONG_LINES
    }
    assert set(long) == set(LONG_FILES), f"over {LONG_LINES} lines: {long}; excused: {LONG_FILES}"


def test_no_floor_grows():
    lines = {floor: length(ROOT / "tpviz" / floor) for floor in FLOORS}
    assert {floor: n for floor, n in lines.items() if n > FLOORS[floor]} == {}


def test_names_of_test_files_are_unique():
    """pytest imports them by their names alone, and leaves out the second of a name."""
    counts = Counter(p.name for p in tracked() if p.match("test_*.py"))
    assert [name for name, n in counts.items() if n > 1] == []


def test_numbers_of_decisions_are_unique_and_their_headings_have_them():
    pages = sorted((ROOT / "docs/adr").glob("0*.md"))
    assert [(page.name, page.read_text()[:6]) for page in pages] == [
        (page.name, f"# {page.name[:4]}") for page in pages
    ]
    assert len({page.name[:4] for page in pages}) == len(pages)


def test_class_names_are_unique():
    """One name means one thing, private classes and those inside of functions included."""
    where: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tpviz").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                where.setdefault(node.name, []).append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert where
    assert {name: lines for name, lines in where.items() if len(lines) > 1} == {}


def length(folder):
    """Lines of a folder's Python files."""
    return sum(len(path.read_text().splitlines()) for path in sorted(folder.rglob("*.py")))


def test_every_module_is_on_a_floor():
    assert {p.stem for p in (ROOT / "tpviz").glob("*.py")} == TOP
    assert {p.parent.name for p in (ROOT / "tpviz").glob("*/__init__.py")} == set(FLOORS)


def test_the_reading_path_is_short():
    text = (ROOT / "docs/architecture.md").read_text()
    path = re.findall(r"^\d+\. \[`.*?`\]\(\.\./(.*?)\)", text, re.M)
    assert 1 < len(path) <= 12
    assert sum(len((ROOT / file).read_text().splitlines()) for file in path) <= 3000


def test_javascript_is_small():
    scripts = [p for p in (ROOT / "tpviz").rglob("*.js") if p.name not in ONLY_IN_PAGES]
    assert scripts
    assert sum(p.stat().st_size for p in scripts) < JS_BYTES
    views = {p.stem: len(module(p.stem)) for p in scripts}
    assert max(views.values()) < VIEW_BYTES, views


@pytest.mark.parametrize("name", tpviz.__all__)
def test_public_name_resolves_and_is_documented(name):
    assert (getattr(tpviz, name).__doc__ or "").strip()


def test_unknown_name_is_refused_with_those_that_exist():
    with pytest.raises(AttributeError, match="Megatron"):
        tpviz.nonsense  # noqa: B018


def test_readme_commands_exist():
    """Each `make X` of the README and the guides is a target, and what they point to is there."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.M))
    texts = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
    assert "make demo" in texts[0].read_text()
    for path in texts:
        text = path.read_text()
        named = {a or b for a, b in re.findall(r"`make ([\w-]+)|^\s*make ([\w-]+)", text, re.M)}
        assert named <= targets, f"{path.name} names {sorted(named - targets)}"
        for link in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", text):
            assert (path.parent / link).exists(), f"{path.name} points to {link}"


def test_readme_says_where_each_formula_is():
    """Every row names a function of its file, and its docstring has each source of the row."""
    text = (ROOT / "README.md").read_text()
    lines = text.split("## Formulas\n")[1].split("\n## ")[0].splitlines()
    _, _, *rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("|")]
    wanted = {"ring all-reduce", "ATP", "AxoNN", "Merak", "T3", "ZeRO"}
    assert {name for name in wanted if any(name in row[0] for row in rows)} == wanted
    for formula, link, function, source in rows:
        tree = ast.parse((ROOT / re.search(r"\((.+)\)", link)[1]).read_text())
        said = {node.name: ast.get_docstring(node) for node in tree.body if hasattr(node, "args")}
        assert function.strip("`") in said, f"{formula}: {link} has no {function}"
        words = " ".join((said[function.strip("`")] or "").split())
        assert [part for part in source.split("; ") if part not in words] == [], formula


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tpviz/schemes").glob("*/strategy.py")), ids=lambda p: p.parent.name
)
def test_every_scheme_has_its_paper(path):
    """With the link, and with examples that are true."""
    paper = import_module(f"tpviz.schemes.{path.parent.name}.paper")
    assert "https://arxiv.org/abs/" in paper.__doc__
    done = doctest.testmod(paper)
    assert done.attempted and not done.failed


def test_readme_example_is_a_program():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert blocks
    for block in blocks:
        compile(block, "README.md", "exec")
        for name in re.findall(r"\btv\.(\w+)", block):
            assert name in tpviz.__all__


def test_versions_agree():
    assert f"version: {tpviz.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"## {tpviz.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_pins_agree():
    every = set(re.findall(r"^([\w.-]+==[\w.]+)$", (ROOT / "constraints.txt").read_text(), re.M))
    recipe = (ROOT / "binder/environment.yml").read_text()
    binder = set(re.findall(r"^ *- ([\w-]+==\S+)$", recipe.replace("pytorch-cpu=", "torch="), re.M))
    assert binder <= every
    names = {pin.partition("==")[0] for pin in binder}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = {re.match(r"[\w-]+", text).group() for text in project["dependencies"]}
    assert wanted - {"ipywidgets"} == names  # Binder's base environment has ipywidgets


def test_slow_tests_are_there():
    """A name that no file or function has would mark nothing."""
    tests = {p.relative_to(ROOT).as_posix(): p for p in tracked() if p.suffix in (".py", ".ipynb")}
    for entry in SLOW:
        name, _, function = entry.partition("::")
        [path] = [path for file, path in tests.items() if f"/{file}".endswith(f"/{name}")]
        assert f"def {function}" in path.read_text() or not function, entry


def test_every_slow_test_has_its_turn():
    tests = {f"tests/test_any.py::test_{number}" for number in range(300)}
    draws = [{test for test in tests if drawn(test, f"commit {n}")} for n in range(100)]
    assert set.union(*draws) == tests
    assert sum(map(len, draws)) / (len(draws) * len(tests)) == pytest.approx(SHARE, rel=0.05)


def test_what_a_mutation_changes_is_there_once():
    mutations = runpy.run_path(str(ROOT / "bench/mutations.py"))["MUTATIONS"]
    times = {(m.file, m.old): (ROOT / "tpviz" / m.file).read_text().count(m.old) for m in mutations}
    assert [what for what, count in times.items() if count != 1] == []

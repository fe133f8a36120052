"""What imports what: nouns, traces and figures need no torch and no widgets. How long ``import
tpviz`` takes: ``bench/bench_start.py``."""

import ast
import re
import subprocess
import sys
import tomllib
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tpviz
from tpviz.core import moved

PACKAGE = Path(__file__).parents[1] / "tpviz"
LIGHT = [
    "tpviz",
    "tpviz.core.labels",
    "tpviz.core.trace",
    "tpviz.core.workload",
    "tpviz.core.mesh",
    "tpviz.core.step",
    "tpviz.schemes.strategy",
    "tpviz.views.figures",
    "tpviz.cluster.clusters",
    "tpviz.core.models",
    "tpviz.views.matrix",
    "tpviz.cluster.clock.replay",
    "tpviz.verbs.predict",
    "tpviz.verbs.simulate",
    "tpviz.views.plans.planning",
]
HEAVY = ["torch", "ipywidgets", "anywidget", "plotly", "pandas", "IPython"]


def python(code):
    """Run code in a new interpreter; its standard output."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("module", LIGHT)
def test_light_modules_load_without_torch_or_widgets(module):
    loaded = python(f"import sys, {module}; print(*sorted(sys.modules))").split()
    assert module in loaded
    assert not set(HEAVY) & set(loaded)


def test_every_light_submodule_loads_without_torch():
    names = sorted(
        f"tpviz.{folder.replace('/', '.')}.{p.stem}"
        for folder in ("core/trace", "files", "views/figures")
        for p in (PACKAGE / folder).glob("*.py")
        if p.stem != "__init__"
    )
    loaded = python(f"import sys, {', '.join(names)}; print(*sorted(sys.modules))").split()
    assert set(names) <= set(loaded)
    assert not set(HEAVY) & set(loaded)


# Lower floors first; a module may import from its own floor and from those below it.
FLOORS = "core cluster ranks files schemes verbs modules evidence views course".split()
# Beside the order: these must never meet.
APART = [
    ("ranks", "files"),
    ("schemes", "ranks"),
    ("schemes", "files"),
    ("views.figures", "ranks"),
    ("views.figures", "schemes"),
    ("views.figures", "verbs"),
    ("views.figures", "views.widgets"),
]


MODULES = {
    ".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): p
    for p in PACKAGE.rglob("*.py")
}


def imports_of(name, hints=False):
    """The modules of tpviz that one imports, at module level, later, or by a string that
    `import_module` is given. hints : also what only type checkers read."""
    path, found = MODULES[name], set()
    text = path.read_text()
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    tree = ast.parse(text)
    if not hints and "TYPE_CHECKING" in text:
        for node in ast.walk(tree):  # what only type checkers read is not imported
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            found |= modules_of(node.args[0])
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inside = {f"{base}.{alias.name}": alias.name for alias in node.names}
            found |= {module if module in MODULES else base for module in inside}
            if base == "tpviz":
                found |= {tpviz._HOME.get(alias, "tpviz") for alias in inside.values()}
    return found & MODULES.keys() - {name}


def modules_of(name):
    """The modules that a string names; of one with a gap all that fit."""
    parts = name.values if isinstance(name, ast.JoinedStr) else [name]
    words = [re.escape(p.value) if isinstance(p, ast.Constant) else ".*" for p in parts]
    known = re.compile("".join(words))
    return {module for module in MODULES if words[0] != ".*" and known.fullmatch(module)}


@cache  # and not while tests are collected, which each process does
def graph(hints=False):
    return {name: imports_of(name, hints) for name in MODULES}


def test_imports_point_down():
    """Those by a string and those of type checkers too."""
    for module, imported in graph(hints=True).items():
        if module in ("tpviz", "tpviz.__main__"):
            continue
        floor = FLOORS.index(module.split(".")[1])
        for other in imported - {"tpviz"}:
            assert FLOORS.index(other.split(".")[1]) <= floor, f"{module} imports {other} above it"
            never = [far for near, far in APART if within(module, near) and within(other, far)]
            assert not never or other not in graph()[module], f"{module} imports {other}"


def within(module, part):
    """Whether a module is in a part of the package."""
    return f"{module}.".startswith(f"tpviz.{part}.")


@pytest.mark.parametrize("part", sorted({part for pair in APART for part in pair}))
def test_parts_that_never_meet_exist(part):
    assert any(within(module, part) for module in MODULES)


def test_modules_are_found_by_their_old_names():
    names = {old: new for old, new in moved._MOVED.items() if new in MODULES}
    assert names == moved._MOVED, "all that moved is there"
    code = "import sys, pickle, importlib, tpviz"
    code += "\nfor old in sys.argv[1:]: importlib.import_module(old)"
    code += "\nimport tpviz.labs.atp.scaled, tpviz.trace.table as table"
    code += "\nassert pickle.loads(b'ctpviz.trace.table\\nTrace\\n.') is tpviz.Trace is table.Trace"
    subprocess.run([sys.executable, "-c", code, *names], check=True)


def test_what_a_string_names_is_read():
    """A test of this test."""
    assert "tpviz.schemes.gpt.bounds" in graph()["tpviz.schemes.searched"]
    assert "tpviz.schemes.t3.program" not in graph()["tpviz.schemes.strategy"]
    assert (
        "tpviz.schemes.gpt.program"
        in graph(hints=True)["tpviz.schemes.strategy"] - graph()["tpviz.schemes.strategy"]
    )
    gap = ast.parse('import_module(f"tpviz.schemes.{name}.paper")').body[0].value.args[0]
    assert "tpviz.schemes.atp.paper" in modules_of(gap)


def test_no_module_imports_itself_by_way_of_others():
    try:
        list(TopologicalSorter(graph()).static_order())
    except CycleError as error:
        pytest.fail(f"these import each other: {' -> '.join(error.args[1])}")


def test_a_folder_of_tests_runs_alone():
    """What its files import is in it, in ``tests``, or in a folder that pytest adds."""
    tests = Path(__file__).parent
    options = tomllib.loads((tests.parent / "pyproject.toml").read_text())["tool"]["pytest"]
    shared = {tests, *(tests.parent / folder for folder in options["ini_options"]["pythonpath"])}
    homes = {path.stem: path.parent for path in tests.rglob("*.py")}
    astray = [
        f"{path.relative_to(tests)} imports {name}"
        for path in tests.rglob("*.py")
        for name in re.findall(r"^ *(?:from|import) (\w+)", path.read_text(), re.M)
        if homes.get(name, path.parent) not in shared | {path.parent}
    ]
    assert not astray

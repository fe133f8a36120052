"""What imports what: nouns, traces and figures need no torch and no widgets. How long ``import
tpviz`` takes: ``bench/bench_start.py``."""

import ast
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tpviz

PACKAGE = Path(__file__).parents[1] / "tpviz"
LIGHT = [
    "tpviz",
    "tpviz.labels",
    "tpviz.trace",
    "tpviz.workload",
    "tpviz.mesh",
    "tpviz.step",
    "tpviz.strategy",
    "tpviz.figures",
    "tpviz.clusters",
    "tpviz.models",
    "tpviz.matrix",
    "tpviz.simulation.replay",
    "tpviz.verbs.predict",
    "tpviz.verbs.simulate",
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
        f"tpviz.{p.parent.name}.{p.stem}"
        for folder in ("trace", "figures")
        for p in (PACKAGE / folder).glob("*.py")
        if p.stem != "__init__"
    )
    loaded = python(f"import sys, {', '.join(names)}; print(*sorted(sys.modules))").split()
    assert set(names) <= set(loaded)
    assert not set(HEAVY) & set(loaded)


# Lower layers first; a module may import from its own layer and from those before it.
LAYERS = [
    [
        "shield",
        "show",
        "checks",
        "limits",
        "labels",
        "workload",
        "models",
        "mesh",
        "cluster",
        "clusters",
        "step",
        "queues",
        "cost",
        "tables",
        "trace",
    ],
    ["simulation", "schedules"],
    ["runtime"],
    ["schemes", "strategy", "advice"],  # a strategy's folder has its program
    ["partition"],
    ["peers"],
    ["verbs", "parallel", "films"],
    ["collectives"],
    ["figures", "matrix"],
    ["exercises", "labs", "validation"],
    ["widgets"],
    ["gallery", "demo", "__main__"],
]
# Beside the order: these pairs must never meet, whichever layer is lower.
FORBIDDEN = {
    "runtime": {"schemes", "verbs", "figures", "widgets"},
    "schemes": {"runtime", "verbs"},
    "figures": {"runtime", "schemes", "verbs"},
}


MODULES = {
    ".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): p
    for p in PACKAGE.rglob("*.py")
}


def imports_of(name, hints=False):
    """The modules of tpviz that one imports, at module level, later, or by a string that
    `import_module` is given. hints : also what only type checkers read."""
    path, found = MODULES[name], set()
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):  # what only type checkers read is not imported
        if not hints and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
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


IMPORTS = {name: imports_of(name) for name in MODULES}


HINTS = {name: imports_of(name, hints=True) for name in MODULES}


def test_imports_point_one_way():
    """Those by a string and those of type checkers too."""
    rank = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    for module, imported in HINTS.items():
        if module == "tpviz":
            continue
        part = module.split(".")[1]
        assert part in rank, f"{part} has no place in the layers"
        for other in imported - {"tpviz"}:
            home = other.split(".")[1]
            assert rank[home] <= rank[part], f"{module} imports {other} of a layer above"
            never = home in FORBIDDEN.get(part, ()) and other in IMPORTS[module]
            assert not never, f"{module} imports {other}"


def test_what_a_string_names_is_read():
    """A test of this test."""
    assert "tpviz.schemes.gpt.bounds" in IMPORTS["tpviz.strategy"]
    assert "tpviz.schemes.t3.program" not in IMPORTS["tpviz.strategy"]
    assert "tpviz.schemes.gpt.program" in HINTS["tpviz.strategy"] - IMPORTS["tpviz.strategy"]
    gap = ast.parse('import_module(f"tpviz.schemes.{name}.paper")').body[0].value.args[0]
    assert "tpviz.schemes.atp.paper" in modules_of(gap)


def test_no_module_imports_itself_by_way_of_others():
    try:
        list(TopologicalSorter(IMPORTS).static_order())
    except CycleError as error:
        pytest.fail(f"these import each other: {' -> '.join(error.args[1])}")

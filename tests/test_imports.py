"""What imports what: nouns, traces and figures need no torch and no widgets. How long ``import
tpviz`` takes: ``bench/bench_start.py``."""

import ast
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
        "checks",
        "limits",
        "advice",
        "labels",
        "workload",
        "models",
        "mesh",
        "cluster",
        "clusters",
        "step",
        "queues",
        "cost",
        "strategy",
        "matrix",
        "tables",
        "trace",
    ],
    ["simulation", "schedules"],
    ["runtime"],
    ["schemes"],
    ["partition"],
    ["peers"],
    ["verbs", "parallel", "films"],
    ["figures"],
    ["collectives", "exercises", "labs", "validation"],
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


def imports_of(name):
    """The modules of tpviz that one imports, at module level or later."""
    path, found = MODULES[name], set()
    package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):  # what only type checkers read is not imported
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            node.body = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            inside = {f"{base}.{alias.name}": alias.name for alias in node.names}
            found |= {module if module in MODULES else base for module in inside}
            if base == "tpviz":
                found |= {tpviz._HOME.get(alias, "tpviz") for alias in inside.values()}
    return found & MODULES.keys() - {name}


IMPORTS = {name: imports_of(name) for name in MODULES}


def test_imports_point_one_way():
    rank = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    for module, imported in IMPORTS.items():
        if module == "tpviz":
            continue
        part = module.split(".")[1]
        assert part in rank, f"{part} has no place in the layers"
        for other in imported - {"tpviz"}:
            home = other.split(".")[1]
            assert rank[home] <= rank[part], f"{module} imports {other} of a layer above"
            assert home not in FORBIDDEN.get(part, ()), f"{module} imports {other}"


def test_no_module_imports_itself_by_way_of_others():
    try:
        list(TopologicalSorter(IMPORTS).static_order())
    except CycleError as error:
        pytest.fail(f"these import each other: {' -> '.join(error.args[1])}")

"""What imports what: nouns, traces and figures need no torch and no widgets, and load fast."""

import ast
import subprocess
import sys
import time
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
    "tpviz.strategy",
    "tpviz.figures",
    "tpviz.clusters",
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


def test_import_takes_at_most_a_third_of_a_second():
    """The best of several, so that a busy machine does not decide; Python's own start counts."""

    def seconds():
        started = time.perf_counter()
        python("import tpviz")
        return time.perf_counter() - started

    assert min(seconds() for _ in range(7)) <= 0.3


# Lower layers first; a module may import from its own layer and from those before it.
LAYERS = [
    [
        "shield",
        "checks",
        "limits",
        "advice",
        "labels",
        "workload",
        "mesh",
        "cluster",
        "clusters",
        "cost",
        "strategy",
        "matrix",
        "tables",
        "trace",
    ],
    ["simulation"],
    ["runtime"],
    ["schemes"],
    ["peers"],
    ["verbs", "parallel"],
    ["figures"],
    ["collectives", "exercises", "labs"],
    ["widgets"],
    ["demo", "__main__"],
]
# Beside the order: these pairs must never meet, whichever layer is lower.
FORBIDDEN = {
    "runtime": {"schemes", "verbs", "figures", "widgets"},
    "schemes": {"runtime", "verbs"},
    "figures": {"runtime", "schemes", "verbs"},
}


def imports_of(path):
    """The parts of tpviz that a file imports, at module level or later."""
    depth = len(path.relative_to(PACKAGE).parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            module = node.module or ""
            if node.level:
                above = list(path.relative_to(PACKAGE).parts[: depth - node.level])
                parts = above + (module.split(".") if module else [])
                found |= {parts[0]} if parts else {a.name for a in node.names}
            elif module == "tpviz":
                found |= {
                    tpviz._HOME.get(a.name, f"tpviz.{a.name}").split(".")[1] for a in node.names
                }
            elif module.startswith("tpviz."):
                found.add(module.split(".")[1])
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("tpviz.")}
    return found


@pytest.mark.parametrize(
    "path", sorted(PACKAGE.rglob("*.py")), ids=lambda p: str(p.relative_to(PACKAGE))
)
def test_imports_point_one_way(path):
    part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if part == "__init__":
        return
    rank = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    assert part in rank, f"{part} has no place in the layers"
    found = imports_of(path) & rank.keys()
    assert {f for f in found if rank[f] > rank[part]} == set()
    assert not found & FORBIDDEN.get(part, set())

"""Every public function and method says what it takes and what it gives; editors know all names.

python tests/test_annotations.py tpviz/core/trace     # what is missing there
"""

import ast
import re
import sys
from pathlib import Path

import tpviz

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "tpviz"
SHARED = """
    bench/fuzzing.py bench/harness.py bench/paired.py tests/plain_chart.py tests/together.py
    tests/views/schedule_runs.py tests/views/synthetic.py tests/schemes/grids.py
    tests/schemes/tiny.py tests/files/kineto_samples.py tests/core/trace_samples.py
    tests/hosts/bed.py tests/hosts/bridge.py
""".split()  # what several tests or benchmarks import


def missing(path):
    """["line: function: what"] of a file's public functions and of public classes' methods."""
    found = []

    def look(body, inside=""):
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                look(node.body, node.name + ".")
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (
                not node.name.startswith("_") or (inside and node.name == "__init__")
            ):
                given = node.args
                names = [*given.posonlyargs, *given.args, *given.kwonlyargs]
                bare = [a.arg for a in names if a.annotation is None]
                static = any(ast.unparse(d) == "staticmethod" for d in node.decorator_list)
                bare = bare[1:] if inside and not static else bare
                stars = [a for a in (given.vararg, given.kwarg) if a and a.annotation is None]
                bare += [a.arg for a in stars]
                if node.returns is None and node.name != "__init__":
                    bare.append("return")
                if bare:
                    found.append(f"{node.lineno}: {inside}{node.name}: {', '.join(bare)}")

    look(ast.parse(path.read_text()).body)
    return found


def test_public_functions_are_annotated():
    files = [*sorted(PACKAGE.rglob("*.py")), *(ROOT / name for name in SHARED)]
    bare = {str(p.relative_to(ROOT)): missing(p) for p in files}
    assert {path: names for path, names in bare.items() if names} == {}


def test_editors_know_every_public_name():
    names = re.findall(r"import (\w+) as \1$", (PACKAGE / "__init__.pyi").read_text(), re.M)
    assert sorted(names) == tpviz.__all__


def test_every_public_name_is_checked_strictly():
    strict = re.findall(r'^    "\.\./(.*)"', (ROOT / ".ci/strict.json").read_text(), re.M)
    homes = {*tpviz._HOMES, *tpviz._MODULES.values()}
    assert [path for path in strict if not (ROOT / path).is_file()] == []
    names = {re.sub(r"(/__init__)?\.pyi?$", "", path).replace("/", ".") for path in strict}
    assert homes <= names


if __name__ == "__main__":
    for folder in map(Path, sys.argv[1:]):
        for file in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
            for line in missing(file):
                print(f"{file}:{line}")

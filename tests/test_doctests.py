"""The examples in the package's docstrings are right."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "tpviz"
SHOWN = sorted(p for p in PACKAGE.rglob("*.py") if ">>> " in p.read_text())


def test_there_are_examples():
    assert len(SHOWN) > 100


@pytest.mark.parametrize("path", SHOWN, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_examples(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    module = import_module(".".join(parts).removesuffix(".__init__"))
    assert doctest.testmod(module).failed == 0

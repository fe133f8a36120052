"""The scheme of docs/add-a-scheme.md, as it stands there, is one that every verb works on."""

import re
from pathlib import Path
from types import ModuleType

import pytest

import tpviz as tv
from tpviz.schemes import strategy as strategies

PAGE = Path(__file__).parents[1] / "docs" / "add-a-scheme.md"


@pytest.fixture
def scheme(monkeypatch):
    """The page's code as a module that is not run as a script."""
    monkeypatch.setattr(strategies, "_REGISTERED", dict(strategies._REGISTERED))
    module = ModuleType("one_message")  # nobody can import it: ranks get its code by value
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S):
        exec(block, vars(module))
    return module


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_the_page_adds_a_scheme(scheme, replicas):
    strategy, workload = scheme.OneMessage(replicas=replicas), tv.GPT(batch=4, seq=16)
    scheme.checks(strategy, workload, tv.clusters.nvswitch(4))
    assert tv.strategies()["OneMessage"] is scheme.OneMessage


def test_its_memory_is_what_a_run_allocates(scheme):
    strategy, workload = scheme.OneMessage(replicas=2), tv.GPT(batch=4, seq=16)
    held = tv.run(strategy, workload, steps=1, progress=False).memory(0).peaks
    for kind, bytes in strategy.memory(workload).items():
        assert held[kind] == pytest.approx(bytes, rel=0.12), kind


def test_search_ranks_it_and_bad_sizes_are_refused(scheme):
    workload = tv.GPT(batch=4, seq=16)
    found = tv.search(workload, tv.clusters.nvswitch(4), ["OneMessage"], simulate=False)
    assert found.best == scheme.OneMessage(replicas=4)
    with pytest.raises(ValueError, match="batch=4 does not split evenly over replicas=3"):
        scheme.OneMessage(replicas=3).check(workload)

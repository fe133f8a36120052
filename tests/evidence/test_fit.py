"""What is fitted is fitted on rows that may be, and fits them."""

import pytest

from tpviz.cluster.profiles import fitted
from tpviz.evidence.published import fit
from tpviz.evidence.published.rows import published

OTHERS = [run for run in fit.runs() if run[0].framework != "nanotron"]


def test_only_rows_to_fit_on_are_looked_at():
    found = fit.runs()
    assert len(found) > 500 and all(row.part == "fit" and row.step for row, _ in found)
    assert {row.framework for row, _ in found} == {"nanotron", "FSDP", "Megatron-LM"}
    assert any(row.part == "test" for row in published())


@pytest.mark.parametrize(
    "name", [n for n in fitted() if n.startswith(("sustained", "memory_efficiency"))]
)
@pytest.mark.parametrize("factor", [0.7, 1.2])
def test_other_numbers_fit_worse(name, factor):
    numbers = fitted()
    changed = numbers[name] * factor
    assert fit.loss(OTHERS, {**numbers, name: changed}) > fit.loss(OTHERS, numbers)


def test_fitting_finds_a_number_again():
    """From a wrong start, on few rows: less error, and near the number that all rows gave."""
    few = [run for run in OTHERS if run[0].gpu.startswith("A100")][::4]
    start = {**fitted(), "sustained": 0.6}
    found = fit._descend(few, start, ["sustained"])
    assert fit.loss(few, found) < fit.loss(few, start)
    assert found["sustained"] == pytest.approx(fitted()["sustained"], rel=0.15)


def test_a_disturbed_run_counts_once(monkeypatch):
    errors = []
    for factor in (10, 1000):
        monkeypatch.setattr(fit, "ratio", lambda row, plan, numbers, f=factor: 1 / f)
        errors.append(fit.loss(OTHERS, {}))
    assert errors[0] == errors[1] > 0

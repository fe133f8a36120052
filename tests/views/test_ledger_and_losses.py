import xml.etree.ElementTree as ElementTree

import pytest

from tpviz.core.trace import Ledger
from tpviz.views.figures.ledger import ledger_html, ledger_table
from tpviz.views.figures.losses import losses_svg

FORMULA = Ledger.of(
    [("tp", "all_reduce", "forward", 2, 4096, 4), ("dp", "all_reduce", "sync", 1, 100, 2)]
)
OTHER = Ledger.of(
    [("tp", "all_reduce", "forward", 3, 4096, 4), ("tp", "all_gather", "forward", 1, 64, 4)]
)


def test_equal_ledgers_get_a_tick():
    assert [row[-1] for row in ledger_table(FORMULA, FORMULA)[1:]] == ["✓", "✓"]
    assert "equal ✓" in ledger_html(FORMULA, FORMULA)


def test_different_ledgers_say_where():
    rows = {tuple(row[:3]): row[3:] for row in ledger_table(FORMULA, OTHER)[1:]}
    assert rows["tp", "all_reduce", "forward"] == [*"23", *("8192 12288 12288 18432".split()), "✗"]
    assert rows["tp", "all_gather", "forward"] == [*"01", "0", "64", "0", "48", "✗"]
    assert rows["dp", "all_reduce", "sync"] == [*"10", "100", "0", "100", "0", "✗"]
    assert "differ ✗" in ledger_html(FORMULA, OTHER)
    assert "the measurement has nothing" in ledger_html(FORMULA, OTHER)


def test_before_a_run_nothing_is_claimed():
    html = ledger_html(FORMULA, hint="Run to measure it.")
    assert "✓" not in html
    assert "✗" not in html
    assert "Run to measure it." in html and "measured<" not in html
    assert "No communication" in ledger_html(Ledger())


def test_losses():
    svg = losses_svg([3.0, 2.0, 1.0])
    ElementTree.fromstring(svg)
    assert [f"step: {n}" in svg for n in range(5)] == [False, True, True, True, False]
    assert ">loss of 3 steps</text>" in svg and "aria-label='loss of 3 steps'" in svg
    ElementTree.fromstring(losses_svg([2.0]))
    ElementTree.fromstring(losses_svg([float("nan"), 1.0]))


def test_bad_losses():
    with pytest.raises(ValueError, match="the list is empty"):
        losses_svg([])

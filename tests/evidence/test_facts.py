"""Facts are data: every file of them, every entry, every row says where it is from."""

import json
from pathlib import Path

import pytest

from tpviz.evidence.facts import facts, records

PACKAGE = Path(__file__).parents[2] / "tpviz"
FACTS = sorted(PACKAGE.rglob("facts.json"))
NAMED = ("evidence/t3/paper.json", "evidence/t3_hardware/machine.json", "course/axes.json")
NAMED += ("cluster/clusters.json",)
OTHER = [PACKAGE / name for name in NAMED]
ROWS = {"claims.json": "claims", "paper.json": "numbers"}


def table_of(value):
    """The rows of a value that is a table with a header; of any other none."""
    rows = isinstance(value, list) and value and isinstance(value[0], list)
    return records(value) if rows else []


def test_every_lab_has_its_facts_and_no_file_of_data_is_forgotten():
    """Bands are computed by ``make validate``, not known."""
    assert {path.parent.name for path in FACTS} == {"atp", "axonn", "merak", "t3", "published"}
    known = {*FACTS, *OTHER, PACKAGE / "evidence/claims.json"}
    known |= {PACKAGE / "evidence/published/data/bands.json"}
    assert {p for p in (PACKAGE / "evidence").rglob("*.json")} <= known


@pytest.mark.parametrize(
    "path",
    [*FACTS, *OTHER],
    ids=lambda path: "/".join(path.parts[-3:]),
)
def test_every_fact_says_what_it_is_and_where_it_is_from(path):
    entries = json.loads(path.read_text())
    assert entries.pop("about") and entries
    for name, entry in entries.items():
        assert entry.keys() == {"what", "source", "value"}, name
        assert entry["what"].strip() and entry["source"].strip(), name
        rows = table_of(entry["value"])
        assert entry["source"].startswith("each row's own") == any("source" in r for r in rows)
        assert all(row["source"].strip() for row in rows if "source" in row), name


def test_every_claim_has_a_source():
    rows = json.loads((PACKAGE / "evidence/claims.json").read_text())["claims"]
    assert rows and all(row["source"].strip() and row["setting"].strip() for row in rows)


def test_every_coefficient_has_a_source_or_was_fitted():
    """A number, or the name of one that was fitted, whose rows are named once for all."""
    known = json.loads((PACKAGE / "cluster/coefficients.json").read_text())

    def numbers(entry):
        if not isinstance(entry, dict):
            return
        if "value" in entry:
            yield entry
        for inner in entry.values():
            yield from numbers(inner)

    fitted = known.pop("fitted")
    assert known["fitted_on"] and fitted
    found = list(numbers(known))
    assert len(found) > 10 and all(entry["source"].strip() for entry in found)


def test_what_code_gets_of_it():
    assert records([["a", "b"], [1, [2, 3]]]) == [{"a": 1, "b": (2, 3)}]
    assert facts(str(PACKAGE / "schemes/axonn/models.py")).sizes["80B"] == [42, 12288]

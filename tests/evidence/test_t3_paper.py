"""T3's lab: the paper's sublayers simulated, end to end, and against its numbers."""

import json
import re
from math import inf, prod
from pathlib import Path

import pytest

from tpviz.evidence import t3
from tpviz.evidence.claims import known
from tpviz.evidence.t3 import headlines, paper
from tpviz.evidence.t3.end_to_end import MEASURED, OTHER
from tpviz.evidence.t3.paper import ANCHORS
from tpviz.evidence.t3.sublayers import CONFIGS, MODELS, SUBLAYERS, SublayerRow, Sublayers
from tpviz.evidence.t3_hardware import Gemm, Machine, simulate
from tpviz.evidence.t3_hardware.closed_form import BETA, sublayer_times

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "13_t3.ipynb"


@pytest.fixture(scope="module")
def found():
    """As in the notebook: tiles of one part, for speed, which puts T3 0.5 points up."""
    return t3.sublayers(wavefronts=1)


def test_numbers_within_a_fifth_and_those_that_are_not(found):
    """Fitted or not is said of each; the large models' and end to end are predictions."""
    compared = t3.against_paper(found=found)
    assert {row.anchor.name for row in compared.unmatched} == {
        "prompt, T3-MCA, max",
        "prompt, T3, mean",
        "prompt, T3, max",
        "training, T3-MCA, large models, max",
        "prompt, T3-MCA, large models, max",
        "communication's share, training, large models, max",
        "communication's share, prompt, large models, max",
    }
    predicted = [r for r in compared.rows if r.anchor.kind == "predicted"]
    assert len(predicted) == 13
    assert all(
        not r.anchor.small or r.anchor.name.startswith(("ideal", "training", "prompt"))
        for r in predicted
    )
    assert {r.anchor.kind for r in compared.rows} == set(paper.KINDS)
    score = "predicted 8 of 13 (null model 8), fitted 15 of 17 (null model 7), identity 3 of 3"
    assert score in repr(compared) and score in str(compared.notes())
    assert score in compared.describe() and "T3, mean (-" in compared.describe()
    rows = compared.to_table()
    assert len(rows) == 34 and all(len(row) == len(rows[0]) for row in rows)


def test_the_null_model_has_the_mean_everywhere(found):
    null = paper.null_model(found.of(True))
    for config, speedup in {"ideal": 1.35, "t3": 1.2, "t3_mca": 1.3}.items():
        assert [r.speedup(config) for r in null.rows] == pytest.approx([speedup] * 16)
    assert [r.moved() for r in null.rows] == pytest.approx([0.22] * 16)
    assert [r.read() for r in null.rows] == pytest.approx([1.56] * 16)
    assert t3.against_paper(found=found).at("T3-MCA, max").null == pytest.approx(30)
    assert [r.null for r in t3.against_paper(found=found).rows].count(None) == 3


def test_arbitration_helps_every_sublayer_and_its_threshold_matters(found):
    """T3-MCA over T3 is 13 % on average and 29 % at most in the paper."""
    over = [r.seconds["t3"] / r.seconds["t3_mca"] for r in found.rows]
    assert min(over) > 1
    small = over[:16]
    assert prod(small) ** (1 / 16) == pytest.approx(1.13, abs=0.05)
    assert max(small) == pytest.approx(1.29, abs=0.05)
    gemm = Gemm(16384, 3072, 192, wavefronts=1)  # Mega-GPT-2's OP at TP 16
    low, high = (simulate(gemm, 16, Machine(thresholds=(t,) * 4)).seconds for t in (5, inf))
    assert high > 1.03 * low


def test_what_follows_from_the_traffic_is_exact(found):
    compared = t3.against_paper(found=found)
    for tp, more in ((8, 15 / 6), (16, 31 / 14)):
        reads = compared.at(f"reduce-scatter reads: how much more sequential makes, TP {tp}")
        assert reads.ours == pytest.approx(100 * (more - 1))
    writes = compared.at("GEMM and reduce-scatter writes: how much more sequential makes")
    assert writes.ours == pytest.approx(100 * ((16 / 14 * 32 / 30) ** 0.5 - 1))


def test_sublayers_of_the_paper(found):
    assert len(found.rows) == 4 * sum(len(m.tp) for m in MODELS.values())
    for row in found.rows:
        assert row.seconds["ideal"] == pytest.approx(max(row.gemm, row.rs) + row.ag)
        assert row.seconds["ideal_nmc"] <= row.seconds["ideal"] < row.seconds["sequential"]
        assert row.rs_nmc < row.rs
        formula = sublayer_times(
            Gemm(
                row.model.tokens, row.model.hidden, SUBLAYERS[row.name] * row.model.hidden // row.tp
            ),
            row.tp,
        )
        assert formula.gemm < row.gemm < 1.15 * formula.gemm  # whole stages, first reads
        assert row.rs == pytest.approx(formula.rs, rel=0.01)
        assert row.ag == pytest.approx(formula.ag, rel=0.01)
    small = found.of(True)
    assert {r.model.name for r in small.rows} == {"Mega-GPT-2", "T-NLG"}
    assert small.geomean("t3") < small.geomean("t3_mca") < small.geomean("ideal")
    for row in (r for r in small.rows if r.name != "OP"):  # what arbitration is for
        assert row.speedup("t3") < row.speedup("ideal") < 1.01 * row.speedup("t3_mca")


def test_the_closed_form_s_fitted_shares(found):
    for config, share in BETA.items():
        speedups = []
        for row in found.of(True).rows:
            gemm = Gemm(
                row.model.tokens, row.model.hidden, SUBLAYERS[row.name] * row.model.hidden // row.tp
            )
            formula = sublayer_times(gemm, row.tp)
            speedups.append(formula.sequential / formula.t3(share))
        mean = prod(speedups) ** (1 / len(speedups))
        assert mean == pytest.approx({"t3": 1.2, "t3_mca": 1.3}[config], abs=0.02)


def made(model="T-NLG", gain=1.0):
    """Sublayers with round numbers: a unit of GEMM 1 s, reduce-scatter and all-gather 1 s each."""
    rows = []
    for name, units in SUBLAYERS.items():
        seconds = dict.fromkeys(CONFIGS, units + 2.0 - gain) | {"sequential": units + 2.0}
        rows.append(SublayerRow(MODELS[model], 8, name, float(units), 1.0, 1.0, 1.0, seconds, {}))
    return Sublayers(tuple(rows), Machine())


def test_end_to_end_by_hand():
    """Training: 36 units and four times 2 s of communication; half of all is other work."""
    [gain] = t3.end_to_end(made(), "t3", "training", other=0.5, measured=None)
    assert gain.speedup == pytest.approx(88 / (88 - 4))
    assert gain.communication == pytest.approx(8 / 88)
    [gain] = t3.end_to_end(made(), "t3", "prompt", other=0.0, measured=None)
    assert gain.speedup == pytest.approx(16 / (16 - 2))
    [real] = t3.end_to_end(made(), "t3", "prompt")  # speedups stay, an MI210's shares
    times = {
        name: sublayer_times(Gemm(8192, 4256, units * 532), 8, MEASURED)
        for name, units in (("OP", 1), ("FC-2", 4), ("FC-1", 4), ("IP", 3))
    }
    op, fc = times["OP"], times["FC-2"]
    rest = 7 / 12 * sum(t.gemm for t in times.values())
    assert real.communication == pytest.approx(
        (1 - OTHER) * (op.rs + op.ag + fc.rs + fc.ag) / (op.sequential + fc.sequential + rest)
    )
    with pytest.raises(ValueError, match="what='decode' is not possible"):
        t3.end_to_end(made(), what="decode")
    with pytest.raises(ValueError, match=r"other=1 is not between 0.0 and 0.9"):
        t3.end_to_end(made(), other=1)


def test_sensitivity_is_of_what_is_not_matched(found, monkeypatch):
    asked = []

    def stand_in(machine, names, wavefronts, tile):
        asked.append((machine, tuple(names), tile))
        return found.of(names == ["Mega-GPT-2", "T-NLG"])

    monkeypatch.setattr(paper, "sublayers", stand_in)
    other = Sublayers(found.rows, Machine(latency=1e-6))
    compared = t3.against_paper(found=other, sensitivity=True)
    for row in compared.rows:
        assert set(row.sensitivity) == (set() if row.matched else set(row.anchor.varied))
    prompt = compared.at("prompt, T3-MCA, max")
    assert prompt.sensitivity["other work 20 %"] > prompt.plain + 2
    assert prompt.plain == pytest.approx(prompt.ours)
    assert len(asked) == len(set(asked)) == 4
    assert {a[0].link for a in asked} == {75e9, 150e9}
    assert {a[0].latency for a in asked} == {1e-6}  # of found's machine
    assert "other work 20 %: +" in str(compared.to_table())


def test_the_notebook_s_table_of_what_is_not_matched_is_what_is_simulated(found, monkeypatch):
    """Of each row's knobs those that need no simulation."""

    def nothing_twice(machine, names, wavefronts, tile):
        if machine == found.machine and tile == (128, 128):
            return found.of("T-NLG" in names)
        return t3.sublayers(machine, names, wavefronts, tile)

    monkeypatch.setattr(paper, "sublayers", nothing_twice)
    monkeypatch.setattr(
        paper,
        "ANCHORS",
        [
            a._replace(varied=tuple(v for v in a.varied if "other" in v or "shares" in v))
            for a in ANCHORS
        ],
    )
    text = "".join(
        line
        for cell in json.loads(NOTEBOOK.read_text())["cells"]
        if any(line.startswith("| number |") for line in cell["source"])
        for line in cell["source"]
        if line.startswith("| ")
    )
    lines = [[part.strip() for part in line.strip("|\n").split("|")] for line in text.splitlines()]
    compared = t3.against_paper(found=found, sensitivity=True)
    assert lines[0] == ["number", "kind", "paper", "null", "ours", "what moves it"]
    for row, cells in zip(compared.unmatched, lines[1:], strict=True):
        a, (name, kind, theirs, null, ours, moves) = row.anchor, cells
        assert float(null) == pytest.approx(row.null, abs=0.06)
        assert (name, kind, float(theirs)) == (a.name, a.kind, a.paper)
        assert float(ours) == pytest.approx(row.ours, abs=0.2)
        said = {
            what: re.search(re.escape(what) + r" ([+-]\d+(\.\d)?)", moves)
            for what in {b.name: b for b in ANCHORS}[name].varied
        }
        for what in a.varied:
            number, decimals = said[what].groups()
            assert float(number) == pytest.approx(
                row.sensitivity[what] - row.plain, abs=0.06 if decimals else 0.6
            )


def test_words_and_what_is_refused(found):
    assert "simulated" in found.describe() and "five choices between two" in found.describe()
    assert found.to_table()[0][0] == "model" and len(found.to_table()) == 29
    assert "simulated>" in repr(found) and "<table" in found._repr_html_()
    with pytest.raises(ValueError, match="models='GPT-2' is not possible: use 'Mega-GPT-2'"):
        t3.sublayers(models="GPT-2")
    with pytest.raises(ValueError, match="needs the sublayers of all models"):
        t3.against_paper(found=found.of(True))
    with pytest.raises(ValueError, match=r"link=75000000000\.0, found was simulated with 15"):
        t3.against_paper(Machine(link=75e9), found=found)
    with pytest.raises(ValueError, match="no sublayers"):
        made().of(False).geomean("t3")


def test_headlines_are_these_sublayers(found, monkeypatch):
    """Each row of `tpviz.claims` is one call, and the page has its figure."""
    page = (Path(__file__).parents[2] / "docs" / "claims.md").read_text()
    monkeypatch.setattr(headlines, "simulated", lambda size, knobs=(): found.of(size == "small"))
    rows = [claim for claim in known() if claim.system == "T3"]
    assert len(rows) == 7
    for claim in rows:
        ours = claim.ask(sensitivity=False)
        assert f"| {ours.figure:.3g} % | simulated |" in page
        assert ours.fitted == (claim.key not in ("t3-large", "t3-training", "t3-prompt"))
    mean = claim_of(rows, "t3-mean").ask(sensitivity=False)
    assert mean.figure == pytest.approx(100 * (found.of(small=True).geomean("t3_mca") - 1))


def claim_of(rows, key):
    return next(claim for claim in rows if claim.key == key)

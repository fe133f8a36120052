"""The table of the papers' headlines: its rule, its figures, and that none of theirs gets in."""

import ast
import inspect
import json
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest

import tpviz as tv
from tpviz.evidence import claims as table
from tpviz.evidence.claims import SYSTEMS, VERDICTS, Claim, ClaimRow, known
from tpviz.evidence.finding import Finding, Unknown, vary
from tpviz.evidence.merak import headlines as merak
from tpviz.evidence.t3 import headlines as t3

LAUNCH = "tpviz.ranks.launch.launch"
PAGE = (Path(__file__).parents[2] / "docs" / "claims.md").read_text()
QUICK = {"axonn-megatron": {"batch": 1024}}
QUICK |= {claim.key: {"rivals": "cube"} for claim in known() if claim.system == "Merak"}
"""Arguments with which an experiment searches less."""
CLAIMS = [claim for claim in known() if claim.experiment]
PARTS = pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.key)


def row(figure, *ends, low=30.0, high=30.0, fitted=False):
    claim = Claim("a", "ATP", "30 % faster", "", (low, high), "%", "s", "m:f", {})
    unknowns = tuple(Unknown(f"u{n}", (("x", end),)) for n, end in enumerate(ends))
    return ClaimRow(claim, Finding(figure, "predicted", "", unknowns, fitted))


def test_the_rule():
    """A third of the paper's figure either way; then one unknown at a time; nothing else."""
    assert row(20.0).verdict == row(40.0).verdict == "reproduced"
    assert row(19.9).verdict == row(40.1).verdict == "missed"
    assert row(19.9, 19.0, 15.0).verdict == "not reproduced"
    assert row(19.9, 15.0, 20.0).verdict == row(0.0, 90.0).verdict == "in reach"
    assert row(30.0, fitted=True).verdict == "fitted" and row(10.0, fitted=True).verdict == "missed"
    assert row(50.0, low=37.0, high=64.0).verdict == "reproduced"
    assert row(24.6, low=37.0, high=64.0).verdict == "missed"
    assert row(86.0, low=37.0, high=64.0).verdict == "missed"
    assert row(-3.0, 5.0).verdict == "not reproduced"
    assert ClaimRow(row(0.0).claim, None).verdict == "no experiment"
    assert [u.name for u in row(10.0, 12.0, 3.0, 11.0).unknowns] == ["u1", "u0", "u2"]
    assert row(10.0, 12.0, 3.0).moves == "u1: 3 to 10 %"


def test_every_system_has_rows_with_sources_and_the_table_shows_them():
    assert {claim.system for claim in known()} == set(SYSTEMS)
    assert len({claim.key for claim in known()}) == len(known())
    for claim in known():
        assert claim.source and claim.setting and 0 < claim.figure[0] <= claim.figure[1]
    told = []
    found = tv.claims("ATP", progress=lambda done, total, text: told.append((done, total, text)))
    (only,) = found.rows
    assert {at[:2] for at in told} == {(0, 1)} and len(told) == 7  # and each end of three unknowns
    assert "hidden size: 2048" in told[-2][2]
    assert only is found.at("atp") and found.badges == ["predicted", "the papers'"]
    assert only.verdict in VERDICTS and only.verdict in repr(found)
    assert len(only.unknowns) == 3 and only.moves.startswith("rings over several pairs")
    head, line = found.to_table()
    assert len(head) == len(line) and only.claim.claim in line and only.sensitivity in line
    shown = found._repr_html_()
    assert shown.count(only.claim.claim) > 1 < shown.count("<table") and only.moves in shown
    assert "37 to 64 %" in shown and only.verdict in found.describe() and "<svg" in found.to_svg()
    with pytest.raises(ValueError, match="Megatron"):
        tv.claims("Megatron")
    with pytest.raises(ValueError, match="has no experiment yet"):
        only.claim._replace(experiment=None).ask()


@PARTS
def test_no_figure_of_a_paper_is_in_the_code_that_computes_ours(claim):
    """Neither as a number (as it is, as a fraction, as a speedup) nor in a text; and it cannot come
    from the table."""
    module = import_module(claim.experiment.partition(":")[0])
    source = inspect.getsource(module)
    constants = [n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant)]
    numbers = {float(c) for c in constants if isinstance(c, int | float)}
    texts = " ".join(c for c in constants if isinstance(c, str))
    for figure in claim.figure:
        if figure > 10:  # a smaller one is in any code
            assert not numbers & {figure, figure / 100, 1 + figure / 100}
            assert not re.search(rf"\b{figure:g} (%|PFLOP)|\b{1 + figure / 100:g}x", texts)
    seen, left = set(), [module.__name__]
    while left:
        name = left.pop()
        if name not in seen:
            seen.add(name)
            left += [m for m in _imports(name) if m.startswith("tpviz.evidence.")]
    assert "tpviz.evidence.claims" not in seen and "tpviz.evidence.t3.paper" not in seen


def _imports(name):
    """Modules that one imports from, at its top or later; packages by the modules they name."""
    module = import_module(name)
    package = name if hasattr(module, "__path__") else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) + 1 - node.level]
            yield ".".join(
                [*above, *([node.module] if node.module else [])]
                if node.level
                else [node.module or ""]
            )
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


@pytest.mark.parametrize("claim", [c for c in CLAIMS if c.system != "T3"], ids=lambda c: c.key)
def test_each_row_is_one_call_whatever_the_papers_say(claim, tmp_path, monkeypatch):
    """The figures of T3's rows: test_t3_paper.py, beside what is simulated there."""
    quick = {**QUICK.get(claim.key, {}), "sensitivity": False}
    ours = claim.ask(**quick)
    assert ours.figure == ours.figure and ours.badge == "predicted" and ours.setting
    if claim.key not in QUICK:
        assert f"| {ours.figure:.3g} {claim.unit} | {ours.badge} |" in PAGE
    elif claim.system == "AxoNN":
        assert f"| sequences a step | 1024 | {ours.figure:.3g} % |" in PAGE
    elif claim.system == "Merak":  # what the page says of the same plans for all
        assert f"the rivals recomputing every layer | {ours.figure:.3g} % |" in PAGE
    other = json.loads(table.FILE.read_text())
    for one in other["claims"]:
        one["figure"] = [1.0, 2.0]
    (file := tmp_path / "claims.json").write_text(json.dumps(other))
    monkeypatch.setattr(table, "FILE", file)
    known.cache_clear()
    try:
        (again,) = (c for c in known() if c.key == claim.key)
        assert again.figure == (1.0, 2.0) and again.ask(**quick) == ours
    finally:
        known.cache_clear()


def test_the_searches_for_the_fastest_plans():
    """The whole searches; rivals that may do more are never slower."""
    megatron = next(c for c in CLAIMS if c.key == "axonn-megatron").ask(sensitivity=False)
    assert (
        f"| {megatron.figure:.3g} % | predicted |" in PAGE and "Megatron-LM: " in megatron.setting
    )
    claim = next(c for c in CLAIMS if c.key == "merak-20B")
    free, recomputing = (claim.ask(rivals=r, sensitivity=False) for r in ("free", "recomputing"))
    assert f"| {free.figure:.3g} % | predicted |" in PAGE and free.figure <= recomputing.figure
    assert "pp=8" in free.setting and "stage-aware recomputation" in free.setting


def test_unknowns_are_asked_at_their_ends():
    assert vary(lambda x=0: float(x), {"a": {"low": {"x": 1}, "high": {"x": 3}}}) == (
        Unknown("a", (("low", 1.0), ("high", 3.0))),
    )


@pytest.mark.parametrize("name, given", [("20B", {}), ("1.5B", {}), ("8.3B", {"batch": 64})])
def test_no_step_is_faster_than_the_bound_by_which_plans_are_left_out(name, given):
    w, cluster = merak.model(name, **given), merak.machine()
    every = [s for o in (merak.FREE, *merak.TECHNIQUES.values()) for s in merak.plans(w, o)]
    ratios = []
    for s in every[5::37]:
        s = replace(s, keep=1.0) if s.recompute == "stage_aware" else s
        ratios.append(merak._least(s, w, cluster) / tv.predict(s, w, cluster).step_time)
    assert 0.4 < sorted(ratios)[len(ratios) // 2] and max(ratios) <= 1 + 1e-9


@pytest.fixture
def two_claims(monkeypatch):
    """The one of ATP, as it is and on another model."""
    (one,) = (claim for claim in CLAIMS if claim.system == "ATP")
    other = one._replace(key="atp-small", given={"hidden": 2048})
    monkeypatch.setattr(table, "known", lambda: (one, other))


def test_claims_side_by_side_are_those_of_one_process(two_claims, monkeypatch):
    """Every figure is computed once, in one of the ranks; on one core nothing is started."""
    told, found = [], []
    monkeypatch.setattr(table.os, "sched_getaffinity", lambda pid: {0})
    launch = tv.launch
    monkeypatch.setattr(LAUNCH, lambda *args, **options: pytest.fail("on one core"))
    alone = tv.claims(progress=lambda *at: told.append(at))
    assert [at[0] for at in told] == [0] * 7 + [1] * 7
    monkeypatch.setattr(table.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(LAUNCH, lambda *a, **options: found.extend(launch(*a, **options)) or found)
    monkeypatch.setattr(Claim, "find", lambda *job: pytest.fail("computed here too"))
    assert tv.claims(progress=False).rows == alone.rows
    first, second = found
    assert not first.keys() & second.keys() and len(first) + len(second) == 6 + 5


def test_claims_in_a_rank_are_computed_there(two_claims, monkeypatch):
    """No rank can start ranks, and torchrun's are a world already."""
    monkeypatch.setattr(table.os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(LAUNCH, lambda *args, **options: pytest.fail("ranks in a rank"))
    world = {"is_initialized": True, "get_backend": "gloo", "get_world_size": 2}
    for name, value in world.items():
        monkeypatch.setattr(f"torch.distributed.{name}", lambda *group, value=value: value)
    assert len(tv.claims(sensitivity=False, progress=False).rows) == 2


def test_t3s_headlines_simulate_what_they_read(monkeypatch):
    """Sequential and T3-MCA; plain T3 is in none of them."""
    parts = import_module("tpviz.evidence.t3.sublayers")  # a function hides its name
    one = {"T-NLG": parts.Model("T-NLG", 256, 2, 512, (4,), True)}
    asked = []
    monkeypatch.setattr(parts, "MODELS", one)
    monkeypatch.setattr(t3, "MODELS", one)
    played = parts.simulate
    monkeypatch.setattr(parts, "simulate", lambda *a: asked.append(a[-1]) or played(*a))
    found = t3.simulated.__wrapped__("small")
    assert asked == ["sequential", "t3_mca"] * 3
    whole = parts.sublayers(models=["T-NLG"], wavefronts=1)
    for row, other in zip(found.rows, whole.rows):
        assert row.seconds == {c: s for c, s in other.seconds.items() if c != "t3"}
        assert row.dram == {c: d for c, d in other.dram.items() if c != "t3"}

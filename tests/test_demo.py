"""The demonstration: it runs, writes pages that need no network, and fails when a check does."""

import json
import re

import pytest

from tpviz import demo

STEPS = 3


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(folder, exit code, printed text, traces) of one demonstration."""
    folder, traces = tmp_path_factory.mktemp("demo"), []
    run = demo.tv.run
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo.tv, "run", lambda *a, **k: traces.append(run(*a, **k)) or traces[-1])
        lines = []
        patch.setattr("builtins.print", lambda *a, **k: lines.append(" ".join(map(str, a))))
        code = demo.main(["--steps", str(STEPS), "--out", str(folder)])
    return folder, code, "\n".join(lines), traces


def test_passes_and_says_so(finished):
    _, code, text, traces = finished
    assert code == 0
    assert text.count("measured ledger == the formula") == 2
    assert text.count("at rounding level") == 2
    assert all(len(trace.meta["losses"]) == STEPS for trace in traces)


def test_every_file_that_is_named_exists(finished):
    folder, _, text, _ = finished
    named = re.findall(rf"{re.escape(str(folder))}/([\w.]+)", text)
    assert len(named) == 4
    assert all((folder / name).stat().st_size for name in named)


@pytest.mark.parametrize("name", ["index.html", "tp2_dp2.html"])
def test_pages_need_no_network(finished, name):
    page = (finished[0] / name).read_text()
    assert "<svg" in page
    assert not re.search(r"""(?:src|href)=["']https?:|@import|url\(["']?https?:""", page)
    for link in re.findall(r"href=['\"](\w[\w.]*html)['\"]", page):
        assert (finished[0] / link).exists()


def test_chrome_traces_hold_all_four_ranks(finished):
    for name in ("tp4", "tp2_dp2"):
        content = json.loads((finished[0] / f"{name}.trace.json").read_text())
        events = content["traceEvents"] if isinstance(content, dict) else content
        assert len({e["pid"] for e in events if e.get("ph") == "X"}) == 4


def rerun(finished, tmp_path, monkeypatch, **replace):
    """The exit code of a demonstration on the traces that exist, with something replaced."""
    traces = iter(finished[3])
    monkeypatch.setattr(demo.tv, "run", lambda *a, **k: next(traces))
    for name, value in replace.items():
        monkeypatch.setattr(demo, name, value)
    return demo.main(["--steps", str(STEPS), "--out", str(tmp_path)])


def test_a_wrong_loss_fails(finished, tmp_path, monkeypatch, capsys):
    right = demo.train_reference
    code = rerun(
        finished,
        tmp_path,
        monkeypatch,
        train_reference=lambda w, steps: [x + 0.01 for x in right(w, steps)],
    )
    assert code == 1
    assert "TOO MUCH" in capsys.readouterr().out


def test_a_wrong_ledger_fails_with_the_difference(finished, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(demo.tv.Megatron, "ledger", lambda self, workload: demo.tv.Ledger())
    assert rerun(finished, tmp_path, monkeypatch) == 1
    out = capsys.readouterr().out
    assert "measured ledger DIFFERS" in out
    assert "formula has nothing" in out


def test_bad_steps_are_refused(capsys):
    with pytest.raises(SystemExit):
        demo.main(["--steps", "0"])
    assert "use 1 or more" in capsys.readouterr().err

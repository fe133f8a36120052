"""The demonstration: it runs, writes pages that need no network, and fails when a check does."""

import json
import re

import pytest

from tpviz.core.trace.steps import median_step
from tpviz.views import demo

STEPS = 3
pytestmark = pytest.mark.filterwarnings("ignore:this emulated run")  # beside other tests


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """(folder, exit code, printed text, what ran) of one demonstration."""
    folder, ran = tmp_path_factory.mktemp("demo"), {"run": [], "compare": []}
    with pytest.MonkeyPatch.context() as patch:
        for name, kept in ran.items():
            patch.setattr(demo.tv, name, keeping(getattr(demo.tv, name), kept))
        lines = []
        patch.setattr("builtins.print", lambda *a, **k: lines.append(" ".join(map(str, a))))
        code = demo.main(["--steps", str(STEPS), "--out", str(folder)])
    return folder, code, "\n".join(lines), ran


def keeping(function, kept):
    return lambda *a, **k: kept.append(function(*a, **k)) or kept[-1]


def test_passes_and_says_so(finished):
    _, code, text, ran = finished
    assert code == 0
    assert text.count("The measured ledger equals the formula") == 2
    assert text.count("at rounding level") == 2
    assert all(len(trace.meta["losses"]) == STEPS for trace in ran["run"])


def test_every_file_that_is_named_exists(finished):
    folder, _, text, _ = finished
    named = re.findall(rf"{re.escape(str(folder))}/([\w.]+)", text)
    assert len(named) == 3
    assert all((folder / name).stat().st_size for name in named)


def test_the_page_is_small_and_needs_no_network(finished):
    page = (finished[0] / "index.html").read_text()
    assert len(page) < 2_000_000
    assert not re.search(r"""(?:src|href)=["']https?:|@import|url\(["']?https?:""", page)


def test_overlap_shows_in_the_first_picture(finished):
    """A third of the step or more is computation; communication is hidden behind some of it."""
    [emulated] = finished[3]["compare"]
    one = median_step(emulated.measured)
    assert one.badge.startswith("emulated")
    assert one.overlap() > 0.2
    assert one.exposed_communication() < 0.6 * one.step_time


@pytest.mark.browser
def test_the_page_opens_with_the_emulated_step_and_plays_all_four_systems(finished, tab):
    tab.goto((finished[0] / "index.html").as_uri())
    tab.locator(".tpv-timeline.tpv-playing").wait_for()
    kinds = ["timeline", "picture", "blocks", "blocks", "schedule", "tiles", "timeline", "timeline"]
    places = tab.locator(".tpv-place")
    assert places.evaluate_all("all => all.map((p) => p.dataset.view)") == kinds
    tab.locator(".tpv-timeline[data-ready]").nth(2).wait_for(state="attached")
    badges = tab.locator(".tpv-timeline .tpv-badge").all_inner_texts()
    assert [words.split(",")[0] for words in badges] == ["emulated", *["this machine"] * 2]
    for i in range(2, 6):
        places.nth(i).scroll_into_view_if_needed()
        places.nth(i).locator(".tpv-playing").wait_for()


def test_chrome_traces_hold_all_four_ranks(finished):
    for name in ("tp4", "tp2_dp2"):
        content = json.loads((finished[0] / f"{name}.trace.json").read_text())
        events = content["traceEvents"] if isinstance(content, dict) else content
        assert len({e["pid"] for e in events if e.get("ph") == "X"}) == 4


def giving(kept):
    return lambda *a, **k: next(kept)


def rerun(finished, tmp_path, monkeypatch, **replace):
    """The exit code of a demonstration of what has run, with something replaced."""
    for name, kept in finished[3].items():
        monkeypatch.setattr(demo.tv, name, giving(iter(kept)))
    for name, value in {"SYSTEMS": (), **replace}.items():
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
    assert "The measured ledger DIFFERS" in out
    assert "formula has nothing" in out


def test_an_interrupt_is_one_line(tmp_path, monkeypatch, capsys):
    def interrupted(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr(demo, "train_reference", interrupted)
    assert demo.main(["--out", str(tmp_path)]) == 130
    assert capsys.readouterr().err == "\ninterrupted: no page was written\n"


def test_bad_steps_are_refused(capsys):
    with pytest.raises(SystemExit):
        demo.main(["--steps", "0"])
    assert "use 1 or more" in capsys.readouterr().err

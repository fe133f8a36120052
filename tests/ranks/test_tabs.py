"""What ranks print, in tabs of a notebook."""

import time

import IPython.display
import ipywidgets
import pytest

import tpviz as tv
from tpviz.ranks import launch, tabs


class _Shown:
    """Stands for the place of a cell's output: all that was shown there, in order."""

    def __init__(self):
        self.all, self.at = [], []

    def __call__(self, what, **_):
        self.update(what)
        return self

    def update(self, what, **_):
        self.all.append(what)
        self.at.append(time.monotonic())


@pytest.fixture
def shown(monkeypatch):
    cell = _Shown()
    monkeypatch.setattr(IPython.display, "display", cell)
    monkeypatch.setattr(launch, "in_notebook", lambda: True)
    return cell


def test_lines_come_while_ranks_run_and_stay_at_the_end(shown, capsys):
    def work():
        import torch.distributed as dist

        print("<first> of", dist.get_rank())
        time.sleep(1)
        print("second")

    tv.launch(work, world_size=2, rank_tabs=True, progress=False)
    live, last = shown.all
    assert isinstance(live, ipywidgets.VBox)
    assert shown.at[1] - shown.at[0] > 0.5, "before the job had ended"
    html = last["text/html"]
    assert html.count("<details>") == 2 and "rank 1: 2 lines" in html
    assert "&lt;first&gt; of 1\nsecond" in html
    assert "[rank 0] second" in last["text/plain"]
    assert capsys.readouterr().out == ""


def test_ends_stay_after_an_error(shown):
    with pytest.raises(tv.RankError):
        tv.launch(lambda: print("before") or 1 / 0, world_size=1, rank_tabs=True, progress=False)
    assert "before" in shown.all[-1]["text/html"]


def test_elsewhere_lines_are_printed(capsys):
    tv.launch(lambda: print("here"), world_size=1, rank_tabs=True)
    assert capsys.readouterr().out == "[rank 0] here\n"


def test_a_flood_is_drawn_now_and_then_and_its_end_is_kept(shown):
    view = tabs.RankTabs()
    begun, drawn = time.monotonic(), []
    view._draw = lambda draw=view._draw: (drawn.append(1), draw())
    for i in range(2000):
        view.add("".join(f"[rank {rank} on alpha] {i} of {rank}\n" for rank in range(4)))
    assert len(drawn) <= 2 + (time.monotonic() - begun) / 0.25
    view.close()
    html = shown.all[-1]["text/html"]
    assert "... 1,500 lines before\n1500 of 3" in html and "1999 of 3" in html
    assert "1499 of 3" not in html and html.count("<b>alpha</b>") == 1


def test_hosts_are_grouped_and_ranks_in_order(shown, capsys):
    view = tabs.RankTabs()
    view.add("[rank 10 on beta] x\n[rank 2 on alpha] y\n[rank 9 on beta] z\n[tpviz] word\n")
    heads = [child for child in view._box.children if isinstance(child, ipywidgets.HTML)]
    pages = [child for child in view._box.children if isinstance(child, ipywidgets.Tab)]
    assert [head.value for head in heads] == ["<b>alpha</b>", "<b>beta</b>"]
    assert [tab.titles for tab in pages] == [("rank 2",), ("rank 9", "rank 10")]
    view.close()
    assert capsys.readouterr().out == "[tpviz] word\n"

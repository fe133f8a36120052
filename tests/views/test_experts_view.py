"""The view of experts over ranks: rows of the cut, what a capacity drops, and who waits."""

import re
from dataclasses import replace

import numpy as np
import pytest
import torch

import tpviz as tv
from tpviz.schemes.experts.paper import imbalance
from tpviz.schemes.gpt.experts import Router
from tpviz.views.figures.experts import sent_bytes
from tpviz.views.films.experts import routed

W = tv.GPT(layers=1, seq=64, batch=8, experts=8, top_k=2, routing=tv.Routing(1.0))
WORKLOADS = [replace(W, routing=tv.Routing(skew, seed=3)) for skew in (0.0, 1.0, 3.0)]
WORKLOADS += [replace(w, capacity=capacity) for w in WORKLOADS for capacity in (0.5, 1.0, 2.0)]
TITLES = lambda w: f"{w.routing.skew}, {w.capacity}"


def ways(svg):
    """[((from, to), rows, px of all ribbons)] of what is drawn, there and back."""
    found = re.findall(r"data-rows='(\d+)-(\d+)-(\d+)'>(.*?)</g>", svg)
    return [
        ((int(a), int(b)), int(rows), sum(map(float, re.findall(r"v([\d.]+)C", drawn))))
        for a, b, rows, drawn in found
    ]


@pytest.mark.parametrize("ep", [1, 2, 4, 8])
@pytest.mark.parametrize("w", WORKLOADS, ids=TITLES)
def test_rows_drawn_are_those_of_the_cut(w, ep):
    s = tv.Experts(ep=ep)
    view, part = tv.ExpertsView(s, w), s.local(w)
    to = s.cut.sent(part).reshape(ep, -1).sum(1)
    pairs = sorted(((a, b), int(to[b])) for a in range(ep) for b in range(ep))
    for step, times in enumerate((0, 1, 1, 2)):
        found = ways(view.to_svg(step=step))
        assert sorted(way[:2] for way in found) == sorted(pairs * times)
        px = max(found, key=lambda way: way[1])[2] / to.max() if found else 0
        assert all(wide == pytest.approx(rows * px, abs=0.1) for _, rows, wide in found)
    loads = [(*map(int, at),) for at in re.findall(r"data-expert='(\d+) (\d+)'", view.to_svg())]
    of_ranks = [s.cut.loads(part, rank) for rank in range(ep)]
    assert loads == [*enumerate(np.concatenate(of_ranks))]
    assert view.film.loads.tolist() == [load.sum() for load in of_ranks]
    for row, (expert, load) in zip(view.to_table()[1:], loads, strict=True):
        assert (row[:2], row[4]) == ([str(expert * ep // 8), str(expert)], str(load))


@pytest.mark.parametrize("w", WORKLOADS, ids=TITLES)
def test_what_is_dropped_is_what_the_router_drops(w):
    film, part = routed(tv.Experts(ep=4), w), tv.Experts(ep=4).local(w)
    experts, _, numbers = Router(part).choose(torch.rand(part.batch, part.seq, part.experts))
    over = torch.zeros_like(experts, dtype=torch.bool) if numbers is None else numbers >= w.taken
    count = lambda chosen: torch.bincount(chosen, minlength=w.experts).tolist()
    assert film.dropped.tolist() == count(experts[over])
    assert film.kept.tolist() == count(experts[~over])
    assert (film.kept + film.empty == film.sent).all() and (film.empty >= 0).all()
    svg = tv.ExpertsView(tv.Experts(ep=4), w).to_svg()
    words = [f">{4 * n} dropped</text>" for n in film.dropped if n]
    assert svg.count(" dropped</text>") == len(words) and all(each in svg for each in words)
    assert ("stroke-dasharray='2 2'" in svg) == bool(words)
    assert "exposed" not in re.sub("<style>.*?</style>|<defs>.*?</defs>", "", svg)


@pytest.mark.parametrize("ep", [2, 4, 8])
@pytest.mark.parametrize("skew", [0.0, 0.5, 1.0, 2.0])
def test_the_busiest_rank_is_the_papers(skew, ep):
    """On a long sequence, of which shares are met closely."""
    routing = tv.Routing(skew, seed=1)
    film = routed(tv.Experts(ep=ep), replace(W, seq=4096, routing=routing))
    assert film.uneven == pytest.approx(imbalance(routing, 8, 2, ep), rel=0.01)
    shares = routing.shares(8, 2).reshape(ep, -1).sum(1)
    assert film.alike or film.busiest == shares.argmax()


@pytest.mark.parametrize("w", [W, replace(W, capacity=1.0)], ids=["dropless", "capacity"])
def test_bytes_are_those_of_a_simulation(w):
    s = tv.Experts(ep=4)
    c = tv.simulate(s, w, tv.clusters.nvswitch(4)).whole().select(phase="forward")
    film, name = routed(s, w), "all_to_all" if w.capacity else "all_to_all_v"
    found = [c["bytes"][(c["name"] == name) & (c["rank"] == rank)][0] for rank in range(4)]
    if w.capacity:  # of an all-to-all of equal parts a trace has the whole buffer
        assert [3 * n / 4 for n in found] == sent_bytes(film)
    else:
        assert found == sent_bytes(film)


def test_who_waits_is_seen():
    view = tv.ExpertsView(tv.Experts(ep=4), W)
    film = view.film
    assert film.loads.sum() == 8 * 64 * 2 and not film.alike
    assert view.to_svg().count(">idle</text>") == 3
    assert f"Rank {film.busiest} has {film.uneven:.2f} times the mean" in view.to_svg(step=2)
    assert view.picture.scene["facts"][0] == ["busiest rank", f"rank {film.busiest}"]
    view.controls["capacity"].value = 1.0
    assert view.film.alike and ">idle</text>" not in view.to_svg()
    assert "without a choice" in view.describe() and "are dropped" in view.describe()


def test_knobs_move_it_and_what_does_not_work_is_said():
    view = tv.ExpertsView()
    view.controls["ep"].value = 8
    assert (view.strategy.ep, len(view.film.loads)) == (8, 8)
    view.controls["top_k"].value = 4
    view.controls["skew"].value = 2.0
    view.controls["capacity"].value = 1.5
    w = view.workload
    assert (w.top_k, w.routing, w.capacity, view.error) == (4, tv.Routing(2.0), 1.5, "")
    assert repr(view) == "<ExpertsView 8 experts over 8 ranks, send rows>"
    view.controls["capacity"].value = "none"
    assert view.workload.capacity is None
    few = tv.ExpertsView(tv.Experts(ep=2), replace(W, batch=4))
    few.controls["ep"].value = 8
    assert "batch=4" in few.error and few.strategy.ep == 2
    learned = tv.ExpertsView(workload=replace(W, routing=None))
    assert learned.film.alike and learned.controls["skew"].value == 0
    with pytest.raises(ValueError, match="ep=16 is more than the 8"):
        tv.ExpertsView(tv.Experts(ep=16), replace(W, experts=16))
    with pytest.raises(ValueError, match="experts=32 is more than the 16"):
        tv.ExpertsView(workload=replace(W, experts=32))
    with pytest.raises(ValueError, match=r"shows tv\.Experts, not Megatron"):
        tv.ExpertsView(tv.Megatron(tp=2))
    with pytest.raises(ValueError, match="has no experts"):
        tv.ExpertsView(workload=tv.GPT())
    with pytest.raises(ValueError, match="needs a workload"):
        tv.ExpertsView(workload="large")
    with pytest.raises(TypeError, match="did you mean 'autoplay'"):
        tv.ExpertsView(autoply=True)


@pytest.mark.parametrize("etp", [1, 2])
def test_around_a_tensor_parallelism(etp):
    s = tv.Megatron(tp=2) * tv.Experts(ep=2, etp=etp)
    view = tv.ExpertsView(s, W)
    assert view.film.chosen.sum() == 4 * 64 * 2 * etp // 2
    assert view.strategy == s and "dropped" not in view.describe()


@pytest.mark.browser
def test_rows_travel_in_a_page(tab, tmp_path):
    view = tv.ExpertsView(autoplay=True)
    tab.emulate_media(reduced_motion="no-preference")
    tab.goto(view.to_html(tmp_path / "a.html").as_uri())
    tab.locator("[data-path]").first.wait_for()
    before = tab.locator("[data-path]").first.get_attribute("transform")
    tab.wait_for_function(
        "before => (now => now && now !== before)("
        "document.querySelector('[data-path]')?.getAttribute('transform'))",
        arg=before,
    )
    tab.locator("svg[role=application]").press("Home")
    tab.locator(".tpv-summary", has_text="choose").first.wait_for()


@pytest.mark.browser
@pytest.mark.parametrize("ep", [1, 8])
def test_in_a_narrow_window_it_shrinks(tab, tmp_path, ep):
    tab.set_viewport_size({"width": 400, "height": 900})
    tab.goto(tv.ExpertsView(tv.Experts(ep=ep)).to_html(tmp_path / "a.html").as_uri())
    tab.locator("[data-ready]").wait_for()
    assert tab.evaluate("() => document.documentElement.scrollWidth") <= 400


@pytest.mark.browser
def test_texts_of_every_step_are_legible(tab):
    from test_legible import PROBLEMS, SMALLEST

    large = replace(W, seq=8192, batch=64, experts=16, top_k=4)
    for w in (*WORKLOADS, replace(large, capacity=0.75), large):
        for ep in (1, 2, 8):
            view = tv.ExpertsView(tv.Experts(ep=ep), w)
            for step in range(4):
                tab.set_content(view.to_svg(step=step))
                problems = "\n".join(tab.evaluate(PROBLEMS, [SMALLEST]))
                assert problems == "", (TITLES(w), ep, step)

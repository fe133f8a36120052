"""The rooms of ``explore`` one by one: the model's pictures, coalesced moves."""

import re
import threading

import pytest

import tpviz as tv
from tpviz.views.figures.svg import amount
from tpviz.views.plans.pictures import axes_table, memory_svg, memory_warning, parts_svg
from tpviz.views.widgets.job import Latest
from tpviz.views.widgets.setting import AUTO, HERE, Setting, check_cluster, scaled


@pytest.mark.parametrize(("hidden", "slow"), [(1, 1), (8, 1), (1, 100), (8, 100)])
def test_choices_become_the_scale_model(hidden, slow):
    cluster, seen = tv.clusters.torus(), []
    chosen = cluster.scale_model(hidden=hidden), slow
    model, prediction, words = scaled(chosen, lambda c: seen.append(c) or "p")
    assert model == cluster.scale_model(hidden=hidden, slow_motion=slow)
    assert (prediction, seen) == ("p", [model])
    assert ("scale model of 8 x" in words) == (hidden == 8)


def test_auto_predicts_at_full_speed_first():
    w, cluster = tv.GPT(), tv.clusters.nvlink_pairs()
    model, prediction, words = scaled(
        (cluster.scale_model(hidden=4), AUTO), lambda c: tv.predict(tv.Megatron(tp=2), w, c)
    )
    assert prediction.cluster is model
    assert words.startswith("a scale model of 4 x the hidden sizes; auto chose ")
    assert model == cluster.scale_model(hidden=4).scale_model(slow_motion=model.slow_motion)


def test_the_menu_has_the_cluster_given_this_machine_and_every_preset():
    mine = tv.clusters.nvlink_pairs(pairs=2)
    setting = Setting(mine)
    values = [value for _, value in setting.menu.options]
    assert values[:2] == [mine, HERE]
    assert len(values) == 2 + len(tv.clusters.presets())
    assert setting.chosen == (mine, AUTO)
    assert len(Setting(tv.clusters.nvlink_pairs()).menu.options) == len(values) - 1
    assert Setting().chosen[0] is None


def test_a_cluster_that_is_slow_already_is_taken_as_it_is():
    assert Setting(tv.clusters.torus().scale_model(slow_motion=50)).chosen[1] == 1


def test_what_is_no_cluster_is_answered_with_what_is():
    with pytest.raises(ValueError, match=r"cluster=8 is no cluster.*tv.clusters.torus\(\)"):
        check_cluster(8)


def widths(svg):
    """Widths of the filled bars of the picture's first row, in px."""
    row = re.findall(r"<rect x='[\d.]+' y='36.00' width='([\d.]+)' height='26.00' class", svg)
    return [float(width) for width in row]


def test_parts_are_drawn_to_one_scale():
    parts = {"compute": 0.2, "bandwidth wait": 0.1, "latency wait": 0.05, "bubble": 0.0}
    svg = parts_svg(parts, "predicted")
    bars = widths(svg)
    assert [round(bar / bars[2], 2) for bar in bars] == [4, 2, 1, 0]
    assert ">predicted<" in svg
    assert ">step time 350 ms<" in svg
    assert "compute 200 ms (57 %)" in svg
    longer = widths(parts_svg({**parts, "bubble": 0.1}, "predicted"))
    assert longer[3] > 0
    assert sum(longer) > sum(bars)


def test_slow_motion_stretches_no_bar_but_is_told():
    parts = {"compute": 0.2, "latency wait": 0.1}
    slow = parts_svg({name: 50 * time for name, time in parts.items()}, "predicted", 50)
    assert widths(slow) == widths(parts_svg(parts, "predicted"))
    assert ">step time 300 ms<" in slow
    assert ">15 s in 50 x slow motion<" in slow


@pytest.mark.parametrize("parts", [{}, {"compute": 0.0}, {"compute": -1.0}, {"compute": 1e999}])
def test_parts_that_are_no_times_are_refused(parts):
    with pytest.raises(ValueError, match="are not the times of a step"):
        parts_svg(parts, "predicted")


@pytest.mark.parametrize(("capacity", "said"), [(1000, "90 %"), (500, "180 %"), (1e9, "9e-05 %")])
def test_memory_is_drawn_against_the_device(capacity, said):
    memory = {"parameters": 200, "gradients": 200, "optimizer": 400, "activations": 100}
    svg = memory_svg(memory, capacity, "A100")
    assert said in svg and "(for" not in svg
    assert f"(for {amount(4 * capacity)})" in memory_svg(memory, capacity, "A100", scale=4)
    assert ("enlarged" in svg) == (capacity == 1e9)
    assert ("s-exposed" in svg.split("</style>")[1].split("</defs>")[1]) == (capacity == 500)


def test_too_little_memory_names_the_numbers():
    device = tv.clusters.nvlink_pairs().device
    assert memory_warning(device.memory, device.memory, device.name) == ""
    words = memory_warning(2.5 * device.memory, device.memory, device.name)
    assert "A rank needs 200 GB" in words
    assert "over at least 3 x as many ranks" in words


def test_the_axes_have_their_links_and_their_share_of_bytes():
    s, cluster = tv.Megatron(tp=2) * tv.DataParallel(dp=2), tv.clusters.nvlink_pairs()
    prediction = tv.predict(s, tv.GPT(), cluster)
    rows = {row[0]: row for row in axes_table(prediction, tv.Mesh(s.axes))[1:]}
    assert rows["tp"][2] == "211 GB/s"  # neighbours, on NVLink
    assert rows["tp"][2] != rows["dp"][2]
    slow = tv.predict(s, tv.GPT(), cluster.scale_model(slow_motion=200))
    assert axes_table(slow, tv.Mesh(s.axes)) == axes_table(prediction, tv.Mesh(s.axes))
    sent = {row.axis: 0.0 for row in prediction.ledger()}
    for row in prediction.ledger():
        sent[row.axis] += row.wire_bytes
    assert rows["dp"][4] == f"{sent['dp'] / 1e3:.3g} kB"


def test_work_asked_for_meanwhile_is_done_once_more_whoever_asks():
    calls = []

    def work():
        calls.append(threading.current_thread().name)
        if len(calls) == 1:
            latest()  # from the work itself
            for _ in range(3):  # and from elsewhere, without waiting
                other = threading.Thread(target=latest)
                other.start()
                other.join(10)

    latest = Latest(work)
    latest()
    assert calls == ["MainThread"] * 2
    latest()
    assert len(calls) == 3


def test_work_that_fails_can_be_asked_for_again():
    outcomes = iter([ValueError("no"), None])

    def work():
        outcome = next(outcomes)
        if outcome:
            raise outcome

    latest = Latest(work)
    with pytest.raises(ValueError, match="no"):
        latest()
    latest()
    assert list(outcomes) == []

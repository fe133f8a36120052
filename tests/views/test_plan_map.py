"""The map of plans: where dots stand, what the wall says, and that a click takes a plan."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

import tpviz as tv
from tpviz.verbs.predict import predict
from tpviz.views.figures.plan_map import PlanDot, kind_of, plan_map_scene, plan_map_svg
from tpviz.views.figures.svg import width_of
from tpviz.views.plans.presets import cluster_for, preset
from tpviz.views.widgets.plan_map import PlanMap
from tpviz.views.widgets.plans import PlansAsked

PLANS = [
    PlanDot("slow", "data", 4.0, 40e9),
    PlanDot("fast", "tensor", 2.0, 60e9),
    PlanDot("too large", "pipeline", 1.0, 160e9),
]
PLACES = r"data-plan='(\d)'.*?translate\(([\d.]+) ([\d.]+)\)' class='f-\w+' ([^/]*)/>"


def test_up_is_faster_right_needs_more_and_what_does_not_fit_is_pale():
    scene = plan_map_scene(PLANS, 80e9)
    found = {
        int(i): (float(x), float(y), faint)
        for i, x, y, faint in re.findall(PLACES, scene["common"])
    }
    (x0, y0, first), (x1, y1, second), (x2, y2, third) = (found[i] for i in range(3))
    assert x0 < x1 < x2 and y0 > y1 > y2
    assert (first, second) == ("", "") and "fill-opacity" in third
    wall = float(re.search(r"M([\d.]+),\d+V\d+' class='s-exposed'", scene["common"])[1])
    assert x1 < wall < x2


def test_the_fastest_that_fits_is_named_with_its_time():
    scene = plan_map_scene(PLANS, 80e9, chosen=0)
    assert scene["best"] == 1
    assert ">fastest shown that fits: 2 s<" in scene["common"]
    assert ">this plan: 4 s<" in scene["common"]
    assert scene["captions"] == ["3 plans; 2 fit in 80 GB, 1 does not"]
    assert plan_map_scene(PLANS[2:], 80e9)["best"] == -1


def test_a_stranger_reads_what_dots_axes_and_the_wall_are():
    """In the picture itself: also where it is shown without words around it."""
    drawn = plan_map_scene(PLANS, 80e9, chosen=0)["common"]
    for words in (
        "Each dot is a plan: one way to split the training over the GPUs.",
        "time of a step: faster →",
        "memory that each GPU needs: more →",
        "a GPU has 80 GB",
        "with a pipeline",
    ):
        assert f">{words}</text>" in drawn
    times = [float(t) for t in re.findall(r">([\d.]+) s</text>", drawn)]
    assert len(times) >= 4 and times == sorted(times)  # up is faster


def test_the_words_of_the_wall_are_in_the_picture():
    """Also where one plan needs nearly all of the memory, so that the wall is far right."""
    drawn = plan_map_scene([PLANS[0]._replace(memory=78.3e9)], 82.5e9)["common"]
    x, words = re.findall(r"<text x='([\d.]+)'[^>]*>(a GPU has[^<]*)<", drawn)[0]
    assert float(x) + 1.08 * width_of(words) / 2 <= 740


@pytest.mark.parametrize("theme", ["light", "dark", "auto", "page"])
def test_svg_is_well_formed(theme):
    for plans in (PLANS, PLANS[:1], PLANS[2:]):
        ElementTree.fromstring(plan_map_svg(plan_map_scene(plans, 80e9, 0, (1.0, 9.0)), theme))
    with pytest.raises(ValueError, match="needs at least one plan"):
        plan_map_scene([], 80e9)


def test_kinds_are_those_of_the_axes():
    assert kind_of({"pp": 2, "tp": 8}) == "pipeline"
    assert kind_of({"pp": 2, "cp": 8}) == kind_of({"cp": 2, "dp": 4}) == "context"
    assert kind_of({"pp": 2, "cp": 1}) == "pipeline"
    assert kind_of({"dp": 8, "tp": 2}) == "tensor"
    assert kind_of({"dp": 64, "tp": 1, "pp": 1}) == "data"


@pytest.fixture
def asked():
    return PlansAsked(preset("llama3 8B"), cluster_for("H100-SXM-80GB", 8, "Megatron-LM"), 8)


def test_a_dot_is_a_prediction_and_a_click_takes_its_plan(asked):
    taken = []
    view = PlanMap(taken.append)
    chosen = predict(tv.Megatron(tp=8), asked.workload, asked.cluster)
    view.show(chosen)
    assert view.scene["captions"][0].startswith("1 plan;")
    view.look(asked)
    assert view.wait(120)
    assert len(view.plans) > 20
    for strategy, dot in view.plans[::9]:
        again = predict(strategy, asked.workload, asked.cluster)
        assert (dot.step, dot.memory) == (again.step_time, again.memory().total)
    assert view.scene["common"].count("data-plan=") == len(view.plans)
    assert taken == []
    view.picked = 3
    assert taken == [view.plans[3][0]]
    assert view.to_table()[4][0] == view.plans[3][0].short
    assert "a step" in view.describe()
    view.show(chosen, (1.0, 2.0, 4.0))
    assert view.scene["numbers"][0] == ["9 of 10 runs (bar)", "1 s to 4 s"]
    assert "where 9 of 10 runs of such a plan lie" in view.to_svg(theme="light")


def test_the_planner_has_it_around_the_plan_of_its_knobs():
    planner = tv.explore("llama3 8B", gpus=8)
    assert planner.map.scene["title"] == planner.strategy.short
    assert planner.map.plans == []  # others come once it is shown
    other = tv.Megatron(tp=8, sp=True)
    planner.map._take(other)
    assert planner.strategy.axes["tp"] == 8


@pytest.mark.browser
def test_a_click_in_the_page_is_heard(page_of):
    chosen = PlanMap(print)
    scene = plan_map_scene(PLANS, 80e9, chosen=1) | {"big": "2 s", "says": "a step", "numbers": []}
    chosen.publish(scene=scene)
    tab = page_of("plan_map", [chosen.state()])
    view = tab.locator(".tpv-plan_map")
    assert view.locator(".tpv-big").text_content() == "2 s"
    view.locator("[data-plan='0'] path").click()
    tab.wait_for_selector(".tpv-plan_map[data-generation='2']")

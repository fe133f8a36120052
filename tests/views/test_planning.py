"""The planner without widgets: the same numbers and pictures as the widget, and what it refuses."""

import random
import re

import pytest

from tpviz import explore
from tpviz.verbs.predict import predict
from tpviz.views.plans.planning import Planning


def controls(planning):
    return {control["name"]: control for control in planning.controls()}


def value(planning, name):
    control = controls(planning)[name]
    return control["labels"][control["at"]]


def named(pictures):
    """Without the numbers of their patterns, of which no two are the same in a page."""
    return re.sub("tpv-[0-9a-f]{8}", "", pictures)


def turn(planning, name, label):
    """The scene after a control was set to what is shown as this."""
    return planning.turn(name, controls(planning)[name]["labels"].index(label))


def test_it_shows_what_the_widget_shows():
    planning, widget = Planning(), explore("llama2 70B", gpus=512)
    for name, label in {"tp": "8", "microbatches": "16", "zero": "2", "GPUs": "1,024"}.items():
        scene = turn(planning, name, label)
        if name == "GPUs":
            widget.gpus.value = 1024
        else:
            boxes = {n: box for k in widget._all_knobs for n, box in k.controls.items()}
            boxes[name].value = int(label)
        assert named(scene["pictures"]) == named(widget.picture.value)
        assert scene["axes"] == widget.axes.value
        assert scene["facts"] in widget.facts.value
        assert scene["seconds"] == widget.prediction.step_time
        assert scene["gave"] in widget.gave.value
    p = widget.prediction
    assert scene["seconds"] == predict(p.strategy, p.workload, p.cluster).step_time


def test_a_model_with_experts_has_their_knobs_once_they_are_spread():
    planning = Planning()
    scene = turn(planning, "model", "mixtral 8x7B")
    assert "mixtral 8x7B" in scene["facts"]
    assert "ATP" not in controls(planning)["strategy"]["labels"], "it does not split experts"
    turn(planning, "ep", "1")
    assert "ep" in controls(planning) and "etp" not in controls(planning)
    turn(planning, "ep", "2")
    assert "etp" in controls(planning)


def test_another_strategy_takes_all_gpus():
    planning = Planning()
    turn(planning, "strategy", "DataParallel")
    assert value(planning, "strategy") == "DataParallel" and value(planning, "dp") == "512"
    assert "tp" not in controls(planning)


def test_what_is_refused_is_said_and_nothing_changes(monkeypatch):
    """By no turn of today's schemes: knobs give way to each other. A scheme of one's own may."""

    def refusing(strategy, *args, **more):
        if getattr(strategy, "z", 1) == 4:
            raise ValueError("z=4 is refused; 2 or 8 is not")
        return predict(strategy, *args, **more)

    monkeypatch.setattr("tpviz.views.plans.planning.predict", refusing)
    planning = Planning()
    before = turn(planning, "strategy", "AxoNN")
    shown = planning.controls()
    scene = turn(planning, "z", "4")
    assert scene["error"] == "z=4 is refused; 2 or 8 is not"
    own = {"pictures": "", "error": "", "gave": ""}  # pictures have numbers of their own
    assert {**scene, **own} == {**before, **own}
    assert planning.controls() == shown
    assert named(scene["pictures"]) == named(before["pictures"])
    assert turn(planning, "z", "8")["error"] == "" and value(planning, "z") == "8"


def test_unknown_controls_are_refused():
    with pytest.raises(ValueError, match=r"pipes=1: there are model, GPU, .*numbered from 0"):
        Planning().turn("pipes", 1)
    with pytest.raises(ValueError, match="tp=99"):
        Planning().turn("tp", 99)


def walked(planning, turns, seed):
    """Controls turned at random; what does not fit changes nothing."""
    draw = random.Random(seed)
    for _ in range(turns):
        control = draw.choice(planning.controls())
        scene = planning.turn(control["name"], draw.randrange(len(control["labels"])))
    return scene


@pytest.mark.parametrize("seed", range(6))
def test_what_is_said_opens_the_same_plan(seed):
    planning, other = Planning(), Planning()
    scene = walked(planning, 5, seed)
    again = other.open(scene["said"])
    assert again["said"] == scene["said"] and again["error"] == again["gave"] == ""
    assert again["seconds"] == scene["seconds"] and again["facts"] == scene["facts"]
    assert again["cell"] == scene["cell"]
    of = [
        {control["name"]: value(p, control["name"]) for control in p.controls()}
        for p in (planning, other)
    ]
    assert of[0] == of[1]
    assert all(isinstance(text, str) for text in scene["said"].values())


@pytest.mark.parametrize("model", ["llama 33B", "gpt_oss 120B", "deepseek_v2 236B"])
def test_a_link_holds_the_first_plan_of_a_model(model):
    """Whose numbers may be such at which no slider stops otherwise."""
    planning = Planning()
    scene = turn(planning, "model", model)
    said = scene["said"]
    again = Planning().open(said)
    assert (again["said"], again["seconds"]) == (said, scene["seconds"])


def test_a_planner_that_stands_as_at_first_says_nothing():
    planning = Planning()
    assert planning.scene()["said"] == {}
    assert "GPUs" in turn(planning, "GPUs", "1,024")["said"]
    assert planning.open({})["said"] == {} and value(planning, "GPUs") == "512"


@pytest.mark.parametrize(
    "said, expected",
    [
        (
            {"GPUs": "1000", "GPU": "H1000", "nobody": "1"},
            {"GPUs": "1,024", "GPU": "H100-SXM-80GB"},
        ),
        ({"GPUs": "nan", "tp": "inf", "AdamW": ""}, {"GPUs": "512", "tp": "2"}),
        ({"GPUs": "-5", "model": "llama2 7B"}, {"GPUs": "2", "model": "llama2 7B"}),
        ({"tp": "1e99", "strategy": "Megatron"}, {"strategy": "Megatron", "tp": "8"}),
        ({"strategy": "ATP", "mesh": "(4, 2)"}, {"mesh": "4 x 2, 8 ranks"}),
        ({"hidden": "8193", "sp": "false"}, {"hidden": "8,192", "sp": "True"}),
    ],
)
def test_what_does_not_fit_is_left_out_or_nearest(said, expected):
    planning = Planning()
    assert planning.open(said)["error"] == ""
    assert {name: value(planning, name) for name in expected} == expected


def test_the_cell_makes_the_plan():
    planning = Planning()
    turn(planning, "AdamW", "all in 16 bits")
    scene, made = turn(planning, "layers", "40"), {}
    exec(scene["cell"], made)
    view = made["view"]
    assert view.prediction.step_time == scene["seconds"]
    assert scene["facts"].partition(")")[2] in view.facts.value
    assert "tv.GPT(" in scene["cell"] and "tv.GPT(" not in Planning().scene()["cell"]

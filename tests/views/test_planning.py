"""The planner without widgets: the same numbers and pictures as the widget, and what it refuses."""

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


def test_what_does_not_fit_is_said_and_nothing_changes():
    planning = Planning()
    before = turn(planning, "strategy", "AxoNN")
    shown = planning.controls()
    scene = turn(planning, "cp", "64")
    assert "AxoNN shares the batch itself" in scene["error"]
    own = {"pictures": "", "error": "", "gave": ""}  # pictures have numbers of their own
    assert {**scene, **own} == {**before, **own}
    assert planning.controls() == shown
    assert named(scene["pictures"]) == named(before["pictures"])


def test_unknown_controls_are_refused():
    with pytest.raises(ValueError, match=r"pipes=1: there are model, GPU, .*numbered from 0"):
        Planning().turn("pipes", 1)
    with pytest.raises(ValueError, match="tp=99"):
        Planning().turn("tp", 99)

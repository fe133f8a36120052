import json

import pytest
import torch
from torch import nn

import tpviz as tv
from tpviz.modules.partition import partition_of, shard, trace
from tpviz.views.figures.assets import module


@pytest.fixture(scope="module")
def graph():
    """A model of torch's own layers with a tied embedding, traced."""
    layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
    model = nn.Sequential(
        nn.Embedding(64, 16),
        nn.TransformerEncoder(layer, 4, enable_nested_tensor=False),
        nn.Linear(16, 64, bias=False),
    )
    model[2].weight = model[0].weight
    return trace(model, (torch.zeros(2, 8, dtype=torch.long),))


@pytest.fixture
def view(graph):
    return tv.PartitionView(partition_of(graph, 3, shard(graph, 5), "flops"))


def turn(view, **knobs):
    for name, value in knobs.items():
        view.controls[name.replace("_", " ")].value = value


def test_it_says_what_it_shows(view, graph):
    assert (
        repr(view)
        == repr(tv.PartitionView(view.partition))
        == ("<PartitionView Sequential in 3 stages of 6 shards, even by flops, stage 0 of 3>")
    )
    view.step = 2
    assert "Shown: stage 2 of 3. Stage 2: 1.layers.3, 2." in view.describe()
    assert "Tied: 0.weight (stage 0) = 2.weight (stage 2)." in view.describe()
    assert view.to_table() == view.partition.to_table()
    assert ">Stage 2: 1.layers.3, 2." in view.to_svg(theme="dark")
    assert ">Stage 0: 0, 1.layers.0" in view.to_svg(step=0)


@pytest.mark.parametrize("shared", [False, True])
def test_pieces_add_up_to_their_stages(graph, shared):
    """What two pieces of a stage keep, as a ReLU's output that is a layer's input, counts once."""
    if shared:
        layers = [layer for _ in range(4) for layer in (nn.Linear(4, 4), nn.ReLU())]
        graph = trace(nn.Sequential(*layers), (torch.zeros(2, 4),))
    data = partition_of(graph, 2, shard(graph, "finest")).scene()
    for part in data["stages"]:
        mine = [s for s in data["shards"] if s["stage"] == part["index"]]
        assert sum(s["activation_bytes"] for s in mine) == part["activation_bytes"] > 0
        assert sum(s["numel"] for s in mine) == part["numel"]
        assert sum(s["flops"] for s in mine) == part["flops"]


def test_knobs_cut_the_traced_graph_anew(view, graph):
    for knobs, pieces in (
        ({"stages": 5}, 6),
        ({"even_by": "parameters"}, 6),
        ({"finer_cuts": True}, 10),
        ({"stages": 9}, 10),
    ):
        before = view.picture.generation
        turn(view, **knobs)
        assert (view.error, len(view.partition.shards)) == ("", pieces)
        assert view.picture.generation > before
        assert view.partition.graph is graph
    fine = partition_of(graph, 9, shard(graph, "finest"), "parameters")
    assert view.partition.ranges == fine.ranges
    assert len(view.picture.scene["frames"]) == 9
    assert len(json.dumps(view.picture.scene)) < 60_000


def test_what_cannot_be_cut_is_said_in_the_view(view):
    view.step = 2
    turn(view, finer_cuts=True, stages=9)
    view.step, good = 8, view.partition
    turn(view, finer_cuts=False)
    assert view.gave == (
        "Changed so that all fits: stages 9 \N{RIGHTWARDS ARROW} 6 (9 stages are too many for 6 "
        "shards: use at most 6 stages, or finer cuts, which give 10)."
    )
    assert (view.error, len(good.stages), len(view.partition.stages)) == ("", 9, 6)
    turn(view, stages=2)
    assert (view.error, view.gave, view.step, len(view.partition.stages)) == ("", "", 1, 2)


def test_a_balance_by_seconds_is_known_as_given_alone(graph):
    view = tv.PartitionView(partition_of(graph, 2, shards=shard(graph, 5), balance=[1.0] * 6))
    turn(view, stages=3)
    assert "(even by seconds: known for the 2 stages given alone; use uniform" in view.gave
    assert (view.error, view.partition.balance) == ("", "uniform")
    turn(view, even_by="flops")
    assert (view.error, view.gave, view.partition.balance) == ("", "", "flops")
    turn(view, stages=2, even_by="seconds")
    assert (view.error, view.partition.balance) == ("", "seconds")


def test_bad_arguments(view):
    with pytest.raises(ValueError, match=r"shows what tv.parallelize\(.*, not 'gpt2'"):
        tv.PartitionView("gpt2")
    with pytest.raises(TypeError, match="has no argument 'autoplai'; did you mean 'autoplay'"):
        tv.PartitionView(view.partition, autoplai=True)
    with pytest.raises(ValueError, match="step=3 is not in this view: use 0 to 2"):
        view.step = 3


def test_an_unexpected_error_in_a_callback_is_shown(view, monkeypatch):
    monkeypatch.setattr("tpviz.views.widgets.partition.partition_of", lambda *args: 1 / 0)
    turn(view, stages=4)
    assert view.error == "ZeroDivisionError: division by zero"


def test_the_plan_of_parallelize_can_be_shown():
    layers = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))
    plan = tv.parallelize(layers, tv.Merak(pp=2, microbatches=4), torch.zeros(4, 4))
    assert "in 2 stages of 4 shards" in repr(tv.PartitionView(plan.report.partition))


def test_the_module_stands_alone():
    text = module("partition")
    assert "import " not in text
    assert text.count("export default") == 1

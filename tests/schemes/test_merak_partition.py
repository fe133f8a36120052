"""Stages in a chain compute what the model computes: outputs, every gradient, every statistic."""

import copy
from itertools import combinations, pairwise

import pytest
import torch
from partitioned import MODELS, chained, cut, traced, whole
from torch.utils._pytree import tree_flatten

from tpviz.modules.partition import partition_of, trace


def equal(a, b):
    """The same tree with the same numbers."""
    (left, spec), (right, other) = tree_flatten(a), tree_flatten(b)
    assert spec == other
    for x, y in zip(left, right):
        if isinstance(x, torch.Tensor):
            assert x.dtype == y.dtype and (x - y).abs().max() < 1e-10
        else:
            assert x == y


@pytest.mark.parametrize(
    "name, stages", [(n, k) for i, n in enumerate(MODELS) for k in (3, 2 + 2 * (i % 2))]
)
def test_a_chain_of_stages_is_the_model(name, stages):
    model, inputs, graph = traced(name)
    partition = cut(graph, stages)
    output, gradients, buffers = whole(model, inputs)
    mine, summed, after, parts = chained(partition, model, inputs, in_parts=stages == 3)
    equal(output, mine)
    assert type(output) is type(mine)
    for parameter, gradient in gradients.items():
        if gradient is None:
            assert parameter not in summed
        else:
            assert (gradient - summed[parameter]).abs().max() < 1e-10, parameter
    for buffer, value in buffers.items():
        equal(value, after[buffer])
    states = [part.state_dict() for part in parts]
    assert set().union(*states) == set(model.state_dict())
    twice = {key for a, b in combinations(states, 2) for key in a.keys() & b.keys()}
    tied = {name for tie in partition.tied_weights for name in tie["names"]}
    assert twice <= tied.union(*(graph.aliases.get(name, ()) for name in tied))


@pytest.mark.parametrize("name", ["gpt2", "odd", "encoder"])
def test_evaluation_mode_stays(name):
    model, inputs, graph = traced(name, training=False)
    output, *_ = whole(model, inputs)
    mine, *_, parts = chained(cut(graph, 3), model, inputs)
    equal(output, mine)
    assert not any(module.training for part in parts for module in part.modules())
    with pytest.raises(ValueError, match="traced in evaluation mode: trace the model in training"):
        parts[0].train()


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt", "bert"])
def test_one_hidden_state_crosses_each_cut_of_a_language_model(name):
    """Masks, positions and rotary tables are computed where they are needed."""
    _, _, graph = traced(name)
    for part in partition_of(graph, 4).stages[1:]:
        [message] = part.receives
        assert message.shape == (4, 6, 16) and message.trained
        assert message.bytes == 4 * 6 * 16 * 8 and message.from_stage == part.index - 1
    assert partition_of(graph, 4).stages[-1].inputs[-1] == "labels"


def test_what_is_needed_far_behind_is_handed_on():
    """A decoder's memory goes through the stages between the encoder and the last decoder."""
    _, _, graph = traced("transformer")
    stages = partition_of(graph, 6).stages
    made = [[m.from_stage for m in part.receives if m.path == "encoder.norm"] for part in stages]
    assert made == [[], [], [], [2], [2], []]
    for before, after in pairwise(stages):
        assert before.sends == after.receives


def test_tied_parameters_are_one_inside_a_stage_and_listed_across():
    model, _, graph = traced("gpt2")
    names = ("transformer.wte.weight", "lm_head.weight")
    assert graph.tied_weights == (names,)
    partition = partition_of(graph, 3)
    assert partition.tied_weights == [{"names": names, "stages": (0, 2)}]
    assert partition_of(graph, 1).tied_weights == []
    whole = partition_of(graph, 1).module(0, model)
    assert whole.get_parameter(names[0]) is whole.get_parameter(names[1])
    assert set(whole.state_dict()) == set(model.state_dict())
    assert sum(part.numel for part in partition.stages) == graph.numel(graph.parameters) + 320


def test_a_parameter_used_under_one_name_in_two_stages_is_a_tie():
    _, _, graph = traced("odd")
    assert graph.tied_weights == ()
    for stages in (3, 4):
        tied_weights = {tie["names"]: tie["stages"] for tie in cut(graph, stages).tied_weights}
        assert tied_weights[("first.weight",) * 2] == (0, stages - 1), tied_weights
    assert graph.aliases == {"again.weight": ("shared.weight",), "again.bias": ("shared.bias",)}


def test_stages_hold_the_models_own_tensors_and_no_others():
    model, _, graph = traced("opt")
    partition = partition_of(graph, 3)
    own = {name: p for name, p in model.named_parameters(remove_duplicate=False)}
    for k, part in enumerate(partition.stages):
        held = dict(partition.module(k, model).named_parameters(remove_duplicate=False))
        assert list(held) and set(held) == set(part.parameters)
        assert all(own[name] is p for name, p in held.items())
        assert part.numel == sum({id(p): p.numel() for p in held.values()}.values())


def test_a_copied_stage_has_parameters_of_its_own():
    model, inputs, graph = traced("bert")
    stage = partition_of(graph, 1).module(0, model)
    copied = copy.deepcopy(stage)
    with torch.no_grad():
        for p in copied.parameters():
            p.zero_()
    assert copied((), inputs).logits.abs().max() == 0 < stage((), inputs).logits.abs().max()
    assert set(copied.state_dict()) == set(stage.state_dict())


def test_tracing_leaves_the_model_as_it_was():
    model, inputs, _ = traced("llama")
    before = {name: id(p) for name, p in [*model.named_parameters(), *model.named_buffers()]}
    model.config.use_cache = True
    state = torch.get_rng_state()
    with torch.no_grad():
        graph = trace(model, inputs)
    assert {n: id(p) for n, p in [*model.named_parameters(), *model.named_buffers()]} == before
    assert model.config.use_cache is True and model.training
    assert torch.equal(state, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())
    assert graph.nodes[-1].trained


def test_a_model_on_the_meta_device_gives_stages_for_a_real_one():
    model, inputs, _ = traced("gpt2")
    partition = partition_of(trace(copy.deepcopy(model).to("meta"), inputs), 2)
    output, *_ = whole(model, inputs)
    equal(output, chained(partition, model, inputs)[0])


def test_stages_move_to_another_device():
    """The trace is full of devices; on "meta" everything has to follow, without a number."""
    for name in ("gpt2", "llama"):
        model, inputs, graph = traced(name)
        partition, values = partition_of(graph, 2), ()
        named = {n: t.to("meta") for n, t in graph.named(**inputs).items()}
        for k in range(2):
            values = partition.module(k, copy.deepcopy(model).to("meta"), "meta")(values, named)
        assert values["logits"].device.type == "meta" and values["logits"].shape == (4, 6, 20)

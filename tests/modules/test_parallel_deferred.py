"""Weights' gradients that come later: of every linear layer of a traced model, of nothing else."""

import foreign
import torch
from torch import nn

import tpviz as tv
from tpviz.modules.partition import partition_of, trace
from tpviz.modules.stages import ModuleStage
from tpviz.schemes.pipeline.stage import Runner


def ran(model, named, loss, stop):
    """{name: gradient} after forward and backward on a stage, before or after what comes later."""
    graph = trace(model, named)
    partition = partition_of(graph, 1)
    stage = ModuleStage(partition.stages[0], partition.module(0, model), loss)
    runner = Runner(stage, split=True)
    (found,) = runner.forward(0, (), (graph.named(**named), None))
    runner.backward(0, (torch.ones_like(found),))
    if not stop:
        runner.weights(0)
    return {name: p.grad for name, p in model.named_parameters()}


def checked(model, named, loss):
    """The names of those that come later; in the end all are autograd's own."""
    model = model.double().eval()
    loss(model(**named)).backward()
    own = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    late = {name for name, g in ran(model, named, loss, True).items() if g is None}
    model.zero_grad()
    for name, gradient in ran(model, named, loss, False).items():
        if own[name] is None:
            assert gradient is None, name
        else:
            assert torch.allclose(gradient, own[name], rtol=0, atol=1e-12), name
    return late


def test_gpt2_s_conv1d():
    """Its head is the embedding, whose gradient comes in both ways."""
    late = checked(foreign.gpt2(), foreign.tokens(2), lambda out: out.logits.square().mean())
    layers = ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
    assert late == {
        f"transformer.h.{i}.{layer}.{name}"
        for i in range(2)
        for layer in layers
        for name in ("weight", "bias")
    }


class Odd(nn.Module):
    """A frozen layer, a weight that is computed, a sum that is no bias, an output turned round."""

    def __init__(self):
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.plain = nn.Linear(4, 4, bias=False)
        self.fixed = nn.Linear(4, 4)
        self.fixed.bias.requires_grad_(False)
        self.scaled = nn.Parameter(torch.linspace(-1, 1, 16).view(4, 4))
        self.table = nn.Parameter(torch.ones(12, 4))

    def forward(self, x):
        x = self.plain(x).transpose(1, 2).reshape(2, 24).tanh().view(2, 4, 6).transpose(1, 2)
        x = torch.nn.functional.linear(self.fixed(self.frozen(x)), self.scaled * 2)
        return torch.addmm(self.table, x.flatten(0, 1), self.scaled).sin()


def test_only_learned_weights_of_linear_layers_wait():
    late = checked(Odd(), {"x": foreign.vectors(4, 2)}, lambda out: out.square().mean())
    assert late == {"plain.weight", "frozen.weight", "frozen.bias", "fixed.bias"}


def split_layers(inputs):
    """On a rank: (largest error of a gradient, those of split layers that came later, the split
    layers of this rank)."""
    from unittest.mock import patch

    from tpviz.schemes.pipeline import stage

    def made():
        torch.manual_seed(0)
        return foreign.llama().double().eval()

    def squares(out):
        return out.logits.square().mean()

    def noted(later, paths):
        late.update(paths.get(id(note.weight), "") for note in later)
        return plain(later, paths)

    strategy, late = tv.Merak(pp=2, tp=2, microbatches=2, schedule="zb_h1"), set()
    model, whole, plain = made(), made(), stage.make_gradients
    split = tv.parallelize(model, strategy, inputs, loss=squares)
    with patch.object(stage, "make_gradients", noted):
        split.step(**inputs)
    squares(whole(**inputs)).backward()
    found = split.full_gradients()
    error = max(float((found[name] - p.grad).abs().max()) for name, p in whole.named_parameters())
    return error, late, {path for s in split.pipeline.stages.values() for path in s.held()}


def test_split_layers_wait_too():
    for error, late, layers in tv.launch(
        split_layers, foreign.tokens(8), world_size=4, progress=False, timeout=150
    ):
        assert error < 1e-10 and layers and layers <= late

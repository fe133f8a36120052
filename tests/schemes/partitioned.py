"""Models to cut into stages, and the chain of their stages beside the whole."""

import copy
import warnings
from functools import cache

import foreign
import torch
import torch.nn.functional as F
from torch import nn

from tpviz.modules.partition import partition_of, shard, trace


class Block(nn.Module):
    """A pre-LN block: 4 d^2 parameters in attention, 8 d^2 in the MLP."""

    def __init__(self, width):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.ln1(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(F.gelu(self.up(self.ln2(x))))


class Toy(nn.Module):
    """The GPT of the table: one input, no positions, an untied head."""

    def __init__(self, layers=6, width=16, vocab=64):
        super().__init__()
        self.emb = nn.Embedding(vocab, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.ln, self.head = nn.LayerNorm(width), nn.Linear(width, vocab)

    def forward(self, ids):
        x = self.emb(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(self.ln(x))


class Odd(nn.Module):
    """What trips partitioners: a long skip, writes in place, statistics, a fixed table, a parameter
    used in two places and one that is not, a module in two places, noise, values no gradient goes
    through, outputs from the middle and outputs that are no tensors."""

    def __init__(self, width=8):
        super().__init__()
        self.first, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.relu, self.drop = nn.ReLU(inplace=True), nn.Dropout(0.3)
        self.shared = self.again = nn.Linear(width, width)
        self.middle, self.gone = nn.Linear(width, width), nn.Linear(2, 3)
        self.last = nn.Linear(width, width)
        self.register_buffer("scale", torch.linspace(0.5, 1.5, width, dtype=torch.float64))
        self.register_buffer("count", torch.zeros(()), persistent=False)
        self.table = torch.arange(width, dtype=torch.float64)

    def forward(self, x, mask=None, *, factor=2.0):
        self.count += 1
        start = self.first(x)
        y = self.relu(self.norm(start))
        y = y * self.scale
        y.add_(self.table * 0.01)
        with torch.no_grad():
            wide = torch.cos(mask.cumsum(0)) + torch.rand_like(y)
        y = self.drop(self.shared(y)) * wide
        aside = self.middle(y)
        y = self.again(aside) * factor * mask
        y = y @ self.first.weight.t() + start + torch.tensor(0.5, dtype=torch.float64)
        out = self.last(input=y)
        return {"out": out, "aside": aside, "kind": "odd", "none": None, "mask": mask}


def words(rows=4, tokens=6):
    """input_ids, a mask with holes, and labels."""
    ids = torch.arange(rows * tokens).view(rows, tokens) * 7 % 20
    mask = torch.ones_like(ids)
    mask[0, -2:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.flip(1)}


def vectors(*shape):
    numbers = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    return (numbers * 0.7).sin().view(shape)


def odd_inputs():
    return {"x": vectors(6, 8), "mask": vectors(6, 8).sign()}


def _torchs(make):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors need other sizes
        return make()


MODELS = {
    "gpt2": (foreign.gpt2, words),
    "llama": (lambda: foreign.llama(kv=4), words),
    "opt": (foreign.opt, words),
    "bert": (foreign.bert, words),
    "encoder": (lambda: _torchs(foreign.encoder), lambda: (vectors(2, 5, 16),)),
    "transformer": (
        lambda: _torchs(lambda: nn.Transformer(16, 4, 2, 2, 32, batch_first=True)),
        lambda: (vectors(2, 5, 16), vectors(2, 4, 16).cos()),
    ),
    "mlp": (foreign.Gated, lambda: (vectors(3, 8),)),
    "odd": (Odd, odd_inputs),
}


@cache
def traced(name, training=True):
    """(model in float64, inputs, graph) of one of `MODELS`."""
    make, inputs = MODELS[name]
    torch.manual_seed(1)
    model, inputs = make().double().train(training), inputs()
    return model, inputs, trace(model, inputs)


def cut(graph, stages):
    """A partition; of `Odd`, whose skip goes over nearly all of it, with two tensors a cut."""
    shards = shard(graph, "finest", cross=2) if graph.model == "Odd" else None
    return partition_of(graph, stages, shards)


def called(model, inputs):
    """What the model gives; random numbers are the same each time."""
    torch.manual_seed(0)
    return model(**inputs) if isinstance(inputs, dict) else model(*inputs)


def loss_of(output):
    """A number that all of an output goes into."""
    if isinstance(output, torch.Tensor):
        return output.square().sum()
    if "loss" in output:
        return output["loss"] + output["logits"].square().sum()
    return output["out"].square().sum() + output["aside"].sin().sum()


def whole(model, inputs):
    """(output, {first name: gradient}, buffers after it) of one process, on a copy, no caches."""
    model = copy.deepcopy(model)
    if hasattr(model, "config"):
        model.config.use_cache = False
    output = called(model, inputs)
    loss_of(output).backward()
    return output, {n: p.grad for n, p in model.named_parameters()}, dict(model.named_buffers())


def chained(partition, model, inputs, in_parts=False):
    """The same by stages, each with tensors of its own; gradients of ties are summed."""
    graph, sent, received = partition.graph, [], []
    stages = [partition.module(k, copy.deepcopy(model)) for k in range(len(partition.stages))]
    named = graph.named(**inputs) if isinstance(inputs, dict) else graph.named(*inputs)
    torch.manual_seed(0)
    values = ()
    for stage, part in zip(stages, partition.stages):
        assert [(tuple(v.shape), v.dtype) for v in values] == [m[1:3] for m in part.receives]
        received.append(
            [v.detach().requires_grad_(m.trained) for v, m in zip(values, part.receives)]
        )
        own = {name: named[name] for name in part.inputs}
        values = run(stage, received[-1], own, in_parts)
        sent.append(values)
    output = values
    loss_of(output).backward()
    for values, leaves in reversed(list(zip(sent, received[1:]))):
        pairs = [(v, leaf.grad) for v, leaf in zip(values, leaves) if leaf.grad is not None]
        torch.autograd.backward(*zip(*pairs))
    first = {name: group[0] for group in _names(model) for name in group}
    gradients, buffers = {}, {}
    for stage in stages:
        buffers |= dict(stage.named_buffers())
        for name, p in stage.named_parameters():
            if p.grad is not None:
                gradients[first[name]] = gradients.get(first[name], 0) + p.grad
    return output, gradients, buffers, stages


def run(stage, received, inputs, in_parts):
    if not in_parts:
        return stage(tuple(received), inputs)
    begin, layers, finish, *_ = stage.in_parts()
    values = begin(tuple(received), inputs)
    for layer in layers:
        values = layer(values)
    return finish(values)


def _names(model):
    found = {}
    for name, p in model.named_parameters(remove_duplicate=False):
        found.setdefault(id(p), []).append(name)
    return found.values()

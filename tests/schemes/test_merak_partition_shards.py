"""Where a graph may be cut, the shards of the release's rule, and their balance over stages."""

import random
from itertools import combinations, pairwise

import pytest
import torch
import torch.nn.functional as F
from partitioned import Toy, chained, cut, traced, whole
from torch import nn

from tpviz.modules.partition import partition_of, shard, trace
from tpviz.modules.partition.division import smallest_largest, uniform, uniform_floor
from tpviz.modules.partition.sharding import legal_cuts, num_layers

IDS = torch.arange(10).view(2, 5)


@pytest.fixture(scope="module")
def toy():
    return trace(Toy(), IDS)


# -- shards ----------------------------------------------------------------------------------------
@pytest.mark.parametrize("count, modules", [(6, 6), (16, 8), (18, 8), (21, 14), (24, 14), (36, 14)])
def test_as_many_shards_as_the_release_makes(toy, count, modules):
    assert len(shard(toy, count)) == modules


def test_shards_are_embedding_blocks_and_tail(toy):
    assert num_layers(toy) == 6
    assert shard(toy) == shard(toy, 2 * 6 + 4)
    numel = [s.numel for s in shard(toy)]
    attention, mlp = 4 * 16**2 + 6 * 16, 8 * 16**2 + 7 * 16
    assert numel == [64 * 16, *[attention + mlp] * 6, 2 * 16 + 17 * 64]
    assert [s.numel for s in shard(toy, 24)][1:-1] == [attention, mlp] * 6
    halves = shard(toy, 24)
    assert [s.paths[0] for s in halves[1:5]] == [
        "blocks.0.ln1",
        "blocks.0.ln2",
        "blocks.1.ln1",
        "blocks.1.ln2",
    ]
    six = [s.numel / (attention + mlp) for s in shard(toy, 6)][1:-1]
    assert all(1.3 < blocks < 2 for blocks in six)
    for a, b in pairwise(halves):
        assert a.stop == b.start


def test_the_finest_shards_each_have_parameters(toy):
    finest = shard(toy, "finest")
    assert len(finest) == 15 and all(s.numel for s in finest)
    assert {s.start for s in finest[1:]} <= legal_cuts(toy).keys()
    assert sum(s.numel for s in finest) == toy.numel(toy.parameters)


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt"])
def test_no_layer_with_parameters_is_torn_and_no_dropout_left_behind(name):
    graph = traced(name)[2]
    places = {}
    for k, s in enumerate(shard(graph, "finest")):
        for node in graph.body[s.start : s.stop]:
            places.setdefault(node.path, set()).add(k)
    modules = {node.path for node in graph.body if node.parameters}
    assert all(len(places[path]) == 1 for path in modules)
    if name == "gpt2":
        assert places["transformer.drop"] == places["transformer.wpe"] == {1}
    if name == "opt":  # rows were put together for the MLP: they are taken apart in the same shard
        assert places["model.decoder.layers.0"] == {2, 3}


def test_each_embedding_closes_a_shard_of_its_own():
    _, _, graph = traced("gpt2")
    assert [s.paths for s in shard(graph)][:2] == [("transformer.wte",), ("transformer.wpe",)]
    assert [s.numel for s in shard(graph)][:2] == [20 * 16, 8 * 16]
    tail = shard(graph)[-1]
    assert tail.paths == ("transformer.ln_f", "lm_head") and tail.numel == 32  # the head is tied


# -- what may cross --------------------------------------------------------------------------------
class Many(nn.Module):
    """One value that all layers need, which are in no stack."""

    def __init__(self, layers):
        super().__init__()
        self.start = nn.Linear(4, 4)
        self.names = [f"layer_{letter}" for letter in "abcdefgh"[:layers]]
        for name in self.names:
            setattr(self, name, nn.Linear(4, 4))

    def forward(self, x):
        start = y = self.start(x)
        for name in self.names:
            y = torch.tanh(getattr(self, name)(y)) * start
        return y


@pytest.mark.parametrize("layers, shards", [(4, 2), (5, 6), (6, 7)])
def test_a_value_of_more_than_five_users_may_cross_beside_another(layers, shards):
    """Each layer's product uses it, and the first layer itself: 5 layers are 6 users."""
    assert len(shard(trace(Many(layers), torch.ones(2, 4)), "finest")) == shards


def test_more_tensors_may_cross_if_asked():
    graph = trace(Many(4), torch.ones(2, 4))
    assert len(shard(graph, "finest", cross=2)) == 5
    stages = partition_of(graph, 5, shard(graph, "finest", cross=2)).stages
    assert [len(part.receives) for part in stages] == [0, 1, 2, 2, 2]


class Written(nn.Module):
    """Writes into what it made some operations before, with parameters on the way."""

    def __init__(self, at_once):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.at_once = at_once

    def forward(self, x):
        a, b, c, d = self.layers
        y = a(x)
        part = y[:, :2]
        z = F.pad(part, (0, 2))
        if self.at_once:
            part.mul_(2)
        z = b(z)
        if not self.at_once:
            part.mul_(2)
        return d(c(z + y))


def test_a_tensor_that_is_written_into_is_not_torn():
    late, early = (trace(Written(at_once), torch.ones(2, 4)) for at_once in (False, True))
    ops = [node.op for node in late.body]
    made, wrote = 0, ops.index("aten.mul_")
    assert not any(made < place <= wrote for place in legal_cuts(late, cross=9))
    assert any(place > wrote for place in legal_cuts(late))
    assert len(shard(early, "finest", cross=2)) == 1 + len(shard(late, "finest", cross=2))


def test_a_buffer_that_is_updated_is_on_one_stage():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.norm, self.c = nn.BatchNorm1d(4), nn.Linear(4, 4)

        def forward(self, x):
            return self.c(self.norm(self.b(self.norm(self.a(x)))))

    shared = trace(Twice(), torch.ones(3, 4))
    assert [s.paths for s in shard(shared, "finest")] == [("a",), ("norm", "b"), ("c",)]
    free = trace(Twice().eval(), torch.ones(3, 4))  # in evaluation it is only read
    assert [s.paths for s in shard(free, "finest")] == [("a",), ("norm",), ("b",), ("norm", "c")]


class Counts(nn.Module):
    """Draws noise once, makes a mask by writing, and counts its calls."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.c, self.d = (nn.Linear(4, 4).double() for _ in range(4))
        self.register_buffer("calls", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        mask = torch.ones_like(x)
        mask[:, 1] = 0
        noise = torch.rand_like(x)
        y = self.a(x) * mask * noise
        self.calls += 1
        y = self.c(self.b(y)) / self.calls
        return self.d(y) * mask * noise


def test_what_no_parameter_went_into_crosses_once_made_and_a_count_is_not_torn():
    model, x = Counts(), torch.ones(2, 4, dtype=torch.float64)
    graph = trace(model, x)
    assert [s.paths for s in shard(graph, "finest")] == [("a",), ("b", "c"), ("d",)]
    partition = partition_of(graph, 3)
    for part in partition.stages[1:]:
        assert [m.trained for m in part.receives] == [False, False, True]
    output, gradients, _ = whole(model, (x,))
    mine, summed, *_ = chained(partition, model, (x,))
    assert torch.equal(output, mine)
    assert all(torch.equal(gradient, summed[name]) for name, gradient in gradients.items())


# -- balance ---------------------------------------------------------------------------------------
def test_the_largest_stage_is_as_small_as_can_be():
    """Beside all ways to cut, for random weights."""
    draw = random.Random(0)
    for _ in range(200):
        n = draw.randint(1, 9)
        weights, stages = [draw.choice([0, 1, 2, 3, 7, 50]) for _ in range(n)], draw.randint(1, n)
        cuts = [(0, *c, n) for c in combinations(range(1, n), stages - 1)]
        costs = [sorted((sum(weights[a:b]) for a, b in pairwise(c)), reverse=True) for c in cuts]
        ranges = smallest_largest(weights, stages)
        loads = [sum(weights[a:b]) for a, b in ranges]
        assert [a for a, _ in ranges] + [n] == [0] + [b for _, b in ranges]
        assert all(a < b for a, b in ranges)
        assert max(loads) == min(c[0] for c in costs)
        assert sum(x * x for x in loads) == min(
            sum(x * x for x in c) for c in costs if c[0] == max(loads)
        )


def test_uniform_ranges():
    assert uniform(9, 4) == [(0, 3), (3, 5), (5, 7), (7, 9)]
    assert uniform(8, 4) == [(0, 2), (2, 4), (4, 6), (6, 8)]
    assert uniform_floor(9, 4) == [(0, 2), (2, 4), (4, 6), (6, 9)]


def test_each_balance_is_even_in_its_own_weights(toy):
    shards = shard(toy, 24)
    worst = {
        balance: [
            max(of(part) for part in partition_of(toy, 4, shards, balance).stages)
            for of in (lambda p: p.numel, lambda p: p.flops)
        ]
        for balance in ("uniform", "uniform_floor", "parameters", "flops")
    }
    assert worst["parameters"][0] == min(numel for numel, _ in worst.values())
    assert worst["flops"][1] == min(flops for _, flops in worst.values())
    assert worst["uniform_floor"][0] > worst["uniform"][0]
    seconds = [1.0] * 13 + [5.0]
    assert partition_of(toy, 2, shards, seconds).ranges[-1] == (9, 14)
    assert partition_of(toy, 2, shards, seconds).balance == "seconds"


def test_flops_are_those_of_the_matrices():
    """2 per multiply-add: 12 d^2 a token and layer, attention over all pairs, since its mask is a
    tensor, the head."""
    _, inputs, graph = traced("gpt2", training=False)
    (rows, tokens), width, layers = inputs["input_ids"].shape, 16, 2
    matrices = 2 * rows * tokens * (12 * width**2 * layers + width * 20)
    attention = 2 * 2 * rows * tokens**2 * width * layers
    assert sum(part.flops for part in cut(graph, 3).stages) == matrices + attention


def test_causal_attention_is_half():
    class Causal(nn.Linear):
        def forward(self, x):
            q, k, v = super().forward(x).view(2, 5, 2, 3, 8).permute(3, 0, 2, 1, 4)
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)

    graph = trace(Causal(16, 48), torch.randn(2, 5, 16))
    matrices, attention = 2 * 10 * 16 * 48, 2 * 2 * 2 * 5**2 * 16
    assert sum(part.flops for part in cut(graph, 1).stages) == matrices + attention // 2


def test_activation_bytes_are_what_autograd_keeps():
    """Of a real forward, parameters and inputs aside."""
    for name in ("gpt2", "encoder"):
        model, inputs, graph = traced(name)
        given = list(inputs.values()) if isinstance(inputs, dict) else list(inputs)
        outer = {t.untyped_storage().data_ptr() for t in [*given, *model.parameters()]}
        kept = {}

        def keep(tensor, outer=outer, kept=kept):
            storage = tensor.untyped_storage()
            if storage.data_ptr() not in outer:
                kept[storage.data_ptr()] = storage
            return tensor

        stage = partition_of(graph, 1).module(0, model)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            output = stage(
                (),
                dict(
                    zip(
                        graph.inputs,
                        [inputs[n] for n in graph.inputs] if isinstance(inputs, dict) else inputs,
                    )
                ),
            )
        assert output is not None
        real = sum(storage.nbytes() for storage in kept.values())
        assert partition_of(graph, 1).stages[0].activation_bytes == real

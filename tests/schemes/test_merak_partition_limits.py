"""Leaves, reports, a model too large for any memory, and what is refused with which words."""

import doctest
import json
import subprocess
import sys

import pytest
import torch
from partitioned import Toy, chained, foreign, run, traced, vectors, whole, words
from torch import nn
from torch.utils.checkpoint import checkpoint

import tpviz as tv
from tpviz.modules.partition import partition_of, report, shard, trace


class Cube(torch.autograd.Function):
    """Its gradient is not the one of its forward, so that a lost backward is seen."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 7 * ctx.saved_tensors[0]


class Own(nn.Module):
    """Has a backward of its own; takes and gives more than one tensor."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=torch.float64)

    def forward(self, x, *, more):
        y = Cube.apply(self.linear(x))
        return {"y": y * more["scale"], "kind": "cube", "both": [y + x]}


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.before, self.behind = (nn.Linear(4, 4, dtype=torch.float64) for _ in range(2))
        self.inner = inner

    def forward(self, x):
        found = self.inner(self.before(x), more={"scale": 2.0})
        assert found["kind"] == "cube"
        return self.behind(found["y"] + found["both"][0])


class Branches(nn.Module):
    """Takes a way that depends on values. `Told` says what comes out."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4, dtype=torch.float64)

    def forward(self, x):
        y = self.linear(x)
        if y.sum() > 0:
            return y * 2
        return y


class Told(Branches):
    def shape(self, x):
        return x.shape


def sequence(inner):
    layers = (nn.Linear(4, 4, dtype=torch.float64) for _ in range(2))
    return nn.Sequential(next(layers), inner, next(layers))


# -- leaves ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "model, leaves",
    [
        (Around(Own()), Own),
        (Around(Own()), lambda module: type(module) is Own),
        (sequence(Told()), [Told]),
    ],
)
def test_a_leaf_runs_as_it_is_with_its_own_backward(model, leaves):
    x = vectors(3, 4)
    graph = trace(model, x, leaves)
    partition = partition_of(graph, 3)
    output, gradients, _ = whole(model, (x,))
    mine, summed, *_ = chained(partition, model, (x,))
    assert torch.equal(output, mine)
    for name, gradient in gradients.items():
        assert torch.equal(gradient, summed[name]), name
    assert [len(part.parameters) for part in partition.stages] == [2, 2, 2]
    assert not any("forward" in vars(module) for module in model.modules())
    [leaf] = [node for node in graph.body if node.op in ("Own", "Told")]
    assert leaf.flops == 2 * 3 * 16 and leaf.trained and leaf.saves


def test_a_leaf_whose_forward_was_set_keeps_it():
    model, x = sequence(Told()), vectors(3, 4)
    model[1].forward = own = lambda x: 3 * x
    graph = trace(model, x, Told)
    assert model[1].forward is own
    assert torch.equal(partition_of(graph, 1).module(0, model)((), {"input": x}), model(x))


def test_tensor_parallel_layers_are_leaves_on_ranks():
    """Stages of a model that `tv.parallelize` split over two ranks, collectives included."""

    def rank(make, x):
        from tpviz.modules.layers import SplitLinear

        torch.manual_seed(0)
        model = tv.parallelize(make().double().eval(), tv.Megatron(tp=2)).module
        partition = partition_of(trace(model, x, leaves=SplitLinear), 3)
        model(x).square().sum().backward()
        wanted = {name: p.grad for name, p in model.named_parameters()}
        model.zero_grad()
        values = ()
        for k in range(3):
            values = partition.module(k, model)(values, {"src": x})
        values.square().sum().backward()
        apart = [(p.grad - wanted[n]).abs().max().item() for n, p in model.named_parameters()]
        leaves = [sum(node.op == "SplitLinear" for node in part.nodes) for part in partition.stages]
        return max(apart), leaves, [part.numel for part in partition.stages]

    held = [part.numel for part in partition_of(traced("encoder")[2], 3).stages]
    for apart, leaves, numel in tv.launch(
        rank, foreign.encoder, vectors(2, 5, 16), world_size=2, progress=False
    ):
        assert apart < 1e-12
        assert sum(leaves) == 4 and all(a <= b for a, b in zip(numel, held)), (leaves, numel, held)
        assert sum(numel) < sum(held)


# -- reports ---------------------------------------------------------------------------------------
def test_the_report_names_modules_inputs_and_what_crosses():
    model, _, graph = traced("gpt2")
    partition = partition_of(graph, 4)
    text = partition.report()
    for said in (
        "transformer.{wte, wpe, drop}",
        "transformer.h.0",
        "inputs    input_ids",
        "(4, 6, 16) float64, 3.07 kB, made on stage 2 in transformer.h.1",
        "(estimate)",
        "tied: transformer.wte.weight (stage 0) = lm_head.weight (stage 3)",
    ):
        assert said in text, text
    assert text.count("\nstage ") == 4 and text == partition_of(graph, 4).report()
    table = partition.to_table()
    assert [len(row) for row in table] == [7] * 5 and all(type(c) is str for r in table for c in r)
    assert "stage 1 computes most, 1.91 times the mean; at most 3.07 kB" in partition.describe()
    assert repr(partition).startswith("Partition(GPT2LMHeadModel in 4 stages of 7 shards")
    assert "<table" in partition._repr_html_()
    scene = partition.scene()
    assert scene == json.loads(json.dumps(scene))
    assert [s["stage"] for s in scene["shards"]] == [0, 0, 1, 1, 2, 2, 3]
    tied = model.lm_head.weight.numel()  # on stages 0 and 3, in a shard of each
    assert scene["numel"] == 7040 and sum(s["numel"] for s in scene["shards"]) == 7040 + tied
    assert scene["stages"][1]["receives"] == scene["stages"][0]["sends"]


def test_doctests_of_the_report():
    done = doctest.testmod(report)
    assert done.attempted and not done.failed


# -- size ------------------------------------------------------------------------------------------
LARGE = """
import resource, sys, torch, transformers
from tpviz.modules.partition import partition_of, trace
with torch.device("meta"):
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_layer=44, n_embd=6144, n_head=64, n_positions=2048))
ids = torch.zeros(1, 2048, dtype=torch.long)
partition = partition_of(trace(model, {"input_ids": ids, "labels": ids}), 8, balance="flops")
stages = [partition.module(k, model) for k in range(8)]
assert all(p.is_meta for stage in stages for p in stage.parameters())
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(partition.graph.numel(partition.graph.parameters), peak, *(
    sum(node.path.endswith(".mlp.c_proj") and bool(node.parameters) for node in part.nodes)
    for part in partition.stages))
"""


def test_a_model_of_20_billion_parameters_is_cut_within_4_gb():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LARGE], capture_output=True, text=True, timeout=150
    )
    assert done.returncode == 0, done.stderr
    numel, peak, *layers = map(int, done.stdout.split())
    print(f"{numel / 1e9:.2f}e9 parameters, peak {peak / 1e9:.2f} GB, layers {layers}")
    assert numel > 20e9 and peak < 4e9
    assert sum(layers) == 44 and max(layers) <= 6


# -- what is refused -------------------------------------------------------------------------------
def refused(match, function, *args, **kwargs):
    with pytest.raises(ValueError, match=match):
        function(*args, **kwargs)


def test_an_untraceable_model_is_told_where_and_what_to_do():
    x = vectors(3, 4)
    refused(
        r"1 \(Branches\), test_merak_partition_limits.py:\d+, `if y.sum\(\) > 0:`, depends on a"
        r" tensor's values.*torch.where",
        trace,
        sequence(Branches()),
        x,
    )
    refused(
        r"calls the leaf 1 \(Branches\).*give it a method shape",
        trace,
        sequence(Branches()),
        x,
        Branches,
    )
    refused(
        r"inner \(Own\), .*`y = Cube.apply\(self.linear\(x\)\)`, calls the autograd function "
        "Cube, whose backward export would lose: give that module's type in leaves=",
        trace,
        Around(Own()),
        x,
    )

    class Sizes(nn.Linear):
        def forward(self, x):
            return super().forward(x[x[:, 0].nonzero()[:, 0]])

    class Writes(nn.Linear):
        def forward(self, x):
            return super().forward(x.add_(1))

    refused(
        "1 makes a tensor whose size depends on values", trace, sequence(Sizes(4, 4).double()), x
    )
    refused("writes into its input x", trace, Writes(4, 4).double(), x)

    class Again(nn.Linear):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=True)

    refused(
        "CheckpointFunction.*activation checkpointing, turn it off",
        trace,
        sequence(Again(4, 4).double()),
        x,
    )


def test_inputs_that_do_not_fit_are_told():
    linear = nn.Linear(4, 4)
    refused(
        "do not fit Linear.forward.*missing a required argument: 'input'",
        trace,
        linear,
        {"x": torch.ones(2, 4)},
    )
    refused("have no tensor", trace, linear, {"input": 3})
    refused(
        r"Linear, linear.py.*same reduction dim.*else correct the inputs",
        trace,
        linear,
        torch.ones(2, 5),
    )
    model, inputs, graph = traced("gpt2")
    refused(
        "traced with the arguments input_ids, attention_mask, labels, not input_ids",
        graph.named,
        inputs["input_ids"],
    )
    refused(
        r"input_ids is torch.int64 \(2, 6\), but the model was traced with .*int64 \(4, 6\)",
        graph.named,
        **{name: t[:2] for name, t in inputs.items()},
    )
    fixed = trace(model, {**inputs, "use_cache": False})
    assert list(fixed.named(**inputs)) == ["input_ids", "attention_mask", "labels"]
    refused("traced with False where now True", fixed.named, **inputs, use_cache=True)


def test_partitions_that_cannot_be_are_told():
    model, inputs, graph = traced("gpt2")
    refused(
        "has 8 shards, 9 stages are too many: use at most 8, .*cross=2.*gives 16$",
        partition_of,
        graph,
        9,
    )
    refused(
        "Linear has 1 shards, 2 stages are too many: use at most 1$",
        partition_of,
        trace(nn.Linear(4, 4), torch.ones(2, 4)),
        2,
    )
    refused(
        r"has 4 shards, 5 stages.*at most 4, or shards=shard\(graph, 'finest'\), which gives 8",
        partition_of,
        graph,
        5,
        shard(graph, 2),
    )
    odd = traced("odd")[2]
    refused(
        r"at most 2, or shards=shard\(graph, 'finest', cross=2\), which gives 5",
        partition_of,
        odd,
        3,
    )
    refused("stages=0 is too small", partition_of, graph, 0)
    refused("balance='even' is not possible", partition_of, graph, 2, balance="even")
    for seconds in ([1, 2], [-1.0] * 7, [float("nan")] * 7):
        refused("needs 7 numbers >= 0, one a shard", partition_of, graph, 2, balance=seconds)
    refused("count='fine' is not possible: use a whole number or 'finest'", shard, graph, "fine")
    refused("count=0 is too small", shard, graph, 0)
    refused("cross=0 is too small", shard, graph, 4, cross=0)
    partition = partition_of(graph, 2)
    refused("stage=2 is too large", partition.module, 2, model)
    refused("this model has no transformer.wte.weight", partition.module, 0, nn.Linear(2, 2))
    refused(
        r"emb.weight is torch.float32 \(32, 16\), but the model was traced with torch.float32 "
        r"\(64, 16\)",
        partition_of(trace(Toy(), words()["input_ids"]), 1).module,
        0,
        Toy(vocab=32),
    )
    first, second = (partition.module(k, model) for k in (0, 1))
    refused(
        "stage 0 needs the inputs input_ids, attention_mask; attention_mask not given",
        first,
        (),
        {"input_ids": inputs["input_ids"]},
    )
    refused("stage 1 receives .add_7., 1 in number, not 0", second, (), inputs)
    refused(
        "input_ids is torch.float32",
        run,
        first,
        (),
        {**inputs, "input_ids": torch.ones(4, 6)},
        True,
    )

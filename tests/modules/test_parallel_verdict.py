"""What `verify_parallel` says: of float32 inside a float64 model, of faults in it, of what is sent
and never waited for; and modules that a trace cannot follow."""

import sys

import cloudpickle
import foreign
import pytest
import torch
import torch.distributed as dist
from torch import nn

import tpviz as tv
from tpviz.modules.layers import SplitLinear

cloudpickle.register_pickle_by_value(sys.modules[__name__])
X = foreign.vectors(8, 8)


class Norm(nn.Module):
    """As Gemma's: in float32, whatever the model is in."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8))

    def forward(self, x):
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6)).to(x) * self.weight


class Block(nn.Sequential):
    def __init__(self):
        super().__init__(Norm(), nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


def blocks():
    return nn.Sequential(Block(), Block(), nn.LayerNorm(8))


def plain():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8))


def spoiled(spoil, make):
    """The verdict of two ranks whose split layers were changed by ``spoil``, in training alone:
    `parallelize` itself compares outputs without gradients."""
    before = SplitLinear.forward
    SplitLinear.forward = lambda layer, x: (
        spoil(layer, x, before) if torch.is_grad_enabled() else before(layer, x)
    )
    try:
        return tv.verify_parallel(make, tv.Megatron(tp=2), X, 1)
    finally:
        SplitLinear.forward = before


def forgotten(layer, x, plain):
    """The second layer's bias twice."""
    y = plain(layer, x)
    return y if layer.part.first else y + layer.bias


def another_sum(layer, x, plain):
    if layer.part.first:
        dist.all_reduce(torch.zeros(1), group=layer.enter.inside)
    return plain(layer, x)


def not_waited(layer, x, plain):
    if layer.part.first:
        layer.work = dist.all_reduce(torch.zeros(1), group=layer.enter.inside, async_op=True)
    return plain(layer, x)


def in_float32(layer, x, plain):
    y = plain(layer, x)
    return y if layer.part.first else y.float().to(y.dtype)


def verdicts(spoil, make):
    return tv.launch(spoiled, spoil, make, world_size=2, progress=False)


def test_modules_in_float32_are_named_and_compared_as_such():
    """Of the first block's norm the input depends on no parameter: it is the same on all ranks."""
    found = tv.verify_parallel(blocks, tv.Megatron(tp=2), X, 2)
    assert found.ok and found.reduced == {"1.0": "float32"}
    assert (
        "1.0 computes in float32: equal within float32 rounding, not compared at float64 level"
    ) in repr(found)
    assert tv.verify_parallel(plain, tv.Megatron(tp=2), X, 1).reduced == {}


def test_a_fault_beside_float32_is_still_a_fault():
    for found in verdicts(forgotten, blocks):
        assert not found.ok and found.errors["outputs"] > 1e-10
        assert "NOT EQUAL within float32 rounding" in repr(found)


def test_one_sum_of_a_float64_model_in_float32_is_flagged():
    assert not any(found.ok for found in verdicts(in_float32, plain))


def test_what_is_sent_too_much_or_never_waited_for_is_flagged():
    for rank, found in enumerate(verdicts(another_sum, plain)):
        assert found.max_error < 1e-10 and not found.ok and not found.unwaited
        assert found.ledger_diff[0].startswith(f"rank {rank}, step 0: tp/all_reduce/forward: run")
    for rank, found in enumerate(verdicts(not_waited, plain)):
        assert found.max_error < 1e-10 and not found.ok
        assert found.unwaited[0].startswith(f"rank {rank}: never waited for all_reduce over tp")


class Tripled(torch.autograd.Function):
    """A backward that is not that of the forward, as of a straight-through estimator."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad):
        return 3 * grad


class Own(nn.Module):
    def forward(self, x):
        return Tripled.apply(x)


def with_own():
    return nn.Sequential(
        *(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), Own()) for _ in range(3))
    )


def mean(y):
    return (y * torch.arange(y[0].numel(), dtype=y.dtype).cos().view_as(y[0])).mean()


def test_a_module_with_an_autograd_function_stays_whole_as_advised():
    pipe = tv.Merak(pp=2, tp=2, microbatches=4)
    with pytest.raises(ValueError, match=r"autograd function Tripled.* type in leaves="):
        tv.parallelize(with_own(), pipe, X, loss=mean)
    found = tv.verify_parallel(with_own, pipe, X, 2, loss=mean, leaves=(Own,))
    assert found.ok and "equal" in repr(found)
    for wrong in (3, "Own", [Own()], Own(), int):
        with pytest.raises(ValueError, match=r"leaves=.*give types of modules"):
            tv.parallelize(with_own(), pipe, X, loss=mean, leaves=wrong)


def mixtral(implementation="eager"):
    transformers, config = foreign._family("Mixtral")
    model = transformers.MixtralForCausalLM(
        config(
            num_hidden_layers=2,
            hidden_size=32,
            num_attention_heads=4,
            num_key_value_heads=4,
            intermediate_size=48,
            vocab_size=20,
            max_position_embeddings=8,
            num_local_experts=4,
            num_experts_per_tok=2,
            **foreign.COMMON,
        )
    )
    model.set_experts_implementation(implementation)
    return model


def logits_mean(output):
    return mean(output.logits)


def test_experts_that_depend_on_values(monkeypatch):
    """Each error says what helps, until nothing is wrong."""
    experts = type(mixtral().model.layers[0].mlp.experts)
    pipe = tv.Merak(pp=2, microbatches=4)
    how = {"loss": logits_mean}
    with pytest.raises(ValueError, match=r"values.*give that module's type in leaves="):
        tv.parallelize(mixtral(), pipe, foreign.tokens(8), **how)
    how["leaves"] = (experts,)
    with pytest.raises(ValueError, match=r"Experts.shape = lambda self, x, .others: x.shape"):
        tv.parallelize(mixtral(), pipe, foreign.tokens(8), **how)
    monkeypatch.setattr(experts, "shape", lambda self, x, *others: x.shape, raising=False)
    assert tv.parallelize(mixtral(), pipe, foreign.tokens(8), **how).report.partition.stages
    with pytest.raises(ValueError, match=r"does not run in float64.*implementation..eager"):
        tv.verify_parallel(
            lambda: mixtral("grouped_mm"), tv.AxoNN(2, 1, 1, 1), foreign.tokens(8), easy=True
        )


@pytest.mark.parametrize(
    "wrong",
    [
        {"first": 3},
        {"first": [1]},
        {"first": ""},
        {"second": None},
        {"second": ["*.b"]},
        {"divide": 4},
        {"owner": [None]},
        {"name": 3},
        {"kind": []},
        {"fused": 3},
        *({"kind": "attention", "heads": value} for value in (10**40, 2.5, True, -1, " ")),
    ],
)
def test_a_wrong_pair_is_refused_at_once(wrong):
    with pytest.raises(ValueError, match=next(reversed(wrong))):
        tv.Pair(**{"first": "*.a", "second": "*.b"} | wrong)


@pytest.mark.parametrize("wrong", [3, "x", [3], [{}], [{"first": "a"}], {1: 2}])
def test_wrong_rules_are_refused_at_once(wrong):
    with pytest.raises(ValueError, match=r"rules?[= ].*use tv.Pair"):
        tv.parallelize(plain(), tv.ATP(), rules=wrong)


def mamba2():
    transformers, config = foreign._family("Mamba2")
    sizes = {"hidden_size": 48, "num_heads": 12, "head_dim": 8, "state_size": 8, "n_groups": 2}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    made = config(vocab_size=56, num_hidden_layers=2, chunk_size=4, expand=2, **sizes, **ids)
    return transformers.Mamba2ForCausalLM(made)


def test_a_model_that_gives_logits_in_float32():
    """Its loss has 24 bits: that of changed parameters may be the same."""
    ids = torch.randint(3, 56, (8, 7), generator=torch.Generator().manual_seed(91))
    inputs = {"input_ids": ids, "use_cache": False}
    found = tv.verify_parallel(
        mamba2, tv.Merak(pp=2, microbatches=4), inputs, 2, loss=lambda o: mean(o.logits)
    )
    assert found.ok and found.reduced["the model (Mamba2ForCausalLM)"] == "float32"

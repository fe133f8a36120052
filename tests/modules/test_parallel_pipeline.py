"""Models that tpviz did not write, unmodified, as pipelines: the same losses, gradients and
parameters as in one process, in float64. One world of four ranks, which keeps its imports; smaller
meshes lie in it. Every rank traces the model, so Hugging Face's are few; bench/sweep_foreign.py
has them all."""

import foreign
import pytest
import torch
import torch.distributed as dist
from torch import nn

import tpviz as tv

PLAIN = tv.Merak(pp=2, tp=2, microbatches=4)
DEEP = tv.Merak(pp=4, schedule="zb_h1")
RECOMPUTED = tv.Merak(pp=2, recompute="stage_aware", keep=0.5, schedule="interleaved_1f1b")


def mesh_of(strategy):
    """Of the strategy's ranks, with copies where it has fewer than the world."""
    copies = {"copies": dist.get_world_size() // strategy.world_size}
    return tv.Mesh({**copies, **strategy.axes}).device_mesh()


def every_pipeline(make, inputs, strategies, loss):
    """[(strategy, error, where)] of one rank."""
    found = []
    for strategy in strategies:
        mesh = mesh_of(strategy)
        v = tv.verify_parallel(make, strategy, inputs, 2, mesh=mesh, loss=loss)
        found.append((repr(v), v.max_error, v.ok))
    return found


def check(make, inputs, *strategies):
    job = every_pipeline, make, inputs, strategies, foreign.weighted
    for found in tv.launch(*job, world_size=4, progress=False, timeout=150):
        assert all(ok for _, _, ok in found), found


@pytest.mark.parametrize(
    "make, strategy",
    [
        (foreign.gpt2, DEEP),
        (foreign.llama, PLAIN),
        (foreign.opt, RECOMPUTED),
        (foreign.bert, PLAIN),
    ],
    ids=lambda value: getattr(value, "__name__", getattr(value, "short", None)),
)
def test_hugging_face(make, strategy):
    """GPT-2 on the plain one: in test_parallel_trainer."""
    check(make, foreign.tokens(8), strategy)


def test_torchs_own():
    check(foreign.encoder, foreign.vectors(foreign.WIDTH, 8), PLAIN)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)) for _ in range(5)
        )
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x, scale):
        x = self.frozen(x)
        for part in self.parts:
            x = x + torch.tanh(part(x)) * scale
        return x


def test_own_modules_with_an_input_that_all_share():
    inputs = foreign.vectors(8, 16), torch.linspace(0.5, 1.5, 8, dtype=torch.float64)
    check(Residual, inputs, tv.Merak(pp=2, dp=2), tv.Merak(pp=2, schedule="dualpipe_v"))


def labelled(strategy):
    """(loss of the pipeline, of one process) of a model that computes its own, in float32."""
    ids = foreign.tokens(8)
    ids["labels"] = ids["input_ids"]
    torch.manual_seed(0)
    whole = foreign.gpt2().eval()
    torch.manual_seed(0)
    model = tv.parallelize(foreign.gpt2().eval(), strategy, ids, mesh=mesh_of(strategy))
    loss = model.step(**ids)
    return (None if loss is None else float(loss)), float(whole(**ids).loss.detach())


def test_a_model_with_a_loss_of_its_own():
    job = labelled, tv.Merak(pp=2, microbatches=4)
    found = tv.launch(*job, world_size=4, progress=False, timeout=150)
    for (first, _), (last, expected) in (found[:2], found[2:]):
        assert first is None and last == pytest.approx(expected, rel=1e-6)


class Dropping(nn.Module):
    """Half of everything is dropped, layer by layer."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

    def forward(self, x):
        for layer in self.layers:
            x = x + nn.functional.dropout(layer(x), 0.5, self.training)
        return x.square().mean()


def dropped(recompute):
    """The gradients of a step with dropout."""
    torch.manual_seed(0)
    strategy = tv.Merak(pp=2, schedule="1f1b", recompute=recompute)
    model = tv.parallelize(Dropping(), strategy, torch.ones(8, 8), mesh=mesh_of(strategy))
    torch.manual_seed(5)
    model.step(torch.ones(8, 8))
    return model.full_gradients()


def test_recomputation_draws_the_same_random_numbers():
    both = lambda: [dropped(recompute) for recompute in ("none", "full")]
    for none, full in tv.launch(both, world_size=4, progress=False):
        assert all(torch.equal(none[name], full[name]) for name in none)


# -- outside of ranks ----------------------------------------------------------------------------
def test_the_plan():
    model = tv.parallelize(foreign.gpt2(), tv.Merak(pp=2, tp=2), foreign.tokens(4))
    words = model.report.describe()
    assert "would run" in words and "transformer.h.0" in words
    assert len(model.report.to_table()) == 3
    assert not list(model.parameters())
    with pytest.raises(ValueError, match="this is a plan: inside ranks"):
        model.step(**foreign.tokens(4))
    with pytest.raises(TypeError, match=r"use loss = model.step"):
        model(**foreign.tokens(4))


@pytest.mark.parametrize(
    "strategy, inputs, more, message",
    [
        (
            tv.Merak(microbatches=3, schedule="gpipe"),
            foreign.tokens(8),
            {},
            r"batch=8 does not split .*microbatches=3",
        ),
        (tv.Merak(), None, {}, "give example_inputs, a whole batch"),
        (tv.Merak(pp=64, microbatches=64), foreign.tokens(64), {}, "64 stages are too many"),
        (tv.Merak(), foreign.tokens(8), {"batch_dim": 5}, "no tensor with a dim 5"),
        (tv.Megatron(tp=2), foreign.tokens(8), {"batch_dim": 0}, "batch_dim are about pipelines"),
    ],
)
def test_bad_input(strategy, inputs, more, message):
    with pytest.raises(ValueError, match=message):
        tv.parallelize(foreign.gpt2(), strategy, inputs, **more)

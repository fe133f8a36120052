"""Models that tpviz did not write, unmodified, as pipelines: the same losses, gradients and
parameters as in one process, in float64. Worlds of eight and of four ranks; smaller meshes
lie in them."""

import foreign
import pytest
import torch
import torch.distributed as dist
from torch import nn

import tpviz as tv

MERAK = [
    tv.Merak(pp=2, tp=2, dp=2, microbatches=4),
    tv.Merak(pp=4, dp=2, schedule="zb_h1"),
    tv.Merak(pp=2, recompute="stage_aware", keep=0.5, schedule="interleaved_1f1b"),
]
FOUR = [tv.Merak(pp=2, tp=2, microbatches=4)]


def weighted(output):
    """A mean over rows in which no element's part is another's."""
    x = getattr(output, "logits", output)
    return (x * torch.arange(x[0].numel(), dtype=x.dtype).cos().view_as(x[0])).mean()


def every_pipeline(make, inputs, strategies, loss):
    """[(strategy, error, where)] of one rank."""
    found = []
    for strategy in strategies:
        mesh = None
        if strategy.world_size < dist.get_world_size():
            copies = {"copies": dist.get_world_size() // strategy.world_size}
            mesh = tv.Mesh({**copies, **strategy.axes}).device_mesh()
        v = tv.verify_parallel(make, strategy, inputs, 3, mesh=mesh, loss=loss)
        found.append((repr(v), v.max_error, v.ok))
    return found


def check(make, inputs, strategies=MERAK[:1], ranks=8):
    """With copies of the strategy's ranks where it has fewer. Every rank exports the model."""
    job = every_pipeline, make, inputs, strategies, weighted
    for found in tv.launch(*job, world_size=ranks, progress=False, timeout=150):
        assert all(ok for _, _, ok in found), found


def test_gpt2():
    check(foreign.gpt2, foreign.tokens(8), MERAK)


@pytest.mark.parametrize("make", [foreign.llama, foreign.opt, foreign.bert])
def test_hugging_face(make):
    check(make, foreign.tokens(8), FOUR, ranks=4)


def test_torchs_own():
    check(foreign.encoder, foreign.vectors(foreign.WIDTH, 8), FOUR, ranks=4)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(8, 8) for _ in range(5))
        self.frozen = nn.Linear(8, 8).requires_grad_(False)

    def forward(self, x, scale):
        x = self.frozen(x)
        for part in self.parts:
            x = x + torch.tanh(part(x)) * scale
        return x


def test_own_modules_with_an_input_that_all_share():
    inputs = foreign.vectors(8, 16), torch.linspace(0.5, 1.5, 8, dtype=torch.float64)
    check(Residual, inputs, [tv.Merak(pp=4, dp=2), tv.Merak(pp=2, schedule="dualpipe_v")])


def labelled(strategy):
    """(loss of the pipeline, of one process) of a model that computes its own, in float32."""
    ids = foreign.tokens(8)
    ids["labels"] = ids["input_ids"]
    torch.manual_seed(0)
    whole = foreign.gpt2().eval()
    torch.manual_seed(0)
    model = tv.parallelize(foreign.gpt2().eval(), strategy, ids)
    loss = model.step(**ids)
    return (None if loss is None else float(loss)), float(whole(**ids).loss.detach())


def test_a_model_with_a_loss_of_its_own():
    found = tv.launch(labelled, tv.Merak(pp=2, microbatches=4), world_size=2, progress=False)
    assert found[0][0] is None
    assert found[1][0] == pytest.approx(found[1][1], rel=1e-6)


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
    """The gradients of a step with dropout; recomputation must drop the same."""
    torch.manual_seed(0)
    strategy = tv.Merak(pp=2, schedule="1f1b", recompute=recompute)
    model = tv.parallelize(Dropping(), strategy, torch.ones(8, 8))
    torch.manual_seed(5)
    model.step(torch.ones(8, 8))
    return model.full_gradients()


def test_recomputation_draws_the_same_random_numbers():
    none, full = (
        tv.launch(dropped, recompute, world_size=2, progress=False)[0]
        for recompute in ("none", "full")
    )
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
